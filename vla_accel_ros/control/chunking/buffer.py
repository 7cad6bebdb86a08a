"""Turns chunks into the trajectory to send: past actions dropped, joined to sent motion, limited, bounded.

The buffer keeps two paths. The *plan* is the accepted chunk, within limits, to its end. The *sent path* is
what the controllers were told: a kept part of the previous path, then the plan until its observation is
max_age_s old, then the shortest stop. Every new path is joined to it. A controller that hears nothing more
therefore brakes by itself when the watchdog would have stopped it. While chunks stay fresh, more of the plan
is sent.

A message takes `lead_s` at most. A new path repeats the old one exactly for twice that time and begins in the
(near) past, so a controller can join it in the middle whenever it arrives within that time, whatever it
interpolates from. The chunk's actions that are due at least one step later follow. Modes: `blend` crosses
from the old plan to the new one over blend_s; `async` and `rtc` cross in 0.1 s, the shortest time without a
jerk for chunks that differ by 0.01 rad (chunks of `rtc` already agree with the old path, see rtc.py); `block`
executes a chunk to its execution horizon, and then accepts one that was observed after that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from vla_accel_ros.control.chunking.crossing import Knots, crossing
from vla_accel_ros.control.chunking.plausibility import check_chunk_size
from vla_accel_ros.control.chunking.tempo import Tempo
from vla_accel_ros.control.kinematics.guard import HandGuard
from vla_accel_ros.control.limits import joint_limits
from vla_accel_ros.control.limits.joint_limits import JointLimits, brake_from, brake_on_arrival
from vla_accel_ros.control.limits.trajectory_limits import LimitReport
from vla_accel_ros.control.trajectory import Trajectory, check_finite, trusted
from vla_accel_ros.types import Chunk

MODES = ("block", "async", "blend", "rtc")

_AHEAD_S = 0.1
_CROSSING_S = 0.1
_STEERING_NS = 50_000_000
"""Of the crossing to what a person commands: a shorter one is rougher, a longer one lags."""
SET_BACK_NS = 20_000_000
"""A clock that is set back by no more than this goes on as before; a larger step begins a new time."""


class TrajectoryBuffer:
    """Holds the commanded path of D joints and turns each chunk into the next trajectory to send.

    joints, limits: the chunk's columns and their limits, in ROS units.
    blend_s: length of the crossing from the old plan to the new one, `blend` only; no longer than the rest of
        the chunk.
    lead_s: how long a sent trajectory may take to reach its controller. It may be set at any time; motion
        that is already committed stays committed.
    execution_horizon: number of actions of a chunk that `block` executes; None for all.
    max_age_s: a sent path begins to brake this long after the stamp of the newest chunk.
    tempo: None to play chunks as the policy timed them.

    Attributes for diagnostics: `counts` (accepted, renewed, past, out_of_order, early, slow, refused,
    clock_jumps), `latency_s` (now - stamp of the last chunk), `report` (of the last limiting) and `plan`. Use
    it from one thread at a time.
    """

    def __init__(
        self,
        joints: tuple[str, ...],
        limits: JointLimits,
        mode: str = "blend",
        blend_s: float = 0.2,
        lead_s: float = 0.03,
        execution_horizon: int | None = None,
        max_age_s: float = math.inf,
        tempo: Tempo | None = None,
    ):
        if not max_age_s > 0.0:
            raise ValueError(f"max_age_s = {max_age_s} sends nothing: give seconds above zero")
        if len(limits.lower) != len(joints):
            raise ValueError(
                f"there are limits for {len(limits.lower)} joints, not {len(joints)}: give one per joint"
            )
        self.joints, self.limits, self.mode = tuple(joints), limits, mode
        self.guard, self.tempo = limits.guard or HandGuard((), limits), tempo
        self.execution_horizon, self.lead_s = execution_horizon, lead_s
        self.counts: Counter[str] = Counter()
        self.latency_s: float | None = None
        self.report: LimitReport | None = None
        self._blend_ns = round((blend_s if mode == "blend" else _CROSSING_S) * 1e9)
        self._max_age_ns = round(max_age_s * 1e9) if math.isfinite(max_age_s) else None
        self._path: Trajectory | None = None
        self._forget()

    def reset(self, position: np.ndarray) -> None:
        """Forget everything and hold float64 [D] positions: at the start, or after others moved the robot."""
        self._path = Trajectory(
            self.joints, np.zeros(1, np.int64), np.reshape(position, (1, -1)), np.zeros((1, len(self.joints)))
        )
        self._forget()

    def _forget(self) -> None:
        self._before = self.plan = self._path
        self._on_plan_until_ns = 0
        self._now_ns: int | None = None
        self._committed_ns: int | None = None
        self._busy_until_ns: int | None = None
        self._newest: tuple[int, int] | None = None
        if self.tempo is not None:
            self.tempo.forget()

    @property
    def kept_s(self) -> float:
        """How long a new path still equals the old one, counted from the time at which it was computed."""
        return 2.0 * self.lead_s

    @property
    def committed_until_ns(self) -> int | None:
        """Sent motion does not change before this time; None before anything was sent."""
        return self._committed_ns

    def reference(self, t_ns: int) -> tuple[np.ndarray, np.ndarray]:
        """Position and velocity, float64 [D], commanded at a time; reaches back to the path before the
        last."""
        path = self._commanded()
        if self._before is not None and t_ns < path.start_ns:
            return self._before.sample(t_ns)
        return path.sample(t_ns)

    def counted(self, chunk: Chunk) -> np.ndarray:
        """A chunk's actions, float64 [H, D], those of continuous joints counted on from what is commanded
        when the first is due, each from the one before: a policy may give them in -pi..pi."""
        actions = np.array(chunk.actions, np.float64)
        if self.limits.continuous.any():
            due_ns = chunk.stamp_ns + round(chunk.step_dt_s * 1e9)
            previous = actions[0] if self._path is None else self.reference(due_ns)[0]
            for action in actions:
                previous = action[:] = self.limits.near(action, previous)
        return actions

    def update(
        self, chunk: Chunk, now_ns: int, clock_ns: Callable[[], int] | None = None
    ) -> Trajectory | None:
        """Returns the trajectory to send for this chunk, or None when it changes nothing; `counts` says why.

        clock_ns: read when all is computed. A path that took longer than lead_s to compute would arrive too
        late, so it is not sent.

        Raises ValueError for a chunk that is invalid (not H x D, not finite, from the future) or leads a hand
        beyond its limits. The sent motion goes on, whatever becomes of it.
        """
        try:
            self.check(chunk, now_ns)
        except ValueError:
            self.counts["refused"] += 1
            raise
        now_ns = self._present(now_ns)
        commit_ns = self.commit_ns(now_ns)
        times_ns, actions = self._ahead(chunk, commit_ns)
        number = (chunk.stamp_ns, chunk.request_id)
        if self._newest is not None and number <= self._newest:
            verdict = "out_of_order"
        elif self._busy_until_ns is not None and min(now_ns, chunk.stamp_ns) < self._busy_until_ns:
            verdict = "early"
        else:
            verdict = "accepted" if len(times_ns) else "past"
        if verdict != "accepted":
            self.counts[verdict] += 1
            return self._renew(chunk.stamp_ns, now_ns) if verdict == "early" else None
        knots = self._join(commit_ns, times_ns, actions, self._blend_ns)
        plan, report = self.guard.enforce(self.joints, *knots, self.limits)
        if clock_ns is not None and (clock_ns() - now_ns) * 1e-9 > self.lead_s:
            self.counts["slow"] += 1
            return None
        self.counts["accepted"] += 1
        if self.tempo is not None:
            self.tempo.accept()
        self._newest, self.report = number, report
        self.latency_s = (now_ns - chunk.stamp_ns) * 1e-9
        self.plan = self._kept(now_ns, commit_ns, plan)
        self._busy_until_ns = self.plan.end_ns if self.mode == "block" else None
        return self._send(now_ns, commit_ns, self._until_ns(chunk.stamp_ns))

    def _ahead(self, chunk: Chunk, commit_ns: int) -> tuple[np.ndarray, np.ndarray]:
        """The actions at least a step after commit_ns, float64 [N, D], and when they are due, int64 [N]."""
        block, actions = self.mode == "block", self.counted(chunk)[: chunk.executed]
        if block and self.execution_horizon is not None:
            actions = actions[: self.execution_horizon]
        if self.tempo is not None:
            if commit_ns > self._on_plan_until_ns:
                self.tempo.rest(self._on_plan_until_ns)
            return self.tempo.play(actions, chunk.step_dt_s, None if block else chunk.stamp_ns, commit_ns)
        due_ns = np.rint(np.arange(1, len(actions) + 1) * chunk.step_dt_s * 1e9).astype(np.int64)
        due_ns += commit_ns if block else chunk.stamp_ns
        ahead = due_ns >= commit_ns + round(chunk.step_dt_s * 1e9)
        return due_ns[ahead], actions[ahead]

    def steer(self, positions: np.ndarray, step_ns: int, until_ns: int, now_ns: int) -> Trajectory:
        """Returns the trajectory to send towards what a person commands, whatever the mode.

        positions: float64 [H, D], step_ns apart from `commit_ns` on. It brakes from until_ns on. Raises
        ValueError where a hand may not go; the sent motion goes on.
        """
        now_ns = self._present(now_ns)
        commit_ns = self.commit_ns(now_ns)
        times_ns = commit_ns + step_ns * np.arange(1, len(positions) + 1)
        knots = self._join(commit_ns, times_ns, positions, _STEERING_NS)
        plan, self.report = self.guard.enforce(self.joints, *knots, self.limits)
        self.plan, self._busy_until_ns = self._kept(now_ns, commit_ns, plan), None
        return self._send(now_ns, commit_ns, until_ns)

    def stop(self, now_ns: int, was_ns: int | None = None) -> Trajectory:
        """Brake as hard as the limits allow, then hold; later chunks are joined to that.

        was_ns: the present in the old time, if the clock was set since the path was sent. The stop is then a
        single point at rest in the new time, and within limits if it arrives within twice lead_s.
        """
        if was_ns is not None:
            stop = brake_on_arrival(self.joints, self.reference, was_ns, now_ns, self.kept_s, self.limits)
            self.reset(stop.positions[-1])
            self._now_ns, self._committed_ns = now_ns, stop.end_ns
            return stop
        now_ns = self._present(now_ns)
        commit_ns = self.commit_ns(now_ns)
        stop = brake_from(self.joints, commit_ns, *self.reference(commit_ns), self.limits)
        self.plan = self._kept(now_ns, commit_ns, stop)
        return self._send(now_ns, commit_ns, None)

    def adopt(self, path: Trajectory, now_ns: int, commit_ns: int) -> None:
        """Adopt a path that was sent in place of the buffer's own, and equals it until commit_ns. Later
        chunks are joined to it."""
        self._before, self._path = self._commanded(), path
        self.plan, self._on_plan_until_ns, self._busy_until_ns = path, path.end_ns, None
        self._now_ns = now_ns if self._now_ns is None else max(self._now_ns, now_ns)
        self._committed_ns = max(commit_ns, self._committed_ns or commit_ns)

    def go_to(
        self, position: np.ndarray, away: np.ndarray, now_ns: int, least: np.ndarray | float = 0.0
    ) -> Trajectory:
        """Come to rest at float64 [D] positions and hold; away [D], least: see rest_to_rest_s.

        The trajectory is one point in the future, which a controller approaches from wherever it is: one
        cubic from rest to rest, within the limits of speed and acceleration even if it arrives late.
        """
        end_ns = now_ns + self.rest_to_rest_ns(away, position, least)
        self.reset(position)
        self._now_ns, self._committed_ns = now_ns, end_ns
        standstill = np.zeros((1, len(self.joints)))
        return Trajectory(self.joints, np.array([end_ns]), np.reshape(position, (1, -1)), standstill)

    def rest_to_rest_ns(self, away: np.ndarray, goal: np.ndarray, least: np.ndarray | float) -> int:
        """Duration of a rest-to-rest cubic (rest_to_rest_s), plus kept_s for the delivery."""
        rest_s = joint_limits.rest_to_rest_s(away, goal, self.limits, least)
        return math.ceil((rest_s + self.kept_s) * 1e3) * 1_000_000

    def check(self, chunk: Chunk, now_ns: int) -> None:
        """Raises ValueError for an invalid chunk; see `update`."""
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
        """The time to go on from. If the clock was set back a little, this is the last time again. If it was
        set back further, the path's times have lost their meaning, and the last commanded position is
        held."""
        if self._now_ns is None or now_ns >= self._now_ns - SET_BACK_NS:
            return max(now_ns, self._now_ns or now_ns)
        self.counts["clock_jumps"] += 1
        self.reset(self.reference(self._now_ns)[0])
        return now_ns

    def commit_ns(self, now_ns: int) -> int:
        """A path that is sent now must equal the previous one until this time."""
        return max(now_ns + round(self.kept_s * 1e9), self._committed_ns or now_ns)

    def _join(self, commit_ns: int, times_ns: np.ndarray, actions: np.ndarray, blend_ns: int) -> Knots:
        """Knots that cross from the old plan to the actions; see `crossing`."""
        on_plan = self.plan is not None and commit_ns <= self._on_plan_until_ns
        old = self.plan if on_plan and self.plan is not None else self._commanded()
        state = self.reference(commit_ns)
        return crossing(old, state, commit_ns, blend_ns, times_ns, actions, self.limits)

    def _renew(self, stamp_ns: int, now_ns: int) -> Trajectory | None:
        """Send more of the plan, because a chunk shows that observations are fresh; None if there is no
        more."""
        if self._max_age_ns is None or self.plan is None or self._now_ns is None:
            return None
        until_ns = min(stamp_ns + self._max_age_ns, self.plan.end_ns)
        if until_ns <= self._on_plan_until_ns:
            return None
        commit_ns = self.commit_ns(now_ns)
        if commit_ns > self._on_plan_until_ns:  # it brakes already: drop the rest of the plan
            self.plan, self._busy_until_ns = self._path, self._commanded().end_ns
            return None
        self.counts["renewed"] += 1
        return self._send(now_ns, commit_ns, self._until_ns(stamp_ns))

    def _kept(self, now_ns: int, commit_ns: int, after: Trajectory) -> Trajectory:
        """The sent path from now_ns to commit_ns, followed by `after`."""
        old = self._commanded()
        first, end = old.times_ns.searchsorted(now_ns, side="right"), old.times_ns.searchsorted(commit_ns)
        inner = slice(first, end)  # the path's last point is at rest
        ends_ns = np.array([now_ns, commit_ns])
        position, velocity = old.sample(ends_ns)
        begin = int(now_ns < commit_ns)  # 0 if both times are the same
        last = 1 + int(commit_ns < after.start_ns)  # 1 if `after` begins at commit_ns
        return trusted(
            self.joints,
            np.concatenate([ends_ns[:begin], old.times_ns[inner], ends_ns[1:last], after.times_ns]),
            np.concatenate([position[:begin], old.positions[inner], position[1:last], after.positions]),
            np.concatenate([velocity[:begin], old.speeds[inner], velocity[1:last], after.speeds]),
        )

    def _until_ns(self, stamp_ns: int) -> int | None:
        """Until when an observation of stamp_ns lets the robot move; None for no limit."""
        return None if self._max_age_ns is None else stamp_ns + self._max_age_ns

    def _send(self, now_ns: int, commit_ns: int, until_ns: int | None) -> Trajectory:
        """Make the plan from now on the sent path, with a stop from until_ns on."""
        plan, old = self.plan, self._commanded()
        assert plan is not None
        plan = plan.since(now_ns)
        self._on_plan_until_ns = plan.end_ns
        path = plan
        if until_ns is not None:
            until_ns = max(until_ns, commit_ns)
            if until_ns < plan.end_ns:
                self._on_plan_until_ns = until_ns
                path = plan.then(brake_from(self.joints, until_ns, *plan.sample(until_ns), self.limits))
        self._before, self._path = old, path
        self._now_ns, self._committed_ns = now_ns, commit_ns
        return path

    def _commanded(self) -> Trajectory:
        if self._path is None:
            raise RuntimeError("the trajectory buffer has no reference yet: reset(position) it first")
        return self._path
