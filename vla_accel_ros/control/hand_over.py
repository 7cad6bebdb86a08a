"""From the trajectory that a controller executes to the next one, however late that is sent.

A joint_trajectory_controller joins in the middle what has begun already, so a trajectory must still be the
one before when it arrives: then nothing steps. Who decides keeps the old motion for twice `lead_s`; the first
half is for this process, which may not be scheduled between the decision and the message, or between the
messages to two controllers. What is later than that is not sent as it was decided: the controller keeps what
it has for twice `lead_s` from then on, and is led from there to the decided motion within its limits. What
begins later than the present is approached from wherever the controller is, in the time that was meant for
that: it is moved by as much as it is late. `CommandStream` does the same for controllers that are told where
to be at a rate.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vla_accel_ros.control.chunking.buffer import SET_BACK_NS
from vla_accel_ros.control.limits.joint_limits import JointLimits, cut
from vla_accel_ros.control.limits.trajectory_limits import enforce
from vla_accel_ros.control.trajectory import MotionState, Trajectory

# Motion that differs by no more [rad, rad/s] is the same; looked at this often.
_ROUNDING, _SPEED_ROUNDING = 1e-6, 1e-4
_LOOK_NS = 1_000_000
_END_NS = 100_000_000


class HandOver:
    """What one controller was sent. limits: of its joints. Time is given; one thread at a time.

    Attribute `late`: how many trajectories were sent otherwise than they were decided.
    """

    def __init__(self, limits: JointLimits) -> None:
        self._limits, self.late = limits, 0
        self.forget()

    def forget(self) -> None:
        """Others drive the controller, or its clock was set: nobody knows what it executes."""
        self._executed: Trajectory | None = None
        self._moved = False  # that is not what was decided

    def next(
        self, decided: Trajectory, decided_ns: int, now_ns: int, lead_s: float
    ) -> tuple[Trajectory | None, int]:
        """What to send now for a trajectory of this controller's joints that was decided at decided_ns, and
        until when that may be sent: it arrives up to lead_s later. None while the controller approaches what
        was moved: nobody expects that it still does, and it comes to rest by itself. What was not moved is
        known to whoever decides, and a contact must not wait for it."""
        lead_ns = round(lead_s * 1e9)
        if decided.start_ns > decided_ns + SET_BACK_NS:  # approached
            late_ns = now_ns - decided_ns if now_ns - decided_ns > lead_ns else 0
            executed = self._executed
            if executed is not None and executed.start_ns <= now_ns < executed.end_ns:
                # It is sized for a controller at rest: after what was led, and still moves.
                late_ns = executed.end_ns - decided_ns
                moved = replace(decided, times_ns=decided.times_ns + late_ns)
                return executed.since(now_ns).then(moved), now_ns + lead_ns
            moved = replace(decided, times_ns=decided.times_ns + late_ns) if late_ns else decided
            return moved, decided_ns + late_ns + lead_ns
        if self._executed is None:
            return decided, max(decided_ns, now_ns) + lead_ns
        if now_ns < self._executed.start_ns:
            if not self._moved:
                return decided, max(decided_ns, now_ns) + lead_ns
            self.late += 1
            return None, now_ns
        by_ns = self._same_until_ns(decided, now_ns, 2 * lead_ns) - lead_ns
        if by_ns >= now_ns:  # from now on, if late: a controller refuses what has ended
            return decided if now_ns <= decided_ns + lead_ns else decided.since(now_ns), by_ns
        return self._led(self._executed, decided, now_ns, now_ns + 2 * lead_ns), now_ns + lead_ns

    def sent(self, trajectory: Trajectory, decided: Trajectory) -> None:
        """The controller executes this from now on."""
        self._moved = trajectory is not decided
        self.late += self._moved
        self._executed = trajectory

    def _same_until_ns(self, decided: Trajectory, now_ns: int, for_ns: int) -> int:
        """Until when, at most so long, the controller executes this already; before now_ns if it does not."""
        assert self._executed is not None
        times = np.arange(now_ns, now_ns + for_ns + 1, _LOOK_NS)
        differs = np.append(~_same(self._executed, decided, times), True)
        return now_ns + (int(np.argmax(differs)) - 1) * _LOOK_NS

    def _led(self, old: Trajectory, decided: Trajectory, now_ns: int, commit_ns: int) -> Trajectory:
        """What the controller executes up to commit_ns, and from there to the decided motion."""
        first = int(decided.times_ns.searchsorted(commit_ns, side="right"))
        times, positions = decided.times_ns[first:], decided.positions[first:]
        velocities = decided.speeds[first:]
        if not len(times):
            times, positions = np.array([commit_ns + _END_NS]), decided.positions[-1:]
            velocities = np.zeros_like(positions)
        asked = Trajectory(decided.joints, times, positions, velocities)
        position, velocity = old.sample(commit_ns)
        led, _ = enforce(asked, MotionState(commit_ns, position, velocity), self._limits)
        # Where it cannot follow, it brakes: what is decided ends when its observation is too old.
        longest_s = float((self._limits.velocity / self._limits.acceleration).max())
        brakes_ns = max(decided.end_ns - round(longest_s * 1e9), commit_ns)
        joined = Trajectory(
            decided.joints,
            np.concatenate([[commit_ns], led.times_ns]),
            np.concatenate([position[None], led.positions]),
            np.concatenate([velocity[None], led.speeds]),
        )
        if not _same(joined, decided, np.array([brakes_ns])).all():
            joined = cut(joined, brakes_ns, self._limits)
        return old.since(now_ns).then(joined)


def _same(one: Trajectory, other: Trajectory, times: np.ndarray) -> np.ndarray:
    """At which of int64 [N] times two motions are the same, bool [N]."""
    (p, v), (q, w) = one.sample(times), other.sample(times)
    return ((np.abs(p - q) <= _ROUNDING) & (np.abs(v - w) <= _SPEED_ROUNDING)).all(axis=1)
