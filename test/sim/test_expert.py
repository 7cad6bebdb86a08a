"""The expert: it succeeds, it recovers, and its labels are what it would do, without touching the robot."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from driving import drive, joints_over

from training.expert import Expert
from vla_accel_ros.sim import kinematics
from vla_accel_ros.sim.kinematics import GRIPPER_OPEN
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import FAMILIES, tasks


@pytest.mark.parametrize("family", FAMILIES)
def test_it_succeeds_on_every_one_of_24_scenes(robot: SimRobot, expert: Expert, family: str) -> None:
    known = tasks(family)
    failed = []
    for seed in range(24):
        task = known[seed % len(known)]
        robot.reset(task, seed)
        expert.reset()
        drive(robot, expert, task.time_limit_s, stop_at_success=True)
        if not robot.truth().success:
            failed.append((task.instruction, seed))
    assert not failed


@pytest.mark.parametrize("seed", range(4))
def test_it_regrasps_a_block_that_was_dropped(robot: SimRobot, expert: Expert, seed: int) -> None:
    task = tasks("place")[seed]
    robot.reset(task, seed)
    expert.reset()
    while robot.truth().held is None or robot.view().tip.z < 0.05:
        robot.step(expert.act())
    for _ in range(12):
        target = robot.target
        target[5] = min(target[5] + 0.1, GRIPPER_OPEN)
        robot.step(target)
    assert robot.truth().held is None
    drive(robot, expert, task.time_limit_s, stop_at_success=True)
    assert robot.truth().success


@pytest.mark.parametrize("seed", range(4))
def test_it_goes_after_a_block_that_was_moved(robot: SimRobot, expert: Expert, seed: int) -> None:
    task = tasks("place")[seed]
    robot.reset(task, seed)
    expert.reset()
    drive(robot, expert, 0.8)
    block = robot.view().blocks[task.block]
    others = [pose for name, pose in robot.view().blocks.items() if name != task.block]
    ways = [(block.x + 0.06 * math.cos(a), block.y + 0.06 * math.sin(a)) for a in np.arange(0, 6.3, 0.3)]
    x, y = max(ways, key=lambda p: min(math.dist(p, o[:2]) for o in others) - abs(math.hypot(*p) - 0.22))
    robot.place_block(task.block, x, y, 0.3)
    drive(robot, expert, task.time_limit_s, stop_at_success=True)
    assert robot.truth().success


def test_it_opens_again_when_the_fingers_closed_on_nothing(robot: SimRobot, expert: Expert) -> None:
    task = tasks("place")[0]
    robot.reset(task, 0)
    block = robot.view().blocks[task.block]
    robot.set_joints(joints_over(block.x, block.y, 0.08, gripper=0.13))
    expert.reset()
    drive(robot, expert, task.time_limit_s, stop_at_success=True)
    assert robot.truth().success


@pytest.mark.parametrize("family", FAMILIES)
def test_a_label_leaves_the_robot_untouched(robot: SimRobot, expert: Expert, family: str) -> None:
    robot.reset(tasks(family)[0], 3)
    expert.reset()
    drive(robot, expert, 1.3)
    before, memory = robot.save(), asdict(expert.memory)
    expert.chunk()
    after = robot.save()
    assert (before.physics == after.physics).all() and (before.pads == after.pads).all()
    assert (
        (before.target == after.target).all() and before.ticks == after.ticks and before.score == after.score
    )
    assert asdict(expert.memory) == memory


@pytest.mark.parametrize("seed", range(6))
def test_a_label_is_what_the_expert_then_does(robot: SimRobot, expert: Expert, seed: int) -> None:
    robot.reset(tasks("reach")[seed % 3], seed)
    expert.reset()
    drive(robot, expert, 0.1 * seed)
    chunk = expert.chunk()
    done = []
    for _ in range(32):
        robot.step(expert.act())
        done.append(robot.target)
    assert chunk.shape == (32, 6) and chunk.dtype == np.float32
    np.testing.assert_allclose(chunk, done, atol=5e-3)


def test_a_label_of_place_goes_through_the_grasp(robot: SimRobot, expert: Expert) -> None:
    """The coarser physics of the rollout may take the decision to close a frame earlier or later, no more."""
    worst = []
    for seed in range(12):
        robot.reset(tasks("place")[seed % 6], seed)
        expert.reset()
        drive(robot, expert, 0.9)
        chunk = expert.chunk()
        for _ in range(32):
            robot.step(expert.act())
        worst.append(np.abs(chunk[-1][:5] - robot.target[:5]).max())
    assert np.median(worst) < 0.03


def test_a_following_label_expects_the_block_where_it_is(robot: SimRobot, expert: Expert) -> None:
    robot.reset("follow the red block", 1)
    expert.reset()
    drive(robot, expert, 3.0)
    chunk = expert.chunk()
    block = robot.view().blocks["red"]
    tip = kinematics.forward(*chunk[-1][:5].tolist())
    assert math.dist((tip.x, tip.y), (block.x, block.y)) < 0.004


def test_labels_keep_to_the_joint_ranges_from_any_state(robot: SimRobot, expert: Expert) -> None:
    rng = np.random.default_rng(1)
    for seed in range(20):
        robot.reset(tasks()[seed % 12], seed, start=rng.uniform(kinematics.LOWER, kinematics.UPPER).tolist())
        expert.reset()
        chunk = expert.chunk()
        assert np.isfinite(chunk).all()
        lower, upper = np.array((kinematics.LOWER, kinematics.UPPER), np.float32)
        assert (chunk >= lower).all() and (chunk <= upper).all()


def test_its_motion_is_smooth(robot: SimRobot, expert: Expert) -> None:
    """The policy inherits it: RMS jerk of the arm's commands, in rad/s^3, over whole episodes."""
    for family, limit in (("reach", 60), ("place", 60), ("follow", 25)):
        robot.reset(tasks(family)[0], 8)
        expert.reset()
        commands = []
        for _ in range(90):
            robot.step(expert.act())
            commands.append(robot.target[:5])
        jerk = np.diff(np.array(commands), n=3, axis=0) * 30**3
        assert np.sqrt((jerk**2).mean()) < limit
