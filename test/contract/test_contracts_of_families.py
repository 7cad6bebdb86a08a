"""Contracts of robots that a GR00T drives: joints of an embodiment, or a hand's pose and a gripper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from groot_builders import HAND, OTHER, TAG, add_embodiment, add_hand, make_groot_folder
from hand_arms import load as load_hands
from hand_arms import text

from vla_accel_ros.contract.checks.findings import ERROR
from vla_accel_ros.contract.checks.model_check import judge, read_model
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.models.checkpoints.checkpoint import load_policy

JOINTS = """\
robot: arm
cameras:
  front: {topic: camera/front/image_raw, image: front, rate_hz: 30, max_age_s: 0.2}
max_skew_s: 0.05
joint_states: {topic: joint_states, rate_hz: 100, max_age_s: 0.1}
acceleration: 10
joints:
  - {name: a, lower: -1, upper: 1, velocity: 2, action: absolute}
  - {name: b, lower: 0, upper: 4, velocity: 2, action: absolute}
  - {name: c, lower: 4, upper: 6, velocity: 2, action: absolute}
controllers:
  - {topic: arm/joint_trajectory, joints: [a, b, c]}
chunk: {step_dt_s: 0.05, max_age_s: 0.6}
"""
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
