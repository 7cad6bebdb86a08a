"""A robot's drivers and controllers, which record and check everything they receive.

The joints are exactly where the controllers command them. Commands count from their publication, because this
process's own delay in receiving them is not the controller's.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from executed import TrajectoryController, judge_path
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from chaos.model import CAMERA_HZ, JOINTS_HZ, MARK, MARK_TOLERANCE, MIDDLE, SIDE, mark_of
from vla_accel_msgs.msg import ActionChunk, Motion
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.chunk_record import ChunkReader
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import TrajectoryPoint
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.chunk_topic import slot_name
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.sensing.slot import SlotReader

S = 1_000_000_000
ALL = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
"""Queue depth of a judge that must miss no command, although a busy machine may not schedule it for
seconds."""
MOVES_RAD_S = 0.05
TOLD_S = 0.1
STOPS_WITHIN_S = 0.5
"""Allowed time beyond the age limit of the last chunk: the watchdog's period, a brake, and a busy machine's
delays."""


class Robot:
    """A robot by its number. offset_s: how far its clock is ahead of this process's. pictures: what its
    cameras send in turn, uint8 [H, W, 3]; None sends small noise. Times are steady nanoseconds.

    Attributes: `chunks`, (time heard, stamp), as messages; `followed`, the same in the slot of shared memory,
    which a trajectory node on the same machine follows: it gets chunks before they are heard, and may have
    one that came before the topic was matched; `sent`, when the arm was commanded; `told`, (time heard,
    state, reasons); `wrong`, sentences on chunks and commands of another robot; `refused`, why a controller
    refused a command.
    """

    def __init__(
        self,
        node: Node,
        number: int,
        contract: Contract,
        offset_s: float,
        pictures: Sequence[np.ndarray] | None = None,
    ) -> None:
        self.node, self.number, self.contract, self.offset_s = node, number, contract, offset_s
        self.name, self.mark = node.get_namespace(), mark_of(number)
        self._wall_ns = min(time.time_ns() - time.monotonic_ns() for _ in range(1000))
        self._ahead_ns = self._wall_ns + round(offset_s * S)  # of the robot's clock, over steady time
        self.chunks: list[tuple[int, int]] = []
        self.followed: list[tuple[int, int]] = []
        self.sent: list[int] = []
        self.told: list[tuple[int, int, tuple[str, ...]]] = []
        self.wrong: list[str] = []
        self.refused: Counter[str] = Counter()
        self.resumed: Counter[str] = Counter()
        self.began_ns, self._ticks = time.monotonic_ns(), 0
        self._controllers: dict[str, TrajectoryController] = {}
        start = dict(zip(contract.joint_names, (*MIDDLE, self.mark)))
        for controller in contract.controllers:
            position = np.array([start[name] for name in controller.joints])
            self._controllers[controller.topic] = TrajectoryController(controller.joints, position, True)
            heard = partial(self._on_command, controller.topic)
            # rclpy looks at a callback's signature to see whether it wants to know when a message was sent
            node.create_subscription(
                JointTrajectory, controller.topic, lambda m, info, heard=heard: heard(m, info), ALL
            )
        self._slot, self._read = SlotReader(slot_name(node)), 0
        self._reader = ChunkReader(contract.action_names)
        node.create_subscription(ActionChunk, "action_chunk", self._on_chunk, qos.REPORT)
        node.create_subscription(Motion, "motion", self._on_motion, qos.ALL_LATCHED)
        self._joints = node.create_publisher(JointState, contract.joint_states.topic, qos.SENSOR)
        self._cameras = [node.create_publisher(Image, c.topic, qos.SENSOR) for c in contract.cameras]
        self._instruction = node.create_publisher(String, "instruction", qos.LATCHED)
        self._resume = node.create_client(Trigger, "trajectory/resume")
        self._moving_ns = np.zeros(0, np.int64)
        self._asked: Any = None
        self._asked_s = 0.0
        rng = np.random.default_rng(number)
        pictures = pictures or [rng.integers(256, size=(SIDE, SIDE, 3), dtype=np.uint8) for _ in range(8)]
        self._size, self._pixels = pictures[0].shape, [array("B", picture.tobytes()) for picture in pictures]
        node.create_timer(1 / JOINTS_HZ, self._tick, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def instruct(self, words: str) -> None:
        """Send it the instruction, also to later subscribers."""
        self._instruction.publish(String(data=words))

    def resume(self) -> None:
        """Do what a person does for a robot that waits for one; asks again if no answer comes."""
        now_s = time.monotonic()
        if not self._resume.service_is_ready() or now_s - self._asked_s < 2.0:
            return
        if self._asked is not None:
            self._resume.remove_pending_request(self._asked)
        self._asked, self._asked_s = self._resume.call_async(Trigger.Request()), now_s
        self.resumed["; ".join(self.reasons)] += 1

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the robot does not run."""
        return self.told[-1][2] if self.told else ()

    def goes_on_ns(self, since_ns: int) -> int | None:
        """When it was first commanded, while running, by a chunk of an observation after the given time."""
        fresh = next((time_ns for time_ns, stamp in self.chunks_after(since_ns) if stamp >= since_ns), None)
        if fresh is None:
            return None
        return next((time_ns for time_ns in _after(self.sent, fresh) if self._ran(time_ns)), None)

    def is_silent(self, at_ns: int) -> bool:
        """Whether at this time it neither moved nor said why."""
        state, reasons = next(((s, r) for time_ns, s, r in reversed(self.told) if time_ns <= at_ns), (0, ()))
        return state == Motion.RUNNING or not any(reasons)

    def moves_after_s(self, since_ns: int) -> float:
        """How long it moved on after the given time without a chunk of a later observation; call it after
        `judge`."""
        arrivals = (
            *self.chunks_after(since_ns),
            *(message for message in self.followed if message[0] >= since_ns),
        )
        fresh = [time_ns for time_ns, stamp in arrivals if stamp >= since_ns]
        until_ns = min(fresh, default=time.monotonic_ns())
        first, last = np.searchsorted(self._moving_ns, (since_ns, until_ns))
        return float(self._moving_ns[last - 1] - since_ns) * 1e-9 if last > first else 0.0

    def _ran(self, at_ns: int) -> bool:
        """Return whether it executes what is sent at this time; `motion` reports that just after."""
        told_ns = at_ns + round(TOLD_S * S)
        return (
            next((state for time_ns, state, _ in reversed(self.told) if time_ns <= told_ns), 0)
            == Motion.RUNNING
        )

    def chunks_after(self, since_ns: int) -> list[tuple[int, int]]:
        """Return the chunks heard since the given time."""
        first = len(self.chunks)
        while first and self.chunks[first - 1][0] >= since_ns:
            first -= 1
        return self.chunks[first:]

    def judge(self) -> dict[str, Any]:
        """Check what its controllers have executed so far: broken limits, the longest motion without a recent
        chunk, and anything of another robot."""
        joints = {joint.name: joint for joint in self.contract.joints}
        now_ns, broken, moved_s = time.monotonic_ns(), [], 0.0
        for topic, controller in self._controllers.items():
            if len(controller.starts) < 2:
                continue
            controller.starts[0] = self.began_ns
            limits = JointLimits.of(joints[name] for name in controller.joints)
            times, positions = controller.path(now_ns)
            breaches = judge_path(times, positions, limits, *controller.exceptions)
            broken += [f"{self.name}/{topic} {breach}" for breach in breaches]
            speeds = np.abs(np.diff(positions, axis=0)).max(axis=1) * 500
            moved_s += float((speeds > MOVES_RAD_S).sum()) / 500
            if len(controller.joints) > 1:
                self._moving_ns = times[1:][speeds > MOVES_RAD_S]
                broken += self._moves_too_long(self._moving_ns)
        faults = [f"{self.name}: {breach}" for breach in self.wrong]
        rejected = [breach for c in self._controllers.values() for breach in c.rejected]
        return {
            "broken": broken,
            "wrong": faults,
            "rejected": [*rejected, *self.refused.elements()],
            "moved_s": moved_s,
            "chunks": len(self.chunks),
            "followed": len(self.followed),
            "resumed_by_person": dict(self.resumed),
        }

    def _moves_too_long(self, moving_ns: np.ndarray) -> list[str]:
        """Return one sentence for each motion without a recent enough chunk."""
        stamps = np.array(sorted(stamp for _, stamp in (*self.chunks, *self.followed)))
        if not len(stamps) or not len(moving_ns):
            return []
        last = stamps[np.maximum(np.searchsorted(stamps, moving_ns) - 1, 0)]
        ages_s = (moving_ns - last) * 1e-9
        limit_s = self.contract.chunk.max_age_s + STOPS_WITHIN_S
        worst = int(np.argmax(ages_s))
        if ages_s[worst] <= limit_s:
            return []
        at_s = (moving_ns[worst] - self.began_ns) * 1e-9
        return [f"{self.name} moves at {at_s:.2f} s, {ages_s[worst]:.2f} s after its newest chunk's images"]

    def _tick(self) -> None:
        self._ticks += 1
        now_ns = time.monotonic_ns()
        positions: dict[str, float] = {}
        for controller in self._controllers.values():
            positions.update(zip(controller.joints, controller.state(now_ns).position.tolist()))
        names = list(positions)
        joints = JointState(name=names, position=array("d", [positions[name] for name in names]))
        convert.set_stamp(joints.header.stamp, now_ns + self._ahead_ns)
        self._joints.publish(joints)
        self._look_into_slot(now_ns)
        if self._ticks % (JOINTS_HZ // CAMERA_HZ) == 0:
            pixels = self._pixels[self._ticks % len(self._pixels)]
            height, width, _ = self._size
            image = Image(height=height, width=width, encoding="rgb8", step=3 * width, data=pixels)
            convert.set_stamp(image.header.stamp, now_ns + self._ahead_ns)
            for camera in self._cameras:
                camera.publish(image)

    def _on_command(self, topic: str, message: JointTrajectory, info: dict[str, int]) -> None:
        controller = self._controllers[topic]
        at_ns = max(info["source_timestamp"] - self._wall_ns, controller.starts[-1] + 1)
        try:
            path = convert.trajectory_from_message(message, at_ns + self._ahead_ns).select(controller.joints)
        except ValueError as error:
            self.refused[str(error)] += 1
            return
        path = type(path)(path.joints, path.times_ns - self._ahead_ns, path.positions, path.velocities)
        if not controller.accept(path, at_ns, TrajectoryPoint(at_ns, controller.state(at_ns).position)):
            self.refused["it had ended when it came"] += 1
            return
        if len(controller.joints) > 1:
            self.sent.append(at_ns)
        elif abs(path.positions - self.mark).max() > MARK_TOLERANCE:
            self.wrong.append(f"the gripper was sent to {path.positions[-1, 0]:.3f}, not {self.mark:.3f}")

    def _on_chunk(self, message: ActionChunk) -> None:
        now_ns, stamp_ns = time.monotonic_ns(), convert.stamp_ns(message.header.stamp) - self._ahead_ns
        actions = np.array(message.actions).reshape(message.horizon, message.action_dim)
        self._look_at(
            actions[:, message.joint_names.index(self.contract.joint_names[MARK])], now_ns, stamp_ns
        )
        self.chunks.append((now_ns, stamp_ns))

    def _look_into_slot(self, now_ns: int) -> None:
        """Read the chunks that the trajectory node gets through shared memory."""
        for entry in self._slot.since(self._read):
            self._read, stamp_ns = entry.number, entry.stamp_ns - self._ahead_ns
            self._look_at(self._reader.chunk(entry.data).actions[:, MARK], now_ns, stamp_ns)
            self.followed.append((now_ns, stamp_ns))

    def _look_at(self, mark: np.ndarray, now_ns: int, stamp_ns: int) -> None:
        """Check that a chunk is for this robot and recent. mark: its gripper positions."""
        if abs(mark - self.mark).max() > MARK_TOLERANCE:
            self.wrong.append(f"a chunk has its gripper at {mark[0]:.3f}, not {self.mark:.3f}")
        age_s = (now_ns - stamp_ns) * 1e-9
        if not -0.05 < age_s < self.contract.chunk.max_age_s + STOPS_WITHIN_S:
            self.wrong.append(f"a chunk is {age_s:.2f} s old")

    def _on_motion(self, message: Motion) -> None:
        self.told.append((time.monotonic_ns(), message.state, tuple(message.reasons)))


def _after(times: list[int], since_ns: int) -> list[int]:
    first = len(times)
    while first and times[first - 1] >= since_ns:
        first -= 1
    return times[first:]
