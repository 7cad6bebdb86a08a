"""What one process of the trajectory node sends to its controllers, and what these execute, without ROS."""

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
from vla_accel_ros.control.following.watchdog import ClockWatch, Safety, Watchdog
from vla_accel_ros.control.hand_over import HandOver
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.moves import MoveInParts
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.sensing.joints import JointHistory

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
class Sending:
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
        self._rests, self._jumped_ns = False, 0
        self._begin()
        self._settles_until_ns = self.clock_ns() + SETTLE_NS

    def make_twist(self, way_back: WayBack | None = None) -> TwistBuffer:
        """The buffer of hand velocities, as the node makes it."""
        robot, options = self.robot, self.parameters
        given = robot.linear, robot.angular, robot.period_s, options.mode, options.execution_horizon
        return TwistBuffer("second", *given, way_back)

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
        newest_ns = self._joints.newest_ns
        here = None if newest_ns is None else (self._joints.newest()[one.columns], newest_ns)
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

    @property
    def _kept_ns(self) -> int:
        return round(self.follower.buffer.kept_s * 1e9)

    @property
    def most_ns(self) -> int:
        """How much of a motion home a controller has at most."""
        return max(round(self.robot.chunk_age_s * 1e9), 3 * self._kept_ns)
