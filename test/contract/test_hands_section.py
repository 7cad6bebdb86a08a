"""The section `hands`, velocities, and gripper numbers that differ between state and action."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from good_contract import GOOD
from good_contract import load as load_plain
from hand_arms import EXPLICIT, load, text, ur5e

from vla_accel_ros.contract.checks.findings import ERROR, OK
from vla_accel_ros.contract.checks.graph_check import Endpoint, Qos, inputs
from vla_accel_ros.contract.checks.graph_check import judge as graph_judge
from vla_accel_ros.contract.checks.model_check import judge, read_model
from vla_accel_ros.control.kinematics.hand import Tf
from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.sensing.trained import TrainedInputs, TrainedState
from vla_accel_ros.tools.security import rights

SIM_POLICY = Path(__file__).resolve().parents[2] / "vla_accel_ros" / "sim" / "policy"


def one_image() -> Description:
    model = read_model(SIM_POLICY)
    config: Any = model.config
    return replace(model, config=replace(config, image_names=("base_0_rgb",)))


ANGLES = np.array([0.3, -1.2, 1.8, -2.0, -1.5, 0.4])


def test_hand_takes_the_place_of_its_joints_in_state_and_rows(tmp_path):
    contract = load(tmp_path, text())
    assert contract.action_names == (
        *("arm.x", "arm.y", "arm.z", "arm.roll", "arm.pitch", "arm.yaw", "finger_joint"),
    )
    assert contract.state_names == contract.action_names
    assert [joint.name for joint in contract.action_joints] == list(contract.joint_names)
    assert not contract.delta_mask.any()


def test_state_of_many_rows_is_that_of_each(tmp_path):
    contract = load(tmp_path, text())
    rows = np.array([np.append(ANGLES + k / 10, k / 100) for k in range(4)])
    states = contract.to_policy(rows)
    assert states.shape == (4, 7)
    np.testing.assert_allclose(states[:, :3], [ur5e(row[:6])[:3, 3] for row in rows], atol=1e-6)
    np.testing.assert_allclose(states[:, 6], [0.0, 0.01, 0.02, 0.03])


def test_libero_has_eight_states_and_seven_actions(tmp_path):
    """The hand, two fingers that oppose each other in metres; the action closes at 1 and opens at -1."""
    finger = "acceleration: 2, unit: m, pair: true, action_map: {robot: [0.04, 0.0], policy: [-1, 1]}"
    contract = load(tmp_path, text("preset: libero, ", finger))
    assert (len(contract.state_names), len(contract.action_names)) == (8, 7)
    state = contract.to_policy(np.append(ANGLES, 0.03))
    np.testing.assert_allclose(state[6:], [0.03, -0.03])
    np.testing.assert_allclose(contract.to_robot(np.array([0.1] * 6 + [-1.0])), [0.1] * 6 + [0.04])


def test_state_may_keep_the_joints(tmp_path):
    contract = load(tmp_path, text("preset: droid, "))
    assert contract.state_names == contract.joint_names
    assert contract.action_names[:3] == ("arm.x", "arm.y", "arm.z")


def test_state_by_tf_is_of_the_hands_links_and_as_young_as_joint_states_unless_it_says_otherwise(tmp_path):
    contract = load(tmp_path, text(EXPLICIT + "state_by: tf, "))
    assert contract.tf == {"tf/arm": Tf("l0", "tool0", 0.1)}
    contract = load(tmp_path, text(EXPLICIT + "state_by: tf, tf_base: map, tf_tip: tcp, tf_max_age_s: 0.3, "))
    assert contract.tf == {"tf/arm": Tf("map", "tcp", 0.3)} and contract.max_ages_s["tf/arm"] == 0.3
    assert not load(tmp_path, text()).tf and "tf/arm" not in load(tmp_path, text()).max_ages_s


def test_state_by_tf_is_that_pose_in_the_hands_form_and_beside_it_the_joints(tmp_path):
    """A third of a turn about (1, 1, 1), which leads x to y, y to z and z to x: rpy is 90, 0, 90 degrees."""
    contract = load(tmp_path, text(EXPLICIT + "state_by: tf, "))
    pose = np.array([0.1, 0.2, 0.3, 0.5, 0.5, 0.5, 0.5])
    state = contract.to_policy(np.append(ANGLES, 0.03), {"tf/arm": pose})
    np.testing.assert_allclose(state, [0.1, 0.2, 0.3, np.pi / 2, 0.0, np.pi / 2, 0.03], atol=1e-7)


def test_topics_of_tf_are_wanted_once_and_heard_from_many(tmp_path):
    contract = load(tmp_path, text(EXPLICIT + "state_by: tf, "))
    wanted = {topic.topic: topic for topic in inputs(contract) if topic.type == "tf2_msgs/msg/TFMessage"}
    assert wanted.keys() == {"/tf", "/tf_static"} and wanted["/tf"].about == "hands.arm.state_by"
    ends = [Endpoint(f"/driver_{i}", "tf2_msgs/msg/TFMessage", Qos()) for i in range(2)]
    assert [finding.level for finding in graph_judge(wanted["/tf"], "/tf", ends, {})] == [OK]
    (absent,) = graph_judge(wanted["/tf"], "/tf", [], {})
    assert "/tf" in str(absent)
    volatile = graph_judge(wanted["/tf_static"], "/tf_static", ends[:1], {})
    assert [finding.level for finding in volatile] == [ERROR] and "durability" in str(volatile[0])
    for node in ("inference", "recorder", "operator"):
        assert {"/tf", "/tf_static"} <= rights(contract)[node].subscribe
    assert not {"/tf", "/tf_static"} & rights(contract)["trajectory"].subscribe
    assert not [topic for topic in inputs(load(tmp_path, text())) if topic.topic.startswith("/tf")]


def test_key_of_a_preset_may_be_written_beside_it(tmp_path):
    ((hand, arm),) = load(tmp_path, text("preset: libero, m: 0.1, relative_to: commanded, ")).hands
    assert (hand.m, hand.rad, hand.relative_to) == (0.1, 0.5, "commanded")
    assert arm.joints == tuple(f"j{i + 1}" for i in range(6))


@pytest.mark.parametrize(
    ("written", "facts"),
    [
        (text("preset: liberO, "), ("hands.arm.preset", "liberO")),
        (text("rotation: rpy, state: rpy, "), ("hands.arm.relative_to",)),
        (text("rotation: rpy, state: rpy, relative_to: measured, "), ("hands.arm.axes",)),
        (text(EXPLICIT).replace("tip: tool0", "tip: tool1"), ("hands.arm", "tool1", "tool0")),
        (text(EXPLICIT).replace("base: l0", "base: tool0"), ("hands.arm",)),
        (text(EXPLICIT).replace("linear: 0.5", "linear: 0"), ("hands.arm.linear",)),
        (text(EXPLICIT).replace("urdf: arm.urdf\n", ""), ("urdf is missing",)),
        (text(EXPLICIT + "state_by: tf2, "), ("hands.arm.state_by", "tf2")),
        (text(EXPLICIT + "tf_tip: tcp, "), ("hands.arm.tf_tip",)),
        (text(EXPLICIT + "state_by: tf, tf_max_age_s: 0, "), ("hands.arm.tf_max_age_s", "0")),
        (text("preset: droid, state_by: tf, "), ("hands.arm.state_by", "joints")),
        (text(EXPLICIT + "box: {lower: [0, 0, 0], upper: [1, 1, 0]}, "), ("hands.arm.box.lower",)),
        (text(EXPLICIT).replace("actions: hands", "actions: joints"), ("hands",)),
        (text(EXPLICIT).replace("  - {name: j4}\n", "").replace("j4, ", ""), ("j4",)),
    ],
)
def test_mistake_in_hands_names_its_place(tmp_path, written, facts):
    with pytest.raises(ValueError) as refusal:
        load(tmp_path, written)
    assert all(fact in str(refusal.value) for fact in facts), refusal.value


def test_what_a_mistake_echoes_of_a_contract_is_cut(tmp_path):
    with pytest.raises(ValueError, match="has no link 'aaa") as error:
        load(tmp_path, text("preset: libero, ").replace("tool0", "a" * 5000))
    assert len(str(error.value)) < 1000


def test_velocity_of_a_joint_is_in_units_of_the_policy(tmp_path):
    """DROID: one unit is 0.2 rad in a step of 1/15 s."""
    contract = load_plain(tmp_path, GOOD.replace("action: delta", "action: velocity, per_unit: 3.0"))
    np.testing.assert_allclose(contract.to_robot([0.5, 0.04]), [-1.5, 0.04])  # its sign is -1
    assert not contract.delta_mask.any() and contract.layout.velocities == {"a"}


def test_model_of_a_hand_fits_a_contract_of_hands_and_one_of_joints_does_not(tmp_path):
    """LIBERO's numbers: a state of 8, actions of 7 about zero."""
    model = one_image()
    numbers = np.array([[-0.1] * 7, [0.1] * 7])
    state = np.array(
        [[-0.8, -0.5, 0.0, -3.2, -3.2, -3.2, 0.0, -0.04], [0.8, 0.5, 0.6, 3.2, 3.2, 3.2, 0.04, 0.0]]
    )
    libero = replace(model, state=state, actions=numbers, any_camera=True, relative=None)
    finger = "acceleration: 2, unit: m, pair: true, action_map: {robot: [0.04, 0.0], policy: [-1, 1]}"
    fits = judge(libero, load(tmp_path, text("preset: libero, ", finger)))
    assert [finding.level for finding in fits] == [OK]
    joints = text("preset: libero, ", finger).replace("actions: hands", "actions: joints")
    joints = "\n".join(line for line in joints.split("\n") if "hands:" not in line and "  arm: {" not in line)
    joints = joints.replace("}\n  - {name: j", ", action: delta}\n  - {name: j")
    joints = joints.replace("{name: finger_joint, ", "{name: finger_joint, action: absolute, ")
    joints = joints.replace("{name: j6}", "{name: j6, action: delta}")
    findings = [str(f) for f in judge(libero, load(tmp_path, joints)) if f.level == ERROR]
    assert findings and any("hands" in sentence and "8" in sentence for sentence in findings)


