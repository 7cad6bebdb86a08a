"""The limits of each joint (range, speed, acceleration), and the shortest stop within them.

A stop is used when something is wrong, so it needs only the joints' positions and velocities: every joint
brakes with its whole acceleration and then stays. From a state inside its limits it comes to rest inside
them, since limited motion always keeps enough room to brake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint, check_finite, trusted

TURN = 2.0 * math.pi
SAG = 0.2
"""Share of the usual following distance that joints keep when they stand still."""
_SHORTEST_S = 0.1
# Longest time until a clock that was set is noticed.
_NOTICED_S = 0.02
_LOOK_S = 0.005


class Limited(Protocol):
    """A joint with limits, in rad or m and s."""

    @property
    def lower(self) -> float: ...
    @property
    def upper(self) -> float: ...
    @property
    def velocity(self) -> float: ...
    @property
    def acceleration(self) -> float: ...
    @property
    def continuous(self) -> bool: ...


def near(positions: np.ndarray, reference: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Positions, float64 [..., D], moved by whole turns to within half a turn of the reference, float64
    [..., D]; where that is NaN they stay. turns: a whole turn of each joint, float64 [D], 0 for one that does
    not turn without end."""
    endless = turns > 0.0
    if not endless.any():
        return positions
    whole = np.round((reference - positions) / np.where(endless, turns, 1.0))
    return positions + np.where(np.isfinite(whole), whole, 0.0) * turns


@dataclass(frozen=True)
class JointLimits:
    """float64 [D] each: lower and upper position (rad or m), greatest speed (per s) and acceleration (per
    s^2). continuous: bool [D], joints that turn without end; their positions are counted on across pi, and
    lower and upper bound the count; by default there is none. together: joints brake in the same time, so
    that a hand slows down on its way. guard: of the hands that the joints move (kinematics/guard.py), None
    without. Raises ValueError if the lengths differ or a range, speed or acceleration is empty."""

    lower: np.ndarray
    upper: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray
    continuous: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    together: bool = field(default=False, kw_only=True)
    guard: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not np.size(self.continuous):
            object.__setattr__(self, "continuous", np.zeros(np.size(self.lower), bool))
        for name in ("lower", "upper", "velocity", "acceleration"):
            object.__setattr__(self, name, np.atleast_1d(np.array(getattr(self, name), dtype=np.float64)))
        object.__setattr__(self, "continuous", np.atleast_1d(np.array(self.continuous, dtype=bool)))
        shapes = {
            a.shape for a in (self.lower, self.upper, self.velocity, self.acceleration, self.continuous)
        }
        if len(shapes) > 1:
            raise ValueError(
                "joint limits differ in length: give lower, upper, velocity, acceleration per joint"
            )
        good = (self.lower < self.upper) & (self.velocity > 0) & (self.acceleration > 0)
        if not good.all():
            raise ValueError(
                f"joint limits [{np.flatnonzero(~good)[0]}] are empty: lower must be below upper, "
                "velocity and acceleration above zero"
            )

    @classmethod
    def of(cls, joints: Iterable[Limited]) -> JointLimits:
        """The limits of a contract's joints, in their order."""
        rows = [(j.lower, j.upper, j.velocity, j.acceleration, j.continuous) for j in joints]
        lower, upper, velocity, acceleration, continuous = np.array(rows, np.float64).reshape(-1, 5).T
        return cls(lower, upper, velocity, acceleration, continuous > 0.0)

    def select(self, columns: np.ndarray) -> JointLimits:
        """The limits of some of the joints, without a guard."""
        limits = self.lower, self.upper, self.velocity, self.acceleration, self.continuous
        return JointLimits(*(of_joints[columns] for of_joints in limits), together=self.together)

    @property
    def span(self) -> np.ndarray:
        """The range of each joint, float64 [D], of which tolerances are shares; at most one turn of a
        continuous joint, whose bounds may be many turns apart."""
        span = self.upper - self.lower
        return np.where(self.continuous, np.minimum(span, TURN), span)

    def near(self, positions: np.ndarray, reference: np.ndarray) -> np.ndarray:
        """Positions, float64 [..., D], counted on from a reference; see the function `near`."""
        return positions if not self.continuous.any() else near(positions, reference, TURN * self.continuous)

    def inside(self, positions: np.ndarray) -> np.ndarray:
        """Positions, float64 [..., D], those of continuous joints outside their range moved by the whole
        turns that lead into it, if any do."""
        out = (positions < self.lower) | (positions > self.upper)
        moved = self.near(positions, (self.lower + self.upper) / 2)
        return np.where(out & (moved >= self.lower) & (moved <= self.upper), moved, positions)


def brake(joints: tuple[str, ...], state: TrajectoryPoint, limits: JointLimits) -> Trajectory:
    """Brake from `state` in minimal time, each joint on its own; the last point has zero velocity.

    The first point is the state itself; one more follows for every instant at which a joint comes to rest.
    Stops last whole microseconds, rounded up where there is room. A state without velocity is at rest
    already.
    """
    v0 = np.zeros_like(state.position) if state.velocity is None else state.velocity
    check_finite("the state to brake from", np.stack([state.position, v0]), joints)
    return brake_from(joints, state.stamp_ns, state.position, v0, limits)


