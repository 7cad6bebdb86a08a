"""Chunks whose first columns move the hand: they stop and go on like any others, with and without joints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from force_arm import S
from hand_robot import LINEAR, Robot
from motion import make_chunk

from vla_accel_ros.control.following.watchdog import MotionState


@pytest.fixture(params=[("gripper",), ()], ids=["gripper", "none"])
def robot(request: pytest.FixtureRequest) -> Robot:
    return Robot(request.param, felt=False)


def test_the_hand_moves_by_chunks_and_stops_when_they_cease(robot: Robot) -> None:
    robot.run(1.0)
    assert robot.running and robot.velocity == pytest.approx(0.2)
    assert robot.follower.stats(robot.now).runs > 0
    if robot.grippers:
        assert robot.sent and robot.sent[-1].positions[-1] == pytest.approx(0.8)
    robot.speed = None
    robot.run(1.0)
    assert robot.follower.safety.state is MotionState.HOLDING and robot.velocity == 0.0
    robot.speed = -0.3
    robot.run(1.0)
    assert robot.velocity == pytest.approx(-0.3)
    robot.assert_ramps()


def test_a_hold_stops_the_hand_within_its_ramp_and_it_counts_as_holding_only_then(robot: Robot) -> None:
    robot.speed = LINEAR
    robot.run(1.0)
    robot.node.order("hold")
    robot.run(0.1)
    assert robot.follower.safety.state is MotionState.STOPPING and robot.velocity > 0.05
    robot.run(0.2)
    assert robot.follower.safety.state is MotionState.HOLDING and robot.velocity == 0.0


def test_chunks_from_before_it_was_in_other_hands_are_void(robot: Robot) -> None:
    robot.run(1.0)
    robot.follower.begin_anew(robot.now + S)
    robot.run(0.5)
    assert robot.velocity == 0.0 and robot.follower.counts["before_leap"] > 0


@pytest.mark.parametrize("shape", [(10,), (1, 10, 7), (10, 3), (0, 7), (10, 0)])
def test_a_chunk_of_another_shape_is_refused(robot: Robot, shape: tuple[int, ...]) -> None:
    chunk = replace(make_chunk(np.zeros((10, 7)), robot.now), actions=np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="shape"):
        robot.follower.follow(chunk, robot.now)
