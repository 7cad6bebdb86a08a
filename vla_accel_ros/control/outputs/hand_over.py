"""Joins the trajectory that a controller executes to the next one, however late that is sent.

A joint_trajectory_controller joins in the middle a trajectory that has begun, so nothing steps if a
trajectory still equals the previous one when it arrives. The decision therefore keeps the old motion for
twice `lead_s`. The first half covers this process, which may not be scheduled between the decision and the
message, or between the messages to two controllers. A message that is later than that is not sent as decided:
the controller keeps its motion for twice `lead_s` from then on, and is led from there to the decided motion
within its limits. A trajectory that begins in the future is approached from wherever the controller is, in a
time that was planned for it; it is shifted by its lateness. The planned time assumes a controller at rest
near the expected position. A controller that still moves, because its last trajectory was sent late, brakes
first, and gets more time if it ends further away. `CommandStream` does the same for controllers that are
commanded at a fixed rate.

A controller may drop its trajectory and hold: it was deactivated and activated again, or gave up. If it
reports that, it is led from there as from any other motion, and a stop leaves it there.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from vla_accel_ros.control.chunking.buffer import SET_BACK_NS
from vla_accel_ros.control.following.joint_faults import usual
from vla_accel_ros.control.limits.joint_limits import (
    JointLimits,
    brake,
    brake_on_arrival,
    cut,
    rest_to_rest_s,
)
from vla_accel_ros.control.limits.trajectory_limits import enforce
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint, trusted

# Motions that differ by no more [rad, rad/s] are the same: within a control period of 2 ms that is less than
# a thousandth of any acceleration limit. They are compared at steps of _LOOK_NS.
_ROUNDING, _SPEED_ROUNDING = 1e-9, 1e-6
_LOOK_NS = 1_000_000
_END_NS = 100_000_000
_PAST_NS = 1_000_000_000
# How long after a message may have arrived to wait for the controller to say whether it has, and how old
# joints may be that tell whether what it says is true.
_DOUBT_NS = 100_000_000


class HandOver:
    """What one controller was sent. limits: of its joints. Time is given. Use it from one thread at a time.

    Attributes: `late`, number of trajectories that were not sent as decided; `stopping`, the stop that it
    executes after the clock was set, if that arrives as late as it may; None for none.
    """

    def __init__(self, limits: JointLimits) -> None:
        self._limits, self.late, self._refusal = limits, 0, ""
        self._longest_s = float((limits.velocity / limits.acceleration).max(initial=0.0))
        self.forget()

    def forget(self) -> None:
        """Others drive the controller, or its clock was set: what it executes is unknown."""
        self._executed: Trajectory | None = None
        self._past = deque[tuple[int, Trajectory]]()  # (since when, what is executed)
        self._approach_ns = self._late_ns = 0  # duration of the approach, and its shift
        self._moved = self._stopped = False  # not sent as decided; a stop
        self._dropped, self._doubtful_ns = False, 0  # it dropped its trajectory; until when it may have
        self.stopping: Trajectory | None = None
        self._stopped_ns = 0
        # Where it reports to rest instead, and the distance for which an approach is planned.
        self._elsewhere: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def rests_ns(self) -> int:
        """When the controller comes to rest if its trajectory was not sent as decided, else 0."""
        return self._executed.end_ns if self._moved and self._executed is not None else 0

    def poll_refusal(self) -> str:
        """See Output.poll_refusal."""
        reason, self._refusal = self._refusal, ""
        return reason

    def commanded(self, t_ns: int) -> np.ndarray | None:
        """Commanded position, float64 [D], at a time within the last second or in the future, by the
        trajectories sent before that time; None if there were none."""
        state = self.state(t_ns)
        return None if state is None else state[0]

    def next(
        self, decided: Trajectory, decided_ns: int, now_ns: int, lead_s: float
    ) -> tuple[Trajectory | None, int]:
        """Returns what to send now for a trajectory of this controller's joints that was decided at
        decided_ns, and until when it may be sent (it arrives up to lead_s later).

        None while the controller approaches a shifted trajectory, which ends at rest by itself, and while it
        may have dropped the last one. A trajectory that was sent as decided is replaced at any time: the
        caller knows it, and a reaction to a contact must not wait.
        """
        lead_ns, executed = round(lead_s * 1e9), self._executed
        if decided.start_ns > decided_ns + SET_BACK_NS:
            return self._approached(decided, decided_ns, now_ns, lead_ns)
        if executed is None:
            return decided, max(decided_ns, now_ns) + lead_ns
        stops = decided.end_ns <= now_ns + 4 * lead_ns + round(self._longest_s * 1e9)
        stops &= _slows_down(decided, now_ns + 2 * lead_ns)
        if self._dropped and stops:
            return executed.since(now_ns), now_ns + lead_ns
        if now_ns <= self._doubtful_ns and not stops:
            self.late += 1
            return None, now_ns
        if now_ns < executed.start_ns:
            if not self._moved:
                return decided, max(decided_ns, now_ns) + lead_ns
            if executed.speeds.any() and decided.end_ns + self._late_ns < executed.end_ns:
                # The decision ends earlier than the shifted trajectory: it is a stop. A whole approach from
                # now on is enough time from anywhere on the way.
                return self._rest_at(executed, now_ns), now_ns + lead_ns
            self.late += 1
            return None, now_ns
        by_ns = self._same_until_ns(decided, now_ns, 2 * lead_ns) - lead_ns
        if by_ns >= now_ns:  # skip the past if late: a controller refuses a trajectory that has ended
            return decided if now_ns <= decided_ns + lead_ns else decided.since(now_ns), by_ns
        return self._led(executed, decided, now_ns, now_ns + 2 * lead_ns), now_ns + lead_ns

    def sent(self, trajectory: Trajectory, decided: Trajectory, now_ns: int) -> None:
        """The controller executes this from now_ns on."""
        self._moved, self._stopped, self._dropped = trajectory is not decided, False, False
        self.late += self._moved
        state, path = self.state(now_ns), trajectory
        if state is not None and now_ns < trajectory.start_ns:
            path = _approach(now_ns, *state, trajectory)
        self._executes(path, now_ns)
        self._executed, self._approach_ns = trajectory, trajectory.start_ns - now_ns
        self._late_ns, self._elsewhere = trajectory.start_ns - decided.start_ns, None
        self.stopping = None

    def dropped(self) -> None:
        """The decided trajectory is not sent, because the clock was set meanwhile."""
        self._moved = True

    def rests(
        self,
        position: np.ndarray | None,
        t_ns: int,
        lead_s: float,
        here: tuple[np.ndarray, int] | None = None,
    ) -> None:
        """The controller reported that it rested at a position, float64 [D], at t_ns; None if it reports
        nothing of the kind. Call it before `next`.

        A trajectory that was sent less than lead_s before may still be on its way. Only a stop is then sent
        until the controller reports again.

        here: measured joints and their stamp, None if unknown. A position that is further from them than the
        usual distance, and than they may have moved since, is not believed; from old ones they may have moved
        anywhere, and only a stop is sent until they are new.
        """
        executed, self._doubtful_ns = self._executed, 0
        if executed is None or position is None or not self._inside(position):
            return
        position_sent, velocity = executed.sample(t_ns)
        if not velocity.any() and (np.abs(position - position_sent) <= _ROUNDING).all():
            return  # as sent
        if here is not None:
            speed, measured, age_ns = self._limits.velocity, here[0], max(t_ns - here[1], 0)
            near = usual(speed) + speed * min(age_ns, _DOUBT_NS) * 1e-9
            if (np.abs(position - measured) > near).any():
                self._doubtful_ns = t_ns + _DOUBT_NS if age_ns > _DOUBT_NS else 0
                return
        arrived_ns = self._past[-1][0] + round(lead_s * 1e9)
        if t_ns < arrived_ns:
            self._doubtful_ns = arrived_ns + _DOUBT_NS
            return
        standstill = Trajectory(
            executed.joints, np.array([t_ns]), position[None], np.zeros((1, len(position)))
        )
        self._executes(standstill, t_ns)
        self._executed, self._moved, self._dropped = standstill, True, True
        self._approach_ns = self._late_ns = 0

    def told(self, position: np.ndarray, t_ns: int) -> None:
        """The position that the controller reported as commanded at a time before the clock was set, float64
        [D]. Call it before `stop`. A controller that was activated again while it was commanded executes
        nothing. The report counts only within the joints' range; NaN means no report."""
        commanded = self.commanded(t_ns)
        if commanded is None:
            return
        distance, far = np.abs(position - commanded), usual(self._limits.velocity)
        strays = self._inside(position) and (distance > far / 2.0).any()
        self._elsewhere = (np.array(position), distance + far) if strays else None

    def _inside(self, position: np.ndarray) -> bool:
        """Whether joints can be at these positions, float64 [D]; False where one is NaN."""
        far = usual(self._limits.velocity)
        inside = (position >= self._limits.lower - far) & (position <= self._limits.upper + far)
        return bool(inside.all())

    def stop(
        self, braking: Trajectory | None, decided_ns: int, was_ns: int, now_ns: int, lead_s: float
    ) -> Trajectory | None:
        """Returns the stop to send after the clock was set, one point at rest; None for none. was_ns: the
        present in the old time.

        braking: the stop that was decided at decided_ns, None if that motion is at rest. If the controller
        executes something else, or it is later than lead_s after the decision, the stop begins on what the
        controller executes, and no other follows it. If the controller reported to be elsewhere, it stays
        there.
        """
        executed, stopped, elsewhere = self._executed, self._stopped, self._elsewhere
        overdue = now_ns > decided_ns + round(lead_s * 1e9)
        moves = executed is not None and (braking is not None or was_ns < executed.end_ns)
        if moves and braking is None and not self._moved and elsewhere is None:
            return None  # a move: what has decided it stops it next
        anew = moves and (self._moved or overdue)
        stop = None if stopped else braking
        if stop is not None and overdue:
            stop = stop.later(now_ns - decided_ns)
        stopping = executed if anew else stop
        if elsewhere is not None and stopping is not None:
            stop = self._stay(stopping.joints, *elsewhere, now_ns, lead_s)
        elif anew and executed is not None and was_ns < executed.start_ns:
            stop = self._rest_at(executed, now_ns)
        elif anew and executed is not None:
            arguments = executed.sample, was_ns, now_ns, 2.0 * lead_s
            stop = brake_on_arrival(executed.joints, *arguments, self._limits)
        executes = None if stop is None else stop.later(round(2.0 * lead_s * 1e9))
        if stop is None and self.stopping is not None:
            executes = self.stopping.later(now_ns - self._stopped_ns)  # it began then, or before
        self.forget()
        self._stopped, self._elsewhere = stopped or anew, elsewhere
        self.stopping, self._stopped_ns = executes, now_ns
        return stop

    def _stay(
        self, joints: tuple[str, ...], position: np.ndarray, away: np.ndarray, now_ns: int, lead_s: float
    ) -> Trajectory:
        """At rest there, after a join that is long enough for the distance `away`, in case the report was
        wrong."""
        join_ns = round((rest_to_rest_s(away, position, self._limits) + 2.0 * lead_s) * 1e9)
        return Trajectory(joints, np.array([now_ns + join_ns]), position[None], np.zeros((1, len(position))))

    def _executes(self, path: Trajectory, since_ns: int) -> None:
        while len(self._past) > 1 and self._past[1][0] < since_ns - _PAST_NS:
            self._past.popleft()
        self._past.append((since_ns, path))

    def state(self, t_ns: int) -> tuple[np.ndarray, np.ndarray] | None:
        """As `commanded`, with the velocity."""
        paths = (path for since_ns, path in reversed(self._past) if since_ns <= t_ns)
        path = next(paths, None)
        return None if path is None else path.sample(t_ns)

    def _approached(
        self, decided: Trajectory, decided_ns: int, now_ns: int, lead_ns: int
    ) -> tuple[Trajectory, int]:
        """A trajectory that begins in the future, shifted by its lateness."""
        from_ns = now_ns if now_ns - decided_ns > lead_ns else decided_ns
        approach_ns, executed, leading = decided.start_ns - decided_ns, self._executed, None
        if executed is not None and now_ns >= executed.start_ns:
            leading = cut(executed.since(now_ns), now_ns + 2 * lead_ns, self._limits)
        elif executed is not None and self._moved and _away(executed.positions[0], decided).any():
            leading = self._rest_at(executed, now_ns)
        if leading is not None:
            distance = _away(leading.positions[-1], decided)
            join_s = rest_to_rest_s(distance, decided.positions[0], self._limits)
            approach_ns = max(approach_ns, round(join_s * 1e9) + 2 * lead_ns)
            if now_ns < leading.end_ns:
                # At rest before the message may have come, it must not begin the approach before that either.
                leading = leading.until(now_ns + 2 * lead_ns)
                return leading.then(_begins(decided, leading.end_ns + approach_ns)), now_ns + lead_ns
        return _begins(decided, from_ns + approach_ns), from_ns + lead_ns

    def _rest_at(self, executed: Trajectory, now_ns: int) -> Trajectory:
        """Rest at the position that it already approaches, after a whole approach from now on."""
        standstill = np.zeros_like(executed.positions[:1])
        return Trajectory(
            executed.joints, np.array([now_ns + self._approach_ns]), executed.positions[:1], standstill
        )

    def _same_until_ns(self, decided: Trajectory, now_ns: int, for_ns: int) -> int:
        """Until when, at most for_ns, the controller already executes `decided`; before now_ns if it does
        not."""
        assert self._executed is not None
        times = np.arange(now_ns, now_ns + for_ns + 1, _LOOK_NS)
        differs = np.append(~_same(self._executed, decided, times), True)
        return now_ns + (int(np.argmax(differs)) - 1) * _LOOK_NS

    def _led(self, old: Trajectory, decided: Trajectory, now_ns: int, commit_ns: int) -> Trajectory:
        """What the controller executes until commit_ns, and then the way to the decided motion."""
        first = int(decided.times_ns.searchsorted(commit_ns, side="right"))
        times, positions = decided.times_ns[first:], decided.positions[first:]
        velocities = decided.speeds[first:]
        if not len(times):
            times, positions = np.array([commit_ns + _END_NS]), decided.positions[-1:]
            velocities = np.zeros_like(positions)
        motion = Trajectory(decided.joints, times, positions, velocities)
        position, velocity = old.sample(commit_ns)
        state = TrajectoryPoint(commit_ns, position, velocity)
        try:
            led, _ = enforce(motion, state, self._limits)
        except ValueError as refusal:
            self._refusal = str(refusal)
            return old.since(now_ns).then(brake(old.joints, state, self._limits))
        # Where it cannot follow, it brakes as `decided` does, which ends when its observation is too old.
        brakes_ns = max(decided.end_ns - round(self._longest_s * 1e9), commit_ns)
        joined = Trajectory(
            decided.joints,
            np.concatenate([[commit_ns], led.times_ns]),
            np.concatenate([position[None], led.positions]),
            np.concatenate([velocity[None], led.speeds]),
        )
        if not _same(joined, decided, np.array([brakes_ns])).all():
            joined = cut(joined, brakes_ns, self._limits)
        return old.since(now_ns).then(joined)


