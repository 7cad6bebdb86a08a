"""From chunks to the one trajectory that is sent: past dropped, joined to what is already commanded, limited.

What was sent is *committed* up to now + lead: the controller may be executing it already, so a new trajectory
repeats it to the letter and may differ only afterwards. It therefore begins in the (near) past on the old
path, which a joint_trajectory_controller joins in the middle: the hand-over does not depend on what the
controller interpolates from, nor on a few milliseconds of transport. Behind it come the chunk's actions that
are at least one step ahead. Modes: `blend` crosses from the old path to the new over blend_s; `async` takes
the new at once; so does `rtc`, whose chunks agree with the old path already (control/rtc.py); `block`
executes a chunk to its execution horizon, and then one that was observed after that.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np

from vla_accel_ros.control.bounds import check_chunk_size
from vla_accel_ros.control.braking import brake
from vla_accel_ros.control.limiter import extremes
from vla_accel_ros.control.limits import JointLimits, LimitReport, enforce
from vla_accel_ros.control.trajectory import MotionState, Trajectory, check_finite, knot_velocities
from vla_accel_ros.engine.types import Chunk

Mode = Literal["block", "async", "blend", "rtc"]
MODES: tuple[Mode, ...] = ("block", "async", "blend", "rtc")

_AHEAD_S = 0.1
SET_BACK_NS = 20_000_000
"""A clock that is set back by no more goes on as if it had not been; by more, it is another time."""


class TrajectoryBuffer:
    """Holds the commanded path of D joints and turns each chunk into the next trajectory to send.

    joints, limits: the chunk's columns and their limits, in ROS units.
    blend_s: length of the crossing from old to new, `blend` only; no longer than what is left of a chunk.
    lead_s: how long a sent trajectory may take to reach the controller; that much of the old path is kept.
    zero_end: end at rest, as controllers demand by default; braking points follow the last action if it is
    fast.
    execution_horizon: how many actions of a chunk `block` executes; all when None.

    Attributes for diagnostics: `counts` (accepted, past, out_of_order, early, refused, clock_jumps),
    `latency_s` (of the last chunk, now - stamp) and `report` (of the last limiting). One thread at a time.
    """

    def __init__(
        self,
        joints: tuple[str, ...],
        limits: JointLimits,
        mode: Mode = "blend",
        blend_s: float = 0.2,
        lead_s: float = 0.03,
        zero_end: bool = True,
        execution_horizon: int | None = None,
    ):
        if mode not in MODES:
            raise ValueError(f"mode = {mode!r} is unknown: choose {' or '.join(MODES)}")
        if not (blend_s >= 0.0 and lead_s >= 0.0):
            raise ValueError(f"blend_s = {blend_s} and lead_s = {lead_s} must not be negative: raise them")
        if execution_horizon is not None and execution_horizon < 1:
            raise ValueError(f"execution_horizon = {execution_horizon} executes nothing: give at least 1")
        if len(limits.lower) != len(joints):
            raise ValueError(
                f"limits are of {len(limits.lower)} joints, not {len(joints)}: give one per joint"
            )
        self.joints, self.limits, self.mode, self.zero_end = tuple(joints), limits, mode, zero_end
        self.execution_horizon = execution_horizon
        self.counts: Counter[str] = Counter()
        self.latency_s: float | None = None
        self.report: LimitReport | None = None
        self._blend_ns = round(blend_s * 1e9) if mode == "blend" else 0
        self._lead_ns = round(lead_s * 1e9)
        self._path: Trajectory | None = None
        self._now_ns: int | None = None
        self._busy_until_ns: int | None = None
        self._newest: tuple[int, int] | None = None

    def reset(self, position: np.ndarray) -> None:
        """Forget everything and hold float64 [D] positions: at the start, or when others moved the robot."""
        self._path = Trajectory(self.joints, np.zeros(1, np.int64), np.reshape(position, (1, -1)))
        self._now_ns = self._busy_until_ns = self._newest = None

    @property
    def committed_until_ns(self) -> int | None:
        """Up to here nothing that was sent will change; None before anything was sent."""
        return None if self._now_ns is None else self._now_ns + self._lead_ns

    def reference(self, t_ns: int) -> tuple[np.ndarray, np.ndarray]:
        """Position and velocity, float64 [D], that are commanded at a time."""
        return self._commanded().sample(t_ns)

    def update(self, chunk: Chunk, now_ns: int) -> Trajectory | None:
        """The trajectory to send for this chunk, or None when it changes nothing; `counts` says why.

        Raises ValueError for a chunk that is wrong (not H x D, not finite, from the future). Whatever becomes
        of the chunk, the motion that was sent goes on.
        """
        try:
            self._check(chunk, now_ns)
        except ValueError:
            self.counts["refused"] += 1
            raise
        now_ns = self._present(now_ns)
        commit_ns, step_ns = now_ns + self._lead_ns, round(chunk.step_dt_s * 1e9)
        due_ns = np.round(np.arange(1, chunk.horizon + 1) * chunk.step_dt_s * 1e9).astype(np.int64)
        due_ns += commit_ns if self.mode == "block" else chunk.stamp_ns
        ahead = due_ns >= commit_ns + step_ns
        if self.mode == "block" and self.execution_horizon is not None:
            ahead[self.execution_horizon :] = False
        number = (chunk.stamp_ns, chunk.request_id)
        if self._newest is not None and number <= self._newest:
            verdict = "out_of_order"
        elif self._busy_until_ns is not None and min(now_ns, chunk.stamp_ns) < self._busy_until_ns:
            verdict = "early"
        else:
            verdict = "accepted" if ahead.any() else "past"
        self.counts[verdict] += 1
        if verdict != "accepted":
            return None
        self._newest = number
        self.latency_s = (now_ns - chunk.stamp_ns) * 1e-9
        asked = self._join(commit_ns, due_ns[ahead], np.asarray(chunk.actions, dtype=np.float64)[ahead])
        position, velocity = self.reference(commit_ns)
        sent, self.report = enforce(asked, MotionState(commit_ns, position, velocity), self.limits)
        return self._send(now_ns, sent)

    def stop(self, now_ns: int, was_ns: int | None = None) -> Trajectory:
        """Brake as hard as the limits allow, and hold; later chunks are joined to that.

        was_ns: the present in the time that the path was sent in, when the clock has been set since. The stop
        is then in the new time, and begins behind the committed part, which is not repeated.
        """
        if was_ns is not None:
            state = MotionState(now_ns + self._lead_ns, *self.reference(was_ns + self._lead_ns))
            return self._commit(now_ns, brake(self.joints, state, self.limits))
        now_ns = self._present(now_ns)
        commit_ns = now_ns + self._lead_ns
        return self._send(
            now_ns, brake(self.joints, MotionState(commit_ns, *self.reference(commit_ns)), self.limits)
        )

    def _check(self, chunk: Chunk, now_ns: int) -> None:
        actions = np.asarray(chunk.actions)
        if actions.ndim != 2 or actions.shape[0] < 1 or actions.shape[1] != len(self.joints):
            raise ValueError(
                f"chunk actions have shape {actions.shape}: give H x {len(self.joints)} for "
                f"{', '.join(self.joints)}"
            )
        check_chunk_size("chunk", actions.shape[0], actions.shape[1], chunk.step_dt_s)
        check_finite("chunk actions", actions, self.joints)
        ahead_s = (chunk.stamp_ns - now_ns) * 1e-9
        if ahead_s > _AHEAD_S:
            raise ValueError(
                f"chunk was observed {ahead_s:.3f} s from now: synchronise the clocks or set use_sim_time"
            )

    def _present(self, now_ns: int) -> int:
        """The time to go on from. A clock that was set back a little gives the last one again; more, and what
        was commanded last is held: the path's times mean nothing now."""
        if self._now_ns is None or now_ns >= self._now_ns:
            return now_ns
        if self._now_ns - now_ns <= SET_BACK_NS:
            return self._now_ns
        self.counts["clock_jumps"] += 1
        self.reset(self.reference(self._now_ns)[0])
        return now_ns

    def _join(self, commit_ns: int, times_ns: np.ndarray, actions: np.ndarray) -> Trajectory:
        """The old path crossed into the actions, with velocities and an end at rest."""
        position, velocity = self.reference(commit_ns)
        old, _ = self._commanded().sample(times_ns)
        blend_ns = min(self._blend_ns, int(times_ns[-1]) - commit_ns)
        s = (times_ns - commit_ns) / blend_ns if blend_ns else np.ones(len(times_ns))
        weight = np.where(s < 1.0, s * s * (3.0 - 2.0 * s), 1.0)[:, None]
        positions = np.concatenate(
            [position[None], np.where(weight < 1.0, old + weight * (actions - old), actions)]
        )
        times = np.append(commit_ns, times_ns)
        slope = (positions[-1] - positions[-2]) / ((times[-1] - times[-2]) * 1e-9)
        velocities = knot_velocities(times, positions, first=velocity, last=slope)
        if self.zero_end:
            return self._end_at_rest(times, positions, velocities)
        return Trajectory(self.joints, times[1:], positions[1:], velocities[1:])

    def _end_at_rest(self, times: np.ndarray, positions: np.ndarray, velocities: np.ndarray) -> Trajectory:
        """Rest at the last action where a joint can brake on the way to it, else brake after it."""
        v, h = velocities[-2], (times[-1] - times[-2]) * 1e-9
        *_, hardest = extremes(positions[-2], v, positions[-1], np.zeros_like(v), h)
        fastest = np.clip(velocities[-1], -self.limits.velocity, self.limits.velocity)
        velocities[-1] = np.where(hardest <= self.limits.acceleration, 0.0, fastest)
        tail = brake(self.joints, MotionState(int(times[-1]), positions[-1], velocities[-1]), self.limits)
        return Trajectory(
            self.joints,
            np.concatenate([times[1:-1], tail.times_ns]),
            np.concatenate([positions[1:-1], tail.positions]),
            np.concatenate([velocities[1:-1], _velocities(tail)]),
        )

    def _send(self, now_ns: int, after: Trajectory) -> Trajectory:
        """The committed part of the old path from now on, followed by `after`, becomes the path."""
        old, commit_ns = self._commanded(), now_ns + self._lead_ns
        inner = old.times_ns[(old.times_ns > now_ns) & (old.times_ns < commit_ns)]
        head = np.unique(np.concatenate([[now_ns], inner, [commit_ns]]))
        head = head[head < after.start_ns]
        positions, velocities = old.sample(head)
        path = Trajectory(
            self.joints,
            np.concatenate([head, after.times_ns]),
            np.concatenate([positions, after.positions]),
            np.concatenate([velocities, _velocities(after)]),
        )
        return self._commit(now_ns, path)

    def _commit(self, now_ns: int, path: Trajectory) -> Trajectory:
        self._path, self._now_ns = path, now_ns
        self._busy_until_ns = path.end_ns if self.mode == "block" else None
        return path

    def _commanded(self) -> Trajectory:
        if self._path is None:
            raise RuntimeError("the trajectory buffer has no reference yet: reset(position) it first")
        return self._path


def _velocities(trajectory: Trajectory) -> np.ndarray:
    return np.zeros_like(trajectory.positions) if trajectory.velocities is None else trajectory.velocities
