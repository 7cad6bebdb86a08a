"""Trajectories that begin when they arrive, for a controller with a different clock.

Such a controller executes a trajectory later by the delivery time, which differs with each message. A
trajectory that repeated the old motion exactly would make the joints step. The message therefore says nothing
about the present: its first point is `approach_s` ahead, and the controller goes there from its own state, by
a cubic. With delivery times up to d, a position error of v d and a velocity error of a d cost an acceleration
of 6 v d / T^2 + 4 a d / T on an approach of T, in addition to the cubic's own, which is up to 5/3 of the
path's. `eased` limits leave room for that: on paths within them a controller keeps the full limits, except
that it may pass the ends of the range by a hundredth of it. It may be some tenths of a radian away from the
decided motion, which therefore does not tell whether the joints follow.

Decisions that change again and again while it approaches can take it further away than that. So each approach
is computed from where the controller should be by what it was sent, however late that and the message come:
the first point is later if the approach would exceed the limits. A long approach carries a joint that moves
beyond its goal. Where that would be beyond its range whenever the approach ends, the controller comes to rest
first, and goes from there to the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits, brake_on_arrival, rest_to_rest_s
from vla_accel_ros.control.trajectory import Trajectory, extremes, trusted

SPEED, ACCELERATION = 0.6, 0.5
"""Shares of the limits that are left to the decided motion."""
_SHORTEST_S = 0.2
_GROWTH = 20.0
_LATER, _LATER_TIMES = 1.25, 16
_BEYOND = 0.005
"""Share of the range by which an approach may pass its end, if the message comes when it is expected."""


def eased(limits: JointLimits) -> JointLimits:
    """The limits for motion that is decided for such a controller."""
    return replace(limits, velocity=SPEED * limits.velocity, acceleration=ACCELERATION * limits.acceleration)


def approach_s(limits: JointLimits, lead_s: float) -> float:
    """How far ahead the first point is. limits: `eased`. lead_s: longest delivery time of a message."""
    brake_s = float((limits.velocity / limits.acceleration).max(initial=0.0))
    return max(_SHORTEST_S, math.sqrt(_GROWTH * lead_s * brake_s))


def approached(
    path: Trajectory,
    limits: JointLimits,
    lead_s: float,
    now_ns: int,
    executed: Callable[[int], tuple[np.ndarray, np.ndarray] | None],
) -> Trajectory:
    """The part to send of a motion that ends at rest: from where the controller can reach it, or its end.

    limits: `eased`. lead_s: longest delivery time. executed: position and velocity of the controller at a
    time, float64 [D] each, None if unknown; then its approach is taken for possible.
    """
    beyond = _BEYOND * (limits.upper - limits.lower)
    lower, upper = limits.lower - beyond, limits.upper + beyond
    top = limits.velocity / SPEED, limits.acceleration / ACCELERATION
    whole = JointLimits(lower, upper, *top, guard=limits.guard)
    takes_s, lead_ns = approach_s(limits, lead_s), round(lead_s * 1e9)
    if executed(now_ns) is None:
        return ahead(path, now_ns + round(takes_s * 1e9))
    states = [s for late_ns in (-lead_ns, 0, lead_ns) if (s := executed(now_ns + late_ns)) is not None]
    for _ in range(_LATER_TIMES):
        goal = path.sample(now_ns + round(takes_s * 1e9))
        if all(_keeps(whole, state, goal, takes_s) for state in states):
            return ahead(path, now_ns + round(takes_s * 1e9))
        takes_s *= _LATER

    def reference(t_ns: int) -> tuple[np.ndarray, np.ndarray]:
        state = executed(t_ns)
        assert state is not None
        return state

    stop = brake_on_arrival(path.joints, reference, now_ns, now_ns, lead_s, whole)
    goal = path.positions[-1]
    away_s = rest_to_rest_s(np.abs(goal - stop.positions[-1]), goal, limits)
    return stop.then(ahead(path, max(path.end_ns, stop.end_ns + round(away_s * 1e9))))


def _keeps(
    limits: JointLimits,
    begin: tuple[np.ndarray, np.ndarray],
    end: tuple[np.ndarray, np.ndarray],
    takes_s: float,
) -> bool:
    """Whether a cubic between positions and velocities, float64 [D] each, keeps the limits, of which those of
    a hand are eased."""
    lowest, highest, speed, acceleration = extremes(*begin, *end, takes_s)
    inside = (lowest >= limits.lower) & (highest <= limits.upper)
    if not (inside & (speed <= limits.velocity) & (acceleration <= limits.acceleration)).all():
        return False
    times_ns, (positions, velocities) = np.array([0, round(takes_s * 1e9)]), np.stack([begin, end], axis=1)
    cubic = trusted((), times_ns, positions, velocities)
    return limits.guard is None or limits.guard.excess(cubic) * SPEED <= 1.0


def ahead(path: Trajectory, from_ns: int) -> Trajectory:
    """The part to send of a motion that ends at rest: from a time on, or its end if that was before."""
    if from_ns < path.end_ns:
        return path.since(from_ns)
    standstill = np.zeros_like(path.positions[-1:])
    return Trajectory(path.joints, np.array([max(from_ns, path.end_ns)]), path.positions[-1:], standstill)
