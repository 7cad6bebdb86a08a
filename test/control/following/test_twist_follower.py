"""Chunks whose first columns move the hand: they stop and go on like any others, with and without joints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from motion import make_chunk

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.chunking.twist import TwistBuffer
from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.joint_faults import FollowingError
from vla_accel_ros.control.following.watchdog import MotionState, Safety, Watchdog
from vla_accel_ros.control.limits.joint_limits import JointLimits

S = 1_000_000_000
MS = S // 1000
START = 1000 * S


class Robot:
    """A follower of twists, and of a gripper or no joint at all; a tick is 20 ms, with a joint state each."""

    def __init__(self, joints: tuple[str, ...]) -> None:
        limits = JointLimits(*(np.full(len(joints), x) for x in (0.0, 1.0, 2.0, 20.0)))
        self.twist = TwistBuffer("second", 0.5, 1.0, 0.02)
        unwatched = FollowingError(np.full(len(joints), np.inf), np.zeros(len(joints)))
        safety = Safety(Watchdog({"joint_states": 0.3, "chunk": 0.5}))
        self.follower = ChunkFollower(TrajectoryBuffer(joints, limits), safety, 0.5, self.twist, unwatched)
        self.joints, self.now, self.request = joints, START, 0
        self.velocities: list[np.ndarray] = []
        self.sent: list[Any] = []

    def run(self, seconds: float, speed: float | None = None) -> None:
        for tick in range(round(seconds * 50)):
            self.now += 20 * MS
            self.follower.measured(np.full(len(self.joints), 0.5), self.now, self.now)
            if speed is not None and tick % 5 == 0:
                self.request += 1
                row = [speed, 0, 0, 0, 0, 0] + [0.8] * len(self.joints)
                chunk = make_chunk([row] * 10, self.now - 30 * MS, 0.05, self.request)
                trajectory = self.follower.follow(chunk, self.now)
                if trajectory is not None:
                    self.sent.append(trajectory)
            self.follower.step(self.now)
            velocity = self.twist.tick(self.now)
            self.velocities.append(np.zeros(6) if velocity is None else velocity)


@pytest.mark.parametrize("joints", [("gripper",), ()], ids=["gripper", "none"])
def test_the_hand_moves_by_chunks_and_stops_when_they_cease(joints):
    robot = Robot(joints)
    robot.run(1.0, speed=0.3)
    assert robot.follower.safety.state is MotionState.RUNNING
    assert robot.velocities[-1][0] == pytest.approx(0.3)
    assert robot.follower.stats(robot.now).runs > 0
    if joints:
        assert robot.sent and robot.sent[-1].positions[-1] == pytest.approx(0.8)
    robot.run(0.7)
    assert robot.follower.safety.state is MotionState.HOLDING
    assert not robot.velocities[-1].any()
    robot.run(1.0, speed=-0.2)
    assert robot.velocities[-1][0] == pytest.approx(-0.2)


def test_a_hold_stops_the_hand_within_its_ramp_and_it_counts_as_holding_only_then():
    robot = Robot(())
    robot.run(1.0, speed=0.5)
    robot.follower.safety.hold()
    robot.run(0.1, speed=0.5)
    assert robot.follower.safety.state is MotionState.STOPPING and robot.velocities[-1][0] > 0.05
    robot.run(0.2, speed=0.5)
    assert robot.follower.safety.state is MotionState.HOLDING and not robot.velocities[-1].any()


def test_chunks_from_before_it_was_in_other_hands_are_void():
    robot = Robot(("gripper",))
    robot.run(1.0, speed=0.3)
    robot.follower.begin_anew(robot.now + S)
    robot.run(0.5, speed=0.3)
    assert not robot.velocities[-1].any() and robot.follower.counts["before_leap"] > 0


@pytest.mark.parametrize("joints", [("gripper",), ()], ids=["gripper", "none"])
@pytest.mark.parametrize("shape", [(10,), (1, 10, 7), (10, 3), (0, 7), (10, 0)])
def test_a_chunk_of_another_shape_is_refused(joints, shape):
    robot = Robot(joints)
    chunk = replace(make_chunk(np.zeros((10, 7)), robot.now), actions=np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="shape"):
        robot.follower.follow(chunk, robot.now)
