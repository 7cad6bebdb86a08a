"""The second-order limiter: one step of joints towards their goal, within their limits.

Each step to the next knot is the asked cubic if that is within limits. Otherwise it is a constant
acceleration that approaches the asked path without overshoot and always leaves room to brake before a
position limit. Constant acceleration between knots is exactly what cubic sampling of (position, velocity)
knots gives, so the bound holds everywhere between them. `step_towards` is the plain form, for a stream of
single steps; `steps_along` makes the same steps along a whole path, faster, and is tested against it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import hardest

TOLERANCE = 1e-6
"""Relative tolerance of speeds and accelerations."""
POSITION_TOLERANCE = 1e-9
LEAST_ROOM = 1e-10
CLOSING = 0.5
"""Share of the acceleration limit with which a joint slows down as it comes back to the asked path."""

_FEW = 8
"""Number of steps prepared at first: a joint that is a little off needs about as many."""

Step = Callable[[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def step_towards(
    p: np.ndarray,
    v: np.ndarray,
    goal_p: np.ndarray,
    goal_v: np.ndarray,
    h: float,
    limits: JointLimits,
    longest_s: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One step of h seconds from (p, v) towards the goal at its end, float64 [D] each.

    The goal is `attainable`. longest_s: the longest of the following steps, if longer than this one. Returns
    position and velocity [D] after the step, and bool [D]: joints that reached the goal itself.
    """
    velocity = _next_velocity(p, v, goal_p, goal_v, h, limits, braking(limits, max(h, longest_s)))
    reached = reachable(p, v, goal_p, goal_v, h, limits)
    position = np.where(reached, goal_p, p + h * (v + velocity) / 2)
    return position, np.where(reached, goal_v, velocity), reached


def braking(limits: JointLimits, longest_s: float | np.ndarray) -> np.ndarray:
    """Deceleration [..., D] for which room before a position limit is kept.

    Within a step a joint may have to brake and turn back, at one acceleration to the end of the step. To be
    within its velocity limit and the other position limit then, it keeps more room when steps are long.
    """
    turn = np.minimum(limits.velocity, (limits.upper - limits.lower) / (2.0 * longest_s))
    return np.minimum(limits.acceleration, turn / longest_s)


def turning_s(limits: JointLimits) -> np.ndarray:
    """The longest step [D] for which `braking` is the whole acceleration."""
    width = limits.upper - limits.lower
    return np.minimum(limits.velocity / limits.acceleration, np.sqrt(width / (2.0 * limits.acceleration)))


def attainable(
    asked_p: np.ndarray, asked_v: np.ndarray, limits: JointLimits, longest_s: float
) -> tuple[np.ndarray, np.ndarray]:
    """The nearest position and velocity [..., D] within limits from which the joints can brake within limits,
    by steps of longest_s."""
    p = np.clip(asked_p, limits.lower, limits.upper)
    top = 2.0 * braking(limits, longest_s)
    up = np.minimum(np.sqrt(top * (limits.upper - p)), limits.velocity)
    down = np.minimum(np.sqrt(top * (p - limits.lower)), limits.velocity)
    return p, np.where(p == asked_p, np.clip(asked_v, -down, up), 0.0)


def reachable(
    p: np.ndarray,
    v: np.ndarray,
    goal_p: np.ndarray,
    goal_v: np.ndarray,
    h: float | np.ndarray,
    limits: JointLimits,
) -> np.ndarray:
    """bool [..., D]: the cubic from (p, v) to an attainable goal in one step keeps all limits.

    It is exact for the acceleration, which is greatest at an end. Velocity and position stay between the
    control points of their Bezier curves, so they are within limits if those are; some cubics that only just
    keep the limits are refused.
    """
    middle = 3.0 * (goal_p - p) / h - v - goal_v
    early, end_control = p + h / 3 * v, goal_p - h / 3 * goal_v
    low = np.minimum(early, end_control) >= limits.lower - POSITION_TOLERANCE
    high = np.maximum(early, end_control) <= limits.upper + POSITION_TOLERANCE
    slow = np.abs(middle) <= limits.velocity * (1 + TOLERANCE)
    return (hardest(p, v, goal_p, goal_v, h) <= limits.acceleration * (1 + TOLERANCE)) & slow & low & high


