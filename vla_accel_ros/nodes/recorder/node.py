"""The lifecycle node that records a bag, from which every chunk can be computed again.

It records while it is active: a bag begins with activation and ends with deactivation. Messages arrive
serialized and go into the bag as they are; only frames of a shared-memory ring are converted to images,
because a handle can be played nowhere else. The contract determines what is recorded
(nodes/recorder/topics.py). A separate thread writes (recording/background_writer.py); what it drops, and why
it has ended, is logged once and in the diagnostics. The services ~/start, success, failure, stop and discard
mark episodes in the bag (recording/marks.py).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from rclpy.subscription import Subscription
from std_msgs.msg import String
from std_srvs.srv import Trigger

from vla_accel_msgs.msg import FrameHandle, Session
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import instruction_topic
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.diagnostics import ERROR, OK, WARN, status
from vla_accel_ros.nodes.interfaces import definition, digest, type_name
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.params.recorder import RECORDER
from vla_accel_ros.nodes.recorder.topics import Recorded, recorded
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.nodes.throttled import Throttled
from vla_accel_ros.recording.background_writer import Recording
from vla_accel_ros.recording.marks import EVENTS, TOPIC, Marks, text_of
from vla_accel_ros.recording.mcap_writer import McapBag
from vla_accel_ros.recording.topic import Topic
from vla_accel_ros.sensing.cameras.frames import NotReady
from vla_accel_ros.sensing.cameras.image import image_message
from vla_accel_ros.sensing.cameras.ring_reader import RingReader

_LOOK_S = 0.1
# After LONGEST_S (nodes/running/shutdown.py) a process that was asked to end is killed.
_PATIENCE_S = 0.7


class RecorderNode(ManagedNode):
    """The node recorder; see the module docstring and nodes/params/recorder.py."""

    def __init__(self) -> None:
        super().__init__("recorder", RECORDER, "recording")
        self._subscriptions_of_bag: list[Subscription] = []
        self._refusal = Throttled(self, 1.0)

    def configure(self) -> None:
        self._contract = Contract.load(value(self, "contract") or demo_contract())
        self.reporter.hardware_id = self._contract.robot
        self._wanted = recorded(self._contract)
        for entry in self._wanted:
            definition(entry.bag_type)  # report a type that is not installed now
        for event in EVENTS:
            self.serve(Trigger, f"~/{event}", partial(self._mark, event))
        self.every(_LOOK_S, self._look)
        self.every(1.0, self._tell)

    def activate(self) -> None:
        bag = McapBag(self._new_folder(self._contract.robot), value(self, "compression"))
        self._recording = Recording(bag, value(self, "queue_mb") << 20, value(self, "keep_free_mb") << 20)
        self._marks, self._marked = Marks(), False
        self._told_drops, self._told_trouble = False, False
        self._reported_drops = 0
        self._lost: Counter[str] = Counter()
        rings = {e.camera: "" for e in self._wanted if e.kind is FrameHandle}
        self._rings = RingReader(rings, copy=True, page_lock=False)
        self._awaited = []
        for entry in self._wanted:
            if entry.ours:
                self._subscribe(entry, reliable=True)
            else:
                self._awaited.append(entry)
        self._look()
        self.get_logger().info(f"recording to {self._recording.path}")

    def deactivate(self) -> None:
        for subscription in self._subscriptions_of_bag:
            self.destroy_subscription(subscription)
        self._subscriptions_of_bag.clear()
        self._rings.close()
        self._recording.close(_PATIENCE_S)
        self._tell()
        messages, dropped = self._recording.written.total(), self._recording.dropped.total()
        self.get_logger().info(
            f"recorded {messages} messages, {self._recording.bytes_written / 1e6:.0f} MB, in "
            f"{self._recording.path}; {dropped} dropped"
        )

    def _new_folder(self, robot: str) -> Path:
        """A new folder for a bag, named by robot and time."""
        parent = Path(value(self, "record_dir") or "bags").expanduser().absolute()
        name = f"{robot}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
        names = (name, *(f"{name}_{i}" for i in range(2, 1000)))
        return next(parent / name for name in names if not (parent / name).exists())

    def _look(self) -> None:
        """Subscribe to others' topics as their publishers appear, with the reliability that they offer."""
        for entry in list(self._awaited):
            offered = self.get_publishers_info_by_topic(entry.topic)
            if offered:
                self._awaited.remove(entry)
                is_reliable = [p.qos_profile.reliability is ReliabilityPolicy.RELIABLE for p in offered]
                self._subscribe(entry, reliable=all(is_reliable))

    def _subscribe(self, entry: Recorded, reliable: bool) -> None:
        profile = QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=entry.depth,
            reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
            durability=DurabilityPolicy.TRANSIENT_LOCAL if entry.latched else DurabilityPolicy.VOLATILE,
        )
        ring = entry.kind is FrameHandle
        name = self.resolve_topic_name(entry.topic)
        bag_name = f"{name}/image" if ring else name
        kind = entry.bag_type
        self._add(bag_name, kind, reliable, entry.latched)
        on_message = partial(self._put, bag_name)
        if ring:
            on_message = partial(self._take_frame, entry.camera, bag_name)
        ways: list[tuple[Callable[[Any], object], QoSProfile, Any]] = [(on_message, profile, None)]
        if entry.topic == instruction_topic.TOPIC:
            ways = [*instruction_topic.subscriptions(on_message)]
        for callback, quality, events in ways:
            self._subscriptions_of_bag.append(
                self.create_subscription(
                    entry.kind, entry.topic, callback, quality, raw=not ring, event_callbacks=events
                )
            )

    def _add(self, name: str, kind: str, reliable: bool = True, latched: bool = False) -> None:
        self._recording.add(Topic(name, kind, definition(kind), reliable, latched, 10, digest(kind)))

    def _mark(self, event: str, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Write a mark into the bag, and say what it means, or why it is refused."""
        try:
            if not self.active or self._recording.ended:
                raise ValueError(f"nothing is recorded: {self.trouble or 'activate the recorder'}")
            task, now_ns = value(self, "task").strip(), self.now_ns()
            sentence = self._marks.mark(event, now_ns, task)
            name = self.resolve_topic_name(TOPIC)
            if not self._marked:
                self._add(name, type_name(String))
                self._describe(self._recording)
                self._marked = True
            if not self._recording.put(name, now_ns, serialize_message(String(data=text_of(event, task)))):
                trouble = self._recording.trouble or "the disk is too slow"
                raise ValueError(f"{event} is not in the bag: {trouble}")
            response.success, response.message = True, f"{sentence} ({self._recording.path})"
        except ValueError as refusal:
            response.message = str(refusal)
        self.get_logger().info(response.message)
        return response

    def _describe(self, recording: Recording) -> None:
        """Write the contract as a session without a model, unless a policy's session is in the bag: without
        one, an episode that a person drove could not be read."""
        name, contract = self.resolve_topic_name("session"), self._contract
        if recording.written[name]:
            return
        topics = {camera.name: self.resolve_topic_name(camera.topic) for camera in contract.cameras}
        session = Session(
            contract=Path(value(self, "contract") or demo_contract()).read_text(),
            urdf="" if contract.urdf is None else contract.urdf.read_text(),
            cameras=list(topics),
            topics=list(topics.values()),
            settings="{}",
        )
        self._put(name, serialize_message(session))

    def _put(self, topic: str, message: bytes | bytearray) -> None:
        self._recording.put(topic, self.now_ns(), message)

    def _take_frame(self, camera: str, topic: str, message: FrameHandle) -> None:
        """Copy a frame out of its ring, and write it unless it was overwritten meanwhile."""
        handle = convert.handle_from_message(message)
        try:
            self._rings.follow(camera, handle.ring)
        except ValueError as refusal:
            self._refusal.error(f"camera {camera}: {refusal}")
            self._lost[topic] += 1
            return
        lease = self._rings.take(handle)
        if isinstance(lease, NotReady):
            self._lost[topic] += 1
            return
        with lease:
            image = image_message(handle.stamp_ns, message.header.frame_id, lease.frames[camera].image)
            whole = lease.intact()
        if whole:
            self._put(topic, image)
        else:
            self._lost[topic] += 1

    def _tell(self) -> None:
        """Log once that messages are dropped, and why recording has ended."""
        if self._recording.trouble and not self._told_trouble:
            self._told_trouble = True
            self.get_logger().error(f"{self._recording.trouble}; the robot keeps running")
        if self._recording.dropped and not self._told_drops:
            self._told_drops = True
            self.get_logger().warning(
                f"the disk is too slow: messages are dropped ({_named(self._recording.dropped)}); record to "
                "a faster disk, or raise queue_mb"
            )

    def statuses(self) -> Sequence[DiagnosticStatus]:
        recording = self._recording
        dropped = recording.dropped.total() + self._lost.total()
        new, self._reported_drops = dropped - self._reported_drops, dropped
        values: dict[str, object] = {
            "bag": recording.path,
            "messages": recording.written.total(),
            "written [MB]": recording.bytes_written / 1e6,
            "waiting [MB]": recording.waiting_bytes / 1e6,
            "dropped": recording.dropped.total(),
            "lost in rings": self._lost.total(),
            "not heard yet": ", ".join(entry.topic for entry in self._awaited),
        }
        if recording.trouble:
            return [status("recording", ERROR, recording.trouble, values)]
        warning = f"{new} messages were dropped: {_named(recording.dropped + self._lost)}" if new else ""
        return [status("recording", WARN if new else OK, warning or "recording", values)]


def _named(counts: Counter[str]) -> str:
    return ", ".join(f"{n} of {topic}" for topic, n in counts.most_common(4))


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of `ros2 run vla_accel_ros recorder`."""
    return run(RecorderNode, args)
