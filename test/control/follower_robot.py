"""A follower and its robot, with time, joints and chunks as a test tells them."""

from __future__ import annotations

import numpy as np

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.joint_faults import FollowingError
from vla_accel_ros.control.following.watchdog import MotionState, Safety, Watchdog
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.sim.controller import JointTrajectoryController
from vla_accel_ros.types import Chunk

S = 1_000_000_000
MS = S // 1000
START = 1000 * S
HOME = np.zeros(2)
JOINTS = ("a", "b")


class Robot:
    """A follower with time, joints and chunks as a test tells them. A tick is 10 ms, with a joint state each.

    The joints are where they are commanded to be plus `sag`, unless `placed` says where; `silent` ones say
    nothing. A controller executes what is sent: `executed` is
    what it commands to the motors, at 500 Hz. The second joint is a gripper's: it may be held back.
    """

    def __init__(self) -> None:
        self.limits = JointLimits(*np.array([[-2, -2], [2, 2], [3, 3], [20, 20]]))
        watched = {"camera/front": 0.5, "joint_states": 0.3, "chunk": 0.8}
        buffer = TrajectoryBuffer(JOINTS, self.limits, max_age_s=0.8)
        following = FollowingError(*np.array([[0.45, np.inf], [0.2, 0.2]]))
        self.follower = ChunkFollower(buffer, Safety(Watchdog(watched)), 0.8, following=following)
        self.controller = JointTrajectoryController(JOINTS)
        self.controller.start(HOME, START)
        self.executed: list[np.ndarray] = []
        self.joint_hz = 100
        self.now = START
        self.sag, self.silent = np.zeros(2), False
        self.placed: np.ndarray | None = HOME
        self.request = 0
        self.sent: list[Trajectory] = []
        self.states: list[MotionState] = []

    def run(self, seconds: float, goal: float | None = None, latency_s: float = 0.05) -> None:
        """Let time pass; with a goal, a chunk towards it arrives every 100 ms."""
        for tick in range(round(seconds * 100)):
            self.tick()
            if goal is not None and tick % 10 == 0:
                self.send(goal, self.now - round(latency_s * S))
            change, stop = self.follower.step(self.now)
            if change is not None:
                self.states.append(change.after)
            self.deliver(stop)

    def tick(self) -> None:
        """10 ms pass, with joint states."""
        period_ns = S // self.joint_hz
        for _ in range(10 * MS // period_ns):
            times = np.arange(self.now, self.now + period_ns, 2 * MS)
            self.executed += [self.controller.desired(int(t)).position for t in times]
            self.now += period_ns
            if not self.silent:
                self.follower.measured(self.measured(), self.now, self.now)

    def deliver(self, trajectory: Trajectory | None) -> None:
        if trajectory is not None:
            self.sent.append(trajectory)
            self.controller.accept(trajectory, self.now)

    def assert_within_limits(self) -> None:
        """What the controller commanded, at 500 Hz, keeps the limits of speed and acceleration."""
        velocity = np.diff(self.executed, axis=0) * 500
        assert (np.abs(velocity) <= self.limits.velocity * 1.001).all()
        assert (np.abs(np.diff(velocity, axis=0)) * 500 <= self.limits.acceleration * 1.01).all()

    def measured(self) -> np.ndarray:
        return self.reference()[0] + self.sag if self.placed is None else self.placed

    def go(self, seconds: float = 0.6, goal: float = 1.5) -> Robot:
        """Run with joints that follow; seconds: from when it runs. Returns itself."""
        for _ in range(20):
            self.run(0.1, goal)
            self.placed = None
            if MotionState.RUNNING in self.states:
                break
        self.run(seconds, goal)
        return self

    def send(self, goal: float, stamp_ns: int) -> None:
        self.request += 1
        start, _ = self.follower.buffer.reference(stamp_ns)
        ramp = np.linspace(start, np.full(2, goal), 33)[1:].astype(np.float32)
        chunk = Chunk(ramp, stamp_ns, 1 / 30, self.request, self.request, np.zeros(32, np.float32))
        self.deliver(self.follower.follow(chunk, self.now))

    def goes_on_from(self) -> np.ndarray:
        """Run until it moves again; where the first trajectory begins, float64 [2]."""
        count = len(self.sent)
        self.run(1.2, goal=0.0)
        assert self.states[-1] is MotionState.RUNNING
        first = self.sent[count]
        return first.sample(first.start_ns)[0]

    def reference(self, later_s: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        return self.follower.buffer.reference(self.now + round(later_s * S))
