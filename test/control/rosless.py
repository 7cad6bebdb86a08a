"""What the trajectory node does between its inputs and its controllers, without ROS and with time given.

It composes the modules as nodes/trajectory/node.py, hold.py, release.py and home.py do: one clock watch
before every input, the joint history, the follower, the streams, the holds that survive a restart. Everything
that decides about motion is the package's own; only topics, services and messages are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from vla_accel_ros.control.chunking.buffer import Mode, TrajectoryBuffer
from vla_accel_ros.control.chunking.twist import TwistBuffer, WayBack
from vla_accel_ros.control.command_stream import CommandStream, JogStream
from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.joint_faults import FollowingError
from vla_accel_ros.control.following.watchdog import ClockWatch, Motion, Safety, Watchdog
from vla_accel_ros.control.hand_over import HandOver
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.moves import MoveInParts, broken_off, move
from vla_accel_ros.control.trajectory import MotionState, Trajectory
from vla_accel_ros.sensing.joints import JointHistory
from vla_accel_ros.types import Chunk

OPERATOR, RELEASED, HOMING = "held by the operator", "released to others", "going home"
AT_HOME, RESTARTED = "at home", "restarted after a crash"
PASSING = (HOMING,)
SETTLE_NS = 2_000_000_000


@dataclass(frozen=True)
class Robot:
    """What the node is configured with. kind: of the controllers; ages in seconds. groups: the joints of each
    controller that takes trajectories, where they are several."""

    kind: str
    joints: tuple[str, ...]
    limits: JointLimits
    home: np.ndarray
    period_s: float
    chunk_age_s: float = 0.8
    joints_age_s: float = 0.3
    linear: float = 0.5
    angular: float = 1.0
    groups: tuple[tuple[str, ...], ...] = ()


@dataclass
class Controller:
    """One of those that take trajectories. parts, sent: of ~/home, while that lasts, and what of it is
    executed."""

    joints: tuple[str, ...]
    columns: list[int]
    limits: JointLimits
    hand_over: HandOver
    parts: MoveInParts | None = None
    sent: Trajectory | None = None


@dataclass(frozen=True)
class Parameters:
    """Those of the trajectory node that a restart may change."""

    mode: Mode = "blend"
    blend_s: float = 0.2
    lead_s: float = 0.03
    execution_horizon: int | None = None


@dataclass
class TrajectoryLogic:
    """One process of the node. send: gets (trajectory, whether its times count from its arrival).

    holds: what a process before this one left. reference: where the controllers say that they are commanded
    to be, None where they say nothing. held: where a controller says that it rests by its own will, and of
    when that is. held_up: called between a decision and its message; returns when
    the process is scheduled again."""

    robot: Robot
    parameters: Parameters
    clock_ns: Callable[[], int]
    steady_ns: Callable[[], int]
    send: Callable[[Trajectory, bool], None]
    holds: dict[str, None] = field(default_factory=dict)
    reference: Callable[[], np.ndarray | None] = lambda: None
    held_up: Callable[[], None] = lambda: None
    held: Callable[[tuple[str, ...]], tuple[np.ndarray | None, int]] = lambda joints: (None, 0)
    twist: TwistBuffer | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        robot = self.robot
        self.controllers = []
        for joints in robot.groups or (robot.joints,):
            columns = [robot.joints.index(name) for name in joints]
            limits = robot.limits.select(np.array(columns))
            self.controllers.append(Controller(joints, columns, limits, HandOver(limits)))
        self.refused, self.counts, self._watched_ns = 0, Counter[str](), 0
        self.silent = False
        if robot.kind == "servo_twist" and self.twist is None:
            self.twist = self.make_twist()
        self.stream: CommandStream | JogStream | None = None
        if robot.kind == "forward_command":
            self.stream = CommandStream(robot.joints, robot.limits, robot.period_s)
        elif robot.kind == "servo_joint":
            self.stream = JogStream(robot.joints, robot.limits, robot.period_s, gain=2.0)
        self._clock = ClockWatch(self.clock_ns, self.steady_ns)
        self._following = FollowingError.of(robot.limits)
        self._joints_ns: int | None = None
        self._rests = False
        self._begin()
        self._settles_until_ns = self.clock_ns() + SETTLE_NS

    def make_twist(self, way_back: WayBack | None = None) -> TwistBuffer:
        """The buffer of hand velocities, as the node makes it."""
        robot, options = self.robot, self.parameters
        given = robot.linear, robot.angular, robot.period_s, options.mode, options.execution_horizon
        return TwistBuffer("second", *given, way_back)

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
            self.stream.measured(newest, now_ns)
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
        if change is not None and change.after is Motion.HOLDING and isinstance(self.stream, JogStream):
            self.stream.rest()
        state, joins = self.follower.safety.state, self.follower.joining.lasts(now_ns)
        rested, self._rests = self._rests, state is Motion.HOLDING and not joins and bool(self.holds)
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
        stands = self._stands(now_ns) and all(stream.at_rest(now_ns) for stream in streams)
        if RELEASED in self.holds and not self.silent and stands:
            self._forget()
            self.silent = True

    def tick(self) -> np.ndarray | None:
        """The stream's timer: what is commanded now."""
        now_ns = self._now()
        if self.twist is not None:
            return self.twist.tick(now_ns, self.steady_ns())
        assert self.stream is not None
        command = self.stream.tick(now_ns, self.steady_ns())
        return command.position if isinstance(command, MotionState) else command

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
        return self.follower.safety.state is Motion.RUNNING

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

    def _begin(self) -> None:
        robot, options = self.robot, self.parameters
        buffer = TrajectoryBuffer(
            robot.joints,
            robot.limits,
            options.mode,
            blend_s=options.blend_s,
            lead_s=options.lead_s,
            execution_horizon=options.execution_horizon,
            max_age_s=robot.chunk_age_s,
        )
        ages = {"joint_states": robot.joints_age_s, "chunk": robot.chunk_age_s}
        self.follower = ChunkFollower(buffer, Safety(Watchdog(ages)), robot.chunk_age_s, self.twist)
        self.follower.executed = self._executed
        self._joints, self._joints_ns = JointHistory(robot.joints), None
        self._brakes_until_ns, self._settles_until_ns, self._rests = 0, 0, False
        self.silent = self.silent and RELEASED in self.holds
        for reason in self.holds:
            self.follower.safety.hold(reason)

    def _send(self, decided: Trajectory | None) -> None:
        if decided is None:
            return
        now_ns = self.clock_ns()
        for one in self.controllers:
            self._send_to(one, decided, now_ns)

    def _send_to(self, one: Controller, decided: Trajectory, now_ns: int) -> None:
        if self.stream is not None:
            if isinstance(self.stream, CommandStream) and self._joints.newest_ns is not None:
                self.stream.follow(decided, now_ns, self._joints.newest())
            else:
                self.stream.follow(decided, now_ns)
            return
        decided, lead_s = decided.select(one.joints), self.parameters.lead_s
        self.held_up()
        if self._clock.was_set():
            one.hand_over.dropped()
            return
        sent_ns = self.clock_ns()
        here = None if self._joints.newest_ns is None else self._joints.newest()[one.columns]
        one.hand_over.rests(*self.held(one.joints), lead_s, here)
        path, _ = one.hand_over.next(decided, now_ns, sent_ns, lead_s)
        if path is not None:
            one.hand_over.sent(path, decided, sent_ns)
            self.send(path, False)

    def _executed(self, t_ns: int) -> np.ndarray:
        position = np.full(len(self.robot.joints), np.nan)
        if self.stream is not None:
            commanded = self.stream.commanded(t_ns)
            return position if commanded is None else commanded
        for one in self.controllers:
            commanded = one.hand_over.commanded(t_ns)
            if commanded is not None:
                position[one.columns] = commanded
        return position

    @property
    def _rests_ns(self) -> int:
        return max(one.hand_over.rests_ns for one in self.controllers)

    def _stop(self, one: Controller, braking: Trajectory | None, now_ns: int) -> Trajectory | None:
        was_ns, told = now_ns - self._jumped_ns, self.reference()
        if told is not None:
            one.hand_over.told(told[one.columns], was_ns)
        share = None if braking is None else braking.select(one.joints)
        stop = one.hand_over.stop(share, was_ns, now_ns, self.parameters.lead_s)
        if stop is not None:
            self.send(stop, True)
        return one.hand_over.stopping

    def _forget(self) -> None:
        for one in self.controllers:
            one.hand_over.forget()
        if self.stream is not None:
            self.stream.forget()
        if self.twist is not None:
            self.twist.forget()

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

    @property
    def _kept_ns(self) -> int:
        return round(self.follower.buffer.kept_s * 1e9)

    def _stands(self, now_ns: int) -> bool:
        still = now_ns >= max(self._brakes_until_ns, self._rests_ns) and not self.follower.joining.lasts(
            now_ns
        )
        still = still and (now_ns >= self._settles_until_ns or self.follower.joining.stand)
        return still and self.follower.safety.state is Motion.HOLDING

    def _home(self, now_ns: int) -> None:
        if not self._stands(now_ns) or any(one.parts is not None for one in self.controllers):
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

    @property
    def most_ns(self) -> int:
        """How much of a motion home a controller has at most."""
        return max(round(self.robot.chunk_age_s * 1e9), 3 * self._kept_ns)

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
