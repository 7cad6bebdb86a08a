"""~/release and ~/reclaim with a controller manager: who has which controllers, and what is said when it
fails.
"""

from __future__ import annotations

import numpy as np
import pytest
from calling import call
from chunks import Policy
from controller_manager import OURS, THEIRS, Manager
from stand_ins import ARM, motion_of, write_contract
from std_srvs.srv import Trigger

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.operator import Operator


@pytest.fixture
def contract(tmp_path) -> Contract:
    return Contract.load(write_contract(tmp_path, {"topic": "arm_controller/joint_trajectory"}))


@pytest.fixture
def policy(operator, arm) -> Policy:
    policy = Policy(operator)
    policy.goal = np.array([0.9, 0.5, 1.4, -0.5, 0.8, 0.5])
    return policy


@pytest.fixture
def node(start, tmp_path, operator, arm, policy):
    node = start(
        "trajectory",
        autostart=True,
        contract=str(tmp_path / "contract.yaml"),
        release_by="switch",
        release_to="moveit_arm",
    )
    begin = arm.array(ARM)
    operator.wait(policy.drives(lambda: np.abs(arm.array(ARM) - begin).max() > 0.2), 90.0, "motion")
    return node


def trigger(operator: Operator, name: str) -> Trigger.Response:
    return call(operator, Trigger, f"trajectory/{name}", Trigger.Request())


def test_others_get_their_controllers_and_we_go_on_where_they_left_the_robot(operator, arm, policy, node):
    manager = Manager(operator)
    assert trigger(operator, "release").success
    assert manager.active == THEIRS
    second = trigger(operator, "release")
    assert second.success and "released already" in second.message
    count = len(operator.sent)
    stood = arm.array(ARM)
    arm.place(ARM, 0.3)
    operator.wait(policy.drives(lambda: "released" in motion_of(operator)), 90.0, "word")
    home = trigger(operator, "home")
    assert not home.success
    assert len(operator.sent) == count

    manager.refusal = "moveit_arm is in motion"
    answer = trigger(operator, "reclaim")
    assert (
        not answer.success
        and "(moveit_arm is in motion)" in answer.message
        and "still released" in answer.message
    )
    manager.refusal = ""
    assert trigger(operator, "reclaim").success
    assert manager.active == OURS
    operator.wait(policy.drives(lambda: len(operator.sent) > count), 90.0, "trajectory after it")
    first = next(s.trajectory for s in operator.sent[count:] if s.trajectory.joints == tuple(ARM))
    np.testing.assert_allclose(first.positions[0], stood + 0.3, atol=0.01)
    assert trigger(operator, "reclaim").success
    assert "jumped by" not in node.log and "does not follow" not in node.log


def test_when_the_controllers_cannot_be_switched_we_go_on(operator, arm, policy, node):
    answer = trigger(operator, "release")
    assert not answer.success
    assert (
        "controller_manager/switch_controller does not answer: start the controller manager" in answer.message
    )
    manager = Manager(operator)
    manager.refusal = "no controller moveit_arm"
    answer = trigger(operator, "release")
    assert not answer.success and "(no controller moveit_arm): compare with ros2 control" in answer.message
    count = len(operator.sent)
    operator.wait(policy.drives(lambda: len(operator.sent) > count), 90.0, "trajectory after it")
    assert manager.active == OURS


def test_a_controller_manager_that_answers_late_leaves_the_robot_released(operator, policy, node):
    """It may have switched, or do so at any time: who went on would command beside others."""
    manager = Manager(operator)
    manager.pause()
    answer = trigger(operator, "release")
    assert not answer.success and "has not answered within 3 s" in answer.message
    assert "~/reclaim takes the controllers back" in answer.message
    count = len(operator.sent)
    stays_released(operator, policy)
    manager.go_on()
    assert manager.active == THEIRS
    stays_released(operator, policy)

    manager.pause()
    answer = trigger(operator, "reclaim")
    assert not answer.success and "has not answered within 3 s" in answer.message
    assert "still released" in answer.message
    manager.go_on()
    assert manager.active == OURS
    stays_released(operator, policy)
    assert len(operator.sent) == count

    answer = trigger(operator, "reclaim")
    assert answer.success, answer.message
    assert manager.active == OURS
    operator.wait(policy.drives(lambda: len(operator.sent) > count), 90.0, "trajectory after it")
    assert trigger(operator, "release").success and manager.active == THEIRS


def stays_released(operator: Operator, policy: Policy) -> None:
    """The node has heard of what was done, and says so still, whatever chunks come."""
    operator.wait(policy.drives(lambda: "released" in motion_of(operator)), 90.0, "word")
    count = len(operator.reports)
    operator.wait(policy.drives(lambda: len(operator.reports) > count + 2), 90.0, "statistics")
    assert "released" in motion_of(operator)
