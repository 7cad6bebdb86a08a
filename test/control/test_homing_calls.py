"""A call of ~/home that never moves the robot: held, released, replaced or late before it stands, and joints
that it cannot begin from. Time is given."""

from __future__ import annotations

import numpy as np
import pytest
from home_robot import KINDS, Robot, assert_stays, assert_works

from vla_accel_ros.control.following.joining import MOVING
from vla_accel_ros.control.following.watchdog import HOMING, OPERATOR, MotionState
from vla_accel_ros.control.homing import NOT_AT_HOME
from vla_accel_ros.control.robot import SETTLE_S


@pytest.fixture(params=KINDS)
def robot(request) -> Robot:
    return Robot(request.param)


@pytest.fixture
def waiting(robot) -> Robot:
    """In fast motion by chunks, ~/home was just called."""
    robot.moves()
    robot.call("home")
    robot.run(0.02)
    assert robot.state is MotionState.STOPPING
    return robot


def test_a_call_that_waits_for_the_stand_and_is_held_never_moves(waiting):
    waiting.hold()
    assert_stays(waiting)
    assert waiting.answers["home"][1] == OPERATOR
    assert_works(waiting)


def test_a_call_that_waits_for_the_stand_and_is_released_never_moves(waiting):
    waiting.call("release")
    assert_stays(waiting)
    assert waiting.answers["release"][0]
    waiting.call("reclaim")
    assert waiting.answers["reclaim"][1] == f"ours, and held: {NOT_AT_HOME}"
    assert_works(waiting)


@pytest.mark.parametrize("seconds", [-500.0, -0.3, 500.0])
def test_a_call_that_waits_for_the_stand_while_the_clock_jumps_never_moves(waiting, seconds):
    waiting.jump(seconds)
    assert_stays(waiting)
    assert waiting.answers["home"][1] == "ROS time has jumped"
    assert_works(waiting)


def test_a_second_call_while_the_first_waits_takes_its_place(waiting):
    waiting.call("home again")
    waiting.run(4.0)
    assert waiting.answers["home"][1] == "replaced by another move"
    assert waiting.answers["home again"][0] and HOMING not in waiting.holds.holds
    waiting.assert_smooth()


def test_two_calls_that_wait_are_both_void_when_it_is_held(waiting):
    waiting.call("home again")
    waiting.hold()
    assert_stays(waiting)
    assert not waiting.answers["home again"][0] and HOMING not in waiting.holds.holds


def test_a_call_that_waits_for_the_stand_answers_when_the_node_is_deactivated(waiting):
    waiting.deactivate()
    assert "not active" in waiting.answers["home"][1] and HOMING not in waiting.holds.holds


def test_it_does_not_go_home_from_where_the_joints_were_long_ago(robot):
    robot.moves()
    robot.silent = True
    robot.run(1.5, goal=1.8)
    position = robot.path[-1]
    robot.call("home")
    answer = robot.answers["home"]
    assert not answer[0] and answer[1].startswith("joint_states is ")
    assert answer[1].endswith(": look at its driver")
    robot.run(0.5)
    np.testing.assert_array_equal(robot.path[-1], position)
    assert HOMING not in robot.holds.holds


def test_joints_that_fall_silent_before_the_stand_are_late_for_home():
    robot = Robot("joint_trajectory")
    robot.moves()
    robot.silent = True
    robot.run(0.25, goal=1.8)
    robot.call("home")
    robot.run(SETTLE_S + 0.5)
    assert robot.answers["home"][1].endswith(": look at its driver")
    robot.silent = False
    assert_works(robot)


def test_from_where_no_joint_can_be_it_does_not_go_home(robot):
    robot.moves()
    robot.run(1.5)
    robot.sag = np.array([0.0, 1e12])
    robot.run(0.3)
    robot.call("home")
    assert robot.answers["home"][1].startswith("b is measured far outside its range of -2 to 2")


def test_a_call_that_never_moved_leaves_the_setpoint_where_chunks_left_it():
    robot = Robot("joint_trajectory")
    robot.goes_home()
    robot.run(3.0)
    robot.resume()
    robot.run(2.0, goal=1.5)
    robot.call("home again")
    robot.hold()
    robot.run(0.8)
    assert robot.answers["home"][0] and robot.answers["home again"][1] == OPERATOR
    np.testing.assert_allclose(robot.robot.follower.joining.setpoint, robot.path[-1], atol=1e-9)


def test_joints_that_contradict_themselves_are_not_moved_home(robot):
    """Two publishers tell of one robot in turn."""
    robot.run(0.5)
    for _ in range(20):
        robot.sag = 0.4 - robot.sag
        robot.run(0.01)
    robot.call("home")
    stood = robot.path[-1]
    for _ in range(300):
        robot.sag = 0.4 - robot.sag
        robot.run(0.01)
    assert not robot.answers["home"][0]
    assert "a is measured at two places" in robot.answers["home"][1]
    np.testing.assert_array_equal(robot.position, stood)


def test_joints_that_others_still_move_are_not_moved_home(robot):
    robot.run(0.5)
    for tick in range(400):
        if tick == 20:
            robot.call("home")
        robot.sag = robot.sag + 0.005
        robot.run(0.01)
    assert not robot.answers["home"][0]
    assert MOVING in robot.answers["home"][1]
    np.testing.assert_array_equal(robot.position, np.zeros(2))
