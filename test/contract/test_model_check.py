"""A model that cannot serve a contract is refused; one whose numbers look like others is warned of."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vla_accel_ros.contract.contract import Controller, Twist
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


@pytest.mark.parametrize(("factor", "ratio"), [(180 / math.pi, "57"), (math.pi / 180, "0.017")])
def test_degrees_for_radians_are_warned_of(model, contract, factor, ratio):
    ((level, sentence),) = told(replace(model, state=model.state * factor), contract)
    assert level == WARNING and f"spanned {ratio}" in sentence and sentence.endswith("rad or deg?")


def test_a_joint_that_never_was_where_it_may_be_is_warned_of(model, contract):
    wrong = model.state.copy()
    wrong[:, 2] = -wrong[::-1, 2]
    ((level, sentence),) = told(replace(model, state=wrong), contract)
    assert level == WARNING
    assert sentence == (
        "joints[2] (elbow_flex): was at -2.65 to -0.0725 in training, its limits are 0 to 2.6 in the "
        "policy's units; check unit, sign, offset or map, and the order of joints"
    )


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


def test_actions_that_look_relative_or_absolute_are_warned_of(model, contract):
    """Where the model does not say: relative ones go both ways, absolute ones are where the joints were."""
    elbow = contract.joint_names.index("elbow_flex")
    forward = model.actions.copy()
    forward[:, elbow] = [0.4, 2.2]
    ((level, sentence),) = told(replace(model, actions=forward), contract)
    assert level == WARNING and "joints[2] (elbow_flex): its actions were 0.4 to 2.2" in sentence
    assert sentence.endswith("write action: absolute if they are not")

    joints = tuple(replace(joint, action="absolute") for joint in contract.joints)
    small, far = np.array([[-0.1] * 6, [0.1] * 6]), model.state.copy()
    far[:, elbow] = [0.5, 2.5]
    looks = told(replace(model, actions=small, state=far), replace(contract, joints=joints))
    assert [level for level, _ in looks] == [WARNING]
    assert "joints[2] (elbow_flex): its actions were -0.1 to 0.1" in looks[0][1]
    assert looks[0][1].endswith("write action: delta if they are relative")


def test_a_policy_of_the_hand_may_have_been_tuned_on_joints(model, contract):
    tuned = replace(model, kind="openvla", image_names=(), state=np.zeros((2, 0)), state_dim=0, twist=True)
    ((level, sentence),) = told(tuned, replace(contract, cameras=contract.cameras[:1]))
    assert level == WARNING and sentence.endswith("write actions: twist unless it was fine-tuned on joints")
