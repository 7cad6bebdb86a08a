"""Contracts of robots that a GR00T drives (joints of an embodiment, or a hand's pose and a gripper), or a
Fast-WAM (toggled grippers are no joints), or a mimic-video (a hand's pose, and one camera)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from groot_builders import HAND, JOINTS, OTHER, TAG, add_embodiment, add_hand, make_groot_folder
from hand_arms import load as load_hands
from hand_arms import text

from vla_accel_ros.contract.checks.findings import ERROR, OK
from vla_accel_ros.contract.checks.model_check import judge, read_model
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.tools.contract.cameras import trained_lines

ORACLES = Path(__file__).parents[1] / "data" / "oracles"
MIMIC = ORACLES / "mimic_video" / "checkpoint"
ROWS = "rotation: rot6d_rows, state: rot6d_rows, relative_to: absolute, "


def errors(folder: Path, tag: str, contract: Contract) -> list[str]:
    return [str(each) for each in judge(read_model(folder, tag), contract) if each.level == ERROR]


def contract_of(folder: Path, written: str) -> Contract:
    (folder / "robot.yaml").write_text(written)
    return Contract.load(folder / "robot.yaml")


def test_joints_of_an_embodiment_fit_a_contract_of_joints(tmp_path: Path) -> None:
    folder = make_groot_folder(tmp_path / "folder")
    add_embodiment(folder)
    contract = contract_of(tmp_path, JOINTS)
    assert errors(folder, OTHER, contract) == []
    (wrong, *_) = errors(
        folder, OTHER, contract_of(tmp_path, JOINTS.replace("action: absolute", "action: delta"))
    )
    assert "absolute targets" in wrong
    policy = load_policy(folder, delta_mask=contract.delta_mask, statistics=OTHER)
    assert policy.joints == 3


def test_poses_are_no_joints(tmp_path: Path) -> None:
    folder = make_groot_folder(tmp_path / "folder")
    found = errors(folder, TAG, contract_of(tmp_path, JOINTS))
    assert any("eef_9d" in sentence for sentence in found)


def test_a_hand_with_a_gripper_fits_a_contract_of_hands(tmp_path: Path) -> None:
    folder = make_groot_folder(tmp_path / "folder")
    add_hand(folder)
    cameras = "  top: {topic: camera/top/image_raw, image: base_0_rgb, rate_hz: 30, max_age_s: 0.2}\n"
    ours = "".join(
        f"  {name}: {{topic: {name}/image, image: {name}, rate_hz: 30, max_age_s: 0.2}}\n"
        for name in ("exterior_image_1_left", "wrist_image_left")
    )
    contract = load_hands(tmp_path, text(ROWS).replace(cameras, ours))
    assert errors(folder, HAND, contract) == []
    policy = load_policy(folder, delta_mask=contract.delta_mask, statistics=HAND)
    state = contract.to_policy(np.array([0.3, -1.2, 1.8, -2.0, -1.5, 0.4, 0.02]))
    chunk = policy.actions(torch.zeros(11, 23), state)
    assert chunk.shape == (9, len(contract.action_names)) == (9, 10)
    rows = chunk[:, 3:9].reshape(9, 2, 3).astype(np.float64)
    np.testing.assert_allclose(rows @ rows.swapaxes(1, 2), np.broadcast_to(np.eye(2), (9, 2, 2)), atol=1e-6)


FRONT = "  front: {topic: camera/front/image_raw, image: front, rate_hz: 30, max_age_s: 0.2}\n"
WRIST = FRONT.replace("front", "wrist")
GRIPPER = "  - {name: d, lower: -1, upper: 1, velocity: 2, action: absolute}\n"
FOUR = (
    JOINTS.replace(FRONT, FRONT + WRIST)
    .replace("controllers:", f"{GRIPPER}controllers:")
    .replace("[a, b, c]", "[a, b, c, d]")
)


def test_liberos_actions_of_a_fastwam_are_no_joints(tmp_path: Path) -> None:
    found = judge(read_model(ORACLES / "fastwam" / "checkpoint"), contract_of(tmp_path, FOUR))
    assert any("a hand by twists" in str(each) for each in found)


def test_joints_fit_a_fastwam_if_nothing_is_toggled_and_a_missing_joint_is_named(tmp_path: Path) -> None:
    shutil.copytree(ORACLES / "fastwam", tmp_path / "fastwam")
    folder = tmp_path / "fastwam" / "checkpoint"
    after = json.loads((folder / "policy_postprocessor.json").read_text())
    after["steps"] = [step for step in after["steps"] if "toggle" not in step["registry_name"]]
    (folder / "policy_postprocessor.json").write_text(json.dumps(after))
    sentences = [str(each) for each in judge(read_model(folder), contract_of(tmp_path, FOUR))]
    assert not any("a hand by twists" in sentence for sentence in sentences)
    assert any("5 states" in sentence and "4 actions" in sentence for sentence in sentences)


SAID = "image_size=32x48 xattn_layer_idx=2 text_tokens=24"


def test_bridges_poses_fit_a_contract_of_hands_relative_to_the_observation(tmp_path: Path) -> None:
    written = text("preset: umi, ").replace("image: base_0_rgb", "image: workspace_rgb")
    contract = load_hands(tmp_path, written)
    model = read_model(MIMIC, trained_as=SAID)
    assert [str(finding) for finding in judge(model, contract) if finding.level == ERROR] == []
    joints = load_hands(tmp_path, written.replace("preset: umi, ", "preset: bridge, "))
    assert any(finding.level == ERROR for finding in judge(model, joints))
    policy = load_policy(MIMIC, delta_mask=contract.delta_mask, trained_as=SAID)
    state = contract.to_policy(np.array([0.3, -1.2, 1.8, -2.0, -1.5, 0.4, 0.02]))
    assert state.shape == (policy.config.state_dim,) and policy.joints == len(contract.action_names)


def test_earlier_frames_are_history_of_one_camera_and_no_cameras_of_their_own(tmp_path: Path) -> None:
    """The authors' data has five frames a second."""
    model = read_model(MIMIC, trained_as=SAID)
    (camera,) = yaml.safe_load("\n".join(trained_lines(model, None))).values()
    assert camera["image"] == "workspace_rgb"
    assert camera["history"] == pytest.approx({f"workspace_rgb_{age}": 0.2 * age for age in (1, 2, 3, 4)})

    alone = text("preset: umi, ").replace("image: base_0_rgb", "image: workspace_rgb")
    whole = alone.replace("max_age_s: 0.2}", f"max_age_s: 0.2, history: {camera['history']}}}", 1)

    def findings(contract: str) -> list[str]:
        return [
            str(finding) for finding in judge(model, load_hands(tmp_path, contract)) if finding.level != OK
        ]

    assert any("workspace_rgb_3" in finding and "history" in finding for finding in findings(alone))
    assert not any("workspace_rgb" in finding for finding in findings(whole))
    (unknown,) = findings(whole.replace("workspace_rgb_3", "workspace_rgb_9"))
    assert (
        "cameras.top.history" in unknown and "'workspace_rgb_9'" in unknown and "workspace_rgb_3" in unknown
    )
