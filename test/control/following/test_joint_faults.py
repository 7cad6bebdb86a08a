"""A joint that is not where it is commanded to be, on either side, or that stands still while it is commanded
to move, is named once that has lasted; each is judged at the time at which it was measured."""

from __future__ import annotations

import numpy as np
import pytest
from follower_robot import MS, Robot, S

from vla_accel_ros.control.following.joint_faults import FollowingError
from vla_accel_ros.control.following.watchdog import MotionState


@pytest.mark.parametrize("off", [0.3, -0.3], ids=["behind", "ahead"])
def test_a_joint_on_either_side_of_its_command_is_named(off: float) -> None:
    error = FollowingError(rad=np.array([0.1, 0.2]), s=np.array([0.5, 0.25]))
    commanded = np.array([1.0, -2.0])
    measured = commanded - np.array([0.0, off])
    assert [error.take(commanded, measured, stamp * MS) for stamp in (0, 100, 249, 250)] == [
        None,
        None,
        None,
        1,
    ]


@pytest.mark.parametrize("off", [0.2, -0.2])
def test_within_its_distance_or_for_a_moment_is_borne(off: float) -> None:
    error = FollowingError(rad=np.array([0.2]), s=np.array([0.1]))
    origin, beyond, within = np.zeros(1), np.array([1.5 * off]), np.array([0.99 * off])
    for stamp, measured in enumerate((within, beyond, within, beyond, within)):
        assert error.take(origin, measured, stamp * 99 * MS) is None


def test_a_joint_that_stands_still_while_its_command_goes_to_and_fro_is_named() -> None:
    error = FollowingError(rad=np.array([0.45, 0.45]), s=np.array([0.2, 0.2]))
    for stamp in range(0, 3000, 10):
        swing = 0.3 * np.sin(2e-3 * np.pi * stamp)
        joint = error.take(np.array([swing, swing]), np.array([swing, 0.0]), stamp * MS)
        if joint is not None:
            break
    assert joint == 1 and 750 < stamp < 1250, "within a swing it was commanded over 0.6 rad"
    words = error.sentence(1, "elbow", swing, 0.0)
    assert "elbow does not follow" in words and "-0.30" in words and "0.30" in words


def test_a_joint_that_stands_while_it_is_pressed_against_something_is_borne() -> None:
    error = FollowingError(rad=np.array([0.45]), s=np.array([0.2]))
    for stamp in range(0, 10_000, 10):
        pressed = np.array([0.2 + 0.2 * np.sin(2e-3 * np.pi * stamp)])
        assert error.take(pressed, np.zeros(1), stamp * MS) is None


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
