"""A model that cannot serve a contract is refused; one whose numbers look like others is warned of."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vla_accel_ros.contract.contract import Contract, Controller, Twist
from vla_accel_ros.contract.findings import ERROR, OK, WARNING
from vla_accel_ros.contract.model_check import ModelFacts, judge

SIM_POLICY = Path(__file__).resolve().parents[2] / "vla_accel_ros" / "sim" / "policy"


def told(model, contract) -> list[tuple[str, str]]:
    return [(finding.level, str(finding)) for finding in judge(model, contract)]


@pytest.fixture(scope="module")
def model() -> ModelFacts:
    return ModelFacts.read(SIM_POLICY)


def test_the_bundled_policy_fits_the_simulated_arm(model, contract):
    assert told(model, contract) == [(OK, "model: pi05 fits the contract: 2 cameras, 6 numbers an action")]


def test_cameras(model, contract):
    front, wrist = contract.cameras
    assert told(model, replace(contract, cameras=(front, replace(wrist, image="wrist")))) == [
        (
            ERROR,
            f"cameras.wrist.image: 'wrist' is not known to the model in {SIM_POLICY}; give one of "
            "base_0_rgb, left_wrist_0_rgb",
        )
    ]
    ((level, sentence),) = told(model, replace(contract, cameras=(front,)))
    assert (
        level == WARNING
        and "also knows left_wrist_0_rgb, which no camera provides; add the camera if" in sentence
    )


def test_numbers_of_joints(model, contract):
    fewer = replace(contract, joints=contract.joints[:5])
    sentence = (
        f"the model in {SIM_POLICY} has statistics of 6 states but the contract has 5 joints; name the "
        "joints the policy was trained with, in its order"
    )
    assert told(model, fewer)[0] == (ERROR, f"joints: {sentence}")
    assert "has statistics of 6 actions but the contract has 5 numbers an action" in told(model, fewer)[1][1]
    small = replace(model, state=np.zeros((2, 0)), actions=np.zeros((2, 0)), state_dim=32, action_dim=4)
    assert told(small, contract) == [
        (
            ERROR,
            f"actions: the model in {SIM_POLICY} takes 4 actions but the contract has 6 numbers an action; "
            "remove those the policy was not trained with",
        )
    ]


def test_a_policy_of_the_hand_wants_twists(model, contract):
    twisted = replace(model, kind="openvla", image_names=(), state=np.zeros((2, 0)), state_dim=0, twist=True)
    found = told(replace(twisted, actions=np.zeros((2, 7))), contract)
    assert "takes one image but the contract names 2; keep the one" in found[0][1]
    assert found[1][1].startswith("actions: the model in ") and "moves a hand by twists" in found[1][1]
    arm = Controller("servo", contract.joint_names[:5], "servo_twist", 50.0, frame="base_link")
    hand = replace(
        contract,
        actions="twist",
        twist=Twist("step", 0.2, 1.0),
        cameras=contract.cameras[:1],
        controllers=(arm, contract.controllers[1]),
    )
    assert told(replace(twisted, actions=np.zeros((2, 7))), hand) == [
        (OK, "model: openvla fits the contract: 1 cameras, 7 numbers an action")
    ]


DEGREES = 180 / math.pi


def of_joints(contract, **changes) -> Contract:
    return replace(contract, joints=tuple(replace(joint, **changes) for joint in contract.joints))


def test_degrees_that_are_called_radians_are_an_error_of_each_joint(model, contract):
    wrong = model.state.copy()
    wrong[:, [1, 4]] *= DEGREES
    found = told(replace(model, state=wrong), contract)
    assert [level for level, _ in found] == [ERROR, ERROR]
    for (_, sentence), name, low in zip(found, ("shoulder_lift", "wrist_roll"), ("-86.8", "-126")):
        assert name in sentence and low in sentence and "deg" in sentence
    right = replace(contract.joints[1], unit="deg"), replace(contract.joints[4], unit="deg")
    joints = tuple({joint.name: joint for joint in (*contract.joints, *right)}.values())
    assert told(replace(model, state=wrong), replace(contract, joints=joints))[0][0] == OK
    endless = of_joints(contract, continuous=True)
    assert ERROR not in [level for level, _ in told(replace(model, state=wrong), endless)]


def test_radians_that_are_called_degrees_are_warned_of_joint_by_joint(model, contract):
    found = told(model, of_joints(contract, unit="deg"))
    assert [level for level, _ in found] == [WARNING] * 6
    assert all(joint.name in sentence for joint, (_, sentence) in zip(contract.joints, found))
    still = np.repeat(model.state.mean(axis=0)[None], 2, axis=0) + [[-0.01], [0.01]]
    assert told(replace(model, state=still), contract)[0][0] == OK  # joints that moved little in training


def test_a_joint_that_never_was_where_it_may_be_is_warned_of(model, contract):
    wrong = model.state.copy()
    wrong[:, 2] = -wrong[::-1, 2]
    ((level, sentence),) = told(replace(model, state=wrong), contract)
    assert level == WARNING
    assert sentence == (
        "joints[2] (elbow_flex): was at -2.65 to -0.0725 in training, its limits are 0 to 2.6 in the "
        "policy's units; check unit, sign, offset or map, and the order of joints"
    )


def test_zeros_that_fill_statistics_up_count_as_no_joints(model, contract):
    zeros = np.zeros((2, 26))
    filled = replace(
        model,
        state=np.hstack([model.state, zeros]),
        actions=np.hstack([model.actions, zeros + [[0.0], [1e-6]]]),
    )
    assert told(filled, contract)[0][0] == OK
    fewer = told(filled, replace(contract, joints=contract.joints[:5]))
    assert [level for level, _ in fewer] == [ERROR, ERROR]
    assert all("6" in sentence and "5" in sentence for _, sentence in fewer)


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(ValueError, match=str(tmp_path)):
        ModelFacts.read(tmp_path)


def test_relative_actions_that_the_model_says_must_be_the_contracts(model, contract):
    said = replace(model, relative=contract.delta_mask)
    assert told(said, contract)[0][0] == OK
    other = contract.delta_mask.copy()
    other[[0, 5]] = ~other[[0, 5]]
    assert told(replace(model, relative=other), contract) == [
        (
            ERROR,
            f"joints (shoulder_pan): the model in {SIM_POLICY} was trained with absolute targets; write "
            "action: absolute",
        ),
        (
            ERROR,
            f"joints (gripper): the model in {SIM_POLICY} was trained with relative targets; "
            "write action: delta",
        ),
    ]


def test_absolute_actions_of_a_policy_of_relative_ones_are_refused_with_its_numbers(model, contract):
    """The bundled policy's elbow was at 1.605 on average, its actions at 0.033 (norm_stats.json)."""
    unsaid = replace(model, relative=None)
    absolute = of_joints(contract, action="absolute")
    found = told(unsaid, absolute)
    assert [level for level, _ in found] == [ERROR, ERROR]
    assert "elbow_flex" in found[0][1] and "wrist_flex" in found[1][1]
    for number in ("0.033", "1.605", "delta", "velocities", "twist"):
        assert number in found[0][1]
    deltas = told(unsaid, of_joints(contract, action="delta"))
    assert [level for level, _ in deltas] == [ERROR]  # the gripper alone, whose actions lie where it was
    assert "gripper" in deltas[0][1] and "0.475" in deltas[0][1] and "0.572" in deltas[0][1]


