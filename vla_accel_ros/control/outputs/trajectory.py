"""joint_trajectory_controller, by its topic: the default.

The controller interpolates, and holds the end by itself; a message is sent only for a new trajectory. Stamped
trajectories are sent so that the controller joins them without a step, however long this process was delayed
(hand_over). Those without a stamp allow the controller another clock (on_arrival). The time until execution
is measured (delivery). Its sources are polled: nothing here waits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from copy import copy

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.outputs.delivery import Delivery
from vla_accel_ros.control.outputs.hand_over import HandOver
from vla_accel_ros.control.outputs.on_arrival import approached
from vla_accel_ros.control.outputs.output import (
    Clock,
    Controller,
    Output,
    TrajectoryChannel,
    by_name,
    steady_ns,
)
from vla_accel_ros.control.outputs.reports import ReportedState
from vla_accel_ros.control.trajectory import Trajectory

# A message should never take longer.
KEEP_S = 1.0
# A message that is delayed again and again is sent with twice the lead each time, at most this often.
_TRIES, _DOUBLED_S = 6, 0.01
_PROMPT_NS = 10_000_000  # how soon a message leaves that begins when it arrives
REPORT_NS = 500_000_000
"""How long a controller's report counts."""
HEAR_S = 1.0
"""How long to wait for a controller to report its setpoint before the first motion: many report nothing."""
_NEWS_NS = 100_000_000  # the same while it is commanded
_REPORTS = 64
# What moved so long before a report, and since, is not at rest, whatever the error of its stamp: at most
# _STAMPED_S.
_MOVING_NS, _STAMPED_S = range(0, 50_000_001, 10_000_000), 0.02
_TROUBLE_S = 10.0
"""How long it is reported that a trajectory has left late."""


