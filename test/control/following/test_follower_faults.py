"""Measured joints that cannot be true, or do not follow: it brakes along the commanded path, and is held."""

from __future__ import annotations

import re

import numpy as np
import pytest
from follower_robot import HOME, JOINTS, MS, Robot, S

from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.control.orders.moves import move

FAULTY = [MotionState.STOPPING, MotionState.HOLDING]


def shift(robot: Robot, by: float, seconds: float, goal: float = 1.5) -> None:
    """The first joint is told `by` rad away from where it is, for a while; chunks keep coming."""
    robot.sag = np.array([by, 0.0])
    robot.run(seconds, goal)
    robot.sag = np.zeros(2)


@pytest.mark.parametrize("joint_hz", [100, 500])
def test_a_glitch_of_a_joint_brakes_it_along_the_commanded_path_and_it_is_held(joint_hz):
    robot = Robot()
    robot.joint_hz = joint_hz
    robot.go()
    position = robot.reference()[0]
    shift(robot, 0.4, 0.1)
    robot.run(1.0, goal=1.5)
    assert robot.states[-2:] == FAULTY
    (reason,) = robot.follower.safety.reasons
    assert re.match(r"a jumped by \+0.4\d rad: look at its encoder or driver; ~/resume goes on", reason)
    assert robot.follower.counts["leaps"] == 1
    assert 0.0 < robot.reference()[0][0] - position[0] < 0.5, (
        "along the path, not where the joint seemed to be"
    )
    robot.assert_within_limits()


def test_after_a_glitch_only_resume_goes_on_and_smoothly():
    robot = Robot().go()
    shift(robot, 0.4, 0.1)
    robot.run(5.0, goal=1.5)
    assert robot.states[-1] is MotionState.HOLDING
    count = len(robot.sent)
    robot.follower.resume()
    robot.run(1.5, goal=0.0)
    assert robot.states[-1] is MotionState.RUNNING and len(robot.sent) > count
    robot.assert_within_limits()


def test_a_joint_that_stays_where_it_jumped_to_is_joined_there_from_wherever_its_controller_holds():
    robot = Robot().go()
    robot.sag = np.array([-0.6, 0.0])
    robot.run(1.0, goal=1.5)
    position = robot.measured().copy()
    assert robot.states[-1] is MotionState.HOLDING
    robot.placed = position
    robot.follower.resume()
    np.testing.assert_allclose(robot.goes_on_from(), position, atol=1e-9)
    robot.assert_within_limits()


