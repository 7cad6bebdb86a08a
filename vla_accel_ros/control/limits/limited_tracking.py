"""Joints that break a limit, led along what is asked by the limiter's steps, and after it to rest.

The same steps as limiter.step_towards makes, which is their plain form and what this is tested against. A
step depends on the one before, so only the joints can be computed at once; everything that does not depend on
where they are is computed for all steps beforehand, and a step is some forty operations on rows of one
buffer, which allocate nothing. The work is bounded: a step for each knot that is asked, and MOST_CHASE more
that grow geometrically, so that a long way to rest takes no more of them than a short one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vla_accel_ros.control.limits.braking import brake
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.limits.limiter import (
    CLOSING,
    LEAST_ROOM,
    POSITION_TOLERANCE,
    TOLERANCE,
    attainable,
    braking,
    reachable,
    turning_s,
)
from vla_accel_ros.control.trajectory import MotionState

MOST_CHASE = 28
"""Steps after the last knot that is asked; a joint that is not at its goal then, brakes."""
LONGEST_CHASE_S = 20.0
_AIMED_CHASE = 16

_Step = Callable[[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def lead(
    asked_p: np.ndarray, asked_v: np.ndarray, times_ns: np.ndarray, limits: JointLimits, to_rest: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lead joints along knots: asked positions and velocities, float64 [N, D], at int64 [N] times.

    The first knot is where the joints are. Returns times, positions and velocities of the N knots, and with
    to_rest of MOST_CHASE + D more at most, in which joints that lag come to rest where they were asked to be,
    or as soon as they can if that takes too long.
    """
    h = np.diff(times_ns) * 1e-9
    goal_p, goal_v = attainable(asked_p, asked_v, limits, h.max())
    p, v = _walk(asked_p[0], asked_v[0], goal_p, goal_v, h, limits)
    goal_p, goal_v = goal_p[-1], goal_v[-1]
    if not to_rest or goal_v.any() or (np.array_equal(p[-1], goal_p) and not v[-1].any()):
        return times_ns, p, v
    steps_ns = np.round(chase_s(p[-1], v[-1], goal_p, h.max(), limits) * 1e9).astype(np.int64)
    goals = np.broadcast_to(goal_p, (len(steps_ns) + 1, len(goal_p)))
    more_p, more_v = _walk(p[-1], v[-1], goals, np.zeros_like(goals), steps_ns * 1e-9, limits, to_rest=True)
    times_ns = np.append(times_ns, times_ns[-1] + np.cumsum(steps_ns[: len(more_p) - 1]))
    p, v = np.concatenate([p, more_p[1:]]), np.concatenate([v, more_v[1:]])
    if not v[-1].any():
        return times_ns, p, v
    names = tuple(map(str, range(len(goal_p))))
    tail = brake(names, MotionState(int(times_ns[-1]), p[-1], v[-1]), limits)
    assert tail.velocities is not None
    return (
        np.append(times_ns, tail.times_ns[1:]),
        np.concatenate([p, tail.positions[1:]]),
        np.concatenate([v, tail.velocities[1:]]),
    )


def chase_s(
    p: np.ndarray, v: np.ndarray, goal_p: np.ndarray, step_s: float, limits: JointLimits
) -> np.ndarray:
    """Steps in seconds, from about step_s on and MOST_CHASE at most, that suffice to come to rest at the
    goal."""
    top = limits.acceleration
    stop_s = np.abs(v) / top
    way = np.abs(goal_p - p) + np.abs(v) * stop_s / 2
    ramps = (1.0 + 1.0 / CLOSING) / 2 / top
    peak = np.minimum(limits.velocity, np.sqrt(way / ramps)) + 1e-12
    need_s = min(float((stop_s + way / peak + peak * ramps).max()), LONGEST_CHASE_S / 2)
    # By such steps a joint at full speed can still brake with all that it has, also while they grow so fast.
    first_s = min(max(step_s, need_s / 8), float(turning_s(limits).min()) / 2)
    low, high = 1.0, 1.25
    if first_s * _AIMED_CHASE < need_s:
        for _ in range(20):  # growth whose steps sum up to what is needed
            growth = (low + high) / 2
            enough = first_s * (growth**_AIMED_CHASE - 1.0) >= need_s * (growth - 1.0)
            low, high = (low, growth) if enough else (growth, high)
    else:
        high = 1.0
    steps = first_s * high ** np.minimum(np.arange(MOST_CHASE), _AIMED_CHASE)
    return steps[np.cumsum(steps) <= max(2.0 * need_s, 2.0 * first_s)]


