"""Contracts of families that know hands by their poses: what `vla inspect --contract` writes fits them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from groot_builders import HAND, TAG, add_hand, make_groot_folder
from hand_arms import panda, panda_urdf, ur5e, ur5e_urdf
from openvla_oft_oracle import folder_with_sizes
from xvla_oracle import whole_folder

from vla_accel_ros.contract.checks.findings import ERROR
from vla_accel_ros.contract.checks.model_check import judge, read_model
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.kinematics.rows import Rows
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.tools.cli import main
from vla_accel_ros.types import Chunk

OWN = {
    "urdf": "arm.urdf",
    "base": "l0",
    "tip": "tool0",
    "linear": "0.5",
    "angular": "1.5",
    "step_dt_s": "0.05",
}
OWN |= {"acceleration": "10"}
ARM = [f"j{number}" for number in range(1, 8)]
FINGER = "{name: finger_joint, unit: m"


def written(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> str:
    assert main(["inspect", str(folder), "--contract", *more]) == 0
    return capsys.readouterr().out


def filled(text: str, joints: list[str], folder: Path, urdf: str) -> Contract:
    """The contract with these joints in its rows, whose limits are the URDF's."""
    names: Iterator[str] = iter(joints)
    kept, section = list[str](), ""
    for row in text.splitlines():
        section = row.partition(":")[0] if re.match(r"\w+:", row) else section
        if section == "joints" and re.match(r"    (lower|upper|velocity):", row):
            continue
        if row.startswith("  - name: ???"):
            row = f"  - name: {next(names)}"
        elif "joints: [" in row:
            row = f"    joints: [{', '.join(joints)}]"
        key = row.strip().partition(":")[0]
        kept.append(row.replace("???", OWN[key]) if "???" in row.partition("#")[0] and key in OWN else row)
    (folder / "arm.urdf").write_text(urdf)
    (folder / "robot.yaml").write_text("\n".join(kept))
    assert next(names, None) is None
    return Contract.load(folder / "robot.yaml")


def errors(folder: Path, contract: Contract, tag: str | None = None) -> list[str]:
    return [str(each) for each in judge(read_model(folder, tag), contract) if each.level == ERROR]


def rows_of(pose: np.ndarray) -> np.ndarray:
    return np.concatenate([pose[:3, 3], pose[:2, :3].ravel()])


def test_droids_contract_has_the_pose_beside_the_joints_and_follows_the_joints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_groot_folder(tmp_path / "folder")
    text = written(capsys, folder)
    assert f"embodiment '{TAG}', number 3" in text
    contract = filled(text, ["finger_joint", *ARM], tmp_path, panda_urdf())
    assert errors(folder, contract) == []
    assert contract.delta_mask.tolist() == [False] * 10 + [True] * 7
    angles = np.array([0.3, -0.4, 0.2, -2.0, 0.1, 1.7, 0.6])
    positions = np.append(0.02, angles)
    state = contract.to_policy(positions)
    np.testing.assert_allclose(state, [*rows_of(panda(angles)), *positions], atol=1e-9)

    policy = load_policy(folder, delta_mask=contract.delta_mask)
    rows = policy.actions(torch.full((11, 23), 0.1), state)
    assert rows.shape == (9, 17) and contract.layout is not None
    chunk = Chunk(rows, 0, 0.05, 0, 0, np.zeros(9))
    limits = JointLimits.of(contract.action_joints)
    targets = Rows(contract.layout, limits).targets(chunk, 0, positions, positions).actions
    np.testing.assert_array_equal(targets, contract.to_robot(rows)[:, 9:])


def test_a_hand_without_the_joints_of_its_arm_stands_in_their_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_groot_folder(tmp_path / "folder")
    add_hand(folder)
    text = written(capsys, folder, "--statistics", HAND)
    assert "beside" not in text and HAND in text
    joints = [*ARM[:6], "finger_joint"]
    contract = filled(more_joints(text, 6), joints, tmp_path, ur5e_urdf())
    assert errors(folder, contract, HAND) == []
    angles = np.array([0.3, -1.2, 1.8, -2.0, -1.5, 0.4])
    state = contract.to_policy(np.append(angles, 0.02))
    np.testing.assert_allclose(state, [*rows_of(ur5e(angles)), 0.02], atol=1e-9)


def more_joints(text: str, count: int) -> str:
    """The entry that stands for every joint of an arm, for so many."""
    rows = text.splitlines()
    (index,) = (i for i, row in enumerate(rows) if "and so on, every joint" in row)
    return "\n".join([*rows[:index], *rows[index : index + 4] * count, *rows[index + 4 :]])


def test_xvlas_contract_names_its_domain_and_two_hands_by_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    xvla_folder = whole_folder("xvla/checkpoint", tmp_path / "xvla")
    text = written(capsys, xvla_folder)
    assert "domain 3 of 6" in text and "ee6d" in text
    assert re.findall(r"^  (\w+):\n    preset: (\w+)", text, re.M) == [("hand_1", "xvla"), ("hand_2", "xvla")]
    first, second = text.index("  hand_2:"), text.index("# States and actions")
    single = text[:first] + text[second:]
    last = single.index("  - name: ???  # and so on, every joint between base and tip of hand_2")
    single = single[:last] + single[single.index("controllers:") :]
    contract = filled(more_joints(single, 6), [*ARM[:6], "finger_joint"], tmp_path, ur5e_urdf())
    assert errors(xvla_folder, contract) == []
    angles = np.array([0.3, -1.2, 1.8, -2.0, -1.5, 0.4])
    pose = ur5e(angles)
    expected = [*pose[:3, 3], *pose[:3, 0], *pose[:3, 1], 0.02]
    np.testing.assert_allclose(contract.to_policy(np.append(angles, 0.02)), expected, atol=1e-9)


def test_oft_liberos_contract_is_of_a_hand_and_two_fingers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    oft_folder = folder_with_sizes("openvla_oft", tmp_path / "oft")
    text = written(capsys, oft_folder)
    contract = filled(more_joints(text, 6), [*ARM[:6], "finger_joint"], tmp_path, ur5e_urdf())
    assert errors(oft_folder, contract) == []
    assert (len(contract.state_names), len(contract.action_names)) == (8, 7)
    state = contract.to_policy(np.array([0.3, -1.2, 1.8, -2.0, -1.5, 0.4, 0.02]))
    assert state[6:].tolist() == [0.02, -0.02]
