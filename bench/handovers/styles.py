"""The ways to send chunks to a joint_trajectory_controller: common ones, and ours.

A style turns a chunk, or the tick of its own timer, into the message to publish. Ours is the trajectory
buffer as the trajectory node uses it. The one before it in the list is the same blending with a first point
one step ahead, as in a sender that does not repeat what it has already commanded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from vla_accel_ros.control.chunking.buffer import Mode, TrajectoryBuffer
from vla_accel_ros.control.limits.joint_limits import JointLimits
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

    def tick(self, now_ns: int) -> Message | None:
        """What is sent at 30 Hz."""


class _Whole:
    """Every chunk as it comes, stamped when it was observed."""

    def take(self, chunk: Chunk, now_ns: int) -> Message | None:
        return message(_trajectory(chunk, 0, False))

    def tick(self, now_ns: int) -> Message | None:
        return None


class _Points:
    """One action of the newest chunk at every tick, to be reached `steps` after it."""

    def __init__(self, steps: int):
        self._steps = steps
        self._chunk: Chunk | None = None

    def take(self, chunk: Chunk, now_ns: int) -> Message | None:
        self._chunk = chunk
        return None

    def tick(self, now_ns: int) -> Message | None:
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

    def tick(self, now_ns: int) -> Message | None:
        return None


class _Buffered:
    """Our trajectory buffer; committed: with the path that is already commanded in front, as it comes."""

    def __init__(
        self,
        joints: tuple[str, ...],
        limits: JointLimits,
        start: np.ndarray,
        mode: Mode,
        committed: bool,
    ):
        self._buffer, self._committed = TrajectoryBuffer(joints, limits, mode), committed
        self._buffer.reset(start)

    def take(self, chunk: Chunk, now_ns: int) -> Message | None:
        sent = self._buffer.update(chunk, now_ns)
        if sent is None or self._committed:
            return None if sent is None else message(sent)
        assert self._buffer.committed_until_ns is not None and sent.velocities is not None
        new = sent.times_ns > self._buffer.committed_until_ns
        return message(Trajectory(sent.joints, sent.times_ns[new], sent.positions[new], sent.velocities[new]))

    def tick(self, now_ns: int) -> Message | None:
        return None


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


Build = Callable[[tuple[str, ...], JointLimits, np.ndarray], Style]
"""(joints, limits, where they start float64 [D]) -> a sender."""


def _buffered(mode: Mode, committed: bool = True) -> Build:
    return lambda joints, limits, start: _Buffered(joints, limits, start, mode, committed)


STYLES: dict[str, Build] = {
    "full chunk, stamped at observation": lambda *_: _Whole(),
    "single point per tick, due at once": lambda *_: _Points(0),
    "single point per tick, due a step later": lambda *_: _Points(1),
    "past dropped, first point a step ahead": lambda *_: _Future(velocities=False),
    "+ velocities": lambda *_: _Future(velocities=True),
    "+ sender blends over 200 ms": _buffered("blend", committed=False),
    "our buffer, async": _buffered("async"),
    "our buffer, blend": _buffered("blend"),
}
