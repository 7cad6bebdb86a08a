"""How messages reach the controllers in an episode: late, held up, or while a controller is deactivated.

Those with another clock get messages within lead_s, and begin them when they come.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import numpy as np
from adversary_inputs import Given
from adversary_scene import Ended, S

from vla_accel_ros.control.following.joint_faults import usual
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint


class Delivered(Given):
    """With messages on their way."""

    @abstractmethod
    def _preempt(self, joints: tuple[str, ...]) -> None:
        """Their controller has accepted a message, or was deactivated."""

    def _sent(self, trajectory: Trajectory, start_ns: int, stamped: bool) -> None:
        on_arrival = not stamped
        sent_ns, offset_ns, off = self.t_ns, self.offset_ns, self.active("reactivate")
        position, held_ns = self._held(trajectory.joints)
        come_ns = self.sent_ns.get(trajectory.joints, 0) + round(self.parameters.lead_s * S)
        known = position is not None and held_ns - offset_ns >= come_ns and not on_arrival
        known &= not self.active("lying controllers")
        self.sent_ns[trajectory.joints] = sent_ns
        deaf, resets = self.active("deaf"), self.happened["reset"]
        self.began = True
        self._check_silence()
        if trajectory.joints in self.scaled and stamped:
            self._break("sent something to a controller that executes slowly")
        self._check_length(trajectory, on_arrival)
        in_time = self.late or not self.robot.stamped
        longest_ns = min(self.delay_of_lead, 1.0 if in_time else 2.0) * self.parameters.lead_s * S
        delay_ns = round(self.rng.uniform(0.0, longest_ns)) if self.parameters.lead_s else 0
        self.arrivals_ns = max(self.arrivals_ns + 1, sent_ns + delay_ns)
        self.ends_ns = max(self.ends_ns, self.arrivals_ns + self._rests_ns(trajectory) - self.now_ns())
        if on_arrival:
            self.rests_ns = self.arrivals_ns + self._rests_ns(trajectory) - self.now_ns()
        if on_arrival and self.holding is not None:  # a stop begins anew when the clock is set
            self.holding = max(self.holding[0], self.rests_ns), 0

        def arrive() -> None:
            if deaf or self.happened["reset"] != resets:
                return
            # A time from arrival is what it was from sending; any other is ROS time.
            shift_ns = self.t_ns - (sent_ns + offset_ns) if on_arrival else -self.offset_ns
            moved = replace(trajectory, times_ns=trajectory.times_ns + shift_ns)
            where = self._where(trajectory.joints)
            measured = TrajectoryPoint(self.t_ns, where, np.zeros_like(where))
            if not self._deactivated(moved, off and on_arrival, known):
                slow = self.t_ns - self.slowed_ns.get(moved.joints, -S) < S // 2
                if slow or moved.joints in self.hidden:
                    self.controller.spare(self.t_ns, moved.end_ns)  # it was sent before that was told
                self._preempt(moved.joints)
                self._controller(moved.joints).accept(moved, self.t_ns, measured)
                self.began_ns[moved.joints] = self.now_ns() if on_arrival else start_ns
                if on_arrival and self.robot.stamped:
                    self.controller.eased.append((self.t_ns, moved.end_ns))
                    if not self.controller.from_desired:
                        self.controller.spare(self.t_ns, moved.end_ns)

        self._at(self.arrivals_ns, arrive)

    def _held_up(self) -> None:
        """The process is not scheduled between a decision and its message: the call of the node's that sends
        goes on later, and meanwhile everything else happens, and inputs wait. Nothing else is decided before
        that message has left: one thread decides and sends."""
        self.late, self.written_ns = self.active("stall"), self.t_ns  # another message of the same call was
        if not self.active("held up") or self.active("stall"):
            return
        self._lasts("stall", 0.0, 0.4)
        until_ns, restarts = self.until["stall"], self.happened["restart"]
        self._go_on_later()
        self._pass(until_ns, restarts)
        self.late = True

    def _pass(self, until_ns: int, restarts: int) -> None:
        """The world goes on until then beside a process that does nothing. restarts: how often it had
        begun."""
        while self._queue and self._queue[0][0] <= min(until_ns, self.end_ns):
            self._next()
            if self.happened["restart"] != restarts:
                raise Ended
        if until_ns > self.end_ns:
            raise Ended
        self.t_ns = until_ns

    def _go_on_later(self) -> None:
        self._waiting = {}

        restarts = self.happened["restart"]

        def go_on() -> None:
            if self.happened["restart"] != restarts:
                return  # the process has ended meanwhile
            if self.active("stall"):
                self._at(self.until["stall"] + 1, go_on)
                return
            waiting, self._waiting = list(self._waiting.values()), {}
            self.rng.shuffle(waiting)
            for give in waiting:
                if self.happened["restart"] == restarts:  # else what waited died with it
                    self._called(give)

        self._at(self.until["stall"] + 1, go_on)

    def _deactivated(self, trajectory: Trajectory, stops: bool, known: bool) -> bool:
        """Whether the controller is still off. It is not activated by anybody while it is commanded to be
        further away than a following error may be; what is nearer is stepped to. stops: it is a stop on
        arrival that was sent while the controller was off, and could tell nothing. known: when this was sent
        it had told where it is, and all that was sent before had come or was lost: nothing steps."""
        joints = trajectory.joints
        if self.active("reactivate"):
            return True
        unknown, later = not self.robot.stamped, trajectory.start_ns > self.t_ns
        if self.activated & set(joints) and not known and (stops or unknown or not later):
            distance = np.abs(trajectory.sample(self.t_ns)[0] - self._where(joints))
            if (
                distance > usual(self.robot.limits.velocity)[[self.robot.joints.index(n) for n in joints]]
            ).any():
                self.until["reactivate"] = self.until["drive off"] = self.t_ns + S // 10
                return True
            self.controller.spare(self.t_ns, trajectory.start_ns)
        self.activated -= set(joints)
        return False
