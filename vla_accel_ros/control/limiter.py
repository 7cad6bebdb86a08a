"""The second-order limiter: one step of joints towards where they should be, within their limits.

Each step to the next knot is the asked cubic if that is within limits, else a constant acceleration that
closes in on the asked path without overshooting it and never leaves room too short to brake before a position
limit. Constant acceleration between knots is exactly what cubic sampling of (position, velocity) knots gives,
so the bound holds everywhere between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # limits are enforced by steps of this limiter
    from vla_accel_ros.control.limits import JointLimits

TOLERANCE = 1e-6
"""Of speeds and accelerations, relative."""


def extremes(
    p0: np.ndarray, v0: np.ndarray, p1: np.ndarray, v1: np.ndarray, duration_s: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Lowest and highest position, greatest |velocity| and |acceleration| of cubic Hermite segments, exact.

    All arguments broadcast to [..., D]; so do the four results.
    """
    step = (p1 - p0) / duration_s
    c2 = (3.0 * step - 2.0 * v0 - v1) / duration_s
    c3 = (v0 + v1 - 2.0 * step) / np.square(duration_s)
    acceleration = np.maximum(np.abs(2.0 * c2), np.abs(2.0 * c2 + 6.0 * c3 * duration_s))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        crest = -c2 / (3.0 * c3)
        root = np.sqrt(np.maximum(c2 * c2 - 3.0 * c3 * v0, 0.0))
        q = -(c2 + np.copysign(root, c2))
        turns = (q / (3.0 * c3), v0 / q)
    s = _inside(crest, duration_s)
    velocity = np.maximum(np.maximum(np.abs(v0), np.abs(v1)), np.abs(v0 + s * (2.0 * c2 + 3.0 * s * c3)))
    lowest, highest = np.minimum(p0, p1), np.maximum(p0, p1)
    for turn in turns:
        s = _inside(turn, duration_s)
        p = p0 + s * (v0 + s * (c2 + s * c3))
        lowest, highest = np.minimum(lowest, p), np.maximum(highest, p)
    return lowest, highest, velocity, acceleration


def step_towards(
    p: np.ndarray, v: np.ndarray, goal_p: np.ndarray, goal_v: np.ndarray, h: float, limits: JointLimits
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One step of h seconds from (p, v), float64 [D] each, towards where the goal is then.

    Returns position and velocity [D] after it, and bool [D] where that is the goal itself.
    """
    velocity = _next_velocity(p, v, goal_p, goal_v, h, limits)
    reached = within(p, v, goal_p, goal_v, h, limits)
    position = np.where(reached, goal_p, p + h * (v + velocity) / 2)
    return position, np.where(reached, goal_v, velocity), reached


def _next_velocity(
    p: np.ndarray, v: np.ndarray, goal_p: np.ndarray, goal_v: np.ndarray, h: float, limits: JointLimits
) -> np.ndarray:
    """Velocity [D] at the next knot that closes in on the goal there; the acceleration on the way is
    constant."""
    top = limits.acceleration
    room = goal_p - p - h * (v + goal_v) / 2
    closing = np.copysign(_stoppable(np.abs(room), top / 2, h), room)
    velocity = np.clip(goal_v + closing, -limits.velocity, limits.velocity)
    velocity = np.minimum(velocity, _brakeable(limits.upper - p, v, top, h))
    velocity = np.maximum(velocity, -_brakeable(p - limits.lower, -v, top, h))
    return np.clip(velocity, v - top * h, v + top * h)


def _stoppable(room: np.ndarray, top: np.ndarray, h: float) -> np.ndarray:
    """Greatest velocity after a step h from which equal steps of deceleration <= top end exactly after
    `room`.

    With u = velocity / (top h) and n = ceil(u) steps to stop, u (1 + n) = 2 room / (top h^2). room >= 0.
    """
    r = 2.0 * room / (top * h * h)
    n = np.maximum(np.ceil(np.sqrt(r + 1.0)) - 1.0, 1.0)
    return top * h * np.minimum(n, r / (1.0 + n))


def _brakeable(room: np.ndarray, v: np.ndarray, top: np.ndarray, h: float) -> np.ndarray:
    """Greatest velocity after a step h such that braking with `top` still stops within `room` of where we
    are.

    When the stop itself falls into this step, the joint brakes through it and turns, so that its peak is
    inside.
    """
    slack = 1e-10
    ahead = room - h * v / 2
    going = -top * h / 2 + np.sqrt(np.square(top * h / 2) + 2.0 * top * np.maximum(ahead, 0.0))
    turning = v - v * v * h / (2.0 * (np.maximum(room, 0.0) + slack))
    return np.where(room <= 0.0, 0.0, np.where(ahead >= 0.0, going, turning))


def within(
    p: np.ndarray,
    v: np.ndarray,
    goal_p: np.ndarray,
    goal_v: np.ndarray,
    h: float | np.ndarray,
    limits: JointLimits,
) -> np.ndarray:
    """bool [..., D]: the cubic from (p, v) to the goal in one step keeps all limits and can brake from
    there."""
    lowest, highest, fastest, hardest = extremes(p, v, goal_p, goal_v, h)
    good = (fastest <= limits.velocity * (1 + TOLERANCE)) & (hardest <= limits.acceleration * (1 + TOLERANCE))
    return good & (beyond(lowest, highest, goal_p, goal_v, limits) <= 0)


def beyond(
    lowest: np.ndarray, highest: np.ndarray, end_p: np.ndarray, end_v: np.ndarray, limits: JointLimits
) -> np.ndarray:
    """How far [D] a path leaves its position limits, the braking distance after its end included; 0 if it
    does not."""
    brake = end_v * np.abs(end_v) / (2.0 * limits.acceleration)
    over = np.maximum(np.maximum(highest, end_p + brake) - limits.upper, 0.0)
    under = np.maximum(limits.lower - np.minimum(lowest, end_p + brake), 0.0)
    out = np.maximum(over, under)
    return np.where(out <= 1e-9, 0.0, out)


def _inside(s: np.ndarray, duration_s: np.ndarray | float) -> np.ndarray:
    return np.where((s > 0) & (s < duration_s), s, 0.0)
