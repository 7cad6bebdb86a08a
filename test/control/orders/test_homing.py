"""A move of ~/home: what ends it, and calls of it that never move the robot. The robot is moved by hand, in
simulated time."""

from __future__ import annotations

import numpy as np
import pytest
from home_robot import ACCELERATION, HOME, KINDS, SPEED, Robot, assert_stays, assert_works

from vla_accel_ros.control.following.joining import MOVING
from vla_accel_ros.control.following.watchdog import HOMING, OPERATOR, MotionState
from vla_accel_ros.control.orders.homing import NOT_AT_HOME
from vla_accel_ros.control.robot import SETTLE_S


@pytest.fixture(params=KINDS)
def robot(request) -> Robot:
    return Robot(request.param)


def stands_with(robot: Robot, sag: float) -> float:
    """Where it is commanded to stand, high up; its joints are measured elsewhere."""
    robot.sag = np.full(2, sag)
    robot.run(0.3)
    robot.run(3.0, goal=1.9)
    robot.run(1.5)
    assert robot.state is MotionState.HOLDING and robot.speed == 0.0
    return float(robot.path[-1].min())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("goal", [5.0, -8.0])
def test_joints_that_turn_without_end_go_home_by_less_than_half_a_turn(kind, goal):
    robot = Robot(kind, turns=True)
    robot.run(0.3)
    for _ in range(60):
        robot.run(0.1, goal=goal)
    robot.run(2.0)
    assert robot.path[-1] == pytest.approx(np.full(2, goal), abs=0.05)
    robot.call("home")
    robot.run(5.0)
    assert robot.answers["home"][0], robot.answers["home"][1]
    ends = robot.path[-1]
    np.testing.assert_allclose(np.exp(1j * ends), np.exp(1j * HOME), atol=1e-3)
    assert np.abs(ends - goal).max() <= np.pi
    robot.assert_smooth()


def test_it_begins_within_the_range_though_joints_are_measured_beyond_it():
    robot = Robot("joint_trajectory")
    stands_with(robot, 0.18)
    assert (robot.position + robot.sag > 2.0).all()
    robot.call("home")
    robot.run(5.0)
    assert np.max(robot.path) <= 2.0 + 1e-9
    np.testing.assert_allclose(robot.path[-1], HOME, atol=1e-6)
    robot.assert_smooth()


def test_joints_that_stand_beyond_their_range_are_led_into_it_within_limits(robot):
    robot.stands_at(3.5)
    robot.call("home")
    robot.run(6.0)
    assert robot.answers["home"][0]
    np.testing.assert_allclose(robot.path[-1], HOME, atol=1e-6)
    robot.assert_smooth()


def test_a_move_whose_joints_do_not_follow_stops_and_says_which(robot):
    robot.goes_home()
    robot.off = True
    fast_at = robot.path[-1]
    assert_stays(robot)
    assert "a does not follow: commanded" in robot.answers["home"][1]
    # 0.15 s of full speed may be between them, for 0.2 s, and then it brakes, 0.06 s after that is decided.
    reach = SPEED * (0.15 + 0.2 + 0.06 + 0.03) + SPEED**2 / ACCELERATION / 2
    assert np.abs(robot.path[-1] - fast_at).max() < reach
    robot.off = False  # where it is commanded to be is where it is
    assert_works(robot)


def test_a_move_in_motion_is_held_within_limits(robot):
    robot.goes_home()
    robot.hold()
    assert "home" not in robot.answers
    assert_stays(robot)
    assert OPERATOR in robot.answers["home"][1]
    assert_works(robot)


def test_a_move_in_motion_is_released_when_it_stands(robot):
    robot.goes_home()
    robot.call("release")
    while robot.speed > ACCELERATION * 0.02:
        assert not robot.answers
        robot.run(0.01)
    assert_stays(robot)
    assert robot.answers["release"][0]


@pytest.mark.parametrize("silent", [False, True])
def test_a_move_by_an_action_is_released_when_the_joints_stand_or_long_after_they_were_heard(silent):
    robot = Robot("joint_trajectory", by_action=True)
    robot.goes_home()
    robot.silent = silent
    robot.call("release")
    while robot.speed > ACCELERATION * 0.01:
        robot.run(0.01)
        assert "release" not in robot.answers
    robot.run(SETTLE_S if silent else 0.5)
    assert robot.answers["release"][0]
    assert_stays(robot)


def test_a_move_by_an_action_ends_at_home():
    robot = Robot("joint_trajectory", by_action=True)
    robot.moves()
    assert_works(robot)


def test_a_move_that_replaces_another_begins_when_it_stands(robot):
    robot.goes_home()
    robot.call("home again")
    robot.run(1.2, goal=1.8)  # chunks come all the time
    assert list(robot.holds.holds) == [NOT_AT_HOME, HOMING] and robot.speed > 1.0
    robot.run(4.0)
    assert "replaced by another move" in robot.answers["home"][1]
    assert robot.answers["home again"][0]
    np.testing.assert_allclose(robot.path[-1], HOME, atol=1e-6)
    robot.assert_smooth()


def test_a_move_in_motion_whose_joints_fall_silent_stops_within_limits(robot):
    robot.goes_home()
    robot.silent = True
    assert_stays(robot)
    assert "stopped, because joint_states is" in robot.answers["home"][1]


