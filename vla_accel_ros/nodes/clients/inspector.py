"""An observer of a running robot: sends requests to its nodes, watches its streams, and changes nothing.

It has its own ROS context and spins only while it waits for something. Messages go through the same Ingest as
in the inference node, so the same ones are refused or missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.srv import GetState
from rcl_interfaces.srv import GetParameters
from rclpy.logging import LoggingSeverity, set_logger_level
from rclpy.parameter import Parameter, parameter_value_to_python
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, JointState

from vla_accel_msgs.msg import FrameHandle, Motion
from vla_accel_msgs.msg import Inputs as InputsMessage
from vla_accel_ros.contract.checks.controller_check import Sender
from vla_accel_ros.contract.checks.findings import Finding
from vla_accel_ros.contract.checks.graph_check import (
    TF_STATIC,
    fitting,
    inputs,
    odometry,
    outputs,
    transforms,
)
from vla_accel_ros.contract.contract import Camera, Contract
from vla_accel_ros.nodes.clients.client_node import ClientNode
from vla_accel_ros.nodes.controllers.parameters import ControllerCheck
from vla_accel_ros.nodes.graph import endpoints, look, publishers
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.qos import ALL_LATCHED, LATCHED, REPORT, TRANSFORMS
from vla_accel_ros.nodes.running.executor import DirectExecutor
from vla_accel_ros.recording.robots import of_robot
from vla_accel_ros.sensing.arrivals import Arrival, Inputs, Watched
from vla_accel_ros.sensing.cameras.image import compressed_view, image_view
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.sensing.transforms import transforms_of

ANSWER_S = 4.0
DISCOVERY_S = 5.0
POLL_S = 0.05
# A publisher whose first message to a new subscription is lost repeats it after Fast DDS' heartbeat of 3 s.
MATCH_S = 4.0
# Deep enough that this process, which is slower per message than a node, loses none by itself.
_SENSOR = QoSProfile(depth=20, reliability=ReliabilityPolicy.BEST_EFFORT)


class Inspector(ClientNode):
    """In the graph of this process's environment, in a robot's namespace. A context manager."""

    def __init__(self, namespace: str = "") -> None:
        super().__init__(namespace, "doctor", DirectExecutor)
        # Its log messages would repeat the findings.
        set_logger_level(self._node.get_logger().name, LoggingSeverity.FATAL)
        self._diagnostics: dict[str, DiagnosticStatus] = {}
        self._node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, REPORT)
        self._check: ControllerCheck | None = None
        self.motion: tuple[str, tuple[str, ...]] | None = None
        """The last reported state of motion of the trajectory node, and its reasons; None before any."""
        self.inputs: Inputs | None = None
        """The last report of the inference node about its inputs; None before any."""
        self._node.create_subscription(Motion, "motion", self._on_motion, LATCHED)
        self._node.create_subscription(InputsMessage, "inputs", self._on_inputs, REPORT)

    @property
    def rmw(self) -> str:
        """The middleware of this process."""
        return rclpy.get_rmw_implementation_identifier()

    def discover(self, expected: Sequence[str], timeout_s: float = DISCOVERY_S) -> list[str]:
        """Wait until these nodes are in the graph, at most timeout_s; returns the full names of all other
        nodes."""
        end = time.monotonic() + timeout_s
        while not set(expected) <= set(names := self._nodes()) and time.monotonic() < end:
            self._spin(POLL_S)
        return names

    def name(self, relative: str) -> str:
        """The full name of a node in the robot's namespace."""
        return f"{self._node.get_namespace().rstrip('/')}/{relative}"

    def parameters(self, node: str, names: Sequence[str]) -> dict[str, Any]:
        """Values of a node's parameters; without those that it does not have, and empty if it does not
        answer."""
        request = GetParameters.Request(names=list(names))
        answer = self._ask(GetParameters, f"{node}/get_parameters", request)
        values = [] if answer is None else [parameter_value_to_python(value) for value in answer.values]
        return {name: value for name, value in zip(names, values) if value is not None}

    def state(self, node: str) -> str:
        """A lifecycle node's state; empty if it does not answer."""
        answer = self._ask(GetState, f"{node}/get_state", GetState.Request())
        return "" if answer is None else answer.current_state.label

    def use_sim_time(self) -> None:
        """Take the time from /clock."""
        self._node.set_parameters([Parameter("use_sim_time", value=True)])

    def look(self, contract: Contract) -> list[Finding]:
        """The findings about the contract's topics in the present graph."""
        return look(self._node, [*inputs(contract), *outputs(contract)], contract.joint_states.topic)

    def publishers(self, topic: str) -> list[str]:
        """Full names of the nodes that publish a topic, one for every publisher."""
        return sorted(publishers(self._node, topic))

    def unheard(self, contract: Contract) -> list[str]:
        """The topics of commands that nobody would execute."""
        sources = self.publishers(contract.joint_states.topic)
        names = {topic: self._node.resolve_topic_name(topic.topic) for topic in outputs(contract)}
        return [
            topic.topic
            for topic, name in names.items()
            if not fitting(topic, endpoints(self._node, name, ours=True), sources)
        ]

    def ask_controllers(self, contract: Contract, sender: Sender) -> None:
        """Request each controller's parameters while this spins, until `controllers` is called."""
        self._check = ControllerCheck(self._node, contract.controllers, sender)
        self._answered_by_s = time.monotonic() + ANSWER_S

    def controllers(self, contract: Contract) -> dict[str, list[Finding] | None]:
        """The findings about each controller's parameters, by topic; None for one that does not answer."""
        check, self._check = self._check, None
        assert check is not None, "they were not asked"
        while time.monotonic() < self._answered_by_s and len(check.found) < len(contract.controllers):
            check.poll()
            self._spin(POLL_S)
        check.close()
        return {controller.topic: check.found.get(controller.topic) for controller in contract.controllers}

    def diagnostics(self) -> dict[str, DiagnosticStatus]:
        """The newest diagnostics of this robot's nodes, by "<node>: <item>"."""
        return dict(self._diagnostics)

    def watch(self, contract: Contract, seconds: float) -> Watched:
        """Receive every stream of the contract for this long, starting when each has arrived once or after
        MATCH_S."""
        watched, ingest = Watched(), Ingest(contract)
        ingest.instruction = "look"
        opened = [self._watch_camera(camera, ingest, watched) for camera in contract.cameras]
        topic = contract.joint_states.topic
        opened.append(self._subscribe(JointState, topic, partial(self._on_joints, ingest, watched)))
        for wanted in odometry(contract):
            on_odometry = partial(self._on_odometry, contract.base, ingest, watched)
            opened.append(self._subscribe(interface(wanted.type, wanted.about), wanted.topic, on_odometry))
        for tf in transforms(contract):
            static, kind = tf.topic == TF_STATIC, interface(tf.type, tf.about)
            profile, on_tf = ALL_LATCHED if static else TRANSFORMS, partial(self._on_tf, ingest, static)
            opened.append(self._node.create_subscription(kind, tf.topic, on_tf, profile))
        for camera in contract.cameras:
            if camera.info:
                on_info = partial(self._on_info, camera.name, ingest, watched)
                opened.append(self._subscribe(CameraInfo, camera.info, on_info))
        streams = [f"camera/{camera.name}" for camera in contract.cameras] + ["joint_states"]
        self._spin(MATCH_S, until=lambda: all(map(watched.arrivals.get, streams)))
        self._spin(seconds)
        watched.ended_s = time.monotonic()
        for subscription in opened:
            self._node.destroy_subscription(subscription)
        ingest.close()
        return watched

    def _watch_camera(self, camera: Camera, ingest: Ingest, seen: Watched) -> Any:
        stream = f"camera/{camera.name}"
        seen.arrivals[stream], seen.refused[stream] = [], []

        def on_bytes(view: Callable, take: Callable, message: bytes) -> None:
            self._arrived(stream, seen, lambda: view(message).stamp_ns, len(message))
            self._take(stream, ingest, seen, lambda now_ns: take(camera.name, message, now_ns))

        def on_handle(message: FrameHandle) -> None:
            handle = convert.handle_from_message(message)
            self._arrived(stream, seen, lambda: handle.stamp_ns)
            self._take(stream, ingest, seen, lambda now_ns: ingest.handle(camera.name, handle, now_ns))

        if camera.transport == "ring":
            return self._subscribe(FrameHandle, camera.topic, on_handle)
        if camera.transport == "compressed":
            on_message = partial(on_bytes, compressed_view, ingest.compressed)
            return self._subscribe(CompressedImage, camera.topic, on_message, raw=True)
        return self._subscribe(Image, camera.topic, partial(on_bytes, image_view, ingest.image), raw=True)

    def _on_joints(self, ingest: Ingest, seen: Watched, message: JointState) -> None:
        stamp_ns = convert.stamp_ns(message.header.stamp)
        seen.joints.update(zip(message.name, message.position))
        self._arrived("joint_states", seen, lambda: stamp_ns)
        take = partial(ingest.joints, message.name, message.position, stamp_ns)
        self._take("joint_states", ingest, seen, take)

    def _on_odometry(self, base: Any, ingest: Ingest, seen: Watched, message: Any) -> None:
        stamp_ns, speeds = convert.stamp_ns(message.header.stamp), base.velocities(message.twist.twist)
        take = partial(ingest.joints, base.names, speeds, stamp_ns)
        self._take("odometry", ingest, seen, take)

    def _on_tf(self, ingest: Ingest, static: bool, message: Any) -> None:
        now_ns = self._node.get_clock().now().nanoseconds
        ingest.transforms(transforms_of(message), static, now_ns)

    def _on_info(self, camera: str, ingest: Ingest, seen: Watched, message: CameraInfo) -> None:
        mismatch = ingest.mismatch(camera, message.height, message.width)
        if mismatch and mismatch not in seen.mismatches:
            seen.mismatches.append(mismatch)

    def _arrived(self, stream: str, seen: Watched, stamp_ns: Callable[[], int], size: int = 0) -> None:
        now_ns, steady_s = self._node.get_clock().now().nanoseconds, time.monotonic()
        try:
            arrival = Arrival(stamp_ns(), now_ns, steady_s, size)
        except ValueError:
            return  # the ingest refuses it with a sentence
        seen.arrivals.setdefault(stream, []).append(arrival)

    def _take(self, stream: str, ingest: Ingest, seen: Watched, take: Callable[[int], object]) -> None:
        now_ns = self._node.get_clock().now().nanoseconds
        try:
            take(now_ns)
        except ValueError as refusal:
            seen.refused.setdefault(stream, []).append(str(refusal))
            return
        if ingest.observe(now_ns) is not None:
            seen.observations += 1
            ingest.observed()
        seen.waiting_for = ingest.waiting_for

    def _subscribe(self, kind: type, topic: str, callback: Callable, raw: bool = False) -> Any:
        return self._node.create_subscription(kind, topic, callback, _SENSOR, raw=raw)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        self._diagnostics |= of_robot(self._node.get_namespace(), message.status)

    def _on_motion(self, message: Motion) -> None:
        self.motion = convert.execution_from_message(message).state, tuple(message.reasons)

    def _on_inputs(self, message: InputsMessage) -> None:
        with suppress(ValueError):
            self.inputs = convert.inputs_from_message(message)

    def _nodes(self) -> list[str]:
        pairs = self._node.get_node_names_and_namespaces()
        names = {f"{namespace.rstrip('/')}/{name}" for name, namespace in pairs}
        return sorted(names - {self._node.get_fully_qualified_name()})

    def _ask(self, kind: type, service: str, request: object) -> Any:
        with suppress(TimeoutError):
            return self._call(kind, service, request, ANSWER_S)
        return None

    def _spin(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        end = time.monotonic() + seconds
        while not until() and (remaining_s := end - time.monotonic()) > 0.0:
            if self._check is not None:
                self._check.poll()
                remaining_s = min(remaining_s, POLL_S)
            self._executor.spin_once(timeout_sec=remaining_s)
