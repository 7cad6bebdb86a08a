"""What was held or released stays so: over kill -9, a clean restart, and a walk through the lifecycle.

A policy sends chunks all the time; nothing may reach a controller before ~/resume or ~/reclaim.
"""

from __future__ import annotations

import numpy as np
import pytest
from calling import call, change, set_parameter
from chunks import Policy
from lifecycle_msgs.msg import Transition
from running import NodeProcess
from stand_ins import ARM, HOME, motion_of, write_contract
from std_srvs.srv import Trigger

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.operator import Operator

S = 1_000_000_000
GOALS = np.array([[0.9, 0.5, 1.4, -0.5, 0.8, 0.5], [0.2, 0.1, 0.8, 0.1, 0.2, 0.3]])
UNKNOWN = "holding: what held the robot before the restart is unknown"
CRASHED = "holding: restarted after a crash; ~/resume goes on"


@pytest.fixture
def contract(tmp_path) -> Contract:
    return Contract.load(write_contract(tmp_path, {"topic": "arm_controller/joint_trajectory"}, home=HOME))


@pytest.fixture
def policy(operator, arm) -> Policy:
    policy = Policy(operator)
    policy.goal = GOALS[0]
    return policy


@pytest.fixture
def launched(start, tmp_path, operator, arm, policy):
    """launched(**parameters): the trajectory node, when it moves the arm."""

    def launched(**parameters: object) -> NodeProcess:
        node = start(
            "trajectory",
            autostart=True,
            contract=str(tmp_path / "contract.yaml"),
            move_speed=1.0,
            **parameters,
        )
        moves(operator, policy)
        return node

    return launched


def moves(operator: Operator, policy: Policy) -> None:
    """Wait until a controller is sent something."""
    count = len(operator.sent)
    policy.goal = next(goal for goal in GOALS if (goal != policy.goal).any())
    operator.wait(policy.drives(lambda: len(operator.sent) > count), 90.0, "trajectory")


def stays(operator: Operator, policy: Policy, word: str) -> None:
    """The node says so, and sends nothing for a while, whatever chunks come."""
    operator.wait(policy.drives(lambda: motion_of(operator).startswith(word)), 90.0, f"{word!r}")
    count, until_ns = len(operator.sent), operator.now_ns() + S
    operator.wait(policy.drives(lambda: operator.now_ns() > until_ns), 90.0, "time")
    assert len(operator.sent) == count
    assert motion_of(operator).startswith(word)


def crash(node: NodeProcess, operator: Operator) -> None:
    """kill -9, and a new process as a launch system starts it."""
    node.kill()
    forget(operator)
    node.start()


def restart(node: NodeProcess, operator: Operator) -> None:
    assert node.end() == 0
    forget(operator)
    node.start()


def forget(operator: Operator) -> None:
    """Of what the node before said."""
    operator._diagnostics.clear()


def trigger(operator: Operator, name: str) -> Trigger.Response:
    return call(operator, Trigger, f"trajectory/{name}", Trigger.Request())


@pytest.mark.parametrize("again", [crash, restart])
def test_what_the_operator_held_is_held_by_the_next_process(operator, policy, launched, again):
    node = launched(after_restart="go_on")
    operator.hold()
    again(node, operator)
    stays(operator, policy, "holding: held by the operator")
    again(node, operator)  # and by the one after it, though nobody held it again
    stays(operator, policy, "holding: held by the operator")
    assert "going on" in operator.resume()
    moves(operator, policy)
    again(node, operator)
    moves(operator, policy)


def test_a_fault_is_a_crash(operator, policy, launched):
    node = launched()
    moves(operator, policy)
    node.lose_ports()  # it ends by itself because of what it cannot mend
    forget(operator)
    stays(operator, policy, CRASHED)


def test_a_robot_that_was_sent_home_is_home_over_a_restart(operator, arm, policy, launched):
    node = launched()
    assert trigger(operator, "home").success
    for again in (restart, crash):
        again(node, operator)
        stays(operator, policy, "holding: at home; ~/resume goes on")
        assert np.abs(arm.array(ARM) - list(HOME.values())).max() < 0.01
    operator.resume()
    moves(operator, policy)


def test_who_could_not_keep_a_hold_does_not_go_on_by_itself(start, operator, arm, policy, tmp_path):
    """A robot that was held would move after a crash."""
    (tmp_path / "state").symlink_to("/nowhere/to/write")
    contract = str(tmp_path / "contract.yaml")
    node = start("trajectory", autostart=True, contract=contract, after_restart="go_on")
    refusal = node.wait_for_log("cannot configure: after_restart is go_on, but a restart would forget")
    assert "set after_restart to hold" in refusal
    assert not change(operator, "trajectory", Transition.TRANSITION_CONFIGURE)  # again
    assert not operator.sent
    assert set_parameter(operator, "trajectory", "after_restart", "hold").successful
    for transition in (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE):
        assert change(operator, "trajectory", transition)
    stays(operator, policy, UNKNOWN)
    operator.resume()
    moves(operator, policy)

    def told() -> bool:
        line = operator.diagnostics.get("trajectory: state")
        return line is not None and "a restart would forget what is held or released" in line.message

    operator.wait(told, 30.0, "word of it on /diagnostics")
