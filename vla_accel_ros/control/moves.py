"""One smooth motion from rest to rest, for discrete moves such as going home.

All joints begin and end together on a minimum-jerk profile s = 10 u^3 - 15 u^4 + 6 u^5, as fast as the
slowest of them may. Between its knots a controller samples cubics, not this profile, so the limits are kept
by what the cubics do: stretched in time until the fastest and the hardest of them is within.
"""

from __future__ import annotations

import math

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory, extremes

_KNOT_S = 0.05
_SHORTEST_S = 0.2
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
    """From start to goal, float64 [D] each, at rest in both.

    speed: share of the velocity and acceleration limits to use, in (0, 1]. start_ns: time of the first point.
    Raises ValueError for a goal outside its limits or a speed that is none.
    """
    if not 0.0 < speed <= 1.0:
        raise ValueError(f"speed = {speed} is no share of the limits: give more than 0, and 1 at most")
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
    u = np.linspace(0.0, 1.0, max(2, math.ceil(duration_s / _KNOT_S)) + 1)[:, None]
    positions = start + way * u**3 * (10.0 - 15.0 * u + 6.0 * u**2)
    velocities = way / duration_s * 30.0 * u**2 * (1.0 - u) ** 2
    step_s = duration_s / (len(u) - 1)
    *_, fastest, hardest = extremes(positions[:-1], velocities[:-1], positions[1:], velocities[1:], step_s)
    stretch = max(1.0, float((fastest / velocity).max()), math.sqrt(float((hardest / acceleration).max())))
    times_ns = start_ns + np.round(u[:, 0] * duration_s * stretch * 1e9).astype(np.int64)
    positions[-1] = goal
    return Trajectory(joints, times_ns, positions, velocities / stretch)