def test_joints_that_do_not_stand_are_not_joined():
    robot = Robot().go()
    shift(robot, 0.5, 0.1)
    robot.run(1.0, goal=1.5)
    count = len(robot.sent)
    position = robot.measured().copy()
    for k in range(100):
        if k == 20:
            robot.follower.resume()
        robot.placed = position + np.array([0.1 * (k // 10 % 2), 0.0])
        robot.run(0.01, goal=1.5)
    assert len(robot.sent) == count
    assert "the joints are moving, but not by this node" in robot.follower.safety.reasons


@pytest.mark.parametrize("joint_hz", [100, 500])
def test_a_glitch_shorter_than_20_ms_is_counted_and_changes_nothing_and_its_chunks_are_void(joint_hz):
    robot = Robot()
    robot.joint_hz = joint_hz
    robot.go()
    path = robot.reference()
    shift(robot, 0.4, 0.01)
    stamp = robot.now
    robot.run(0.05)
    assert robot.follower.counts["leaps"] == 0 and robot.follower.counts["glitches"] == 1
    count = len(robot.sent)
    robot.send(-1.0, stamp)
    assert len(robot.sent) == count and robot.follower.counts["before_leap"] == 1
    robot.run(0.5, goal=1.5)
    assert robot.states == [MotionState.RUNNING] and path is not None
    robot.assert_within_limits()


@pytest.mark.parametrize("lasts", [True, False])
def test_a_chunk_that_waited_when_a_joint_jumped_is_void(lasts):
    robot = Robot().go()
    robot.follower.awaits_arrival = True
    robot.send(-1.0, robot.now)
    robot.sag = np.array([0.4, 0.0])
    robot.tick()
    if not lasts:
        robot.sag = np.zeros(2)
        robot.tick()
    count, robot.follower.awaits_arrival = len(robot.sent), False
    robot.deliver(robot.follower.step(robot.now)[1])
    assert len(robot.sent) == count and robot.states == [MotionState.RUNNING]


def test_no_chunk_is_followed_while_a_leap_lasts():
    robot = Robot().go()
    robot.sag = np.array([0.5, 0.0])
    robot.tick()
    count = len(robot.sent)
    robot.send(-1.0, robot.now - 20 * MS)
    assert len(robot.sent) == count


def test_one_wrong_joint_sample_that_is_told_again_and_again_changes_nothing():
    robot = Robot().go(goal=0.3)
    commanded, _ = robot.reference()
    wrong = robot.measured() + 1.0
    robot.now += 10 * MS
    for _ in range(10):  # other joints of the same topic come, and ours are what they were
        assert not robot.follower.measured(wrong, robot.now, robot.now)
    robot.run(0.1)
    assert robot.follower.counts["leaps"] == 0
    np.testing.assert_allclose(robot.reference()[0], commanded, atol=0.1)


@pytest.mark.parametrize("begins", [1, 2])
def test_joints_that_froze_while_controllers_were_told_to_go_elsewhere_are_joined_from_there(begins):
    robot = Robot()
    robot.run(0.5, goal=0.0)
    last = move(JOINTS, HOME, np.array([1.5, 0.0]), robot.limits, 1.0, robot.now)
    robot.follower.begin_anew(robot.now)
    robot.follower.joining.begin_after(last)
    robot.deliver(last)
    if begins == 2:
        robot.run(2.0)
        robot.follower.begin_anew(robot.now)
    robot.run(6.0, goal=0.0)
    assert robot.states[-1] is MotionState.RUNNING
    assert max(p[0] for p in robot.executed) > 1.49 and abs(robot.executed[-1][0]) < 0.01
    robot.assert_within_limits()


def test_a_reset_that_is_announced_begins_anew_from_where_the_joints_are():
    robot = Robot().go()
    robot.follower.begin_anew(robot.now)
    robot.run(0.02, goal=0.5)
    robot.placed = np.array([-1.2, 0.8])  # a simulator's arm, within a moment of the word
    robot.controller.start(robot.placed, robot.now)
    executed = len(robot.executed)
    np.testing.assert_allclose(robot.goes_on_from(), robot.placed)
    assert robot.follower.counts["leaps"] == 0 and not robot.follower.faults
    robot.executed = robot.executed[executed:]
    robot.assert_within_limits()


def test_joints_that_do_not_follow_stop_it_before_the_path_has_run_away():
    """A drive that is off, or joint states that are frozen but freshly stamped."""
    robot = Robot().go()
    robot.placed = robot.measured().copy()
    robot.run(2.0, goal=1.9)
    assert robot.states[-2:] == FAULTY
    (reason,) = robot.follower.safety.reasons
    assert reason.startswith("a does not follow: commanded ") and "is its drive on" in reason
    commanded = robot.reference()[0]
    assert 0.45 < commanded[0] - robot.placed[0] < 0.45 + 3.0 * 0.2 + 0.3
    robot.run(5.0, goal=1.9)
    assert robot.states[-1] is MotionState.HOLDING
    robot.assert_within_limits()


@pytest.mark.parametrize("setpoint", ["kept", "measured"])
def test_a_drive_that_is_on_again_goes_on_from_where_it_stands(setpoint):
    robot = Robot().go()
    robot.placed = robot.measured().copy()
    robot.run(2.0, goal=1.9)
    if setpoint == "measured":
        robot.controller.start(robot.placed, robot.now)
        robot.executed = robot.executed[-1:] and [robot.placed]
    robot.follower.resume()
    position = robot.placed.copy()
    np.testing.assert_allclose(robot.goes_on_from()[0], position[0], atol=1e-9)
    robot.assert_within_limits()


def test_a_gripper_that_is_held_back_is_no_following_error():
    robot = Robot().go()
    for share in np.linspace(0.0, 1.0, 60):
        robot.sag = np.array([0.0, -1.2]) * share
        robot.run(0.01, goal=1.5)
    robot.run(1.0, goal=1.5)
    assert robot.states == [MotionState.RUNNING]


def test_an_arm_that_is_moved_by_hand_while_it_is_held_is_no_fault():
    robot = Robot().go()
    robot.follower.safety.hold()
    robot.run(1.0)
    position = robot.measured().copy()
    for share in np.linspace(0.0, 1.0, 60):
        robot.placed = position - np.array([1.0, 0.3]) * share
        robot.run(0.01, goal=1.0)
    robot.follower.safety.resume()
    position = robot.placed.copy()
    np.testing.assert_allclose(robot.goes_on_from(), position, atol=1e-9)
    assert not robot.follower.counts["leaps"] and not robot.follower.counts["following_errors"]
    robot.assert_within_limits()


def test_a_hold_during_the_join_lets_it_end():
    robot = Robot()
    robot.controller.start(np.array([0.3, -0.3]), robot.now)  # the setpoint is elsewhere
    robot.run(0.4, goal=0.5)
    assert len(robot.sent) == 1
    robot.follower.safety.hold()
    robot.deliver(robot.follower.stop(robot.now))
    robot.run(1.0, goal=0.5)
    assert len(robot.sent) == 1 and robot.placed is not None
    np.testing.assert_allclose(robot.executed[-1], robot.placed, atol=1e-9)
    robot.assert_within_limits()


def test_a_clock_that_jumps_during_the_join_does_not_break_it():
    robot = Robot()
    robot.controller.start(np.array([0.3, -0.3]), robot.now)
    robot.run(0.4, goal=0.5)
    stop = robot.follower.stop_in_new_time(robot.now + 100 * S)
    assert stop is not None and len(stop) == 1
    np.testing.assert_array_equal(stop.positions[0], robot.placed)
