"""What a follower does when the clock is set, and with joints of the future. Time is given."""

from __future__ import annotations

import numpy as np
import pytest
from follower_robot import HOME, MS, Robot, S

from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.control.limits.joint_limits import JointLimits, brake_on_arrival
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint


def test_after_the_clock_went_back_it_starts_over_from_the_joints():
    robot = Robot().go(goal=0.3)
    robot.now -= 500 * S
    robot.follower.forget()
    assert robot.follower.stop(robot.now) is None
    count = len(robot.sent)
    robot.run(1.5, goal=0.3)
    assert robot.follower.safety.state is MotionState.RUNNING and len(robot.sent) > count


@pytest.mark.parametrize("ahead_s", [0.25, 50.0])
def test_joints_of_the_time_before_the_clock_went_back_do_not_delay_the_beginning(ahead_s):
    """They were on their way then. Within the limit of age a stamp is believed, and counts until then."""
    robot = Robot()
    for late_ms in (0, 10, 20):
        robot.follower.measured(HOME, robot.now + round(ahead_s * S) + late_ms * MS, robot.now)
    robot.placed = HOME + 0.01
    robot.run(1.4, goal=0.3)
    assert robot.states == [MotionState.RUNNING]
    np.testing.assert_allclose(robot.sent[0].positions[0], robot.placed)


def test_joints_of_the_future_change_nothing():
    robot = Robot().go()
    for late_ms in range(9):
        ahead = robot.now + 50 * S + late_ms * MS
        assert not robot.follower.measured(robot.measured() + 1.0, ahead, robot.now)
    robot.run(0.3, goal=1.5)
    assert robot.states == [MotionState.RUNNING] and not robot.follower.counts["leaps"]


def test_joints_that_are_always_of_the_future_are_said_to_be():
    robot = Robot()
    for _ in range(50):
        robot.now += 10 * MS
        robot.follower.measured(HOME, robot.now + S, robot.now)
        robot.follower.step(robot.now)
    assert any("joint_states is stamped 1.00 s in the future" in r for r in robot.follower.safety.reasons)


@pytest.mark.parametrize("jump_s", [-500.0, -0.3, 100.0])
def test_after_the_clock_has_jumped_it_brakes_in_the_new_time_what_was_commanded_in_the_old(jump_s):
    robot = Robot().go()
    now = robot.now + round(jump_s * S)
    on_the_way = [robot.reference(late_ms / 1000) for late_ms in (0, 20, 59)]
    assert np.abs(on_the_way[0][1]).max() > 0.3
    stop = robot.follower.stop_in_new_time(now)
    assert stop is not None and len(stop) == 1 and not stop.velocities.any() and stop.end_ns - now < 0.5 * S
    for position, velocity in on_the_way:  # it comes to the controller so late
        state = TrajectoryPoint(now, position, velocity)
        path = np.array([stop.sample(now + ms * MS, state)[0] for ms in range(0, 600, 2)])
        v = np.diff(path, axis=0) * 500
        assert np.abs(v).max() <= 3.0 and np.abs(np.diff(v, axis=0)).max() * 500 <= 20.0 * 1.001


def test_a_stop_on_a_path_that_turns_just_then_is_within_limits_wherever_it_is_heard_of():
    """At rest at the time of the stop, and again when it comes at the latest; in between it moves."""
    times, rests = np.array([0, 150, 225]) * MS, np.zeros((3, 2))
    positions, velocities = rests + [[0.1], [0.1], [0.15625]], rests + [[-1.5], [1.5], [0.0]]
    path = Trajectory(("a", "b"), times, positions, velocities)
    limits = JointLimits(*(np.full(2, value) for value in (-1.0, 1.0, 3.0, 20.0)))
    was_ns, late_ms = 75 * MS, 200
    assert not path.sample(was_ns)[1].any() and not path.sample(was_ns + late_ms * MS)[1].any()
    stop = brake_on_arrival(path.joints, path.sample, was_ns, was_ns, late_ms / 1000, limits)
    for lag_ms in range(0, late_ms + 1, 5):
        state = TrajectoryPoint(was_ns, *path.sample(was_ns + lag_ms * MS))
        way = np.array([stop.sample(was_ns + ms * MS, state)[0] for ms in range(0, 1000, 2)])
        v = np.diff(way, axis=0) * 500
        assert np.abs(v).max() <= 3.0 and np.abs(np.diff(v, axis=0)).max() * 500 <= 20.0 * 1.001


def test_a_robot_at_rest_is_sent_no_stop_when_the_clock_jumps():
    robot = Robot()
    assert robot.follower.stop_in_new_time(robot.now - 500 * S) is None
    robot.go()
    robot.run(4.0)
    assert robot.states[-1] is MotionState.HOLDING
    assert robot.follower.stop_in_new_time(robot.now - 500 * S) is None
