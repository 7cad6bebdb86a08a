"""Forward kinematics against Denavit-Hartenberg tables, and inverse kinematics against forward."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hand_arms import PANDA_RANGES, panda, panda_urdf, ur5e, ur5e_urdf

from vla_accel_ros.control.kinematics.arm import Arm
from vla_accel_ros.control.kinematics.rotations import pinocchio
from vla_accel_ros.control.limits.joint_limits import JointLimits

pin = pinocchio()
MIDDLE = {"ur5e": np.array([0, -1.2, 1.8, -2, -1.57, 0]), "panda": np.array([0, -0.5, 0, -2.2, 0, 1.8, 0.7])}


def arm_of(kind: str, tip: str = "tool0") -> tuple[Arm, Callable[[np.ndarray], np.ndarray]]:
    urdf, forward, joints = (ur5e_urdf(), ur5e, 6) if kind == "ur5e" else (panda_urdf(), panda, 7)
    ranges = [*(PANDA_RANGES if joints == 7 else [(-6.28, 6.28)] * 6), (0.0, 0.04)]
    low, high = np.array(ranges).T
    names = [*(f"j{i + 1}" for i in range(joints)), "finger_joint"]
    limits = JointLimits(low, high, np.ones(joints + 1), np.ones(joints + 1))
    return Arm(urdf, names, limits, "l0", tip), forward


@pytest.mark.parametrize("kind", ["ur5e", "panda"])
def test_arm_leads_its_tip_where_its_table_does(kind):
    arm, forward = arm_of(kind)
    rng = np.random.default_rng(0)
    for angles in rng.uniform(arm.limits.lower, arm.limits.upper, (100, len(arm.joints))):
        np.testing.assert_allclose(arm.pose(angles).homogeneous, forward(angles), atol=1e-8)


@pytest.mark.parametrize("kind", ["ur5e", "panda"])
def test_solve_follows_a_path_without_a_jump(kind):
    arm, forward = arm_of(kind)
    rng, steps = np.random.default_rng(1), np.arange(1, 51)[:, None]
    for _ in range(20):
        amount, phase = rng.uniform(-0.4, 0.4, len(arm.joints)), rng.uniform(0, 6, len(arm.joints))
        path = MIDDLE[kind] + amount * (np.sin(steps * 0.04 + phase) - np.sin(phase))
        solved = arm.solve([pin.SE3(forward(angles)) for angles in path], MIDDLE[kind])
        assert len(solved) == 50
        np.testing.assert_allclose([forward(x) for x in solved], [forward(x) for x in path], atol=1e-4)
        steps_taken = np.abs(np.diff(np.vstack([MIDDLE[kind], solved]), axis=0))
        assert steps_taken.max() < 5 * np.abs(np.diff(path, axis=0)).max() + 0.05


@pytest.mark.parametrize("kind", ["ur5e", "panda"])
def test_solve_ends_before_what_is_out_of_reach_and_says_so(kind):
    arm, forward = arm_of(kind)
    begin = pin.SE3(forward(MIDDLE[kind]))
    away = [pin.SE3(begin.rotation, begin.translation * (1 + 0.05 * k)) for k in range(1, 51)]
    solved = arm.solve(away, MIDDLE[kind])
    assert 0 < len(solved) < 30
    goal = away[len(solved)].translation
    assert all(f"{x:.2f}"[:-1] in arm.why() for x in goal[:1]) and "singular" in arm.why()


def test_joint_at_the_end_of_its_range_is_named():
    arm, forward = arm_of("panda")
    angles = MIDDLE["panda"].copy()
    angles[5] = 3.75
    beyond = angles.copy()
    beyond[5] = 4.1
    assert not len(arm.solve([pin.SE3(forward(beyond))], angles)) and "j6" in arm.why()


def test_arm_of_five_joints_reaches_a_pose_that_is_its_own():
    arm, _ = arm_of("ur5e", tip="l5")
    pose = arm.pose(MIDDLE["ur5e"][:5] + 0.1)
    (solved,) = arm.solve([pose], MIDDLE["ur5e"][:5])
    np.testing.assert_allclose(arm.pose(solved).homogeneous, pose.homogeneous, atol=1e-5)
