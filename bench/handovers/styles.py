"""The ways to send chunks to a joint_trajectory_controller: common ones, and ours.

A style turns a chunk, or the tick of its own timer, into the message to publish. Ours is the motion of the
trajectory node (control/motion.py). The one before it in the list is the same blending with a first point one
step ahead, as in a sender that does not repeat what it has already commanded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from handovers import Clock, Parameters, Process, TrajectoryLine, make_contract, make_joints
from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.outputs.reports import ReportedState
from vla_accel_ros.control.trajectory import Trajectory, knot_velocities
from vla_accel_ros.types import Chunk


class Message(NamedTuple):
    """A trajectory_msgs/JointTrajectory: stamp (0 = on arrival), N times from start, float64 [N, D] positions
    and velocities."""

    stamp_ns: int
    times_from_start_ns: list[int]
    positions: np.ndarray
    velocities: np.ndarray | None


class Style(Protocol):
    """A sender. One thread at a time; time is given."""

    def take(self, chunk: Chunk, now_ns: int) -> Message | None:
        """What is sent for a new chunk."""

    def tick(self, now_ns: int, measured: np.ndarray) -> Message | None:
        """What is sent at 30 Hz. measured: joints, float64 [D]."""


class _Whole:
    """Every chunk as it comes, stamped when it was observed."""

    def take(self, chunk: Chunk, now_ns: int) -> Message | None:
        return message(_trajectory(chunk, 0, False))

    def tick(self, now_ns: int, measured: np.ndarray) -> Message | None:
        return None


class _Points:
    """One action of the newest chunk at every tick, to be reached `steps` after it."""

    def __init__(self, steps: int):
        self._steps = steps
        self._chunk: Chunk | None = None

    def take(self, chunk: Chunk, now_ns: int) -> Message | None:
        self._chunk = chunk
        return None

    def tick(self, now_ns: int, measured: np.ndarray) -> Message | None:
        if self._chunk is None:
            return None
        chunk, step_ns = self._chunk, round(self._chunk.step_dt_s * 1e9)
        i = (now_ns + self._steps * step_ns - chunk.stamp_ns) // step_ns - 1
        return Message(0, [self._steps * step_ns], chunk.actions[i : i + 1], None)


class _Future:
    """What of a chunk is at least a step ahead, with or without velocities."""

    def __init__(self, velocities: bool):
        self._velocities = velocities

    def take(self, chunk: Chunk, now_ns: int) -> Message | None:
        return message(_trajectory(chunk, now_ns + round(chunk.step_dt_s * 1e9), self._velocities))

    def tick(self, now_ns: int, measured: np.ndarray) -> Message | None:
        return None


class Moving:
    """Our motion, which begins with the joints at rest; committed: with the path that is already commanded in
    front, as it sends it. state: what the controller says of itself; by default it says nothing."""

    def __init__(
        self,
        joints: tuple[str, ...],
        limits: JointLimits,
        mode: str,
        committed: bool = True,
        state: Callable[[int], ReportedState] | None = None,
    ):
        self._now_ns, self._committed, self._joints = 0, committed, joints
        self._message: Message | None = None
        says = None if state is None else lambda: state(self._now_ns)
        line, clock = TrajectoryLine(self._send, state=says), Clock(lambda: self._now_ns, simulated=True)
        contract = make_contract("joint_trajectory", make_joints(joints, limits))
        self._process = Process(contract, Parameters(Options(mode)), clock, lambda _: line)

    @property
    def lead_s(self) -> float:
        """How long it expects a message to take."""
        return self._process.robot.outputs.lead_s()

    def take(self, chunk: Chunk, now_ns: int) -> Message | None:
        self._now_ns = now_ns
        self._process.chunk(chunk)
        return self._sent()

    def tick(self, now_ns: int, measured: np.ndarray) -> Message | None:
        self._now_ns = now_ns
        self._process.joints(self._joints, measured, now_ns)
        self._process.watch()
        return self._sent()

    def _send(self, path: Trajectory, start_ns: int, stamped: bool) -> None:
        until_ns = self._process.robot.follower.buffer.committed_until_ns
        if not self._committed and until_ns is not None:
            path = path.since(until_ns)
        times = (path.times_ns - start_ns).tolist()
        self._message = Message(start_ns, times, path.positions, path.velocities)

    def _sent(self) -> Message | None:
        sent, self._message = self._message, None
        return sent


def _trajectory(chunk: Chunk, from_ns: int, velocities: bool) -> Trajectory:
    """A chunk's actions that are due at from_ns or later."""
    due = np.array([chunk.due_ns(i) for i in range(chunk.horizon)])
    ahead = due >= from_ns
    times, positions = due[ahead], chunk.actions[ahead].astype(np.float64)
    names = tuple(f"joint {i}" for i in range(positions.shape[1]))
    return Trajectory(names, times, positions, knot_velocities(times, positions) if velocities else None)


def message(trajectory: Trajectory) -> Message:
    """A trajectory as it is published."""
    times = (trajectory.times_ns - trajectory.start_ns).tolist()
    return Message(trajectory.start_ns, times, trajectory.positions, trajectory.velocities)


STYLES: dict[str, Callable[[tuple[str, ...], JointLimits], Style]] = {
    "full chunk, stamped at observation": lambda *_: _Whole(),
    "single point per tick, due at once": lambda *_: _Points(0),
    "single point per tick, due a step later": lambda *_: _Points(1),
    "past dropped, first point a step ahead": lambda *_: _Future(velocities=False),
    "+ velocities": lambda *_: _Future(velocities=True),
    "+ sender blends over 200 ms": partial(Moving, mode="blend", committed=False),
    "our motion, async": partial(Moving, mode="async"),
    "our motion, blend": partial(Moving, mode="blend"),
}
