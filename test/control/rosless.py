"""What the trajectory node does between its inputs and its controllers, without ROS and with time given.

It composes the modules as nodes/trajectory/node.py, hold.py, release.py and home.py do: one clock watch
before every input, the joint history, the follower, the streams, the holds that survive a restart. Everything
that decides about motion is the package's own; only topics, services and messages are missing.

rosless_sending: the controllers; rosless_home: holds and ~/home; rosless_force: a node with a force sensor.
"""

from __future__ import annotations

import numpy as np
from rosless_home import Homing
from rosless_sending import AT_HOME, HOMING, OPERATOR, PASSING, RELEASED, RESTARTED, SETTLE_NS

from vla_accel_ros.control.command_stream import JogStream
from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.control.trajectory import TrajectoryPoint
from vla_accel_ros.types import Chunk


class TrajectoryLogic(Homing):
    """One process of the node: its inputs, timers and services; see Sending."""

    def joints(self, position: np.ndarray, stamp_ns: int, names: tuple[str, ...] | None = None) -> None:
        """A joint state has come. names: the robot's joints where they are not told."""
        now_ns = self._now()
        try:
            self._joints.add(self.robot.joints if names is None else names, position, stamp_ns)
        except ValueError:
            self.refused += 1
            return
        newest_ns = self._joints.newest_ns
        if newest_ns is None or newest_ns == self._joints_ns:
            return
        self._joints_ns = newest_ns
        newest = self._joints.newest()
        if isinstance(self.stream, JogStream):
            self.stream.measured(newest, newest_ns)
        fault = self.follower.measured(newest, newest_ns, now_ns)
        if fault and self.lent:
            self.follower.resume()
        elif fault:
            self._hold(fault)
            self.watch()

    def chunk(self, chunk: Chunk) -> None:
        """A chunk has come."""
        now_ns = self._now()
        try:
            self._send(self.follower.follow(chunk, now_ns, self.clock_ns))
        except ValueError:
            self.refused += 1

    def watch(self) -> None:
        """The watchdog's timer."""
        now_ns = self._now()
        told = self.reference()
        self.follower.joining.told(np.full(len(self.robot.joints), np.nan) if told is None else told)
        self.follower.joining.rests(self._rests_ns)
        change, stop = self.follower.step(now_ns)
        self._send(stop)
        if self._clock.was_set():
            return
        now_ns = self._watched_ns = self.clock_ns()
        if change is not None and change.after is MotionState.HOLDING and isinstance(self.stream, JogStream):
            self.stream.rest()
        state, joins = self.follower.safety.state, self.follower.joining.lasts(now_ns)
        rested, self._rests = self._rests, state is MotionState.HOLDING and not joins and bool(self.holds)
        if self._rests and not rested and isinstance(self.stream, JogStream):
            self.stream.rest()
        for one in self.controllers:
            if one.parts is not None and now_ns >= one.parts.whole.end_ns:
                one.parts = None
        if self._lost() or not all(self._renewed(one, now_ns) for one in self.controllers):
            self._cancel()
        if HOMING in self.holds:
            self._home(now_ns)
        streams = [stream for stream in (self.stream, self.twist) if stream is not None]
        rests = self._is_at_rest(now_ns) and all(stream.at_rest(now_ns) for stream in streams)
        if RELEASED in self.holds and not self.silent and rests:
            self._forget()
            self.silent = True

    def tick(self) -> np.ndarray | None:
        """The stream's timer: what is commanded now."""
        now_ns = self._now()
        if self.twist is not None:
            return self.twist.tick(now_ns, self.steady_ns())
        assert self.stream is not None
        command = self.stream.tick(now_ns, self.steady_ns())
        return command.position if isinstance(command, TrajectoryPoint) else command

    def hold(self) -> None:
        """~/hold, which cancels ~/home."""
        self._now()
        self._hold(OPERATOR)
        self._cancel()

    def resume(self) -> None:
        """~/resume."""
        self._now()
        for reason in [h for h in self.holds if h not in PASSING and h != RELEASED]:
            self._take_back(reason)
        self.follower.resume()

    def release(self) -> None:
        """~/release."""
        self._now()
        self._cancel()
        self._hold(RELEASED)

    def reclaim(self) -> None:
        """~/reclaim, once released."""
        if self.silent:
            self._go_on(RELEASED, self._now())
            self.silent = False

    def home(self) -> None:
        """~/home."""
        now_ns = self._now()
        late = any(late.name == "joint_states" for late in self.follower.safety.watchdog.late(now_ns))
        refused = set(self.holds) - {AT_HOME, RESTARTED} or late or self._joints.newest_ns is None
        if not refused and self.twist is None:
            self._hold(AT_HOME)
            self._hold(HOMING)
            self._settles_until_ns = now_ns + SETTLE_NS
            self._went = False

    @property
    def lent(self) -> bool:
        """Whether something else than chunks moves the robot."""
        return RELEASED in self.holds or HOMING in self.holds

    @property
    def joined_ns(self) -> int:
        """ROS time at which the last join ends."""
        return self.follower.joining.until_ns

    @property
    def running(self) -> bool:
        """Whether chunks may move the robot."""
        return self.follower.safety.state is MotionState.RUNNING

    def _now(self) -> int:
        self._jumped_ns = self._clock.jump_ns()
        if self._jumped_ns:
            self._clock_jumped(self.clock_ns())
        return self.clock_ns()

    def _clock_jumped(self, now_ns: int) -> None:
        braking = self.follower.stop_in_new_time(now_ns, now_ns - self._jumped_ns)
        setpoint = self.follower.joining.setpoint
        self._begin()
        self.follower.joining.begin_at(setpoint)
        limits, stops = self.robot.limits, [braking]
        self._brakes_until_ns = now_ns + round(float((limits.velocity / limits.acceleration).max()) * 1e9)
        if self.stream is not None:
            self.stream.stop(now_ns, self.steady_ns())
        else:
            stops += [self._stop(one, braking, now_ns) for one in self.controllers]
        for stop in [stop for stop in stops if stop is not None]:
            self.follower.joining.begin_after(stop)
            self._brakes_until_ns = max(self._brakes_until_ns, stop.end_ns)
        if self.twist is not None:
            self.twist.restart(now_ns, self.steady_ns())
        self._cancel(jumped=True)
