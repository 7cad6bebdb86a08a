"""The contract of a robot that a mimic-video drives: a hand's pose, and one camera."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hand_arms import load, text

from vla_accel_ros.contract.findings import ERROR
from vla_accel_ros.contract.model_check import judge, read_model
from vla_accel_ros.models.checkpoints.checkpoint import load_policy

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
