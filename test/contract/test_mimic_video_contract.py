"""The contract of a robot that a mimic-video drives: a hand's pose, and one camera."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from hand_arms import load, text

from vla_accel_ros.contract.checks.findings import ERROR, OK
from vla_accel_ros.contract.checks.model_check import judge, read_model
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.tools.contract.cameras import trained_lines

FOLDER = Path(__file__).parents[1] / "data" / "oracles" / "mimic_video" / "checkpoint"
SAID = "image_size=32x48 xattn_layer_idx=2 text_tokens=24"


def test_bridges_poses_fit_a_contract_of_hands_relative_to_the_observation(tmp_path: Path) -> None:
    written = text("preset: umi, ").replace("image: base_0_rgb", "image: workspace_rgb")
    contract = load(tmp_path, written)
    model = read_model(FOLDER, trained_as=SAID)
    assert [str(finding) for finding in judge(model, contract) if finding.level == ERROR] == []
    joints = load(tmp_path, written.replace("preset: umi, ", "preset: bridge, "))
    assert any(finding.level == ERROR for finding in judge(model, joints))
    policy = load_policy(FOLDER, delta_mask=contract.delta_mask, trained_as=SAID)
    state = contract.to_policy(np.array([0.3, -1.2, 1.8, -2.0, -1.5, 0.4, 0.02]))
    assert state.shape == (policy.config.state_dim,) and policy.joints == len(contract.action_names)


def test_earlier_frames_are_history_of_one_camera_and_no_cameras_of_their_own(tmp_path: Path) -> None:
    """The authors' data has five frames a second."""
    model = read_model(FOLDER, trained_as=SAID)
    (camera,) = yaml.safe_load("\n".join(trained_lines(model, None))).values()
    assert camera["image"] == "workspace_rgb"
    assert camera["history"] == pytest.approx({f"workspace_rgb_{age}": 0.2 * age for age in (1, 2, 3, 4)})

    alone = text("preset: umi, ").replace("image: base_0_rgb", "image: workspace_rgb")
    whole = alone.replace("max_age_s: 0.2}", f"max_age_s: 0.2, history: {camera['history']}}}", 1)

    def findings(contract: str) -> list[str]:
        return [str(finding) for finding in judge(model, load(tmp_path, contract)) if finding.level != OK]

    assert any("workspace_rgb_3" in finding and "history" in finding for finding in findings(alone))
    assert not any("workspace_rgb" in finding for finding in findings(whole))
    (unknown,) = findings(whole.replace("workspace_rgb_3", "workspace_rgb_9"))
    assert (
        "cameras.top.history" in unknown and "'workspace_rgb_9'" in unknown and "workspace_rgb_3" in unknown
    )