def test_of_a_move_a_controller_has_no_more_than_the_age_of_a_chunk_and_a_brake():
    robot = Robot("joint_trajectory")
    robot.goes_home()
    robot.stall(0.85 + SPEED / ACCELERATION)
    assert robot.speed == 0.0 and np.abs(robot.path[-1] - HOME).min() > 0.1
    robot.run(0.1)
    assert_stays(robot)
    assert robot.answers["home"][1].endswith("stopped, because this node was not scheduled for too long")
    assert_works(robot)


@pytest.mark.parametrize("another", [False, True], ids=["alone", "beside one that goes by its action"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seconds", [-500.0, -0.3, 500.0])
def test_a_move_in_motion_stops_within_limits_when_the_clock_jumps(kind, seconds, another):
    robot = Robot(kind, another=another)
    robot.goes_home()
    robot.jump(seconds)
    assert_stays(robot)
    assert robot.answers["home"][1].endswith("ROS time has jumped")
    assert_works(robot)


@pytest.mark.parametrize("seconds", [-500.0, -0.3, 500.0])
def test_a_clock_that_is_set_while_a_move_that_was_held_brakes(robot, seconds):
    robot.goes_home()
    robot.hold()
    robot.run(0.02)
    assert robot.speed > 1.0
    robot.jump(seconds)
    assert_stays(robot)
    assert_works(robot)


@pytest.mark.parametrize("seconds", [-500.0, 500.0])
def test_a_clock_that_is_set_while_a_move_by_an_action_lasts_does_not_keep_it_from_going_on(seconds):
    robot = Robot("joint_trajectory", by_action=True)
    robot.goes_home()
    robot.jump(seconds)
    robot.run(SETTLE_S + 1.0)
    assert not robot.answers["home"][0]
    robot.resume()
    robot.run(2.5, goal=0.5)  # the join first, which allows for a controller that has come home
    assert robot.state is MotionState.RUNNING


def test_a_slow_move_by_an_action_that_was_held_is_not_waited_for():
    robot = Robot("joint_trajectory", by_action=True, speed=0.1)
    robot.moves()
    robot.run(1.5)
    robot.call("home")
    robot.run(1.0)
    robot.hold()
    robot.run(SETTLE_S)
    assert robot.answers["home"][1].endswith(OPERATOR)
    robot.resume()
    robot.run(2.5, goal=0.5)
    assert robot.state is MotionState.RUNNING


@pytest.mark.parametrize("name", ["home again", "release"])
def test_deactivated_while_it_brakes_all_calls_answer(robot, name):
    robot.goes_home()
    robot.call(name)
    robot.run(0.02)
    assert not robot.answers
    robot.deactivate()
    assert "not active" in robot.answers[name][1] and not robot.answers["home"][0]
    assert list(robot.holds.holds) == [NOT_AT_HOME]


def test_brakes_that_a_clock_was_set_back_behind_do_not_last_for_ever(robot):
    robot.goes_home()
    robot.hold()
    robot.run(0.02)
    robot.deactivate()
    robot.activate(later_s=-500.0)
    assert_works(robot)


def test_a_node_that_was_deactivated_as_it_came_to_rest_does_not_stand():
    robot = Robot("forward_command")
    robot.moves()
    robot.call("release")
    robot.run(0.01)
    robot.deactivate()
    assert not robot.answers["release"][0] and not robot.holds.holds


@pytest.mark.parametrize("stalls_s", [0.04, 0.6])
def test_a_stream_that_is_behind_its_path_is_released_when_it_stands(stalls_s):
    robot = Robot("forward_command")
    robot.moves()
    robot.stall(stalls_s)
    robot.call("release")
    begin = len(robot.path) + 1  # with its first command after that
    robot.run(1.5)
    assert robot.answers["release"][0]
    velocity = np.diff(robot.path[begin:], axis=0) * 100
    assert np.abs(velocity).max() > 1.0
    assert np.abs(np.diff(velocity, axis=0)).max() * 100 <= ACCELERATION * 1.05


@pytest.mark.parametrize("by_action", [False, True])
def test_a_fault_ends_a_move_within_limits(by_action):
    robot = Robot("joint_trajectory", by_action=by_action)
    robot.goes_home()
    fault = "another publisher of commands has appeared on arm/joint_trajectory: /stranger; end it"
    robot.holds.fault(fault)
    assert_stays(robot)
    assert f"stopped, because {fault}" in robot.answers["home"][1]


def test_a_move_does_not_go_on_after_the_joints_were_put_elsewhere(robot):
    robot.goes_home()
    robot.reset()
    robot.run(4.0)
    assert "the joints were put elsewhere" in robot.answers["home"][1]
    robot.assert_smooth()


def test_a_robot_in_motion_brakes_before_it_begins_anew(robot):
    """A stream of positions that ends at full speed stops the joints in one period of their controller."""
    robot.moves()
    moved = robot.speed
    robot.reset()
    assert "reset" not in robot.answers
    robot.run(0.5, goal=1.8)
    assert robot.answers["reset"][0] and moved > 1.5
    robot.run(1.0, goal=-1.8)
    assert robot.state is MotionState.RUNNING and robot.position[0] < 0.0
    robot.assert_smooth()


def test_joints_that_are_put_elsewhere_while_it_brakes_are_no_fault():
    robot = Robot("joint_trajectory")
    robot.moves()
    robot.reset()
    robot.sag = np.full(2, -1.0)
    robot.run(1.0)
    assert robot.answers["reset"][0] and not robot.holds.holds


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
