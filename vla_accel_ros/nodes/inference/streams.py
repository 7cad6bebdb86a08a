"""The cameras and the joints of a contract as subscriptions of a node, and their diagnostics.

Images arrive as serialized bytes, so that their pixels are copied only once, into their slot; for a frame in
a shared-memory ring only the handle arrives. Unusable messages are logged with one sentence, and counted.
CameraInfo is optional and only compared: the policy sees the pixels as they are. The graph tells why a stream
is silent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from diagnostic_msgs.msg import DiagnosticStatus
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, JointState

from vla_accel_msgs.msg import FrameHandle
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.graph_check import chunks, inputs, words
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.nodes.graph import GraphCheck
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.throttled import AGAIN_S, Throttled
from vla_accel_ros.sensing.ingest import Ingest


class Streams:
    """Subscribes to every stream of the contract until the node's release; fills `ingest` while the node is
    active. joints_came: called after each message of joints. Raises ValueError if a topic has another type,
    or QoS that lets nothing through."""

    def __init__(
        self,
        node: ManagedNode,
        contract: Contract,
        ingest: Ingest,
        joints_came: Callable[[], None] = lambda: None,
    ) -> None:
        self._node, self._ingest, self._joints_came = node, ingest, joints_came
        self._lost = dict.fromkeys((camera.name for camera in contract.cameras), 0)
        self._told, self._slow = set[str](), Throttled(node, AGAIN_S)
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
        node.on_release(ingest.close)
        topics = inputs(contract)
        self._fields = {f"cameras.{name}.topic": name for name in self._lost} | {
            "joint_states.topic": "joint_states"
        }
        self._graph = GraphCheck(node, topics, [words(), chunks(ours=True)], reasons=self._fields)
        self._graph.refuse_wrong()
        self.warn(node.now_ns())

    def warn(self, now_ns: int) -> None:
        """Look at the graph, and log the streams that come too slowly; one that does not come at all is a
        reason to stand."""
        self._graph.poll()
        self._ingest.causes = {name: self._graph.why(field) for field, name in self._fields.items()}
        there = [monitor for monitor in self._ingest.monitors.values() if monitor.rate_hz(now_ns)]
        slow = [monitor.warning(now_ns) for monitor in there]
        if any(slow):
            self._slow.warning("\n".join(filter(None, slow)))

    def statuses(self, now_ns: int) -> list[DiagnosticStatus]:
        """A line of diagnostics for the graph, and one for each stream."""
        lines = [self._graph.status()]
        for name, monitor in self._ingest.monitors.items():
            age_s = monitor.age_s(now_ns)
            values = {
                "rate [Hz]": monitor.rate_hz(now_ns),
                "expected [Hz]": monitor.expected_hz,
                "age [s]": "never seen" if age_s is None else age_s,
                "drops": monitor.drops,
                "refused": self._ingest.refused[name],
            }
            warning = self._ingest.problem(name, now_ns)
            if name in self._lost:
                warning = warning or self._losses(name)
                values["lost"] = self._lost[name]
            if name in self._ingest.rings.cameras:
                values["memory of the ring"] = self._ingest.rings.page_lock(name).state
            lines.append(status(f"stream {name}", WARN if warning else OK, warning or "on time", values))
        return lines

    def _losses(self, camera: str) -> str:
        """A sentence if frames were lost since the last call, else empty."""
        before, self._lost[camera] = self._lost[camera], self._ingest.lost(camera)
        new = self._lost[camera] - before
        if not new:
            return ""
        return (
            f"{new} frames were overwritten before they were used, or found no free slot: give the camera's "
            "ring more slots"
        )

    def _on_bytes(self, camera: str, take: Callable[[str, bytes, int], None], message: bytes) -> None:
        self._try(camera, lambda now_ns: take(camera, message, now_ns))

    def _on_handle(self, camera: str, message: FrameHandle) -> None:
        handle = convert.handle_from_message(message)
        self._try(camera, lambda now_ns: self._ingest.handle(camera, handle, now_ns))

    def _on_joints(self, message: JointState) -> None:
        stamp_ns = convert.stamp_ns(message.header.stamp)
        names, positions = message.name, message.position
        self._try("joint_states", lambda now_ns: self._ingest.joints(names, positions, stamp_ns, now_ns))
        self._joints_came()

    def _on_info(self, camera: str, message: CameraInfo) -> None:
        self._ingest.info(camera, message.height, message.width)
        mismatch = "" if camera in self._told else self._ingest.mismatch(camera)
        if mismatch:
            self._told.add(camera)
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