def _next_velocity(
    p: np.ndarray,
    v: np.ndarray,
    goal_p: np.ndarray,
    goal_v: np.ndarray,
    h: float,
    limits: JointLimits,
    braking: np.ndarray,
) -> np.ndarray:
    """Velocity [D] at the next knot that approaches the goal there at constant acceleration."""
    top = limits.acceleration
    room = goal_p - p - h * (v + goal_v) / 2
    closing = np.minimum(stoppable(np.abs(room), CLOSING * top, h), np.abs(room) / h)
    velocity = goal_v + np.copysign(closing, room)
    velocity = np.minimum(velocity, _brakeable(limits.upper - p, v, braking, h))
    velocity = np.maximum(velocity, -_brakeable(p - limits.lower, -v, braking, h))
    velocity = np.clip(velocity, -limits.velocity, limits.velocity)
    return np.clip(velocity, v - top * h, v + top * h)


def stoppable(room: np.ndarray, top: np.ndarray, h: float) -> np.ndarray:
    """Greatest velocity u after a step h from which a deceleration `top` stops within `room` >= 0, the room
    that would be left if u were 0: h u / 2 + u^2 / (2 top) = room."""
    return np.sqrt(np.square(top * h / 2) + 2.0 * top * room) - top * h / 2


def _brakeable(room: np.ndarray, v: np.ndarray, top: np.ndarray, h: float) -> np.ndarray:
    """Greatest velocity after a step h from which braking with `top` stops within `room` of the present
    position.

    If the stop falls into this step, the joint brakes through it and turns, so that its peak is inside; a
    joint beyond the limit moves no further out.
    """
    ahead = room - h * v / 2
    turning = np.minimum(v * ahead / np.maximum(room, LEAST_ROOM), 0.0)
    return np.where(ahead < 0.0, turning, stoppable(np.maximum(ahead, 0.0), top, h))


