"""Which chunks are refused: those that no robot could mean. What is only beyond a limit is ordinary."""

from __future__ import annotations

import numpy as np
import pytest
from follower_robot import MS, Robot
from motion import JOINTS, LIMITS

from vla_accel_ros.control.chunking.plausibility import nonsense
from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.types import Chunk

STEP_S = 1 / 30
ARM = np.zeros(3, bool)


def ramp(speed: float, steps: int = 20) -> np.ndarray:
    """The first joint moves by `speed` times what it can, from the middle of its range."""
    actions = np.zeros((steps, 3))
    actions[:, 0] = np.arange(steps) * speed * LIMITS.velocity[0] * STEP_S
    return actions


def test_ordinary_chunks_make_sense():
    rng = np.random.default_rng(0)
    for _ in range(200):
        actions = rng.uniform(LIMITS.lower, LIMITS.upper) + rng.normal(0, 0.05, (32, 3))
        assert not nonsense(actions, STEP_S, JOINTS, LIMITS, ARM)
    assert not nonsense(np.full((4, 3), 0.9) * LIMITS.upper * 1.2, STEP_S, JOINTS, LIMITS, ARM)
    assert not nonsense(ramp(2.0, 8), STEP_S, JOINTS, LIMITS, ARM)


@pytest.mark.parametrize("target", [57.0, -9.0, 1.6])
def test_a_target_far_outside_the_range_is_named(target):
    actions = np.zeros((4, 3))
    actions[2, 0] = target
    why = nonsense(actions, STEP_S, JOINTS, LIMITS, ARM)
    assert why.startswith(f"action 2 sends a to {target:.3f}, and it goes from -1 to 1: are the policy")


def test_a_step_that_no_motor_can_follow_is_named_except_of_a_gripper():
    actions = np.zeros((4, 3))
    actions[2:, 0] = 0.9
    why = nonsense(actions, STEP_S, JOINTS, LIMITS, ARM)
    assert why.startswith("action 2 has a 0.900 from the action 0.0333333 s before, 9 times what it can go")
    assert not nonsense(actions, STEP_S, JOINTS, LIMITS, np.array([True, False, False]))


def wild(robot: Robot, version: int = 10_000, value: float = 9.0) -> Chunk:
    robot.request += 1
    actions = np.full((32, 2), value, np.float32)
    return Chunk(actions, robot.now - 30 * MS, STEP_S, version, robot.request, np.zeros(32, np.float32))


def test_refused_chunks_do_not_move_it_and_are_not_fresh_and_the_stop_says_why():
    robot = Robot().go()
    count = len(robot.sent)
    for _ in range(100):
        robot.tick()
        with pytest.raises(ValueError, match=r"a to 9\.000, .*-2 to 2"):
            robot.follower.follow(wild(robot), robot.now)
        change, stop = robot.follower.step(robot.now)
        robot.states += [change.after] if change else []
        robot.deliver(stop)
    assert robot.states[-2:] == [MotionState.STOPPING, MotionState.HOLDING]
    assert len(robot.sent) == count + 1, "the stop"
    (reason,) = robot.follower.safety.reasons
    assert "chunks are refused: chunk" in reason and "sends a to 9.000" in reason
    robot.run(0.5, goal=0.5)
    assert robot.states[-1] is MotionState.RUNNING
    robot.assert_within_limits()


def test_versions_that_go_back_are_refused_until_only_they_come():
    robot = Robot().go()
    robot.request = 500
    robot.run(0.11, goal=0.5)
    robot.request = 0  # a second publisher, or an inference that was restarted
    count = len(robot.sent)
    with pytest.raises(ValueError, match=r"version 1, after 50[12]"):
        robot.send(0.2, robot.now - 20 * MS)
    assert len(robot.sent) == count
    robot.run(0.3)
    robot.send(0.2, robot.now - 20 * MS)
    assert len(robot.sent) == count + 1


def test_an_older_chunk_that_comes_late_is_not_taken_for_the_newest():
    robot = Robot().go()
    robot.run(0.05, goal=0.5)
    age_s = robot.follower.safety.watchdog.age_s("chunk", robot.now)
    robot.send(0.5, robot.now - 600 * MS)
    assert robot.follower.safety.watchdog.age_s("chunk", robot.now) == age_s
