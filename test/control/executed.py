"""What controllers do with the trajectories they get, at 500 Hz, and whether that keeps the contract's
limits.

A joint_trajectory_controller replaces the active trajectory by each new one, joins in the middle one that has
begun, approaches from its state one that begins later, and refuses one that has ended or ends in motion. Its
setpoint is sampled every 2 ms. The second difference of positions is the acceleration, so a step of position
or velocity at a hand-over counts as acceleration over one control period. Streamed positions and velocities
are judged tick by tick: a tick later than two periods counts as one after two, and after a pause in which a
robot has stopped the joints begin from rest. Time is steady; the caller converts ROS time.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np

from vla_accel_ros.control.command_stream import STOOD_S
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint

PERIOD_NS = 2_000_000
TOLERANCE = 1e-3
EASED = 3.0
_ROUNDING = 1e-7


@dataclass(frozen=True)
class Broken:
    """A limit that was exceeded. by: value over the limit. at_s: time in the episode."""

    what: str
    at_s: float
    by: float
    joint: int = 0

    def __str__(self) -> str:
        return f"{self.what} of joint {self.joint} at {self.at_s:.3f} s: {self.by:.4g} x what is allowed"


class TrajectoryController:
    """A joint_trajectory_controller. from_desired: its parameter interpolate_from_desired_state."""

    def __init__(self, joints: tuple[str, ...], position: np.ndarray, from_desired: bool) -> None:
        self.joints, self.from_desired = joints, from_desired
        self.starts: list[int] = []
        self.pieces: list[tuple[Trajectory, TrajectoryPoint | None]] = []
        self._own: list[bool] = []  # pieces that it holds by itself
        self.spared: list[tuple[int, int]] = []
        self.eased: list[tuple[int, int]] = []
        self.rejected: list[str] = []
        self.hold(position, 0)

    def hold(self, position: np.ndarray, t_ns: int) -> None:
        """Stand still from now on, whatever was before: it is activated."""
        self._take(t_ns, Trajectory(self.joints, np.array([t_ns]), position[None]), None)
        self._own[-1] = True
        self.spare(t_ns)

    def spare(self, t_ns: int, until_ns: int = 0) -> None:
        """Do not judge this time: the setpoint moves by itself or for others."""
        self.spared.append((t_ns - 2 * PERIOD_NS, max(t_ns, until_ns) + 2 * PERIOD_NS))

    @property
    def exceptions(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Times that are not judged, and times of stops after the clock was set; see judge_path."""
        return self.spared, self.eased

    def shift(self, by_ns: int, t_ns: int) -> None:
        """Its own clock is set: its trajectory moves in time."""
        active, start = self.pieces[-1]
        moved = None if start is None else replace(start, stamp_ns=start.stamp_ns - by_ns)
        self._take(t_ns, replace(active, times_ns=active.times_ns - by_ns), moved)
        self.spare(t_ns)

    def accept(self, trajectory: Trajectory, t_ns: int, measured: TrajectoryPoint) -> bool:
        """Take a trajectory; False if a real controller would refuse it."""
        if trajectory.end_ns < t_ns:
            return False
        if trajectory.velocities is not None and trajectory.velocities[-1].any():
            self.rejected.append(f"an end in motion at {t_ns * 1e-9:.3f} s")
            return False
        if not self.from_desired and trajectory.start_ns > t_ns:
            self.spare(t_ns)  # it steps to the measured joints by itself
        start = self.state(t_ns) if self.from_desired else replace(measured, stamp_ns=t_ns)
        self._take(t_ns, trajectory, start)
        return True

    def state(self, t_ns: int) -> TrajectoryPoint:
        """The setpoint at a time."""
        trajectory, start = self.pieces[bisect_right(self.starts, t_ns) - 1]
        return TrajectoryPoint(t_ns, *trajectory.sample(t_ns, start))

    @property
    def own_ns(self) -> list[int]:
        """When it began to hold by itself, where the joints are."""
        return [start for start, own in zip(self.starts, self._own) if own]

    def held(self, t_ns: int) -> np.ndarray | None:
        """The position that it holds by itself at a time, float64 [D]; None while it executes what it was
        sent."""
        index = self._own[bisect_right(self.starts, t_ns) - 1]
        return self.state(t_ns).position if index else None

    def path(self, until_ns: int) -> tuple[np.ndarray, np.ndarray]:
        """Times [N] every 2 ms, and positions [N, D]."""
        edges = np.array([*self.starts, until_ns])
        edges = -(-edges // PERIOD_NS) * PERIOD_NS
        parts = [
            (times, trajectory.sample(times, start)[0])
            for (trajectory, start), begin, end in zip(self.pieces, edges[:-1], edges[1:])
            if len(times := np.arange(begin, end, PERIOD_NS))
        ]
        return np.concatenate([t for t, _ in parts]), np.concatenate([p for _, p in parts])

    def _take(self, t_ns: int, trajectory: Trajectory, start: TrajectoryPoint | None) -> None:
        self.starts.append(t_ns)
        self.pieces.append((trajectory, start))
        self._own.append(False)


def judge_path(
    times: np.ndarray,
    positions: np.ndarray,
    limits: JointLimits,
    spared: list[tuple[int, int]],
    eased: list[tuple[int, int]],
) -> list[Broken]:
    """The worst violation of each limit by a setpoint sampled every 2 ms.

    spared: not judged. eased: a stop that begins on arrival, wherever the controller is then, may have EASED
    times the acceleration, 1.5 times the speed, and leave the range by a hundredth.
    """
    dt_s = PERIOD_NS * 1e-9
    free, share = np.ones(len(times), bool), np.ones((len(times), 1))
    for begin, end in spared:
        free[np.searchsorted(times, begin) : np.searchsorted(times, end)] = False
    for begin, end in eased:
        share[np.searchsorted(times, begin) : np.searchsorted(times, end)] = 1.0 / EASED
    speed = np.abs(np.diff(positions, axis=0)) / dt_s / limits.velocity
    change = np.abs(np.diff(positions, n=2, axis=0)) / dt_s**2 / limits.acceleration
    speed *= np.maximum(share[1:], 1.0 / 1.5)
    change *= share[1:-1]
    beyond = _beyond(positions, limits) - (share < 1.0) * 0.01
    speed[~(free[1:] & free[:-1])] = 0.0
    change[~(free[2:] & free[1:-1] & free[:-2])] = 0.0
    return [
        *_worst("position", times, 1.0 + beyond),
        *_worst("velocity", times[1:], speed),
        *_worst("acceleration", times[1:-1], change),
    ]


def judge_positions(
    ticks: list[tuple[int, np.ndarray]], limits: JointLimits, longest_s: float
) -> list[Broken]:
    """The worst violation of each limit by streamed positions; ticks: (time, [D]), at different times."""
    if len(ticks) < 3:
        return []
    times, positions = np.array([t for t, _ in ticks]), np.array([p for _, p in ticks])
    gaps_s = np.diff(times) * 1e-9
    effective_s = np.minimum(gaps_s, longest_s)[:, None]
    speeds = np.diff(positions, axis=0) / effective_s
    earlier = np.where(gaps_s[1:, None] > STOOD_S, 0.0, speeds[:-1])
    change = np.abs(speeds[1:] - earlier) - _ROUNDING / effective_s[1:]
    change /= (effective_s[1:] + effective_s[:-1]) / 2 * limits.acceleration
    return [
        *_worst("position", times, 1.0 + _beyond(positions, limits)),
        *_worst("velocity", times[1:], np.abs(speeds) / limits.velocity),
        *_worst("acceleration", times[2:], change),
    ]


def judge_velocities(
    ticks: list[tuple[int, np.ndarray]],
    velocity: np.ndarray,
    acceleration: np.ndarray,
    longest_s: float,
    stood_s: float = STOOD_S,
) -> list[Broken]:
    """The worst violation of each limit by streamed velocities; ticks: (time, [D]). stood_s: without one for
    so long, what is moved stands."""
    if len(ticks) < 2:
        return []
    times, speeds = np.array([t for t, _ in ticks]), np.array([v for _, v in ticks])
    gaps_s = np.diff(times) * 1e-9
    earlier = np.where(gaps_s[:, None] > stood_s, 0.0, speeds[:-1])
    change = np.abs(speeds[1:] - earlier) - _ROUNDING
    change /= np.minimum(gaps_s, longest_s)[:, None] * acceleration
    return [*_worst("velocity", times, np.abs(speeds) / velocity), *_worst("acceleration", times[1:], change)]


def integrated(ticks: list[tuple[int, np.ndarray]], start: np.ndarray) -> np.ndarray:
    """Positions, float64 [N, D], to which streamed velocities lead joints that follow them, from float64 [D]:
    each velocity until the next, but for no longer than a controller does without one."""
    times, speeds = np.array([t for t, _ in ticks]), np.array([v for _, v in ticks])
    lasted_s = np.clip(np.diff(times) * 1e-9, 0.0, STOOD_S)[:, None]
    return start + np.concatenate([np.zeros((1, len(start))), np.cumsum(speeds[:-1] * lasted_s, axis=0)])


def judge_integrated(
    ticks: list[tuple[int, np.ndarray]], start: np.ndarray, limits: JointLimits, longest_s: float
) -> list[Broken]:
    """The worst violation of each limit by streamed velocities and the positions to which they lead; ticks:
    (time, [D]); start: where the joints are at the first."""
    if len(ticks) < 2:
        return []
    times = np.array([t for t, _ in ticks])
    return [
        *_worst("position", times, 1.0 + _beyond(integrated(ticks, start), limits)),
        *judge_velocities(ticks, limits.velocity, limits.acceleration, longest_s),
    ]


def _beyond(positions: np.ndarray, limits: JointLimits) -> np.ndarray:
    """How far outside, as a share of the range."""
    out = np.maximum(positions - limits.upper, limits.lower - positions)
    return np.maximum(out, 0.0) / (limits.upper - limits.lower)


def _worst(what: str, times: np.ndarray, shares: np.ndarray) -> list[Broken]:
    if not shares.size:
        return []
    row, column = np.unravel_index(np.argmax(shares), shares.shape)
    by = float(shares[row, column])
    return [Broken(what, float(times[row]) * 1e-9, by, int(column))] if by > 1.0 + TOLERANCE else []
