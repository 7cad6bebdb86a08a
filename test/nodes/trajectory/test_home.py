"""~/home by a FollowJointTrajectory action, or through the stream: what it says, and what the robot does
after.
"""

from __future__ import annotations

import numpy as np
import pytest
from calling import call
from chunks import Policy
from stand_ins import ARM, HOME, Arm, motion_of, write_contract
from std_srvs.srv import Trigger

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.operator import Operator

ACTION = "arm_controller/follow_joint_trajectory"
TOPIC = "arm_controller/joint_trajectory"


@pytest.fixture
def contract(tmp_path) -> Contract:
    return Contract.load(write_contract(tmp_path, {"topic": TOPIC, "action": ACTION}, home=HOME))


@pytest.fixture
def node(start, tmp_path, operator, arm):
    node = start(
        "trajectory", autostart=True, contract=str(tmp_path / "contract.yaml"), move_speed=1.0, move_goal=0.03
    )
    wait_for_joints(operator)
    return node


@pytest.fixture
def policy(operator) -> Policy:
    policy = Policy(operator)
    policy.goal = np.array([0.9, 0.5, 1.4, -0.5, 0.8, 0.5])
    return policy


class Going:
    """A call of ~/home that is unfinished."""

    def __init__(self, operator: Operator) -> None:
        client = operator.node.create_client(Trigger, "trajectory/home")
        assert client.wait_for_service(timeout_sec=90.0)
        operator.introduce("trajectory")
        self._operator, self._future = operator, client.call_async(Trigger.Request())
        self._future.add_done_callback(operator.changed)

    def ends(self, drives=lambda condition: condition) -> Trigger.Response:
        self._operator.wait(drives(self._future.done), 90.0, "end of ~/home")
        return self._future.result()


def wait_for_joints(operator: Operator) -> None:
    """Until the node knows where the joints are."""
    operator.wait(
        lambda: motion_of(operator) and "joint_states" not in motion_of(operator), 90.0, "joints in the node"
    )


def at_home(arm: Arm) -> bool:
    return bool(np.abs(arm.array(ARM) - np.array(list(HOME.values()))).max() < 0.01)


def test_home_stops_the_stream_goes_there_by_the_action_and_stays_until_it_is_resumed(
    operator, contract, arm, policy, node
):
    begin = arm.array(ARM)
    operator.wait(policy.drives(lambda: np.abs(arm.array(ARM) - begin).max() > 0.2), 90.0, "motion")
    going = Going(operator)
    operator.wait(policy.drives(lambda: arm.goals[TOPIC].asked), 90.0, "goal")
    count = len(operator.sent)
    assert operator.motions[-1].state == operator.motions[-1].RELEASED
    answer = going.ends(policy.drives)
    assert answer.success and answer.message == "at home; ~/resume goes on" and at_home(arm)
    word = "holding: at home"
    operator.wait(policy.drives(lambda: motion_of(operator).startswith(word)), 90.0, f"{word!r}")
    assert len(operator.sent) == count  # neither while the action moved it nor after it
    (goal,) = arm.goals[TOPIC].asked
    assert [(t.name, t.position) for t in goal.goal_tolerance] == [(name, 0.03) for name in ARM]
    assert not goal.path_tolerance
    operator.resume()
    operator.wait(policy.drives(lambda: len(operator.sent) > count), 90.0, "trajectory after it")
    first = next(s.trajectory for s in operator.sent[count:] if s.trajectory.joints == tuple(ARM))
    np.testing.assert_allclose(first.positions[0], list(HOME.values()), atol=0.01)
    running = operator.motions[-1].RUNNING  # after the join with where it stands
    operator.wait(policy.drives(lambda: operator.motions[-1].state == running), 90.0, "motion by chunks")
    assert not arm.rejected


ERRORS = [
    (-1, "no points", "calls the goal invalid (no points); read"),
    (-2, "", "has other joints than the goal; mend controllers"),
    (-3, "", "finds the goal's time in the past; synchronise the clocks"),
    (-4, "elbow_flex 0.3", "left its path tolerance (elbow_flex 0.3); clear the way"),
    (-5, "", "did not come within its goal tolerance in time; clear the way"),
    (-77, "vendor", "failed with code -77 (vendor); read its log"),
    (0, "", "aborted without a code; read its log"),
]


def test_every_error_code_is_a_sentence_with_its_mend(operator, arm, node):
    for code, words, sentence in ERRORS:
        arm.place(ARM, 0.05)
        arm.goals[TOPIC].fail = (code, words)
        answer = Going(operator).ends()
        assert not answer.success and answer.message.startswith(ACTION)
        assert sentence in answer.message


def test_a_goal_that_is_rejected_and_one_that_is_taken_after_it(operator, arm, node):
    arm.goals[TOPIC].reject = True
    answer = Going(operator).ends()
    assert not answer.success and "rejects the goal" in answer.message
    arm.goals[TOPIC].reject = False
    assert Going(operator).ends().success and at_home(arm)


def test_hold_cancels_a_goal_that_is_unfinished(operator, arm, node):
    going = Going(operator)
    operator.wait(lambda: arm.goals[TOPIC].asked, 90.0, "goal")
    operator.hold()
    answer = going.ends()
    assert not answer.success and "held by the operator" in answer.message
    operator.wait(lambda: arm.goals[TOPIC].cancelled == 1, 90.0, "cancellation")
    assert not at_home(arm)
    refused = Going(operator).ends()
    assert not refused.success and "call ~/resume first" in refused.message
    operator.resume()
    assert Going(operator).ends().success and at_home(arm)


def test_without_an_action_home_is_streamed(start, tmp_path, ros_domain):
    forward = {"topic": "arm_positions/commands", "kind": "forward_command", "rate_hz": 100}
    path = write_contract(tmp_path, forward, home=HOME)
    with Operator(Contract.load(path)) as operator:
        arm = Arm(operator)
        start("trajectory", autostart=True, contract=str(path), move_speed=0.5)
        wait_for_joints(operator)
        answer = Going(operator).ends()
        assert answer.success, answer.message
        assert at_home(arm)


def test_a_contract_without_home_says_so(start, tmp_path, ros_domain):
    path = write_contract(tmp_path, {"topic": TOPIC}, home=None)
    with Operator(Contract.load(path)) as operator:
        start("trajectory", autostart=True, contract=str(path))
        answer = call(operator, Trigger, "trajectory/home", Trigger.Request())
    assert not answer.success and "add home:" in answer.message