def _walk(
    p0: np.ndarray,
    v0: np.ndarray,
    goal_p: np.ndarray,
    goal_v: np.ndarray,
    h: np.ndarray,
    limits: JointLimits,
    to_rest: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and velocities [N + 1, D] of joints that start at p0, v0 and are led to attainable goals
    [N + 1, D] by steps h [N]. to_rest: end when all are at their goal, which is at rest; the steps grow."""
    p, v = np.empty(goal_p.shape), np.empty(goal_p.shape)
    p[0], v[0] = p0, v0
    clean = reachable(goal_p[:-1], goal_v[:-1], goal_p[1:], goal_v[1:], h[:, None], limits)
    all_clean: list[bool] = np.logical_and.reduce(clean, axis=1).tolist()
    longest = np.append(h[1:], h[-1]) if to_rest else np.full(len(h), h.max())
    step = _stepper(goal_p, goal_v, h, longest, clean, limits)
    on = (p[0] == goal_p[0]) & (v[0] == goal_v[0])
    k = 0
    while k < len(h):
        if all_clean[k] and on.all():
            if to_rest:
                break
            until = k + 1
            while until < len(h) and all_clean[until]:
                until += 1
            p[k + 1 : until + 1], v[k + 1 : until + 1] = goal_p[k + 1 : until + 1], goal_v[k + 1 : until + 1]
            k = until
        else:
            on = step(k, p[k], v[k], on, p[k + 1], v[k + 1])
            k += 1
    return p[: k + 1], v[: k + 1]


def _stepper(
    goal_p: np.ndarray,
    goal_v: np.ndarray,
    h: np.ndarray,
    longest: np.ndarray,
    clean: np.ndarray,
    limits: JointLimits,
) -> _Step:
    """limiter.step_towards for step k: from p, v to p_next, v_next [D], which it writes.

    longest [N]: longest_s of each step. on [D]: joints at their goal; returns those that are so then.
    """
    d = goal_p.shape[1]
    lower, upper, fastest, slowest = limits.lower, limits.upper, limits.velocity, -limits.velocity
    middle, half = _middle(limits)
    goal_p, goal_v, h = goal_p[1:], goal_v[1:], np.repeat(h[:, None], d, axis=1)
    top, guard = limits.acceleration, braking(limits, longest[:, None])
    tops = np.stack([guard, guard, np.broadcast_to(CLOSING * top, guard.shape)], axis=1)
    double, lag = 2.0 * tops, tops * (h / 2)[:, None]
    # A cubic is within limits if (its speed in the middle) - (at the ends), that speed, and where its
    # tangents lead to, are no more than these.
    most = np.empty((len(h), 4, d))
    most[:, 0] = most[:, 1] = top * (h / 2) * (1 + TOLERANCE)
    most[:, 2] = fastest * (1 + TOLERANCE)
    most[:, 3] = np.where(np.abs(goal_p - h / 3 * goal_v - middle) <= half, half, -1.0)
    rows = list(
        zip(
            *(goal_p, goal_v, clean, h / 2, h / 3, 3 / h, 1 / h, top * h),
            *(goal_p - h / 2 * goal_v, 3 / h * goal_p - goal_v, double, lag, np.square(lag), most),
        )
    )
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
        goal_p, goal_v, clean, half_s, third_s, triple, per_s, change, rest, ease, double, lag, lag2, most = (
            rows[k]
        )
        multiply(v, half_s, still)
        add(still, p, still)  # where it is after a step to a stand
        subtract(upper, still, up)
        subtract(still, lower, down)
        subtract(rest, still, room)
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
        there = (on & clean) | good.all(axis=0)
        np.copyto(p_next, goal_p, where=there)
        np.copyto(v_next, goal_v, where=there)
        return there

    return step


def _middle(limits: JointLimits) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half of each joint's range; all of it where it is endless."""
    endless = ~(np.isfinite(limits.lower) & np.isfinite(limits.upper))
    with np.errstate(invalid="ignore"):
        middle, half = (limits.lower + limits.upper) / 2, (limits.upper - limits.lower) / 2
    return np.where(endless, 0.0, middle), np.where(endless, np.inf, half) + POSITION_TOLERANCE
