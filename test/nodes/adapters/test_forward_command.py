"""A forward_command_controller: it does at once what it is told, so that everything is on our side."""

from __future__ import annotations

import time

import numpy as np
import pytest
from calling import change, settled, state
from chunks import Policy
from lifecycle_msgs.msg import State, Transition
from stand_ins import ARM, Arm, Parameters, motion_of, write_contract

from vla_accel_msgs.msg import Motion
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.clients.timelines import Timelines

RATE_HZ = 100.0
FORWARD = {"topic": "arm_positions/commands", "kind": "forward_command", "rate_hz": RATE_HZ}


@pytest.fixture
def contract(tmp_path) -> Contract:
    return Contract.load(write_contract(tmp_path, FORWARD))


@pytest.fixture
def node(start, tmp_path):
    return start("trajectory", autostart=True, contract=str(tmp_path / "contract.yaml"))


@pytest.fixture
def policy(operator, arm) -> Policy:
    policy = Policy(operator)
    policy.goal = np.array([0.5, 0.3, 1.2, 0.1, -0.4, 0.7])
    return policy


def sent(arm: Arm) -> np.ndarray:
    return np.array([[command[name] for name in ARM] for _, command in list(arm.commands)])


def assert_no_leap(arm: Arm, begin: np.ndarray, contract: Contract) -> None:
    """From where the joints were, every command is one that two periods of full speed can reach."""
    top = np.array([joint.velocity for joint in contract.joints if joint.name in ARM])
    steps = np.abs(np.diff(np.concatenate([begin[None], sent(arm)]), axis=0))
    assert (steps <= top * 2 / RATE_HZ * 1.001).all()


def wait_until_still(operator: Operator, arm: Arm, condition=lambda: True) -> None:
    """Until the last 30 commands are one and the same."""
    operator.wait(
        lambda: condition() and len(arm.commands) > 30 and not np.ptp(sent(arm)[-30:], axis=0).any(),
        90.0,
        "commands that hold",
    )


def test_chunks_are_followed_without_a_leap_and_when_they_stop_the_arm_brakes_and_is_held(
    operator, contract, arm, policy, node
):
    begin = arm.array(ARM)
    operator.wait(policy.drives(lambda: len(arm.commands) > 20), 90.0, "commands")
    operator.wait(
        policy.drives(lambda: np.abs(arm.array(ARM) - policy.goal[:5]).max() > 0.05), 90.0, "arm on its way"
    )
    # Nobody drives the policy any more: chunks and cameras grow too old.
    wait_until_still(operator, arm, lambda: "holding" in node.log)
    count = len(arm.commands)
    operator.wait(lambda: len(arm.commands) > count + 20, 90.0, "commands that hold")
    operator.wait(
        policy.drives(lambda: np.abs(arm.array(ARM) - policy.goal[:5]).max() < 0.02), 90.0, "arm at the goal"
    )
    assert_no_leap(arm, begin, contract)
    line = operator.diagnostics["trajectory: arm_positions/commands stream"]
    assert {value.key for value in line.values} == {"late", "joined"}


def test_deactivated_in_motion_the_stop_is_streamed_to_its_end_and_then_it_is_silent(
    operator, contract, arm, policy, node
):
    begin = arm.array(ARM)
    policy.goal = np.array([1.5, 1.5, 2.5, 2.0, 1.8, 0.5])

    def fast() -> bool:
        commands = sent(arm)
        return (
            np.abs(commands[-1] - begin).max() > 0.3 and np.abs(np.diff(commands[-2:], axis=0)).max() > 0.005
        )

    operator.wait(policy.drives(lambda: len(arm.commands) > 2 and fast()), 90.0, "motion")
    assert change(operator, "trajectory", Transition.TRANSITION_DEACTIVATE)
    count = settled(operator, "trajectory", lambda: len(arm.commands))
    last = sent(arm)[-3:]
    assert np.abs(np.diff(last, axis=0)).max() < 0.005  # it came to rest, and was not cut off
    assert_no_leap(arm, begin, contract)
    end_s = time.monotonic() + 0.5
    operator.wait(policy.drives(lambda: time.monotonic() > end_s), 90.0, "half a second")
    assert len(arm.commands) == count


def test_the_first_command_after_a_chunk_belongs_to_its_frame(operator, arm, policy, node):
    operator.wait(policy.drives(lambda: len(arm.commands) > 100), 90.0, "commands")
    with Timelines() as timelines:
        (trajectory,), _ = timelines.read(60.0, 30.0, ["trajectory"])
    followed = [e.flows for e in trajectory.events if (e.track, e.name) == ("trajectory", "follow")]
    commands = [e.flows for e in trajectory.events if e.track == "topic /arm_positions/commands"]
    of_frames = [flows for flows in commands if flows]
    assert len(commands) >= 100 and len(set(followed)) == len(followed)
    assert of_frames and len(set(of_frames)) == len(of_frames) and set(of_frames) <= set(followed)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"joints": ARM, "interface_name": "velocity"}, "interface_name is velocity, but we send positions"),
        ({"joints": ARM[::-1], "interface_name": "position"}, "write controllers[].joints in that order"),
    ],
)
def test_a_controller_that_would_do_something_else_refuses_the_activation(
    operator, arm, start, tmp_path, values, sentence
):
    Parameters(operator, "arm_positions", **values)
    node = start("trajectory", contract=str(tmp_path / "contract.yaml"))
    assert change(operator, "trajectory", Transition.TRANSITION_CONFIGURE)
    assert not change(operator, "trajectory", Transition.TRANSITION_ACTIVATE)
    assert state(operator, "trajectory") == State.PRIMARY_STATE_INACTIVE
    assert "cannot activate: arm_positions/commands: " in node.log and sentence in node.log


def test_a_controller_that_comes_later_and_would_do_something_else_is_not_moved(operator, arm, policy, node):
    operator.wait(policy.drives(lambda: "running" in node.log), 90.0, "start")
    Parameters(operator, "arm_positions", joints=ARM, interface_name="effort")
    operator.wait(policy.drives(lambda: "stopping: arm_positions" in node.log), 90.0, "stop")
    sentence = "interface_name is effort, but we send positions"
    operator.wait(policy.drives(lambda: sentence in motion_of(operator)), 90.0, "word of it")
    assert motion_of(operator).startswith(("stopping", "holding"))
    operator.wait(policy.drives(lambda: operator.motions[-1].state == Motion.HOLDING), 90.0, "hold")
