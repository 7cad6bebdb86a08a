"""Contracts of robots that a Fast-WAM drives: toggled grippers are those of a hand, not joints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from test_groot_contract import JOINTS, contract_of

from vla_accel_ros.contract.checks.model_check import judge, read_model
from vla_accel_ros.contract.contract import Contract

FOLDER = Path(__file__).parents[1] / "data" / "oracles" / "fastwam"
FRONT = "  front: {topic: camera/front/image_raw, image: front, rate_hz: 30, max_age_s: 0.2}\n"
WRIST = FRONT.replace("front", "wrist")
GRIPPER = "  - {name: d, lower: -1, upper: 1, velocity: 2, action: absolute}\n"
FOUR = (
    JOINTS.replace(FRONT, FRONT + WRIST)
    .replace("controllers:", f"{GRIPPER}controllers:")
    .replace("[a, b, c]", "[a, b, c, d]")
)


def findings(folder: Path, contract: Contract) -> list[str]:
    return [str(each) for each in judge(read_model(folder), contract)]


def test_libero_actions_are_no_joints(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "fastwam")
    folder = tmp_path / "fastwam" / "checkpoint"
    assert any("a hand by twists" in sentence for sentence in findings(folder, contract_of(tmp_path, FOUR)))


def test_joints_fit_if_nothing_is_toggled_and_a_missing_joint_is_named(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "fastwam")
    folder = tmp_path / "fastwam" / "checkpoint"
    after = json.loads((folder / "policy_postprocessor.json").read_text())
    after["steps"] = [step for step in after["steps"] if "toggle" not in step["registry_name"]]
    (folder / "policy_postprocessor.json").write_text(json.dumps(after))
    sentences = findings(folder, contract_of(tmp_path, FOUR))
    assert not any("a hand by twists" in sentence for sentence in sentences)
    assert any("5 states" in sentence and "4 actions" in sentence for sentence in sentences)
