"""Trajectories that begin when they arrive, for a controller whose clock is another than ours.

It executes what it is sent so much later as the message takes, another time with each message: what repeated
the old motion to the letter would step by what the joint moves in the difference. So nothing is said of the
present: the first point is `approach_s` ahead, and the controller goes there from its own state, by a cubic.
A position that is off by v d and a velocity by a d, for messages that take up to d, cost an acceleration of
6 v d / T^2 + 4 a d / T on an approach of T, besides what the cubic makes of the path, up to 5/3 of its own.
`eased` limits leave room for that; what a controller executes of paths within those keeps the whole ones, but
for the ends of the range, which it may pass by a hundredth of it.
"""

from __future__ import annotations

import math

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory

SPEED, ACCELERATION = 0.6, 0.5
"""Shares of the limits that are left to the decided motion."""
_SHORTEST_S = 0.2
_GROWTH = 20.0


def eased(limits: JointLimits) -> JointLimits:
    """What the decided motion of such a controller's joints may do."""
    return JointLimits(
        limits.lower, limits.upper, SPEED * limits.velocity, ACCELERATION * limits.acceleration
    )


def approach_s(limits: JointLimits, lead_s: float) -> float:
    """How far ahead the first point is. limits: `eased`. lead_s: how long a message takes at most."""
    brake_s = float((limits.velocity / limits.acceleration).max(initial=0.0))
    return max(_SHORTEST_S, math.sqrt(_GROWTH * lead_s * brake_s))


def ahead(path: Trajectory, from_ns: int) -> Trajectory:
    """What is to be sent of a motion that ends at rest: from a time on; its end, where that was before."""
    if from_ns < path.end_ns:
        return path.since(from_ns)
    rest = np.zeros_like(path.positions[-1:])
    return Trajectory(path.joints, np.array([max(from_ns, path.end_ns)]), path.positions[-1:], rest)
