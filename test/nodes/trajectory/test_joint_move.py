"""JointMove on its own: what becomes of a goal that nobody takes, that is replaced, or whose end is never
told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from stand_ins import ARM, Arm, write_contract

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.orders.homing import Outcome
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.trajectory.moves import JointMove, Tolerances

S = 1_000_000_000
ACTION = "arm_controller/follow_joint_trajectory"
TOPIC = "arm_controller/joint_trajectory"


@pytest.fixture
def contract(tmp_path) -> Contract:
    return Contract.load(write_contract(tmp_path, {"topic": TOPIC, "action": ACTION}))


@pytest.fixture
def make_move(operator) -> Iterator[Callable[..., JointMove]]:
    """make_move(...): as JointMove, of the arm's action, ready and closed with the test."""
    moves: list[JointMove] = []

    def make_move(**parameters: Any) -> JointMove:
        moves.append(JointMove(operator.node, ACTION, **parameters))
        operator.wait(moves[-1].ready, 90.0, "action server")
        return moves[-1]

    yield make_move
    for move in moves:
        move.close()


def way(arm: Arm, seconds: float = 0.5) -> Trajectory:
    position, times = arm.array(ARM), np.array([seconds * S / 2, seconds * S])
    return Trajectory(tuple(ARM), times, np.array([position, position + 0.1]), np.zeros((2, 5)))


def outcome(operator: Operator, move: JointMove) -> Outcome:
    def ended() -> bool:
        move.poll()
        return move.outcome is not None

    operator.wait(ended, 90.0, "outcome")
    assert move.outcome is not None
    return move.outcome


def test_a_goal_is_reached_with_the_tolerances_it_was_given(operator, arm, make_move):
    move = make_move(tolerances=Tolerances(path=0.2, goal=0.01, time_s=1.5))
    move.start(way(arm), 0)
    assert outcome(operator, move) == Outcome(True, f"{ACTION}: reached")
    (goal,) = arm.goals[TOPIC].asked
    assert {t.position for t in goal.path_tolerance} == {0.2} and len(goal.path_tolerance) == 5
    assert {t.position for t in goal.goal_tolerance} == {0.01}
    assert goal.goal_time_tolerance.sec == 1 and goal.goal_time_tolerance.nanosec == 500_000_000
    stamp = goal.trajectory.header.stamp
    assert stamp.sec == stamp.nanosec == 0 and len(goal.trajectory.points) == 2


def test_nobody_offers_the_action(operator, arm):
    move = JointMove(operator.node, "elsewhere/follow_joint_trajectory")
    move.start(way(arm), 0)
    failure = outcome(operator, move)
    move.close()
    assert not failure.reached and "no node has the action elsewhere" in failure.sentence


def test_a_later_goal_replaces_an_earlier_one(operator, arm, make_move):
    move = make_move()
    move.start(way(arm, 5.0), 0)
    operator.wait(lambda: arm.goals[TOPIC].asked, 90.0, "goal")
    move.start(way(arm), 0)
    assert move.outcome is None
    assert outcome(operator, move).reached and len(arm.goals[TOPIC].asked) == 2


def test_a_goal_whose_end_is_not_told_is_given_up_and_cancelled(operator, arm, make_move):
    arm.goals[TOPIC].lost = True
    move = make_move(grace_s=0.3)
    move.start(way(arm), 0)
    failure = outcome(operator, move)
    assert not failure.reached and "did not report the result; check that it still runs" in failure.sentence
    operator.wait(lambda: arm.goals[TOPIC].cancelled == 1, 90.0, "cancellation")


def test_a_package_that_is_not_installed_is_named_with_its_mend(monkeypatch):
    monkeypatch.setenv("ROS_DISTRO", "jazzy")
    with pytest.raises(
        ValueError, match=r"servo needs no_such_msgs/msg/Jog, .*apt install ros-jazzy-no-such-msgs"
    ):
        interface("no_such_msgs/msg/Jog", "servo")
