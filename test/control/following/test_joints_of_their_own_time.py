"""Joints of drivers at different rates: each is judged at the time at which it was measured."""

from __future__ import annotations

import numpy as np
from follower_robot import MS, Robot, S

from vla_accel_ros.control.following.joint_faults import FollowingError
from vla_accel_ros.control.following.watchdog import MotionState


class SlowGripper(Robot):
    """Joint a is measured at 100 Hz, joint b at 4 Hz; both may be 0.15 rad off for 30 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.placed = None
        self.follower._following = FollowingError(*np.array([[0.15, 0.15], [0.03, 0.03]]))
        self._slow_ns, self._slow = self.now, 0.0

    def tick(self) -> None:
        self.silent = True
        super().tick()
        if self.now - self._slow_ns >= 250 * MS:
            self._slow_ns, self._slow = self.now, float(self.position()[1])
        stamps = np.array([self.now, self._slow_ns])
        position = np.array([self.position()[0], self._slow])
        oldest_ns = int(stamps.min())
        self.follower.measured(position, oldest_ns, self.now, stamps)

    def position(self) -> np.ndarray:
        return self.controller.desired(self.now).position + self.sag


def test_joints_follow_by_their_own_stamps_though_one_is_older():
    robot = SlowGripper()
    for goal in (1.8, -1.8, 1.8):
        robot.run(2.0, goal=goal)
    assert not robot.follower.faults and robot.states == [MotionState.RUNNING]
    assert np.abs(np.diff(robot.executed, axis=0)).max() * 500 > 2.5, "it never was fast"


def test_a_leap_of_the_fast_joint_is_seen_at_its_own_rate():
    robot = SlowGripper()
    robot.run(2.0, goal=1.0)
    robot.run(0.26 - (robot.now - robot._slow_ns) / S, goal=1.0)  # the slow one has just come
    robot.sag = np.array([-0.9, 0.0])
    robot.run(0.05, goal=1.0)
    assert any(fault.startswith("a jumped by -0.") for fault in robot.follower.faults)
