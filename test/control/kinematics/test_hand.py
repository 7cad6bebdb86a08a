"""What others' conventions mean, against the numbers of their own code.

hand_conventions.json has rows and the poses (x, y, z, quaternion xyzw) that these make of them, from one
begin: robosuite 1.4.1 (set_goal_position and set_goal_orientation, mat2quat and quat2axisangle),
bridge_data_robot a902e5b (action2transform_local, transform2state), droid 1548722 (add_poses with the scales
of RobotIKSolver), UMI d095ba9 (mat_to_pose10d, pose10d_to_mat), lerobot 7427f31 (relative_eef_to_absolute of
groot, rotate6d_to_axis_angle of xvla and its columns).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_arms import load, text, ur5e

from vla_accel_ros.control.kinematics.hand import PRESETS, Hand
from vla_accel_ros.control.kinematics.rotations import pinocchio

CONVENTIONS = json.loads((Path(__file__).resolve().parents[2] / "data" / "hand_conventions.json").read_text())


def se3(pose) -> Any:
    """x, y, z, quaternion xyzw."""
    return pinocchio().XYZQUATToSE3(np.array(pose, float))


BEGIN = se3([*CONVENTIONS["begin_position"], *CONVENTIONS["begin_quat"]])


def hand(preset: str) -> Hand:
    return Hand("arm", "l0", "tool0", linear=0.5, angular=1.5, **PRESETS[preset])


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_leads_where_their_own_code_does(preset):
    theirs = CONVENTIONS[preset]
    poses = hand(preset).poses(np.array(theirs["rows"]), BEGIN)
    for ours, pose in zip(poses, theirs["poses"], strict=True):
        np.testing.assert_allclose(ours.homogeneous, se3(pose).homogeneous, atol=3e-6)


@pytest.mark.parametrize("preset", [name for name in PRESETS if "state" in CONVENTIONS[name]])
def test_preset_observes_what_their_own_code_does(preset):
    np.testing.assert_allclose(hand(preset).observed(BEGIN), CONVENTIONS[preset]["state"], atol=1e-6)


def test_every_preset_is_of_a_contract_and_its_state_is_the_hands(tmp_path):
    angles = np.array([0.3, -1.2, 1.8, -2.0, -1.5, 0.4])
    for preset, convention in PRESETS.items():
        contract = load(tmp_path, text(f"preset: {preset}, "))
        state = contract.to_policy(np.append(angles, 0.02))
        assert len(state) == len(contract.state_names)
        if convention["state"] == "joints":
            np.testing.assert_allclose(state[:6], angles)
        else:
            np.testing.assert_allclose(state[:3], ur5e(angles)[:3, 3], atol=1e-6)
