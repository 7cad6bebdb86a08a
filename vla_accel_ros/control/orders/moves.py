"""One smooth motion from rest to rest, for discrete moves such as going home.

All joints begin and end together on a minimum-jerk profile s = 10 u^3 - 15 u^4 + 6 u^5, as fast as the
slowest of them allows. Between the knots a controller samples cubics, not this profile. The limits are
therefore checked on the cubics: the motion is stretched in time until the fastest of them is within limits.

A controller gets such a motion in parts, so that without further messages it comes to rest as soon as it
would without chunks.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits, brake, brake_on_arrival, cut
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint, extremes

_KNOT_S = 0.05
_SHORTEST_S = 0.2
_MOST_KNOTS = 2048
"""Limit on the knots of a move, however long it takes; the path between them is within limits all the
same."""
# Peaks of the profile's first and second derivative.
_PEAK_VELOCITY, _PEAK_ACCELERATION = 1.875, 5.7735


def move(
    joints: tuple[str, ...],
    start: np.ndarray,
    goal: np.ndarray,
    limits: JointLimits,
    speed: float = 1.0,
    start_ns: int = 0,
) -> Trajectory:
    """A motion from start to goal, float64 [D] each, at rest in both.

    speed: share of the velocity and acceleration limits to use, in (0, 1]. start_ns: time of the first point.
    Raises ValueError if the goal is outside its limits or speed is outside (0, 1].
    """
    if not 0.0 < speed <= 1.0:
        raise ValueError(f"speed = {speed} is not a share of the limits: give more than 0, and at most 1")
    outside = (goal < limits.lower) | (goal > limits.upper)
    if outside.any():
        j = int(np.flatnonzero(outside)[0])
        raise ValueError(
            f"goal of {joints[j]!r} is {goal[j]:g}, not within {limits.lower[j]:g} to {limits.upper[j]:g}: "
            "move it inside"
        )
    way = np.asarray(goal, dtype=np.float64) - start
    velocity, acceleration = speed * limits.velocity, speed * limits.acceleration
    duration_s = max(
        float(np.max(_PEAK_VELOCITY * np.abs(way) / velocity)),
        float(np.max(np.sqrt(_PEAK_ACCELERATION * np.abs(way) / acceleration))),
        _SHORTEST_S,
    )
    u = np.linspace(0.0, 1.0, min(max(2, math.ceil(duration_s / _KNOT_S)), _MOST_KNOTS) + 1)[:, None]
    positions = start + way * u**3 * (10.0 - 15.0 * u + 6.0 * u**2)
    velocities = way / duration_s * 30.0 * u**2 * (1.0 - u) ** 2
    step_s = duration_s / (len(u) - 1)
    *_, fastest, hardest = extremes(positions[:-1], velocities[:-1], positions[1:], velocities[1:], step_s)
    stretch = max(1.0, float((fastest / velocity).max()), math.sqrt(float((hardest / acceleration).max())))
    times_ns = start_ns + np.round(u[:, 0] * duration_s * stretch * 1e9).astype(np.int64)
    positions[-1] = goal
    path = Trajectory(joints, times_ns, positions, velocities / stretch)
    return path if limits.guard is None else cast(Trajectory, limits.guard.slowed(path))


class MoveInParts:
    """What one controller is sent of a motion from rest to rest: at most most_ns of it, and a brake.

    The first part is half of that, counted from where the motion begins, however long the controller takes to
    get there. The next part is due when half is left. Attribute `whole`: the motion, at the times at which
    the controller executes it.
    """

    def __init__(self, whole: Trajectory, limits: JointLimits, most_ns: int) -> None:
        self.whole, self._limits = whole, limits
        self._until_ns = whole.start_ns + most_ns // 2

    @property
    def part(self) -> Trajectory:
        """The part that the controller has by now."""
        return cut(self.whole, self._until_ns, self._limits)

    def later(self, by_ns: int) -> None:
        """The motion is executed by_ns later than it was decided."""
        self.whole, self._until_ns = self.whole.later(by_ns), self._until_ns + by_ns

    def is_due(self, now_ns: int, most_ns: int) -> bool:
        """Whether the next part should be sent."""
        due_ns = max(self._until_ns - most_ns // 2, self.whole.start_ns)
        return self._until_ns < self.whole.end_ns and now_ns >= due_ns

    def renew(self, now_ns: int, most_ns: int, kept_ns: int) -> bool:
        """Extend the part to most_ns from now. Returns False if the controller would begin to brake before
        the extension arrives, kept_ns from now."""
        if now_ns + kept_ns >= self._until_ns:
            return False
        self._until_ns = now_ns + most_ns
        return True


def broken_off(
    path: Trajectory,
    now_ns: int,
    approach_ns: int,
    kept_ns: int,
    limits: JointLimits,
    was_ns: int | None = None,
) -> Trajectory:
    """The stop of a move that a controller executes; the path stays as it is for kept_ns. was_ns: the present
    in the path's old time, if the clock was set since; the stop then begins on arrival.

    A move that has not begun ends at its first point, approach_ns from now, which is enough time from
    wherever the controller is on its way there.
    """
    present_ns = now_ns if was_ns is None else was_ns
    if present_ns < path.start_ns:
        standstill = np.zeros_like(path.positions[:1])
        return Trajectory(path.joints, np.array([now_ns + approach_ns]), path.positions[:1], standstill)
    if was_ns is not None:
        return brake_on_arrival(path.joints, path.sample, was_ns, now_ns, kept_ns * 1e-9, limits)
    state = TrajectoryPoint(now_ns + kept_ns, *path.sample(now_ns + kept_ns))
    return path.since(now_ns).then(brake(path.joints, state, limits))
