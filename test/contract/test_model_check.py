"""A model that cannot serve a contract is refused; one whose numbers look like others is warned of."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vla_accel_ros.contract.checks.findings import ERROR, OK, WARNING
from vla_accel_ros.contract.checks.model_check import judge, read_model
from vla_accel_ros.contract.contract import Contract, Controller, Twist
from vla_accel_ros.contract.parts import Base, Joint
from vla_accel_ros.models.checkpoints.description import Description

SIM_POLICY = Path(__file__).resolve().parents[2] / "vla_accel_ros" / "sim" / "policy"
DEGREES = 180 / math.pi


def findings(model, contract) -> list[tuple[str, str]]:
    return [(finding.level, str(finding)) for finding in judge(model, contract)]


def levels(model, contract) -> list[str]:
    return [level for level, _ in findings(model, contract)]


def of_joints(contract, **changes) -> Contract:
    return replace(contract, joints=tuple(replace(joint, **changes) for joint in contract.joints))


@pytest.fixture(scope="module")
def model() -> Description:
    return read_model(SIM_POLICY)


@pytest.fixture
def hand(model) -> Description:
    """A model as OpenVLA: one image, no state, twists."""
    openvla = SimpleNamespace(kind="openvla", image_names=("image",), to_json=dict)
    return replace(model, config=openvla, any_camera=True, state=np.zeros((2, 0)), twist=True)


def test_model_fits_when_it_is_the_bundled_policy_on_the_simulated_arm(model, contract):
    ((level, text),) = findings(model, contract)
    assert level == OK and all(fact in text for fact in ("pi05", "2 cameras", "6 numbers"))


def test_model_refuses_unknown_cameras_and_warns_of_missing_ones(model, contract):
    front, wrist = contract.cameras
    other = replace(contract, cameras=(front, replace(wrist, image="wrist")))
    ((level, text),) = findings(model, other)
    assert level == ERROR and text.startswith("cameras.wrist.image: 'wrist'")
    assert str(SIM_POLICY) in text and "base_0_rgb, left_wrist_0_rgb" in text
    ((level, text),) = findings(model, replace(contract, cameras=(front,)))
    assert level == WARNING and "left_wrist_0_rgb" in text


@pytest.mark.parametrize("odometry", ["odom", ""])
def test_model_fits_a_mobile_base_whose_velocities_come_after_the_joints(model, contract, odometry):
    names = "base.linear.x", "base.angular.z"
    axes = tuple(Joint(name, -1.0, 1.0, 1.0, 1.0, "velocity") for name in names)
    controller = Controller("cmd_vel", (), "Twist", 20.0)
    base = Base(axes, (0, 5), controller, (1.0, 1.0), (1.0, 1.0), 0.5, odometry)
    speeds = np.array([[-0.4, -0.9], [0.4, 0.9]])
    trained = replace(model, actions=np.hstack([model.actions, speeds]))
    if odometry:
        trained = replace(trained, state=np.hstack([model.state, speeds]))
    ((level, text),) = findings(trained, replace(contract, base=base))
    assert level == OK and "8 numbers" in text
    assert ERROR in levels(model, replace(contract, base=base))


def test_model_refuses_another_number_of_joints(model, contract):
    fewer = findings(model, replace(contract, joints=contract.joints[:5]))
    assert [level for level, _ in fewer] == [ERROR, ERROR]
    assert all("6" in text and "5" in text for _, text in fewer)
    assert [text.split(":")[0] for _, text in fewer] == ["joints", "actions"]
    small = replace(
        model,
        state=np.zeros((2, 0)),
        actions=np.zeros((2, 0)),
        config=replace(model.config, state_dim=32, action_dim=4),
    )
    ((level, text),) = findings(small, contract)
    assert level == ERROR and text.startswith("actions: ") and "4 actions" in text and "6 numbers" in text


def test_model_of_a_hand_needs_twists(hand, contract):
    cameras, actions, *_ = findings(replace(hand, actions=np.zeros((2, 7))), contract)
    assert cameras[0] == ERROR and "one image" in cameras[1] and "names 2" in cameras[1]
    assert actions[0] == ERROR and actions[1].startswith("actions: ") and "twist" in actions[1]
    arm = Controller("servo", contract.joint_names[:5], "servo_twist", 50.0, frame="base_link")
    twisting = replace(
        contract,
        actions="twist",
        twist=Twist("step", 0.2, 1.0),
        cameras=contract.cameras[:1],
        controllers=(arm, contract.controllers[1]),
    )
    ((level, text),) = findings(replace(hand, actions=np.zeros((2, 7))), twisting)
    assert level == OK and "1 cameras" in text and "7 numbers" in text


def test_model_of_a_hand_warns_when_it_may_have_been_tuned_on_joints(hand, contract):
    ((level, text),) = findings(hand, replace(contract, cameras=contract.cameras[:1]))
    assert level == WARNING and text.startswith("actions: ") and "actions: twist" in text


def test_model_refuses_each_joint_whose_degrees_are_called_radians(model, contract):
    state = model.state.copy()
    state[:, [1, 4]] *= DEGREES
    reports = findings(replace(model, state=state), contract)
    assert [level for level, _ in reports] == [ERROR, ERROR]
    for (_, text), name, low in zip(reports, ("shoulder_lift", "wrist_roll"), ("-86.8", "-126")):
        assert name in text and low in text and "deg" in text
    right = replace(contract.joints[1], unit="deg"), replace(contract.joints[4], unit="deg")
    joints = tuple({joint.name: joint for joint in (*contract.joints, *right)}.values())
    assert findings(replace(model, state=state), replace(contract, joints=joints))[0][0] == OK
    endless = of_joints(contract, continuous=True)
    assert ERROR not in [level for level, _ in findings(replace(model, state=state), endless)]


def test_model_warns_of_each_joint_whose_radians_are_called_degrees(model, contract):
    some = tuple(replace(joint, unit="deg") if i else joint for i, joint in enumerate(contract.joints))
    reports = findings(model, replace(contract, joints=some))
    assert [level for level, _ in reports] == [WARNING] * 5
    assert all(joint.name in text for joint, (_, text) in zip(contract.joints[1:], reports))
    still = np.repeat(model.state.mean(axis=0)[None], 2, axis=0) + [[-0.01], [0.01]]
    assert findings(replace(model, state=still), contract)[0][0] == OK  # joints that moved little in training


def test_model_is_refused_when_the_radians_of_all_joints_are_called_degrees(model, contract):
    reports = findings(model, of_joints(contract, unit="deg"))
    assert [level for level, _ in reports] == [WARNING] * 6 + [ERROR] and "unit: rad" in reports[-1][1]
    little = model.state * DEGREES / 10  # in degrees indeed, a tenth of the way
    assert ERROR not in levels(replace(model, state=little), of_joints(contract, unit="deg"))


def test_model_warns_of_a_joint_that_never_was_within_its_limits(model, contract):
    state = model.state.copy()
    state[:, 2] = -state[::-1, 2]
    ((level, text),) = findings(replace(model, state=state), contract)
    assert level == WARNING
    assert all(fact in text for fact in ("joints[2] (elbow_flex)", "-2.65 to -0.0725", "0 to 2.6"))


def test_model_does_not_count_zeros_that_fill_statistics_up(model, contract):
    zeros = np.zeros((2, 26))
    filled = replace(
        model,
        state=np.hstack([model.state, zeros]),
        actions=np.hstack([model.actions, zeros + [[0.0], [1e-6]]]),
    )
    assert findings(filled, contract)[0][0] == OK
    fewer = findings(filled, replace(contract, joints=contract.joints[:5]))
    assert [level for level, _ in fewer] == [ERROR, ERROR]
    assert all("6" in text and "5" in text for _, text in fewer)


def test_model_is_named_when_its_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(ValueError, match=str(tmp_path)):
        read_model(tmp_path)


def test_model_refuses_other_relative_actions_than_its_own(model, contract):
    declared = replace(model, relative=contract.delta_mask)
    assert findings(declared, contract)[0][0] == OK
    other = contract.delta_mask.copy()
    other[[0, 5]] = ~other[[0, 5]]
    pan, gripper = findings(replace(model, relative=other), contract)
    assert pan[0] == gripper[0] == ERROR
    assert "shoulder_pan" in pan[1] and pan[1].endswith("action: absolute")
    assert "gripper" in gripper[1] and gripper[1].endswith("action: delta")


def test_model_of_relative_actions_refuses_absolute_ones_with_its_numbers(model, contract):
    """The bundled policy's elbow was at 1.605 on average, its actions at 0.033 (norm_stats.json)."""
    unsaid = replace(model, relative=None)
    absolute = of_joints(contract, action="absolute")
    reports = findings(unsaid, absolute)
    assert [level for level, _ in reports] == [ERROR, ERROR]
    assert "elbow_flex" in reports[0][1] and "wrist_flex" in reports[1][1]
    for number in ("0.033", "1.605", "delta", "velocities", "twist"):
        assert number in reports[0][1]
    deltas = findings(unsaid, of_joints(contract, action="delta"))
    assert [level for level, _ in deltas] == [ERROR]  # the gripper alone, whose actions lie where it was
    assert "gripper" in deltas[0][1] and "0.475" in deltas[0][1] and "0.572" in deltas[0][1]


def test_model_decides_nothing_by_means_near_zero(model, contract):
    moments = np.array([[0.4] * 6, [0.3] * 6])
    centred = replace(model, relative=None, state_moments=moments, action_moments=moments * 0.5)
    for action in ("delta", "absolute"):
        assert findings(centred, of_joints(contract, action=action))[0][0] == OK


def test_model_whose_actions_lie_apart_needs_actions_in_the_contract(model, contract):
    unsaid, silent = replace(model, relative=None), replace(contract, actions_given=False)
    ((level, text),) = findings(unsaid, silent)
    assert level == ERROR and text.startswith("actions")
    for part in ("elbow_flex", "0.033", "delta", "velocities", "twist"):
        assert part in text
    assert findings(unsaid, contract)[0][0] == OK
    assert findings(replace(model, relative=contract.delta_mask), silent)[0][0] == OK


def test_model_is_refused_when_it_says_absolute_but_acts_about_zero(model, contract):
    declared = replace(model, relative=np.zeros(6, bool))
    ((level, text),) = findings(declared, of_joints(contract, action="absolute"))
    assert level == ERROR and "elbow_flex" in text and "velocities" in text
