"""Enforces joint limits on the path that the controller samples, not only on its points.

A policy's chunk may jump. Clipping positions or velocities point by point leaves accelerations that no motor
can follow. A joint that breaks a limit is therefore led by a second-order limiter (limiter.py) from its
present state until it follows the asked path, or rests at the asked end. Joints within limits pass unchanged,
bit for bit. The work is bounded: one step for each asked knot, and at most MOST_CHASE more, which grow
geometrically so that a long way to rest takes no more steps than a short one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits, brake
from vla_accel_ros.control.limits.limiter import (
    CLOSING,
    POSITION_TOLERANCE,
    TOLERANCE,
    attainable,
    reachable,
    steps_along,
    turning_s,
)
from vla_accel_ros.control.trajectory import (
    Trajectory,
    TrajectoryPoint,
    check_finite,
    extremes,
    knot_velocities,
    trusted,
)

MOST_SPLIT = 96
MOST_CHASE = 28
"""Steps after the last asked knot; a joint that has not reached its goal then brakes."""
LONGEST_CHASE_S = 20.0
_AIMED_CHASE = 16
_MS = 1_000_000


@dataclass(frozen=True)
class LimitReport:
    """What was asked beyond the limits, float64 [D] each.

    position: distance beyond a position limit (rad or m). velocity, acceleration: the greatest asked value
    over its limit, at most 1.0 when within; if no joint exceeds a limit, the velocity is an upper bound.
    deviation: greatest distance between the asked and the sent position at the asked times.
    """

    joints: tuple[str, ...]
    position: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray
    deviation: np.ndarray

    @property
    def limited(self) -> tuple[str, ...]:
        """Names of the joints that were not sent as asked."""
        return tuple(name for name, exceeded in zip(self.joints, self.over) if exceeded)

    @property
    def over(self) -> np.ndarray:
        """bool [D]: joints that were not sent as asked."""
        return (self.position > 0) | (np.maximum(self.velocity, self.acceleration) > 1.0 + TOLERANCE)

    def __str__(self) -> str:
        if not self.limited:
            return "all joints within limits"
        return "; ".join(
            f"{name}: asked {self.velocity[j]:.2f} x its velocity, {self.acceleration[j]:.2f} x its "
            f"acceleration, {self.position[j]:.3f} beyond its range; sent up to {self.deviation[j]:.3f} away"
            for j, name in enumerate(self.joints)
            if name in self.limited
        )


def enforce(
    trajectory: Trajectory, start: TrajectoryPoint, limits: JointLimits
) -> tuple[Trajectory, LimitReport]:
    """Returns the trajectory, within limits when sampled from `start`, and a report of what was changed.

    start: the state before the first point; its stamp must be earlier. A trajectory without velocities gets
    central differences and zero velocity at its end. A joint that lags at the last point goes on until it
    rests at its asked position, for LONGEST_CHASE_S at most, and then brakes. So the result may have more
    points, but at most max(N, MOST_SPLIT) + MOST_CHASE + 2 D. If the asked path ends in motion, so does the
    result. A start already beyond a limit is brought back without a jump. Raises ValueError if the start is
    not before the first point, or `limits.guard` refuses the motion.
    """
    if start.stamp_ns >= trajectory.start_ns:
        raise ValueError(
            f"the start at {start.stamp_ns} ns is not before the first point at {trajectory.start_ns} ns: "
            "drop the points that are past"
        )
    v_start = np.zeros_like(start.position) if start.velocity is None else start.velocity
    times = np.concatenate([[start.stamp_ns], trajectory.times_ns])
    asked_p = np.concatenate([start.position[None], trajectory.positions])
    if trajectory.velocities is None:
        asked_v = knot_velocities(times, asked_p, first=v_start)
    else:
        asked_v = np.concatenate([v_start[None], trajectory.velocities])
    knots = enforce_knots if limits.guard is None else limits.guard.enforce
    return cast(tuple[Trajectory, LimitReport], knots(trajectory.joints, times, asked_p, asked_v, limits))


def enforce_knots(
    joints: tuple[str, ...], times: np.ndarray, asked_p: np.ndarray, asked_v: np.ndarray, limits: JointLimits
) -> tuple[Trajectory, LimitReport]:
    """`enforce` for knots, float64 [N + 1, D] at int64 [N + 1] times; the first knot is the start."""
    h = (times[1:] - times[:-1]) * 1e-9
    report = _report(joints, asked_p, asked_v, h, limits)
    exceeds = report.over
    if not exceeds.any():
        check_finite("the limited positions", asked_p, joints)
        check_finite("the limited velocities", asked_v, joints)
        return trusted(joints, times[1:], asked_p[1:], asked_v[1:]), report
    v_start = asked_v[0]
    stop_s = (np.abs(v_start) / limits.acceleration)[exceeds]
    fine = _split(times, float(turning_s(limits)[exceeds].min()), stop_s)
    if len(fine) > len(times):
        v_end = asked_v[-1]
        asked_p, asked_v = Trajectory(joints, times, asked_p, asked_v).sample(fine)
        asked_v[-1] = v_end
    led = np.flatnonzero(exceeds)
    sent_times, led_p, led_v = lead(
        asked_p[:, led], asked_v[:, led], fine, limits.select(led), not asked_v[-1].any()
    )
    chase = len(led_p) - len(fine)
    report.deviation[led] = np.abs(led_p[: len(fine)] - asked_p[:, led]).max(axis=0)
    positions = np.concatenate([asked_p, np.repeat(asked_p[-1:], chase, axis=0)])
    velocities = np.concatenate([asked_v, np.zeros((chase, len(exceeds)))])
    positions[:, led], velocities[:, led] = led_p, led_v
    return Trajectory(joints, sent_times[1:], positions[1:], velocities[1:]), report


def lead(
    asked_p: np.ndarray, asked_v: np.ndarray, times_ns: np.ndarray, limits: JointLimits, to_rest: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lead joints along knots: asked positions and velocities, float64 [N, D], at int64 [N] times.

    The first knot is the joints' state. Returns times, positions and velocities of the N knots. With to_rest,
    at most MOST_CHASE + D knots follow, in which joints that lag come to rest at their asked position, or as
    soon as they can if that takes too long.
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
    tail = brake(names, TrajectoryPoint(int(times_ns[-1]), p[-1], v[-1]), limits)
    assert tail.velocities is not None
    return (
        np.append(times_ns, tail.times_ns[1:]),
        np.concatenate([p, tail.positions[1:]]),
        np.concatenate([v, tail.velocities[1:]]),
    )


def chase_s(
    p: np.ndarray, v: np.ndarray, goal_p: np.ndarray, step_s: float, limits: JointLimits
) -> np.ndarray:
    """Durations in seconds of at most MOST_CHASE steps, starting near step_s, that suffice to come to rest at
    the goal."""
    top = limits.acceleration
    stop_s = np.abs(v) / top
    way = np.abs(goal_p - p) + np.abs(v) * stop_s / 2
    ramps = (1.0 + 1.0 / CLOSING) / 2 / top
    peak = np.minimum(limits.velocity, np.sqrt(way / ramps)) + 1e-12
    need_s = min(float((stop_s + way / peak + peak * ramps).max()), LONGEST_CHASE_S / 2)
    # With such steps a joint at full speed can still brake with its whole acceleration, even while steps
    # grow.
    first_s = min(max(step_s, need_s / 8), float(turning_s(limits).min()) / 2)
    low, high = 1.0, 1.25
    if first_s * _AIMED_CHASE < need_s:
        for _ in range(20):  # find the growth at which the steps add up to need_s
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
    """Positions and velocities [N + 1, D] of joints that start at p0, v0 and are led to attainable goals [N +
    1, D] by steps h [N]. to_rest: stop when all joints have reached their goal at rest; the steps grow."""
    p, v = np.empty(goal_p.shape), np.empty(goal_p.shape)
    p[0], v[0] = p0, v0
    clean = reachable(goal_p[:-1], goal_v[:-1], goal_p[1:], goal_v[1:], h[:, None], limits)
    all_clean: list[bool] = np.logical_and.reduce(clean, axis=1).tolist()
    longest = np.append(h[1:], h[-1]) if to_rest else np.full(len(h), h.max())
    step = steps_along(goal_p, goal_v, h, longest, clean, limits)
    on = (p[0] == goal_p[0]) & (v[0] == goal_v[0])
    k = 0
    while k < len(h):
        if all_clean[k] and on.all():
            if to_rest:
                break
            stop = k + 1
            while stop < len(h) and all_clean[stop]:
                stop += 1
            p[k + 1 : stop + 1], v[k + 1 : stop + 1] = goal_p[k + 1 : stop + 1], goal_v[k + 1 : stop + 1]
            k = stop
        else:
            on = step(k, p[k], v[k], on, p[k + 1], v[k + 1])
            k += 1
    return p[: k + 1], v[: k + 1]


def _report(
    joints: tuple[str, ...], p: np.ndarray, v: np.ndarray, h: np.ndarray, limits: JointLimits
) -> LimitReport:
    """Reports what knots [N + 1, D] ask for; computed exactly only if the bound may be beyond the limits."""
    for measure in (_hull, extremes):
        lowest, highest, fastest, hardest = measure(p[:-1], v[:-1], p[1:], v[1:], h[:, None])
        report = LimitReport(
            joints,
            _beyond(lowest.min(axis=0), highest.max(axis=0), p[-1], v[-1], limits),
            fastest.max(axis=0) / limits.velocity,
            hardest.max(axis=0) / limits.acceleration,
            np.zeros(len(joints)),
        )
        if not report.over.any():
            break
    return report


def _split(times: np.ndarray, longest_s: float, stop_s: np.ndarray) -> np.ndarray:
    """Splits intervals that are longer than longest_s.

    The work is bounded: at most MOST_SPLIT intervals are made. If that is too few, the joints can still stop
    from their initial velocity, because knots are added at their stopping times stop_s [D].
    """
    gaps = np.diff(times)
    pieces = max(1, MOST_SPLIT // len(gaps))
    counts = np.ceil(gaps * 1e-9 / longest_s)
    cuts = np.clip(counts, 1, pieces).astype(np.int64)
    if cuts.max() > 1:
        part = np.arange(cuts.sum()) - np.repeat(np.cumsum(cuts) - cuts, cuts)
        starts, parts = np.repeat(times[:-1], cuts), part * np.repeat(gaps, cuts) // np.repeat(cuts, cuts)
        times = np.append(starts + parts, times[-1])
    if counts.max() <= pieces:
        return times
    stops = times[0] + np.unique(np.ceil(stop_s * 1e3)).astype(np.int64) * _MS
    stops = stops[stops < times[-1]]
    index = np.searchsorted(times, stops, side="right")
    inner = (stops - times[index - 1] >= _MS // 2) & (times[index] - stops >= _MS // 2)
    return np.insert(times, index[inner], stops[inner])


def _hull(
    p0: np.ndarray, v0: np.ndarray, p1: np.ndarray, v1: np.ndarray, duration_s: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Bounds on the results of `extremes`, from the control points of the Bezier curves, for a third of the
    work; the acceleration is exact."""
    third = duration_s / 3.0
    middle = (p1 - p0) / third - v0 - v1
    early, end_control = p0 + third * v0, p1 - third * v1
    acceleration = np.maximum(np.abs(middle - v0), np.abs(middle - v1)) * (2.0 / duration_s)
    velocity = np.maximum(np.maximum(np.abs(v0), np.abs(v1)), np.abs(middle))
    lowest, highest = np.minimum(np.minimum(p0, p1), early), np.maximum(np.maximum(p0, p1), early)
    return np.minimum(lowest, end_control), np.maximum(highest, end_control), velocity, acceleration


def _beyond(
    lowest: np.ndarray, highest: np.ndarray, end_p: np.ndarray, end_v: np.ndarray, limits: JointLimits
) -> np.ndarray:
    """How far [D] a path leaves its position limits, including the braking distance after its end; 0 if it
    does not."""
    stop = end_v * np.abs(end_v) / (2.0 * limits.acceleration)
    beyond = np.maximum(np.maximum(highest, end_p + stop) - limits.upper, 0.0)
    under = np.maximum(limits.lower - np.minimum(lowest, end_p + stop), 0.0)
    out = np.maximum(beyond, under)
    return np.where(out <= POSITION_TOLERANCE, 0.0, out)