def brake_from(
    joints: tuple[str, ...], stamp_ns: int, p0: np.ndarray, v0: np.ndarray, limits: JointLimits
) -> Trajectory:
    """`brake` from finite positions and velocities, float64 [D]."""
    if not v0.any():
        return trusted(joints, np.array([stamp_ns]), p0[None].copy(), v0[None].copy())
    speed = np.abs(v0)
    stop_s = np.ceil(speed / limits.acceleration * 1e6) * 1e-6
    if limits.together:
        stop_s = np.where(speed > 0.0, stop_s.max(), 0.0)
    room = np.where(v0 > 0, limits.upper - p0, p0 - limits.lower)
    tight = (room > 0) & (speed * stop_s > 2 * room)
    if tight.any():
        stop_s[tight] = np.maximum(np.floor(2 * room[tight] / speed[tight] * 1e6), 1.0) * 1e-6
    t = np.array(sorted({0.0, *stop_s.tolist()}))[:, None]
    slowing = np.divide(v0, stop_s, out=np.zeros_like(v0), where=stop_s > 0)
    moved = np.minimum(t, stop_s)
    positions = p0 + moved * (v0 - slowing * moved / 2)
    velocities = np.where(t < stop_s, v0 - slowing * t, 0.0)
    times_ns = stamp_ns + np.rint(t[:, 0] * 1e9).astype(np.int64)
    return trusted(joints, times_ns, positions, velocities)


def brake_on_arrival(
    joints: tuple[str, ...],
    reference: Callable[[int], tuple[np.ndarray, np.ndarray]],
    was_ns: int,
    now_ns: int,
    late_s: float,
    limits: JointLimits,
) -> Trajectory:
    """One point at rest, for controllers that execute `reference` on a time base that no longer holds.

    reference: position and velocity, float64 [D] each, at a time. was_ns: the present in the old time;
    now_ns: in the new time, which the point uses. The stop is within limits wherever on the path a controller
    is when it arrives, up to late_s from now.

    From speed v, a cubic to a point v T / 2 ahead decelerates at v / T. A controller that is late by lag is
    closer by v lag, which adds up to 6 v lag / T^2. Its speed may be w by then, which adds 4 (w - v) / T; w
    is the greatest speed on the way, since the path may turn just now, or end before the stop arrives. If the
    joint's range leaves too little room, T is 3 room / v, for which no cubic goes beyond the range.
    """
    position, velocity = reference(was_ns)
    times_ns = np.linspace(was_ns, was_ns + late_s * 1e9, math.ceil(late_s / _LOOK_S) + 1)
    speed = np.max([np.abs(reference(int(t_ns))[1]) for t_ns in times_ns], axis=0)
    top, lag_s = limits.acceleration, late_s + _NOTICED_S
    change = 4.0 * speed - 3.0 * np.abs(velocity)
    rest_s = (change + np.sqrt(change * change + 24.0 * top * speed * lag_s)) / (2.0 * top)
    room = np.where(velocity > 0, limits.upper - position, position - limits.lower)
    tight = speed * float(rest_s.max(initial=0.0)) > 3.0 * room
    rest_s = (3.0 * room[tight] / speed[tight]).min() if tight.any() else rest_s.max(initial=0.0)
    rest_s = max(float(rest_s), _SHORTEST_S)
    end = np.clip(position + velocity * rest_s / 2, limits.lower, limits.upper).reshape(1, -1)
    return Trajectory(joints, np.array([now_ns + math.ceil(rest_s * 1e9)]), end, np.zeros_like(end))


def rest_to_rest_s(
    away: np.ndarray, goal: np.ndarray, limits: JointLimits, least: np.ndarray | float = 0.0
) -> float:
    """Duration of one cubic to a goal from distances of at most `away`, from rest to rest within the limits.
    least: for how far the joints' own limits suffice, if nobody knows; float64 [D] each. Of that a hand, for
    which it would take too long, is given the share by which joints sag."""
    joints = np.maximum(away, least)
    speed_s, push_s = 1.5 * joints / limits.velocity, np.sqrt(6.0 * joints / limits.acceleration)
    shortest_s = max(float(np.maximum(speed_s, push_s).max(initial=0.0)), _SHORTEST_S)
    if limits.guard is None:
        return shortest_s
    return max(shortest_s, 1.5 * float(limits.guard.least_s(np.maximum(away, SAG * least), goal)))


def cut(trajectory: Trajectory, at_ns: int, limits: JointLimits) -> Trajectory:
    """A motion with velocities up to a time, and then a brake; the whole motion if it ends before."""
    if at_ns >= trajectory.end_ns:
        return trajectory
    at_ns = max(at_ns, trajectory.start_ns)
    state = TrajectoryPoint(at_ns, *trajectory.sample(at_ns))
    return trajectory.then(brake(trajectory.joints, state, limits))
