"""Joint limits, enforced on the path that the controller will sample and not only on its points.

A policy's chunk may jump. Cutting positions or velocities point by point leaves accelerations no motor can
follow, so a joint that breaks a limit is led by a second-order limiter (limiter.py) from where it is, until
it follows what is asked, or is at rest where it was asked to be. Joints within limits pass unchanged, bit for
bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vla_accel_ros.control.limiter import TOLERANCE, beyond, extremes, step_towards, within
from vla_accel_ros.control.trajectory import MotionState, Trajectory, knot_velocities

_CHASE_S = 20.0


class _Limited(Protocol):
    @property
    def lower(self) -> float: ...
    @property
    def upper(self) -> float: ...
    @property
    def velocity(self) -> float: ...
    @property
    def acceleration(self) -> float: ...


@dataclass(frozen=True)
class JointLimits:
    """float64 [D] each: lower and upper position (rad or m), greatest speed (per s) and acceleration (per
    s^2)."""

    lower: np.ndarray
    upper: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "velocity", "acceleration"):
            object.__setattr__(self, name, np.atleast_1d(np.array(getattr(self, name), dtype=np.float64)))
        if not self.lower.shape == self.upper.shape == self.velocity.shape == self.acceleration.shape:
            raise ValueError(
                "joint limits differ in length: give lower, upper, velocity, acceleration per joint"
            )
        good = (self.lower < self.upper) & (self.velocity > 0) & (self.acceleration > 0)
        if not good.all():
            raise ValueError(
                f"joint limits [{np.flatnonzero(~good)[0]}] leave nothing: lower must be below upper, "
                "velocity and acceleration above zero"
            )

    @classmethod
    def of(cls, joints: Iterable[_Limited]) -> JointLimits:
        """The limits of a contract's joints, in their order."""
        rows = [(j.lower, j.upper, j.velocity, j.acceleration) for j in joints]
        return cls(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)

    def select(self, columns: np.ndarray) -> JointLimits:
        """The limits of some of the joints."""
        return JointLimits(
            self.lower[columns], self.upper[columns], self.velocity[columns], self.acceleration[columns]
        )


@dataclass(frozen=True)
class LimitReport:
    """What was asked beyond the limits, float64 [D] each.

    position: how far beyond a position limit (rad or m). velocity, acceleration: the greatest asked over its
    limit, 1.0 or less when within. deviation: greatest distance between the asked and the sent position at
    the asked times.
    """

    joints: tuple[str, ...]
    position: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray
    deviation: np.ndarray

    @property
    def limited(self) -> tuple[str, ...]:
        """Names of the joints that were not sent as asked."""
        over = (self.position > 0) | (np.maximum(self.velocity, self.acceleration) > 1.0 + TOLERANCE)
        return tuple(name for name, is_over in zip(self.joints, over) if is_over)

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
    is at rest where it was asked to be, so the result may have more points. A start already beyond a limit is
    brought back, not jumped. Raises ValueError when the start is not before the first point.
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
    h, v_end = np.diff(times) * 1e-9, asked_v[-1]
    lowest, highest, fastest, hardest = (
        x.max(axis=0) if i else x.min(axis=0)
        for i, x in enumerate(extremes(asked_p[:-1], asked_v[:-1], asked_p[1:], asked_v[1:], h[:, None]))
    )
    report = LimitReport(
        trajectory.joints,
        beyond(lowest, highest, asked_p[-1], asked_v[-1], limits),
        fastest / limits.velocity,
        hardest / limits.acceleration,
        np.zeros(len(trajectory.joints)),
    )
    over = np.array([name in report.limited for name in trajectory.joints])
    if not over.any():
        return Trajectory(trajectory.joints, trajectory.times_ns, trajectory.positions, asked_v[1:]), report
    pieces = math.ceil(h.max() * (limits.acceleration / limits.velocity)[over].max())
    fine = _split(times, pieces)
    asked_p, asked_v = Trajectory(trajectory.joints, times, asked_p, asked_v).sample(fine)
    asked_v[-1] = v_end
    led_p, led_v = _lead(asked_p[:, over], asked_v[:, over], np.diff(fine) * 1e-9, limits.select(over))
    chase = len(led_p) - len(fine)
    report.deviation[over] = np.abs(led_p[: len(fine)] - asked_p[:, over]).max(axis=0)
    positions = np.concatenate([asked_p, np.repeat(asked_p[-1:], chase, axis=0)])
    velocities = np.concatenate([asked_v, np.zeros((chase, len(over)))])
    positions[:, over], velocities[:, over] = led_p, led_v
    after = fine[-1] + np.arange(1, chase + 1) * np.diff(fine).max()
    sent_times = np.concatenate([fine, after])
    return Trajectory(trajectory.joints, sent_times[1:], positions[1:], velocities[1:]), report


def _split(times: np.ndarray, pieces: int) -> np.ndarray:
    """Times with every interval cut into `pieces`: no step may turn full speed into full reverse."""
    parts = np.arange(pieces) * np.diff(times)[:, None] // pieces
    return np.append((times[:-1, None] + parts).ravel(), times[-1])


def _lead(
    asked_p: np.ndarray, asked_v: np.ndarray, h: np.ndarray, limits: JointLimits
) -> tuple[np.ndarray, np.ndarray]:
    """Lead joints along knots [N + 1, D] with steps h [N], and by M steps of the longest h to rest.

    Returns positions and velocities [N + 1 + M, D].
    """
    outside = (asked_p < limits.lower) | (asked_p > limits.upper)
    goal_p = np.clip(asked_p, limits.lower, limits.upper)
    goal_v = np.where(outside, 0.0, np.clip(asked_v, -limits.velocity, limits.velocity))
    clean = np.all(within(goal_p[:-1], goal_v[:-1], goal_p[1:], goal_v[1:], h[:, None], limits), axis=1)
    p, v = [asked_p[0]], [asked_v[0]]
    last = len(h)
    chase = 0 if goal_v[-1].any() else math.ceil(_CHASE_S / h.max())
    for k in range(last + chase):
        now, then = min(k, last), min(k + 1, last)
        step = h[k] if k < last else h.max()
        there = np.array_equal(p[-1], goal_p[now]) and np.array_equal(v[-1], goal_v[now])
        if there and k >= last:
            break
        if there and clean[k]:
            p.append(goal_p[then])
            v.append(goal_v[then])
            continue
        position, velocity, _ = step_towards(p[-1], v[-1], goal_p[then], goal_v[then], step, limits)
        p.append(position)
        v.append(velocity)
    return np.array(p), np.array(v)
