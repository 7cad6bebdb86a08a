"""The commanded path of the past, a stop on it, and the way back along it.

A retreat needs no kinematics: it returns to where the arm was commanded to be a moment ago, where there was
room. It plays the commanded path backwards at a share k of its speed, from the end of a brake, where both are
at rest. Its velocities are -k times and its accelerations k^2 times the original ones, so it is within limits
because the path was. Times at which the arm stood still are left out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from vla_accel_ros.control.chunking.twist import WayBack
from vla_accel_ros.control.limits.joint_limits import JointLimits, cut
from vla_accel_ros.control.trajectory import Trajectory

HAND_M = 0.05
"""How far a hand that is moved by twists goes back at most, unless told otherwise."""
_PIECES = 512
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Retreat:
    """How far and how fast to retreat. rad: greatest distance of any joint (m if prismatic), and greatest
    angle of a hand that is moved by twists. s: longest duration. speed: share of the path's original speed.
    rest_s: how long the contact must be over before motion continues. most: number of retreats in a short
    time after which a person is asked (taking_over.py). m: greatest distance of a hand that is moved by
    twists; None: HAND_M."""

    rad: float = 0.2
    s: float = 1.0
    speed: float = 1.0
    rest_s: float = 0.3
    most: int = 3
    m: float | None = None

    @property
    def hand(self) -> WayBack:
        """Of a hand that is moved by twists."""
        return WayBack(HAND_M if self.m is None else self.m, self.rad, self.s, self.speed)


class ExecutedPath:
    """What D joints were commanded. Use it from one thread at a time. Without any joint, as twists move the
    whole arm, that is always known: nothing moves.

    back: bool [D], joints that retreat; others, such as a gripper, stay where they have braked.
    """

    def __init__(self, joints: tuple[str, ...], limits: JointLimits, back: np.ndarray, retreat: Retreat):
        self.joints, self.limits = joints, limits
        self._back, self._retreat = back, retreat
        self.forget()

    def forget(self) -> None:
        """Nothing was commanded, or others moved the robot."""
        self._path: Trajectory | None = None
        if not self.joints:
            none = np.zeros((1, 0))
            self._path = Trajectory((), np.zeros(1, np.int64), none, none)
        self._past: deque[Trajectory] = deque(maxlen=_PIECES)
        self._reacts = False

    def follow(self, path: Trajectory, reacts: bool = False) -> None:
        """This path, of all joints and with velocities, replaces the previous one at its start.

        reacts: the path is a stop or a retreat. Going back along it leads towards the contact, so nothing
        before its end is a way back any more.
        """
        if not self.joints:
            return
        old, self._path = self._path, path
        was_reaction, self._reacts = self._reacts, reacts
        if reacts or was_reaction:
            self._past.clear()
            return
        if old is None or old.start_ns >= path.start_ns:
            if old is not None and not _same(old, path):
                self._past.clear()
            return
        executed = before(old, path.start_ns)
        self._past.append(executed)
        if not _meets(executed, path):
            self._past.clear()  # it begins elsewhere, or only the controller knows how it gets there

    def at_rest(self, now_ns: int) -> bool:
        """Whether no motion is commanded, now or later."""
        return self._path is None or now_ns >= self._path.end_ns

    def stands(self, now_ns: int) -> bool:
        """Whether no motion is commanded at this moment."""
        return self._path is None or not self._path.sample(now_ns)[1].any()

    def begun(self, now_ns: int) -> bool:
        """Whether the commanded position of the joints is known now."""
        return self._path is not None and self._path.start_ns <= now_ns

    def stop(self, now_ns: int, commit_ns: int) -> Trajectory:
        """The path from now_ns to commit_ns, and a brake. The path must have begun."""
        assert self._path is not None
        return cut(self._path.since(now_ns), commit_ns, self.limits)

    def retreat(self, now_ns: int, commit_ns: int) -> tuple[Trajectory, int]:
        """`stop`, and then the way back, not before commit_ns: no further than `rad`, no longer than `s`, and
        a brake. Also returns the time at which the way back begins."""
        stop = self.stop(now_ns, commit_ns)
        times, positions, velocities = self._behind(stop)
        if len(times) < 2:
            return stop, stop.end_ns
        end_ns = max(stop.end_ns, commit_ns)
        path_there = Trajectory(self.joints, end_ns + times, positions, velocities)
        way = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(positions, axis=0)).max(axis=1))])
        last_ns = int(np.interp(self._retreat.rad, way, times))
        last_ns = min(last_ns, round(self._retreat.s * 1e9))
        if last_ns < path_there.end_ns - end_ns or path_there.speeds[-1].any():
            path_there = _ended(path_there, end_ns + last_ns, self.limits)
        return stop.then(path_there), end_ns

    def _behind(self, stop: Trajectory) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The past path backwards from the end of a stop: nanoseconds from there, positions and
        velocities."""
        assert self._path is not None
        share, most_ns = self._retreat.speed, self._retreat.s * 1e9
        pieces = [stop]
        if self._path.start_ns < stop.start_ns and not self._reacts:
            pieces.append(before(self._path, stop.start_ns))
        pieces += reversed(self._past)
        end = stop.positions[-1]
        positions, velocities, gaps = [end], [np.zeros_like(end)], []
        passed, way = 0.0, 0.0
        for piece in pieces:
            p = np.where(self._back, piece.positions, end)
            v = np.where(self._back, piece.speeds, 0.0)
            moves = (p[1:] != p[:-1]).any(axis=1) | v[1:].any(axis=1) | v[:-1].any(axis=1)
            lasts = np.diff(piece.times_ns) / share
            for k in range(len(lasts) - 1, -1, -1):
                if moves[k]:
                    positions.append(p[k])
                    velocities.append(-share * v[k])
                    gaps.append(lasts[k])
                    passed += float(lasts[k])
                    way += float(np.abs(p[k + 1] - p[k]).max())
            if passed >= most_ns or way >= self._retreat.rad:
                break
        times = np.concatenate([[0.0], np.cumsum(gaps)])
        times_ns = np.round(times).astype(np.int64)
        return times_ns, np.array(positions), np.array(velocities)


