"""Joint limits, enforced on the path that the controller will sample and not only on its points.

A policy's chunk may jump. Cutting positions or velocities point by point leaves accelerations no motor can
follow, so a joint that breaks a limit is led by a second-order limiter (limited_tracking.py) from where it
is, until it follows what is asked, or is at rest where it was asked to be. Joints within limits pass
unchanged, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.limits.limited_tracking import lead
from vla_accel_ros.control.limits.limiter import TOLERANCE, beyond, extremes, hull, turning_s
from vla_accel_ros.control.trajectory import MotionState, Trajectory, knot_velocities

MOST_SPLIT = 96
_MS = 1_000_000


@dataclass(frozen=True)
class LimitReport:
    """What was asked beyond the limits, float64 [D] each.

    position: how far beyond a position limit (rad or m). velocity, acceleration: the greatest asked over its
    limit, 1.0 or less when within; when all are, the velocity is an upper bound. deviation: greatest distance
    between the asked and the sent position at the asked times.
    """

    joints: tuple[str, ...]
    position: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray
    deviation: np.ndarray

    @property
    def limited(self) -> tuple[str, ...]:
        """Names of the joints that were not sent as asked."""
        return tuple(name for name, over in zip(self.joints, self.over) if over)

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
    trajectory: Trajectory, start: MotionState, limits: JointLimits
) -> tuple[Trajectory, LimitReport]:
    """The trajectory within limits when sampled from `start`, and what had to be changed.

    start: the state before the first point; its stamp must be earlier. Without velocities the trajectory gets
    central differences and a zero-velocity end. A joint that lags at the last point goes on after it until it
    is at rest where it was asked to be, for LONGEST_CHASE_S at most, and then brakes; so the result may have
    more points, but no more than max(N, MOST_SPLIT) + MOST_CHASE + 2 D. An end in motion is the end. A start
    already beyond a limit is brought back, not jumped. Raises ValueError when the start is not before the
    first point.
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
    h = np.diff(times) * 1e-9
    report = _report(trajectory.joints, asked_p, asked_v, h, limits)
    over = report.over
    if not over.any():
        return Trajectory(trajectory.joints, trajectory.times_ns, trajectory.positions, asked_v[1:]), report
    stop_s = (np.abs(v_start) / limits.acceleration)[over]
    fine = _split(times, float(turning_s(limits)[over].min()), stop_s)
    if len(fine) > len(times):
        v_end = asked_v[-1]
        asked_p, asked_v = Trajectory(trajectory.joints, times, asked_p, asked_v).sample(fine)
        asked_v[-1] = v_end
    led = np.flatnonzero(over)
    sent_times, led_p, led_v = lead(
        asked_p[:, led], asked_v[:, led], fine, limits.select(led), not asked_v[-1].any()
    )
    chase = len(led_p) - len(fine)
    report.deviation[led] = np.abs(led_p[: len(fine)] - asked_p[:, led]).max(axis=0)
    positions = np.concatenate([asked_p, np.repeat(asked_p[-1:], chase, axis=0)])
    velocities = np.concatenate([asked_v, np.zeros((chase, len(over)))])
    positions[:, led], velocities[:, led] = led_p, led_v
    return Trajectory(trajectory.joints, sent_times[1:], positions[1:], velocities[1:]), report


def _report(
    joints: tuple[str, ...], p: np.ndarray, v: np.ndarray, h: np.ndarray, limits: JointLimits
) -> LimitReport:
    """What knots [N + 1, D] ask for; exactly only if that may be beyond limits."""
    for measure in (hull, extremes):
        lowest, highest, fastest, hardest = measure(p[:-1], v[:-1], p[1:], v[1:], h[:, None])
        report = LimitReport(
            joints,
            beyond(lowest.min(axis=0), highest.max(axis=0), p[-1], v[-1], limits),
            fastest.max(axis=0) / limits.velocity,
            hardest.max(axis=0) / limits.acceleration,
            np.zeros(len(joints)),
        )
        if not report.over.any():
            break
    return report


def _split(times: np.ndarray, longest_s: float, stop_s: np.ndarray) -> np.ndarray:
    """Times with intervals longer than longest_s cut.

    The work is bounded: no more than MOST_SPLIT intervals are made. Where that is too few, the joints still
    can stop as they start: there are knots at the times stop_s [D] that they take for it.
    """
    gaps = np.diff(times)
    most = max(1, MOST_SPLIT // len(gaps))
    wanted = np.ceil(gaps * 1e-9 / longest_s)
    cuts = np.clip(wanted, 1, most).astype(np.int64)
    if cuts.max() > 1:
        part = np.arange(cuts.sum()) - np.repeat(np.cumsum(cuts) - cuts, cuts)
        starts, parts = np.repeat(times[:-1], cuts), part * np.repeat(gaps, cuts) // np.repeat(cuts, cuts)
        times = np.append(starts + parts, times[-1])
    if wanted.max() <= most:
        return times
    stops = times[0] + np.unique(np.ceil(stop_s * 1e3)).astype(np.int64) * _MS
    stops = stops[stops < times[-1]]
    after = np.searchsorted(times, stops, side="right")
    apart = (stops - times[after - 1] >= _MS // 2) & (times[after] - stops >= _MS // 2)
    return np.insert(times, after[apart], stops[apart])