def test_statistics_about_zero_fit_velocities(tmp_path):
    """As they contradict absolute targets."""
    model = one_image()
    moments = np.array([[0.6, 0.02], [0.1, 0.01]])
    droid = replace(
        model,
        state=np.array([[0.4, 0.0], [0.8, 0.04]]),
        actions=np.array([[-1.0, 0.0], [1.0, 0.04]]),
        state_moments=moments,
        action_moments=np.array([[0.0, 0.02], [0.3, 0.01]]),
        any_camera=True,
        relative=None,
    )
    for action, level in (("velocity, per_unit: 3.0", OK), ("absolute", ERROR)):
        written = GOOD.replace("action: delta, unit: deg, sign: -1, offset: 90", f"action: {action}")
        written = written.replace(
            "  side: {topic: camera/side/image_raw, image: left_wrist_0_rgb, rate_hz: 15, max_age_s: 0.3}\n",
            "",
        )
        contract = load_plain(tmp_path, f"actions: joints\n{written}")
        found = judge(droid, contract)
        assert max(f.level == ERROR for f in found) == (level == ERROR), found


def test_state_of_a_hand_is_compared_with_its_training_number_by_number(tmp_path):
    low = np.array([-0.5, -0.5, 0.1, -3.2, -3.2, -3.2, 0.0])
    trained = TrainedState(low, low + 0.6, np.full(7, 0.01), np.zeros(7, bool))
    contract = load(tmp_path, text())
    state = low + 0.3
    state[0] = 0.9
    (sentence,) = TrainedInputs(contract, trained).joints(state)
    assert "arm.x" in sentence and "0.9" in sentence