def test_means_near_zero_decide_nothing(model, contract):
    moments = np.array([[0.4] * 6, [0.3] * 6])
    centred = replace(model, relative=None, state_moments=moments, action_moments=moments * 0.5)
    for action in ("delta", "absolute"):
        assert told(centred, of_joints(contract, action=action))[0][0] == OK


def test_actions_apart_from_the_state_are_joints_only_if_the_contract_says_so(model, contract):
    unsaid, silent = replace(model, relative=None), replace(contract, actions_given=False)
    ((level, sentence),) = told(unsaid, silent)
    assert level == ERROR and sentence.startswith("actions")
    for part in ("elbow_flex", "0.033", "delta", "velocities", "twist"):
        assert part in sentence
    assert told(unsaid, contract)[0][0] == OK
    assert told(replace(model, relative=contract.delta_mask), silent)[0][0] == OK


def test_a_policy_that_says_absolute_but_acts_about_zero_moves_no_joints(model, contract):
    said = replace(model, relative=np.zeros(6, bool))
    ((level, sentence),) = told(said, of_joints(contract, action="absolute"))
    assert level == ERROR and "elbow_flex" in sentence and "velocities" in sentence


def test_a_policy_of_the_hand_may_have_been_tuned_on_joints(model, contract):
    tuned = replace(model, kind="openvla", image_names=(), state=np.zeros((2, 0)), state_dim=0, twist=True)
    ((level, sentence),) = told(tuned, replace(contract, cameras=contract.cameras[:1]))
    assert level == WARNING and sentence.endswith("write actions: twist unless it was fine-tuned on joints")
