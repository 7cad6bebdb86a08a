"""An arm of two joints and a gripper, a policy, and a person with a leader arm, in simulated time.

What the controller executes is judged at 500 Hz by executed.py, which knows nothing of what commanded it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from executed import Broken, TrajectoryController, judge_path
from world import Clock, Disk, Parameters, Process, TrajectoryLine, make_contract, make_joints

from vla_accel_ros.contract.parts import Deadman, FollowingError, Teleop
from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint
from vla_accel_ros.types import Chunk

S = 1_000_000_000
MS = S // 1000
TICK_NS = 10 * MS
NAMES = ("shoulder", "elbow", "gripper")
LIMITS = JointLimits(*np.array([[-2.0, -2.0, 0.0], [2.0, 2.0, 1.0], [3.0, 3.0, 4.0], [20.0, 20.0, 40.0]]))
MAX_AGE_S = 0.2
LEADER = Teleop("leader/joint_states", 50.0, MAX_AGE_S, {name: name for name in NAMES})
JOY = replace(LEADER, deadman=Deadman("joy", 4))
JOG = replace(LEADER, topic="jog", type="JointJog")


class Arm:
    """A tick is 10 ms, with joint states, chunks at 10 Hz and commands at 50 Hz.

    policy, leader: where both want the joints, float64 [3], None where they say nothing; the policy's chunks
    go there at a third of the joints' speed. pressed: of the button, None if nothing reports it. Attributes:
    `reports`, the states that were told; `position`.
    """

    def __init__(self, teleop: Teleop | None = LEADER, disk: Disk | None = None, go_on: bool = True) -> None:
        self.now = 1000 * S
        self.policy: np.ndarray | None = np.zeros(3)
        self.leader: np.ndarray | None = np.zeros(3)
        self.velocity: np.ndarray | None = None
        self.pressed: bool | None = None
        self.position, self.reports, self._number = np.zeros(3), list[str](), 0
        self.controller = TrajectoryController(NAMES, self.position, True)
        self.controller.starts[0] = self.now
        joints = make_joints(NAMES, LIMITS)
        joints[2] = replace(joints[2], following_error=FollowingError(np.inf, 0.2))
        contract = make_contract("joint_trajectory", joints, teleop=teleop)
        line = TrajectoryLine(self._accept)
        self.clock, self.disk = Clock(lambda: self.now), disk or Disk()
        self.node = Process(contract, Parameters(), self.clock, lambda _: line, self.disk, go_on)

    def run(self, seconds: float) -> Arm:
        """Let time pass. Returns itself."""
        for tick in range(round(seconds * 100)):
            self.now += TICK_NS
            self.position = self.controller.state(self.now).position
            self.node.joints(NAMES, self.position, self.now)
            if self.policy is not None and tick % 10 == 0:
                self._chunk(self.policy)
            if self.pressed is not None and tick % 5 == 0:
                self.node.press([0, 0, 0, 0, int(self.pressed)], self.now)
            if tick % 2 == 0 and self.velocity is not None:
                self.node.command(NAMES, self.velocity, self.now)
            elif tick % 2 == 0 and self.leader is not None:
                self.node.command(NAMES, self.leader, self.now)
            self.node.watch()
            self.reports += [report.state for report in self.node.motion.reports]
            self.node.motion.reports.clear()
        return self

    def call(self, name: str) -> str:
        """The answer of a service, which says that it was done."""
        self.node.order(name)
        success, words = self.node.answers[name]
        assert success, words
        return words

    def goes(self, to: float = 1.0) -> Arm:
        """The policy moves it, fast. Returns itself."""
        self.policy = np.array([to, to, 0.5])
        self.run(1.0)
        assert self.state is MotionState.RUNNING and self.speed > 0.5
        return self

    @property
    def state(self) -> MotionState:
        return self.node.robot.follower.safety.state

    @property
    def reasons(self) -> str:
        return "; ".join(self.node.robot.follower.safety.reasons)

    @property
    def speed(self) -> float:
        velocity = self.controller.state(self.now).velocity
        return 0.0 if velocity is None else float(np.abs(velocity).max())

    def broken(self) -> list[Broken]:
        """The limits that were exceeded from the beginning on."""
        times, positions = self.controller.path(self.now)
        return judge_path(times, positions, LIMITS, *self.controller.exceptions)

    def path(self, since_ns: int) -> np.ndarray:
        """Where the joints were from a time on, float64 [N, 3], every 2 ms."""
        times, positions = self.controller.path(self.now)
        return positions[times >= since_ns]

    def _accept(self, path: Trajectory, start_ns: int, stamped: bool) -> None:
        state = self.controller.state(self.now)
        self.controller.accept(path, self.now, TrajectoryPoint(self.now, state.position))

    def _chunk(self, goal: np.ndarray) -> None:
        self._number += 1
        stamp_ns = self.now - 50 * MS
        start, _ = self.node.robot.follower.buffer.reference(stamp_ns)
        t = np.arange(1, 33)[:, None] / 30
        reach = LIMITS.velocity / 3 * t
        actions = (start + np.clip(goal - start, -reach, reach)).astype(np.float32)
        self.node.chunk(
            Chunk(actions, stamp_ns, 1 / 30, self._number, self._number, np.zeros(32, np.float32))
        )
