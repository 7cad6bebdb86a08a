"""Trajectories that begin when they arrive, for a controller with a different clock.

Such a controller executes a trajectory later by the delivery time, which differs with each message. A
trajectory that repeated the old motion exactly would make the joints step. The message therefore says nothing
about the present: its first point is `approach_s` ahead, and the controller goes there from its own state, by
a cubic. With delivery times up to d, a position error of v d and a velocity error of a d cost an acceleration
of 6 v d / T^2 + 4 a d / T on an approach of T, in addition to the cubic's own, which is up to 5/3 of the
path's. `eased` limits leave room for that: on paths within them a controller keeps the full limits, except
that it may pass the ends of the range by a hundredth of it. It may be some tenths of a radian away from the
decided motion, which therefore does not tell whether the joints follow.

Decisions that change again and again while it approaches can take it further away than that. So the
acceleration of each approach is computed from where the controller should be by what it was sent, and the
first point is later if it would exceed the limits.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory

SPEED, ACCELERATION = 0.6, 0.5
"""Shares of the limits that are left to the decided motion."""
_SHORTEST_S = 0.2
_GROWTH = 20.0
_LATER, _LATER_TIMES = 1.25, 16


def eased(limits: JointLimits) -> JointLimits:
    """The limits for motion that is decided for such a controller."""
    return replace(limits, velocity=SPEED * limits.velocity, acceleration=ACCELERATION * limits.acceleration)


def approach_s(limits: JointLimits, lead_s: float) -> float:
    """How far ahead the first point is. limits: `eased`. lead_s: longest delivery time of a message."""
    brake_s = float((limits.velocity / limits.acceleration).max(initial=0.0))
    return max(_SHORTEST_S, math.sqrt(_GROWTH * lead_s * brake_s))


def first_ns(
    path: Trajectory,
    limits: JointLimits,
    lead_s: float,
    now_ns: int,
    state: tuple[np.ndarray, np.ndarray] | None,
) -> int:
    """When the controller should reach the first point of a motion that ends at rest.

    limits: `eased`. lead_s: longest delivery time. state: position and velocity of the controller now,
    float64 [D] each, None if unknown; then its approach is taken for possible.
    """
    takes_s = approach_s(limits, lead_s)
    if state is None:
        return now_ns + round(takes_s * 1e9)
    (position, velocity), limit = state, limits.acceleration / ACCELERATION
    for _ in range(_LATER_TIMES):
        goal, arrives = path.sample(now_ns + round(takes_s * 1e9))
        mean = 6.0 * (goal - position) / takes_s**2
        begins = mean - (4.0 * velocity + 2.0 * arrives) / takes_s
        ends = mean - (2.0 * velocity + 4.0 * arrives) / takes_s
        if (np.maximum(np.abs(begins), np.abs(ends)) <= limit).all():
            break
        takes_s *= _LATER
    return now_ns + round(takes_s * 1e9)


def ahead(path: Trajectory, from_ns: int) -> Trajectory:
    """The part to send of a motion that ends at rest: from a time on, or its end if that was before."""
    if from_ns < path.end_ns:
        return path.since(from_ns)
    standstill = np.zeros_like(path.positions[-1:])
    return Trajectory(path.joints, np.array([max(from_ns, path.end_ns)]), path.positions[-1:], standstill)