class TrajectoryOutput(Output):
    """stamped: whether the message says when it begins. limits: of the controller's joints."""

    def __init__(
        self,
        controller: Controller,
        limits: JointLimits,
        delivery: Delivery,
        channel: TrajectoryChannel,
        clock: Clock,
        stamped: bool = True,
    ) -> None:
        super().__init__(controller)
        self._channel, self._clock, self._delivery = channel, clock, delivery
        self._hand_over, self._stamped = HandOver(limits), stamped
        # What a controller with another clock executes, if it got it at once; in steady time, because it does
        # not follow when ours is set.
        self._on_arrival = HandOver(limits)
        self._report: ReportedState | None = None
        self._reported = deque[ReportedState](maxlen=_REPORTS)  # while its speed is scaled
        self._holds = False  # it holds by itself
        self._scaled = False
        self._hear_until_s = 0.0
        self._measured: tuple[np.ndarray, int] | None = None  # joints, and their stamp
        self._limits = limits
        self._executes: Trajectory | None = None  # by a controller with another clock, at the latest
        self._late_count, self._late, self._trouble_until_s = 0, "", -math.inf

    def send(self, trajectory: Trajectory, decided_ns: int) -> None:
        """The message is written before the clock is read for the last time; from there to the middleware it
        takes some tens of microseconds."""
        decided, lead_s = trajectory.select(self.controller.joints), self._delivery.lead_s
        path: Trajectory | None
        for _ in range(_TRIES):
            self._look()
            now_ns = self._clock.now_ns()
            if self._scaled or self._delivery.overdue(now_ns):
                return  # it comes to rest on what it has; anything sent now would make it step
            self._hand_over.rests(*self._resting(), self._delivery.lead_s, self._measured)
            start_ns = now_ns
            if self._stamped:
                path, by_ns = self._hand_over.next(decided, decided_ns, now_ns, lead_s)
                if path is None:
                    return
                start_ns = min(path.start_ns, now_ns)  # a motion that begins later is approached from now on
            else:
                path = self._approached(decided, lead_s, now_ns)
                by_ns = now_ns + _PROMPT_NS
            self._channel.write(kept(path), start_ns, self._stamped)
            now_ns = self._clock.now_ns()
            if self._clock.was_set():
                self._hand_over.dropped()
                return  # the time in which it was decided is over: a stop follows
            if now_ns <= by_ns:
                break
            lead_s = 2.0 * max(lead_s, _DOUBLED_S)
        self._channel.publish()
        self._check_late(by_ns, self._delivery.lead_s)
        assert path is not None
        if self._stamped:
            self._hand_over.sent(path, decided, now_ns)
        else:
            by_ns = self._steady_by_ns()
            path = path.later(by_ns)
            self._on_arrival.sent(path, path, now_ns + by_ns)
            self._executes = path.later(round(lead_s * 1e9))
        if self._channel.is_heard():
            stamp_ns = start_ns if self._stamped else 0
            self._delivery.sent(stamp_ns, min(trajectory.start_ns, decided_ns), self._clock.now_ns())

    def _approached(self, decided: Trajectory, lead_s: float, now_ns: int) -> Trajectory:
        steady_by_ns = self._steady_by_ns()

        def executed(t_ns: int) -> tuple[np.ndarray, np.ndarray] | None:
            return self._on_arrival.state(t_ns + steady_by_ns)

        return approached(decided, self._limits, lead_s, now_ns, executed)

    def _check_late(self, by_ns: int, lead_s: float) -> None:
        """Note that a trajectory that should have left by then, to arrive lead_s later, has left so late that
        its controller joins it with a step: this process was not scheduled between its last look at the clock
        and the middleware."""
        usual_s = min(self._delivery.p99_s, lead_s)
        late_s = (self._clock.now_ns() - by_ns) * 1e-9 - (lead_s - usual_s)
        if late_s > 0.0 and not self._clock.was_set():
            self._late_count += 1
            self._trouble_until_s = self._steady_s() + _TROUBLE_S
            self._late = (
                f"a trajectory left {late_s:.2f} s late, because this process was not scheduled: the joints "
                "may have stepped; look at the load of this machine"
            )

    def measured(self, positions: Mapping[str, float], stamps_ns: Mapping[str, int], believed: bool) -> None:
        joints = self.controller.joints
        oldest_ns = min((stamps_ns[name] for name in joints), default=0)
        self._measured = np.array([positions[name] for name in joints]), oldest_ns

    def begin(self) -> None:
        self._delivery.forget()
        self._hand_over.forget()
        self._on_arrival.forget()
        self._executes = None

    def open(self) -> list[str]:
        if self._channel.reports:
            self._channel.newest()  # discard reports from before
            self._hear_until_s = self._steady_s() + HEAR_S
        return []

    def stop(self, braking: Trajectory | None, now_ns: int) -> Trajectory | None:
        """As in `send`, the clock is read again when the message is written. It may be set again meanwhile:
        the time goes on by the steady clock."""
        was_ns, by_ns, lead_s = now_ns - self._clock.jumped_ns, self._steady_by_ns(), self._delivery.lead_s
        self._look()
        self._delivery.forget()
        if not self._stamped:
            if self._clock.simulated:  # which it follows, too
                self.begin()
            if braking is not None:
                self.send(braking, now_ns)
            return None if self._executes is None else self._executes.later(-self._steady_by_ns())
        share = None if braking is None else braking.select(self.controller.joints)
        self._pass_on_report(was_ns, now_ns)
        hand_over = self._hand_over
        for _ in range(_TRIES):
            self._hand_over, passed_ns = copy(hand_over), self._present_ns(by_ns) - now_ns
            times_ns = now_ns, was_ns + passed_ns, now_ns + passed_ns
            stop = self._hand_over.stop(share, *times_ns, lead_s)
            if stop is None:
                return self._hand_over.stopping
            # on arrival: the controller may not have heard of the new time yet
            self._channel.write(kept(stop), now_ns + passed_ns, stamped=False)
            if self._present_ns(by_ns) <= now_ns + passed_ns + round(lead_s * 1e9):
                break
            lead_s = 2.0 * max(lead_s, _DOUBLED_S)
        self._channel.publish()
        return self._hand_over.stopping

    def _present_ns(self, by_ns: int) -> int:
        """ROS time, though it may have been set since the steady clock was so far ahead of it."""
        return self._clock.now_ns() if self._clock.simulated else self._clock.monotonic_ns() - by_ns

    def _pass_on_report(self, was_ns: int, now_ns: int) -> None:
        """Pass on the setpoint that the controller reported, in the time before the clock was set or in the
        new one."""
        report = self._report
        if report is None or min(abs(was_ns - report.stamp_ns), abs(now_ns - report.stamp_ns)) >= REPORT_NS:
            return
        set_ns = (now_ns - was_ns) * (abs(now_ns - report.stamp_ns) < abs(was_ns - report.stamp_ns))
        self._hand_over.told(self._positions(report), report.stamp_ns - set_ns)

    def _resting(self) -> tuple[np.ndarray | None, int]:
        """Position and time at which the controller rested by itself, if it reports that."""
        report, now_ns = self._report, self._clock.now_ns()
        if report is None or not self._holds or abs(now_ns - report.stamp_ns) > _NEWS_NS:
            return None, 0
        return self._positions(report), min(report.stamp_ns, now_ns)

    def _positions(self, report: ReportedState) -> np.ndarray:
        return np.array([report.reference.get(name, np.nan) for name in self.controller.joints])

    def reference(self, now_ns: int) -> Mapping[str, float]:
        self._look()
        report = self._report
        return report.reference if report is not None and abs(now_ns - report.stamp_ns) < REPORT_NS else {}

    def commanded(self, t_ns: int) -> Mapping[str, float]:
        if self._scaled and self._reported:
            return min(self._reported, key=lambda report: abs(report.stamp_ns - t_ns)).reference
        if self._stamped:
            return by_name(self.controller.joints, self._hand_over.commanded(t_ns))
        return by_name(self.controller.joints, self._on_arrival.commanded(t_ns + self._steady_by_ns()))

    def rests_ns(self) -> int:
        if self._stamped:
            return self._hand_over.rests_ns
        return 0 if self._executes is None else self._executes.end_ns - self._steady_by_ns()

    def _steady_by_ns(self) -> int:
        """How far the clock that is never set is ahead of ROS time; 0 where ROS time is simulated."""
        now_ns = self._clock.now_ns()
        steady_now_ns = steady_ns(self._clock, now_ns)
        return 0 if steady_now_ns is None else steady_now_ns - now_ns

    def lead_s(self, now_ns: int) -> float:
        self._look()
        if self._delivery.awaits_acknowledgement(now_ns):
            self._delivery.acknowledged(self._channel.is_acknowledged(), now_ns)
        return self._delivery.step(now_ns)

    def _look(self) -> None:
        # One with another clock says nothing about ours.
        newest = self._channel.newest() if self._stamped else None
        if newest is None:
            return
        self._report, ours, self._hear_until_s = self._counted(newest), True, 0.0
        if newest.began_ns is not None:
            ours = self._delivery.executing(newest.began_ns, newest.stamp_ns)
        ours &= not (self._delivery.unsure or self._stands(self._report))
        self._holds = newest.rests and not ours
        self._scaled = newest.speed != 1.0 or (self._scaled and not newest.rests)
        if not self._scaled:
            self._reported.clear()
        self._reported.append(self._report)

    def _stands(self, report: ReportedState) -> bool:
        """Whether a controller that rests does not execute what it was seen to execute, since it is elsewhere
        or that moves: another trajectory, its own, began at nearly the same time."""
        states = [self._hand_over.state(report.stamp_ns - by_ns) for by_ns in _MOVING_NS]
        if not self._delivery.seen or states[0] is None:
            return False
        distance = np.abs(self._positions(report) - states[0][0])
        elsewhere = bool((distance > self._limits.velocity * _STAMPED_S).any())
        return elsewhere or all(state is not None and state[1].any() for state in states)

    def _counted(self, report: ReportedState) -> ReportedState:
        """A report with continuous joints in the turn in which they are measured, which its controller does
        not know."""
        if self._measured is None or not self._limits.continuous.any():
            return report
        position = self._limits.near(self._positions(report), self._measured[0])
        positions = by_name(self.controller.joints, position).items()
        return report._replace(reference={name: angle for name, angle in positions if np.isfinite(angle)})

    def _steady_s(self) -> float:
        return self._clock.monotonic_ns() * 1e-9

    @property
    def waits(self) -> bool:
        return self._steady_s() < self._hear_until_s

    @property
    def awaits_arrival(self) -> bool:
        return self._delivery.awaits_arrival(self._clock.now_ns())

    @property
    def hindrance(self) -> str:
        now_ns = self._clock.now_ns()
        if self._delivery.overdue(now_ns):
            return (
                f"{self.controller.topic}: the controller does not execute what it was sent: is it active, "
                "and is its host or the network too busy?"
            )
        if not self._scaled:
            return ""
        if self._report is not None and abs(now_ns - self._report.stamp_ns) >= REPORT_NS:
            return (
                f"{self.controller.topic}: the controller's speed was scaled when it last reported its "
                "state, and it has reported none since: is it active?"
            )
        return (
            f"{self.controller.topic}: the controller's speed scaling changes the speed of what it is "
            "sent: set it to 100 %"
        )

    @property
    def trouble(self) -> str:
        return self._delivery.trouble or (self._late if self._steady_s() < self._trouble_until_s else "")

    def poll_refusal(self) -> str:
        return self._hand_over.poll_refusal()

    def close(self) -> None:
        self._channel.close()

    def values(self) -> dict[str, object]:
        delivery = self._delivery
        return {
            "delivery p99 [ms]": delivery.p99_s * 1e3,
            "lead [ms]": delivery.lead_s * 1e3,
            "measured by": delivery.source if delivery.count else "nothing yet",
            "deliveries": delivery.count,
            "never executed": delivery.lost,
            "sent late": self._hand_over.late,
            "left late": self._late_count,
        }


def kept(path: Trajectory) -> Trajectory:
    """The motion with its end held for KEEP_S if it is shorter: a controller refuses a trajectory that has
    ended, and a stop is short."""
    until_ns, velocities = path.start_ns + round(KEEP_S * 1e9), path.velocities
    if path.end_ns >= until_ns or (velocities is not None and velocities[-1].any()):
        return path
    return Trajectory(
        path.joints,
        np.append(path.times_ns, until_ns),
        np.concatenate([path.positions, path.positions[-1:]]),
        None if velocities is None else np.concatenate([velocities, velocities[-1:]]),
    )