def _begins(trajectory: Trajectory, start_ns: int) -> Trajectory:
    late_ns = start_ns - trajectory.start_ns
    return trajectory.later(late_ns) if late_ns else trajectory


def _approach(now_ns: int, position: np.ndarray, velocity: np.ndarray, path: Trajectory) -> Trajectory:
    """How a controller executes a path that begins in the future."""
    return trusted(
        path.joints,
        np.concatenate([[now_ns], path.times_ns]),
        np.concatenate([position[None], path.positions]),
        np.concatenate([velocity[None], path.speeds]),
    )


def _slows_down(path: Trajectory, from_ns: int) -> bool:
    """Whether no joint speeds up from then on."""
    speeds = np.abs(path.speeds[path.times_ns >= from_ns])
    return bool((np.diff(speeds, axis=0) <= _SPEED_ROUNDING).all())


def _away(position: np.ndarray, after: Trajectory) -> np.ndarray:
    """Distances [D] of float64 [D] positions from a trajectory's first point; 0 within rounding."""
    distance = np.abs(after.positions[0] - position)
    return np.where(distance > _ROUNDING, distance, 0.0)


def _same(one: Trajectory, other: Trajectory, times: np.ndarray) -> np.ndarray:
    """At which of int64 [N] times two motions are the same, bool [N]."""
    (p, v), (q, w) = one.sample(times), other.sample(times)
    return ((np.abs(p - q) <= _ROUNDING) & (np.abs(v - w) <= _SPEED_ROUNDING)).all(axis=1)
