"""How the robot is held, and ~/home, without ROS: as nodes/trajectory/hold.py and home.py."""

from __future__ import annotations

import numpy as np
from rosless_sending import HOMING, Controller, Sending

from vla_accel_ros.control.command_stream import JogStream
from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.control.moves import MoveInParts, broken_off, move
from vla_accel_ros.control.trajectory import Trajectory


class Homing(Sending):
    """With holds and moves home."""

    _went: bool

    def _hold(self, reason: str) -> None:
        self.holds[reason] = None
        self.follower.safety.hold(reason)

    def _take_back(self, reason: str) -> None:
        self.holds.pop(reason, None)
        self.follower.safety.resume(reason)

    def _go_on(self, reason: str, now_ns: int) -> None:
        self.follower.begin_anew(now_ns)
        for one in self.controllers:
            if reason == HOMING and one.sent is not None:
                self.follower.joining.begin_after(one.sent)
                one.sent = None
        if reason != HOMING:
            self._forget()
        elif isinstance(self.stream, JogStream):
            self.stream.rest()
        self._take_back(reason)

    def _is_at_rest(self, now_ns: int) -> bool:
        still = now_ns >= max(self._brakes_until_ns, self._rests_ns) and not self.follower.joining.lasts(
            now_ns
        )
        still = still and (now_ns >= self._settles_until_ns or self.follower.joining.at_rest)
        return still and self.follower.safety.state is MotionState.HOLDING

    def _home(self, now_ns: int) -> None:
        if not self._is_at_rest(now_ns) or any(one.parts is not None for one in self.controllers):
            return
        if self._went:
            self._go_on(HOMING, now_ns)
            return
        self._went = True
        if self._joints.newest_ns is None:
            for one in self.controllers:
                one.sent = None
            return
        limits = self.robot.limits
        here = np.clip(self._joints.newest(), limits.lower, limits.upper)
        begin_ns = now_ns + self.follower.joining.approach_ns
        whole = move(self.robot.joints, here, self.robot.home, limits, 0.3, begin_ns)
        self._following.forget()
        for one in self.controllers:
            parts = MoveInParts(whole.select(one.joints), one.limits, self.most_ns)
            first = parts.part
            self._send_to(one, first, now_ns)
            parts.later(max(one.hand_over.rests_ns - first.end_ns, 0))
            one.parts, one.sent = parts, parts.part

    def _lost(self) -> bool:
        stamp_ns, executed = self._joints.newest_ns or 0, self._executed(self._joints.newest_ns or 0)
        commanded = np.full(len(self.robot.joints), np.nan)
        for one in self.controllers:
            if one.parts is not None and stamp_ns >= one.parts.whole.start_ns:
                decided, told = one.parts.whole.sample(stamp_ns)[0], executed[one.columns]
                commanded[one.columns] = np.where(np.isfinite(told), told, decided)
        if not np.isfinite(commanded).any():
            return False
        return self._following.take(commanded, self._joints.newest(), stamp_ns) is not None

    def _renewed(self, one: Controller, now_ns: int) -> bool:
        if one.parts is None or not one.parts.is_due(now_ns, self.most_ns):
            return True
        if not one.parts.renew(now_ns, self.most_ns, self._kept_ns):
            return False
        one.sent = one.parts.part
        self._send_to(one, one.sent.since(now_ns), now_ns)
        return True

    def _cancel(self, jumped: bool = False) -> None:
        for one in self.controllers:
            self._break_off(one, jumped)
        if HOMING in self.holds:
            self._went = True

    def _break_off(self, one: Controller, jumped: bool) -> None:
        moves, one.parts = one.parts is not None, None
        now_ns, going = self.clock_ns(), one.sent
        was_ns = max(self._watched_ns, now_ns - self._jumped_ns) if jumped else now_ns
        if going is not None and not moves and jumped:
            moves = was_ns < going.end_ns
            one.sent = Trajectory(going.joints, np.array([now_ns]), going.positions[-1:])
        if moves:
            assert going is not None
            given = now_ns, self.follower.joining.approach_ns, self._kept_ns, one.limits
            braking = broken_off(going, *given, was_ns if jumped else None)
            if not jumped:
                self._send_to(one, braking, now_ns)
            elif self.stream is None:
                braking = self._stop(one, braking, now_ns) or braking
            self._brakes_until_ns, one.sent = max(self._brakes_until_ns, braking.end_ns), braking