def steps_along(
    goal_p: np.ndarray,
    goal_v: np.ndarray,
    h: np.ndarray,
    longest: np.ndarray,
    clean: np.ndarray,
    limits: JointLimits,
) -> Step:
    """Returns a function (k, p, v, on, p_next, v_next) -> on that makes step k of `step_towards` to the goals
    [N + 1, D] by steps h [N], and writes p_next, v_next [D].

    longest [N]: longest_s of each step. clean [N, D]: the step from goal to goal keeps all limits. on [D]:
    joints at their goal before the step; the result says which are after it. Each step depends on the one
    before, so only the joints are vectorised. All that does not depend on their state is computed for many
    steps at once, and a step is some forty operations on rows of one buffer, without allocation.
    """
    d, n = goal_p.shape[1], len(h)
    lower, upper, fastest, slowest = limits.lower, limits.upper, limits.velocity, -limits.velocity
    middle, _ = _middle(limits)
    rows: list[tuple[np.ndarray, ...] | None] = [None] * n

    def prepare(k: int) -> tuple[np.ndarray, ...]:
        """Computes the rows of some steps from k on: a few at first, as most paths need no more, then all
        others."""
        part = slice(k, k + _FEW if k < _FEW else n)
        rows[part] = _rows(goal_p[1:][part], goal_v[1:][part], h[part], longest[part], clean[part], limits)
        return cast(tuple[np.ndarray, ...], rows[k])

    ahead, stop, cubic = np.empty((3, d)), np.empty((3, d)), np.empty((4, d))
    up, down, way = ahead
    stop_up, stop_down, stop_way = stop
    first, last, centre, early = cubic
    still, room, closing, bound = np.empty((4, d))
    good, zeros, limited = np.empty((4, d), bool), np.zeros((3, d)), ahead[:2].ravel()
    assert np.shares_memory(limited, ahead)
    add, subtract, multiply, minimum, maximum = np.add, np.subtract, np.multiply, np.minimum, np.maximum

    def step(
        k: int, p: np.ndarray, v: np.ndarray, on: np.ndarray, p_next: np.ndarray, v_next: np.ndarray
    ) -> np.ndarray:
        (
            goal_p,
            goal_v,
            clean,
            half_s,
            third_s,
            triple,
            per_s,
            change,
            standing,
            ease,
            double,
            lag,
            lag2,
            most,
        ) = rows[k] or prepare(k)
        multiply(v, half_s, still)
        add(still, p, still)  # position after braking to zero velocity in this step
        subtract(upper, still, up)
        subtract(still, lower, down)
        subtract(standing, still, room)
        np.absolute(room, way)
        maximum(ahead, zeros, out=stop)
        multiply(stop, double, stop)
        add(stop, lag2, stop)
        np.sqrt(stop, stop)
        subtract(stop, lag, stop)
        if limited.min() < 0.0:  # a stop falls into this step
            turning = v * up / maximum(upper - p, LEAST_ROOM), -v * down / maximum(p - lower, LEAST_ROOM)
            np.copyto(stop_up, minimum(turning[0], 0.0), where=up < 0.0)
            np.copyto(stop_down, minimum(turning[1], 0.0), where=down < 0.0)
        multiply(way, per_s, closing)
        minimum(closing, stop_way, out=closing)
        np.copysign(closing, room, closing)
        add(closing, goal_v, v_next)
        minimum(v_next, stop_up, out=v_next)
        np.negative(stop_down, stop_down)
        maximum(v_next, stop_down, out=v_next)
        minimum(v_next, fastest, out=v_next)
        maximum(v_next, slowest, out=v_next)
        subtract(v, change, bound)
        maximum(v_next, bound, out=v_next)
        add(v, change, bound)
        minimum(v_next, bound, out=v_next)
        multiply(v_next, half_s, p_next)
        add(p_next, still, p_next)
        multiply(p, triple, bound)
        add(bound, v, bound)
        subtract(ease, bound, centre)
        subtract(centre, v, first)
        subtract(centre, goal_v, last)
        multiply(v, third_s, early)
        add(early, p, early)
        subtract(early, middle, early)
        np.absolute(cubic, cubic)
        np.less_equal(cubic, most, good)
        valid = (on & clean) | good.all(axis=0)
        np.copyto(p_next, goal_p, where=valid)
        np.copyto(v_next, goal_v, where=valid)
        return valid

    return step


def _rows(
    goal_p: np.ndarray,
    goal_v: np.ndarray,
    h: np.ndarray,
    longest: np.ndarray,
    clean: np.ndarray,
    limits: JointLimits,
) -> list[tuple[np.ndarray, ...]]:
    """The values that do not depend on the joints' state, for each of N steps."""
    d = goal_p.shape[1]
    middle, half = _middle(limits)
    h = np.repeat(h[:, None], d, axis=1)
    top, guard = limits.acceleration, braking(limits, longest[:, None])
    tops = np.empty((len(h), 3, d))
    tops[:, 0] = tops[:, 1] = guard
    tops[:, 2] = CLOSING * top
    double, lag = 2.0 * tops, tops * (h / 2)[:, None]
    # A cubic is within limits if these bounds hold: (its speed in the middle) - (at each end), that speed,
    # and the end points of its tangents.
    bound = np.empty((len(h), 4, d))
    bound[:, 0] = bound[:, 1] = top * (h / 2) * (1 + TOLERANCE)
    bound[:, 2] = limits.velocity * (1 + TOLERANCE)
    bound[:, 3] = np.where(np.abs(goal_p - h / 3 * goal_v - middle) <= half, half, -1.0)
    return list(
        zip(
            *(goal_p, goal_v, clean, h / 2, h / 3, 3 / h, 1 / h, top * h),
            *(goal_p - h / 2 * goal_v, 3 / h * goal_p - goal_v, double, lag, np.square(lag), bound),
        )
    )


def _middle(limits: JointLimits) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half width of each joint's range; 0 and infinity for an endless joint."""
    endless = ~(np.isfinite(limits.lower) & np.isfinite(limits.upper))
    with np.errstate(invalid="ignore"):
        middle, half = (limits.lower + limits.upper) / 2, (limits.upper - limits.lower) / 2
    return np.where(endless, 0.0, middle), np.where(endless, np.inf, half) + POSITION_TOLERANCE
