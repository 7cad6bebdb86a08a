"""The cameras and the joints of a contract as subscriptions of a node.

Images arrive as serialized bytes, so that their pixels are copied only once, into their slot; for a frame in
a shared-memory ring only the handle arrives. Unusable messages are logged with one sentence, and counted.
CameraInfo is optional and only compared: the policy sees the pixels as they are. The graph tells why a stream
is silent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, JointState

from vla_accel_msgs.msg import FrameHandle
from vla_accel_ros.contract.checks.graph_check import TF_STATIC, chunks, inputs, odometry, transforms, words
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.nodes.graph import GraphCheck
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.throttled import AGAIN_S, Throttled
from vla_accel_ros.sensing.inputs import RobotInputs
from vla_accel_ros.sensing.transforms import transforms_of


class Streams:
    """Subscribes to every stream of the contract until the node's release; fills `robot` while the node is
    active. joints_came: called after each message of joints. Raises ValueError if a topic has another type,
    or QoS that lets nothing through."""

    def __init__(
        self,
        node: ManagedNode,
        contract: Contract,
        robot: RobotInputs,
        joints_came: Callable[[], None] = lambda: None,
    ) -> None:
        self._node, self._robot, self._joints_came = node, robot, joints_came
        self._base = contract.base
        self._slow = Throttled(node, AGAIN_S)
        ingest = robot.ingest
        self._refused = {name: Throttled(node, AGAIN_S) for name in ingest.monitors}
        for camera in contract.cameras:
            if camera.transport == "ring":
                node.listen(FrameHandle, camera.topic, partial(self._on_handle, camera.name), qos.SENSOR)
            else:
                compressed = camera.transport == "compressed"
                kind, take = (CompressedImage, ingest.compressed) if compressed else (Image, ingest.image)
                on_bytes = partial(self._on_bytes, camera.name, take)
                node.listen(kind, camera.topic, on_bytes, qos.SENSOR, raw=True)
            if camera.info:
                node.listen(CameraInfo, camera.info, partial(self._on_info, camera.name), qos.SENSOR)
        node.listen(JointState, contract.joint_states.topic, self._on_joints, qos.SENSOR)
        for topic in odometry(contract):
            node.listen(interface(topic.type, topic.about), topic.topic, self._on_odometry, qos.SENSOR)
        for topic in transforms(contract):
            static = topic.topic == TF_STATIC
            profile = qos.ALL_LATCHED if static else qos.TRANSFORMS
            on_tf = partial(self._on_transforms, static)
            node.listen(interface(topic.type, topic.about), topic.topic, on_tf, profile)
        node.on_release(ingest.close)
        self._fields = {f"cameras.{camera.name}.topic": camera.name for camera in contract.cameras}
        self._fields["joint_states.topic"] = "joint_states"
        self._fields |= {topic.about: stream for topic, stream in zip(transforms(contract), contract.tf)}
        unlisted = [words(), chunks(ours=True)]
        self._graph = GraphCheck(node, inputs(contract), unlisted, reasons=self._fields)
        self._graph.refuse_wrong()
        self.warn(node.now_ns())

    def warn(self, now_ns: int) -> None:
        """Look at the graph, and log the streams that come too slowly."""
        self._graph.poll()
        self._robot.ingest.causes = {name: self._graph.why(field) for field, name in self._fields.items()}
        if slow := self._robot.slow_streams(now_ns):
            self._slow.warning("\n".join(slow))

    def statuses(self, now_ns: int) -> list[DiagnosticStatus]:
        """A line of diagnostics for the graph, and one for each stream."""
        return [
            self._graph.status(),
            *(
                status(f"stream {s.name}", WARN if s.problem else OK, s.problem or "on time", s.values)
                for s in self._robot.stream_states(now_ns)
            ),
        ]

    def _on_bytes(self, camera: str, take: Callable[[str, bytes, int], None], message: bytes) -> None:
        self._try(camera, lambda now_ns: take(camera, message, now_ns))

    def _on_handle(self, camera: str, message: FrameHandle) -> None:
        handle = convert.handle_from_message(message)
        self._try(camera, lambda now_ns: self._robot.ingest.handle(camera, handle, now_ns))

    def _on_joints(self, message: JointState) -> None:
        stamp_ns = convert.stamp_ns(message.header.stamp)
        take, names, positions = self._robot.ingest.joints, message.name, message.position
        self._try("joint_states", lambda now_ns: take(names, positions, stamp_ns, now_ns))
        self._joints_came()

    def _on_odometry(self, message: Any) -> None:
        stamp_ns, take, base = convert.stamp_ns(message.header.stamp), self._robot.ingest.joints, self._base
        assert base is not None
        speeds = base.velocities(message.twist.twist)
        self._try("joint_states", lambda now_ns: take(base.names, speeds, stamp_ns, now_ns))

    def _on_transforms(self, static: bool, message: Any) -> None:
        if static or self._node.active:  # static ones are sent once, and wait for the activation
            self._robot.ingest.transforms(transforms_of(message), static, self._node.now_ns())

    def _on_info(self, camera: str, message: CameraInfo) -> None:
        if mismatch := self._robot.info(camera, message.height, message.width):
            self._node.get_logger().warning(mismatch)

    def _try(self, stream: str, take: Callable[[int], None]) -> None:
        """Take a message while active."""
        if not self._node.active:
            return
        now_ns = self._node.now_ns()
        try:
            take(now_ns)
        except ValueError as refusal:
            self._refused[stream].error(str(refusal))