def before(path: Trajectory, t_ns: int) -> Trajectory:
    """A motion with velocities up to a time, with a point there. It must begin before that time; after its
    end it stands still."""
    head = path.times_ns < t_ns
    position, velocity = path.sample(t_ns)
    return Trajectory(
        path.joints,
        np.append(path.times_ns[head], t_ns),
        np.concatenate([path.positions[head], position[None]]),
        np.concatenate([path.speeds[head], velocity[None]]),
    )


def merged(first: Trajectory, second: Trajectory, from_second: np.ndarray) -> Trajectory:
    """Combines two motions of the same joints exactly: the columns bool [D] come from the second. The result
    begins when both have begun."""
    times = np.union1d(first.times_ns, second.times_ns)
    times = times[times >= max(first.start_ns, second.start_ns)]
    (p1, v1), (p2, v2) = first.sample(times), second.sample(times)
    return Trajectory(first.joints, times, np.where(from_second, p2, p1), np.where(from_second, v2, v1))


def _ended(path: Trajectory, at_ns: int, limits: JointLimits) -> Trajectory:
    """The path up to a time, and a brake that begins early enough to end on the known path."""
    brake_s = float((np.abs(path.speeds[-1]) / limits.acceleration).max(initial=0.0))
    return cut(path, min(at_ns, path.end_ns - 1 - round(brake_s * 1e9)), limits)


def _meets(executed: Trajectory, path: Trajectory) -> bool:
    return bool(
        (np.abs(executed.positions[-1] - path.positions[0]) <= _ROUNDING).all()
        and (np.abs(executed.speeds[-1] - path.speeds[0]) <= _ROUNDING).all()
    )


def _same(old: Trajectory, path: Trajectory) -> bool:
    position, velocity = old.sample(old.start_ns)
    return path.start_ns == old.start_ns and bool(
        (np.abs(position - path.positions[0]) <= _ROUNDING).all()
        and (np.abs(velocity - path.speeds[0]) <= _ROUNDING).all()
    )
