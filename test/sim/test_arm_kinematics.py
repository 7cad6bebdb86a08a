"""Closed-form kinematics: inverse undoes forward, and both agree with the scene file."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_accel_ros.sim import kinematics
from vla_accel_ros.sim.kinematics import JOINTS, LOWER, MIRROR, UPPER, Pose
from vla_accel_ros.sim.rendering import mujoco
from vla_accel_ros.sim.robot import SimRobot

workspace = st.builds(
    lambda pan, radius, z, pitch, roll: Pose(radius * math.cos(pan), radius * math.sin(pan), z, pitch, roll),
    st.floats(-1.3, 1.3),
    st.floats(0.14, 0.31),
    st.floats(0.01, 0.1),
    st.floats(-0.1, 0.1),
    st.floats(-1.5, 1.5),
)


@given(workspace)
def test_forward_of_inverse_is_the_pose(pose: Pose) -> None:
    joints = kinematics.inverse(pose)
    assert kinematics.forward(*joints) == pytest.approx(pose, abs=1e-9)


@given(workspace)
def test_inverse_stays_within_the_joint_ranges(pose: Pose) -> None:
    for low, angle, high in zip(LOWER, kinematics.inverse(pose), UPPER):
        assert low <= angle <= high


@given(st.tuples(*(st.floats(low, high) for low, high in zip(LOWER[:5], UPPER[:5]))))
def test_mirrored_joints_give_the_mirrored_pose(joints: tuple[float, ...]) -> None:
    pose = kinematics.forward(*joints)
    mirrored = kinematics.forward(*(sign * angle for sign, angle in zip(MIRROR, joints)))
    assert mirrored == pytest.approx((pose.x, -pose.y, pose.z, pose.pitch, -pose.roll), abs=1e-12)


@pytest.mark.parametrize("radius, z", [(0.40, 0.05), (0.05, 0.02), (0.2, 0.6)])
def test_out_of_reach_is_said_in_one_sentence(radius: float, z: float) -> None:
    with pytest.raises(
        kinematics.Unreachable, match=r"^gripper pose radius .* is out of reach; ask for .*\.$"
    ):
        kinematics.inverse(Pose(radius, 0.0, z, 0.0, 0.0))


def test_link_lengths_and_ranges_are_those_of_the_scene(robot: SimRobot) -> None:
    model = robot.model
    ranges = [model.joint(name).range for name in JOINTS]
    np.testing.assert_allclose(ranges, list(zip(LOWER, UPPER)))
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    for joints in rng.uniform(LOWER, UPPER, (50, 6)):
        data.qpos[:6] = joints
        mujoco.mj_kinematics(model, data)
        pose = kinematics.forward(*joints[:5])
        np.testing.assert_allclose(data.site("tip").xpos, pose[:3], atol=1e-12)
