"""A gripper by goals: one at a time, along the limited path, and none to a server that is not there."""

from __future__ import annotations

import numpy as np
import pytest
from world import Clock

from vla_accel_ros.contract.parts import Controller
from vla_accel_ros.control.limits.joint_limits import JointLimits, brake
from vla_accel_ros.control.outputs.gripper import GripperOutput
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint

S = 1_000_000_000
RATE_HZ = 20.0
RANGE_M, SPEED = 0.08, 0.1
LIMITS = JointLimits(*np.array([[0.0], [RANGE_M], [SPEED], [1.0]]))


class Gripper:
    """The action of one that takes `takes` ticks for a goal. log: what it was asked."""

    def __init__(self) -> None:
        self.takes, self.problem, self.failure = 2, "", ""
        self.goals, self.cancelled, self.left = list[float](), 0, 0

    @property
    def busy(self) -> bool:
        return self.left > 0

    def send(self, position: np.ndarray) -> None:
        assert not self.busy
        self.goals.append(float(position[0]))
        self.left = self.takes

    def cancel(self) -> None:
        assert self.busy
        self.cancelled += 1
        self.left = 1

    def close(self) -> None:
        self.left = 0


class Rig:
    """An output, and its ticks in simulated time."""

    def __init__(self) -> None:
        self.now_ns, self.gripper = 1000 * S, Gripper()
        controller = Controller(
            "gripper/goals", ("finger",), "gripper_command", RATE_HZ, "gripper/gripper_cmd"
        )
        clock = Clock(lambda: self.now_ns, simulated=True)
        self.output = GripperOutput(controller, LIMITS, self.gripper, clock)
        self.output.measured({"finger": 0.0}, {"finger": self.now_ns}, True)

    def goes(self, *points: tuple[float, float]) -> None:
        """Follow a path through these (seconds from now, position)."""
        times = np.array([self.now_ns, *(self.now_ns + round(s * S) for s, _ in points)])
        start = self.gripper.goals[-1] if self.gripper.goals else 0.0
        positions = np.array([[start], *([position] for _, position in points)])
        self.output.send(Trajectory(("finger",), times, positions), self.now_ns)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * RATE_HZ)):
            self.now_ns += round(S / RATE_HZ)
            self.output.tick(self.now_ns)
            self.gripper.left = max(0, self.gripper.left - 1)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_goals_follow_the_path_and_reach_its_end_exactly(rig):
    rig.goes((1.0, 0.05))
    rig.run(3.0)
    rig.goes((0.2, 0.0503))  # too little for a goal while it goes on
    rig.run(1.0)
    goals = rig.gripper.goals
    assert goals[-1] == 0.0503 and goals == sorted(set(goals)) and len(goals) > 5
    assert max(np.diff(goals)) <= SPEED / RATE_HZ * 1.001  # of one period, however long a goal takes
    rig.run(2.0)
    assert rig.gripper.goals == goals  # it says nothing twice


def test_no_goal_is_sent_while_another_is_on_its_way(rig):
    rig.gripper.takes = 1000
    rig.goes((0.5, 0.05))
    rig.run(3.0)
    assert len(rig.gripper.goals) == 1 and rig.gripper.cancelled == 0
    rig.gripper.left = 0  # stalled on an object: the next is still a step
    rig.run(0.1)
    assert len(rig.gripper.goals) == 2


def test_path_that_turns_back_cancels_the_goal_on_its_way_once(rig):
    rig.goes((0.5, 0.05))
    rig.run(0.5)
    rig.gripper.takes = 1000
    rig.run(0.15)
    opened = rig.gripper.goals[-1]
    rig.goes((0.5, 0.0))
    rig.gripper.takes = 2
    rig.run(2.0)
    assert rig.gripper.cancelled == 1
    assert opened > 0.01 and rig.gripper.goals[-1] == 0.0


def test_stop_ends_where_the_braked_path_ends(rig):
    rig.goes((0.8, RANGE_M))
    rig.run(0.4)
    state = TrajectoryPoint(rig.now_ns, np.array([0.04]), np.array([SPEED]))
    stop = brake(("finger",), state, LIMITS)
    rig.output.send(stop, rig.now_ns)
    rig.run(2.0)
    assert rig.gripper.goals[-1] == pytest.approx(stop.positions[-1, 0])
    assert rig.output.at_rest(rig.now_ns)


def test_server_that_is_not_there_hinders_and_gets_no_goal_until_it_is_back(rig):
    rig.gripper.problem = "no node has the action"
    rig.goes((0.5, 0.05))
    rig.run(1.0)
    assert not rig.gripper.goals and rig.output.hindrance == rig.gripper.problem
    rig.gripper.problem, rig.gripper.failure = "", "it aborts goals"
    rig.run(1.0)
    assert rig.gripper.goals and not rig.output.hindrance and rig.output.trouble == "it aborts goals"
