"""What goes out for each chunk, when the arm stops, and where it goes on from. Time is given."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from follower_robot import HOME, MS, Robot, S

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.following.joining import JOINING, MOVING, WAITING, Joining
from vla_accel_ros.control.following.watchdog import MotionState, Safety, Watchdog
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.types import Chunk


def test_nothing_is_sent_until_everything_is_fresh_and_no_chunk_before_it_runs():
    robot = Robot()
    robot.run(1.0)
    assert robot.states == [] and robot.sent == []
    robot.run(0.4, goal=1.0)
    assert robot.states == [] and len(robot.sent) == 1, "it goes to where the joints are"
    np.testing.assert_array_equal(robot.sent[0].positions, [HOME])
    robot.run(0.3, goal=1.0)
    assert robot.states == [MotionState.RUNNING] and len(robot.sent) > 1


def test_without_chunks_it_stops_once_smoothly_within_the_age_limit_and_then_says_nothing():
    robot = Robot().go()
    assert np.abs(robot.reference()[1]).max() > 0.3
    last_stamp, count = robot.now - 100 * MS - 50 * MS + 10 * MS, len(robot.sent)
    robot.run(2.0)
    assert robot.states == [MotionState.RUNNING, MotionState.STOPPING, MotionState.HOLDING]
    (stop,) = robot.sent[count:]
    assert stop.start_ns - last_stamp <= 500 * MS + 20 * MS
    v = np.diff(stop.sample(np.arange(stop.start_ns, stop.end_ns, MS))[0], axis=0) * 1000
    assert np.abs(np.diff(v, axis=0)).max() * 1000 <= 20.0 * 1.01
    assert stop.velocities is not None and not stop.velocities[-1].any()


@pytest.mark.parametrize("moves", [True, False])
def test_a_slow_joint_that_moves_does_not_stand_still_however_wide_its_range_is(moves):
    limits = JointLimits(*np.array([[-9.0], [9.0], [0.4], [2.0]]))
    joining = Joining(TrajectoryBuffer(("a",), limits), Safety(Watchdog({})), Counter())
    for now_ns in range(S, 2 * S, 10 * MS):
        joining.stamp_ns = now_ns
        joining.came(np.array([0.3 * moves * now_ns / S]), now_ns, now_ns)
    assert joining.at_rest != moves


def test_it_goes_on_from_what_was_commanded_when_chunks_come_back():
    robot = Robot().go()
    robot.run(2.0)
    position, _ = robot.reference()
    robot.sag = np.full(2, -0.05)
    count = len(robot.sent)
    robot.run(0.5, goal=0.0)
    assert robot.states[-1] is MotionState.RUNNING
    first = robot.sent[count]
    np.testing.assert_allclose(first.sample(first.start_ns)[0], position, atol=1e-9)


def test_it_goes_on_from_where_the_robot_is_when_it_was_moved_while_held():
    robot = Robot().go()
    robot.run(2.0)
    position, _ = robot.reference()
    for share in np.linspace(0.0, 1.0, 50):  # the first joint is led away by hand
        robot.placed = position - np.array([1.2, 0.0]) * share
        robot.run(0.01)
    assert robot.follower.counts["joins"] == 1
    assert robot.placed is not None
    np.testing.assert_allclose(robot.goes_on_from(), robot.placed, atol=1e-9)
    assert robot.follower.counts["joins"] == 2
    robot.assert_within_limits()


def test_a_joint_that_never_was_where_it_is_commanded_to_be_keeps_its_command():
    robot = Robot().go()
    for share in np.linspace(0.0, 1.0, 40):  # a gripper closes around a block
        robot.sag = np.array([0.0, 0.6]) * share
        robot.run(0.01)
    robot.run(2.0)
    position, _ = robot.reference()
    count = len(robot.sent)
    robot.run(0.5, goal=0.0)
    first = robot.sent[count]
    np.testing.assert_allclose(first.sample(first.start_ns)[0], position, atol=1e-9)
    assert robot.follower.counts["joins"] == 1, "at the beginning"


def test_joints_that_fell_silent_in_motion_go_on_from_where_they_are_when_they_come_back():
    robot = Robot().go(0.5)
    last = robot.measured()
    robot.silent = True
    robot.run(1.5, goal=1.5)  # what is commanded goes on for a while
    assert robot.states[-1] is MotionState.HOLDING
    position, _ = robot.reference()
    assert position[0] - last[0] > 0.2
    robot.placed, robot.silent = last - np.array([0.02, 0.8]), False
    assert robot.placed is not None
    np.testing.assert_allclose(robot.goes_on_from(), robot.placed, atol=1e-9)


def test_joints_that_fell_silent_while_held_go_on_from_where_they_are_when_they_come_back():
    robot = Robot().go(0.5)
    robot.run(2.0)
    position, _ = robot.reference()
    assert robot.states[-1] is MotionState.HOLDING
    robot.silent = True
    robot.run(1.0)
    robot.placed, robot.silent = position - np.array([0.1, 0.8]), False
    assert robot.placed is not None
    np.testing.assert_allclose(robot.goes_on_from(), robot.placed, atol=1e-9)


def test_a_gripper_keeps_what_it_holds_when_joints_fall_silent_while_it_is_held():
    robot = Robot().go()
    for share in np.linspace(0.0, 1.0, 40):  # it closes around a block
        robot.sag = np.array([0.0, 0.6]) * share
        robot.run(0.01)
    robot.run(2.0)
    position, _ = robot.reference()
    robot.silent = True
    robot.run(0.45)
    robot.silent = False
    np.testing.assert_allclose(robot.goes_on_from(), position, atol=1e-9)


def test_a_refused_chunk_does_not_count_as_seen():
    robot = Robot().go(goal=0.3)
    newest = robot.follower.safety.watchdog.age_s("chunk", robot.now)
    wrong = Chunk(np.full((4, 2), np.nan, np.float32), robot.now, 1 / 30, 99, 99, np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="is nan at point 0"):
        robot.follower.follow(wrong, robot.now)
    assert robot.follower.safety.watchdog.age_s("chunk", robot.now) == newest


def test_the_ages_of_what_was_sent_are_told_and_old_ones_are_misses():
    robot = Robot().go(0.01)
    robot.run(2.0, goal=0.5, latency_s=0.12)
    stats = robot.follower.stats(robot.now)
    assert stats.name == "image_to_trajectory" and stats.runs == len(robot.sent) - 1
    assert stats.p50_s == pytest.approx(0.12) and 0.12 < stats.p99_s < 0.14
    assert stats.measured_hz == pytest.approx(10.0) and stats.misses == 0


def test_it_begins_when_the_joints_stand_and_goes_there_from_wherever_the_controllers_hold():
    """Of a process that was killed, the controllers still execute the last trajectory."""
    robot = Robot()
    for share in np.linspace(0.0, 1.0, 80):
        robot.placed = np.array([0.4, -0.4]) * share
        robot.run(0.01, goal=0.0)
    assert robot.states == [] and robot.sent == []
    assert robot.follower.safety.reasons == (MOVING,)
    robot.run(0.4, goal=0.0)
    assert robot.states == [] and robot.follower.safety.reasons == (JOINING,)
    robot.run(0.6, goal=0.0)
    assert robot.states == [MotionState.RUNNING]
    (join, first, *_) = robot.sent
    assert len(join) == 1 and not join.velocities.any() and robot.placed is not None
    np.testing.assert_allclose(join.positions[0], robot.placed)
    np.testing.assert_allclose(first.positions[0], robot.placed)
    robot.placed = None
    robot.run(0.5, goal=0.0)
    assert robot.states == [MotionState.RUNNING], "its own motion does not hold it"
    robot.assert_within_limits()


@pytest.mark.parametrize("away", [0.7, 1.8])
def test_controllers_that_say_where_they_are_commanded_to_be_are_joined_within_limits(away):
    """A new process knows the joints only; drives that were off left them far from where controllers hold."""
    robot = Robot()
    robot.placed = np.array([away, -away])
    robot.follower.joining.told(np.zeros(2))
    robot.run(2.5, goal=0.0)
    assert robot.follower.counts["joins"] == 1 and MotionState.RUNNING in robot.states
    robot.assert_within_limits()
    untold = Robot()
    untold.placed = robot.placed
    untold.run(2.5, goal=0.0)
    with pytest.raises(AssertionError):
        untold.assert_within_limits()


@pytest.mark.parametrize("word", [1e9, -1e300, np.inf, np.nan])
def test_controllers_that_say_what_cannot_be_do_not_keep_it_from_beginning(word):
    robot = Robot()
    robot.follower.joining.told(np.array([word, 0.0]))
    robot.run(2.5, goal=0.0)
    assert MotionState.RUNNING in robot.states
    robot.assert_within_limits()


def test_what_controllers_say_counts_until_something_is_commanded_from_here():
    robot = Robot().go()
    setpoint = robot.follower.joining.setpoint
    robot.follower.joining.told(setpoint + 1.0)
    np.testing.assert_array_equal(robot.follower.joining.setpoint, setpoint)


def test_nothing_begins_before_controllers_that_are_about_to_say_where_they_are_have():
    robot = Robot()
    robot.follower.joining.waits = True
    robot.run(1.0, goal=0.2)
    assert not robot.sent and robot.follower.safety.reasons == (WAITING,)
    robot.follower.joining.told(np.full(2, -1.0))
    robot.follower.joining.waits = False
    robot.run(0.05, goal=0.2)
    join = robot.sent[0]
    assert (join.end_ns - robot.now) * 1e-9 > 0.5, "from so far off"


def test_while_what_was_sent_has_not_arrived_the_newest_chunk_waits_and_is_followed_then():
    robot = Robot().go()
    count = len(robot.sent)
    robot.follower.awaits_arrival = True
    robot.run(0.25, goal=1.0)
    assert len(robot.sent) == count
    robot.follower.awaits_arrival = False
    robot.run(0.01)
    assert len(robot.sent) == count + 1 and robot.states[-1] is MotionState.RUNNING
    assert robot.sent[-1].positions[-1][0] == pytest.approx(1.0, abs=0.05)
    robot.follower.awaits_arrival = True
    robot.run(1.2)
    assert robot.states[-1] is MotionState.HOLDING, "a stop waits for nothing"
    robot.assert_within_limits()


def test_noise_of_the_joints_does_not_keep_it_from_beginning():
    robot = Robot()
    noise = np.random.default_rng(0).normal(0.0, 0.004, (150, 2))
    for sample in noise:
        robot.placed = sample
        robot.run(0.01, goal=0.2)
    assert MotionState.RUNNING in robot.states


@pytest.mark.parametrize("latency_s", [0.05, 0.3])
def test_it_goes_on_within_0_3_s_of_fresh_inputs(latency_s):
    """With the chunk that waits, before the next one comes."""
    robot = Robot().go()
    robot.run(2.0)
    assert robot.states[-1] is MotionState.HOLDING
    count, fresh_ns = len(robot.sent), robot.now
    robot.send(0.5, robot.now - round(latency_s * S))
    robot.run(0.19)
    assert robot.states[-1] is MotionState.RUNNING and len(robot.sent) == count + 2
    moved = robot.sent[-1]
    assert moved.start_ns - fresh_ns <= 300 * MS
    assert np.abs(moved.positions[-1] - moved.positions[0]).max() > 0.05
    robot.assert_within_limits()


def test_while_it_does_not_run_there_is_always_a_reason():
    robot = Robot()
    for goal in (None, 0.5, None, 0.2, None):
        for _ in range(120):
            robot.run(0.01, goal)
            safety = robot.follower.safety
            assert bool(safety.reasons) == (safety.state is not MotionState.RUNNING)
            assert len(safety.reasons) == len(safety.causes)


class Placed(Robot):
    """Of chunks that do not begin where its joints are measured, but at 0."""

    def send(self, goal: float, stamp_ns: int) -> None:
        self.request += 1
        ramp = np.linspace(np.zeros(2), np.full(2, goal), 33)[1:].astype(np.float32)
        chunk = Chunk(ramp, stamp_ns, 1 / 30, self.request, self.request, np.zeros(32, np.float32))
        self.deliver(self.follower.follow(chunk, self.now))


@pytest.mark.parametrize("where", [90.0, 4e9, -1e12, 1e300])
def test_a_joint_that_is_measured_where_none_can_be_is_named_and_waited_for(where):
    robot = Placed()
    robot.placed = np.array([0.1, where])
    robot.run(1.0, goal=0.5)
    assert robot.sent == [] and robot.states == []
    assert robot.follower.safety.reasons == (
        "b is measured far outside its range of -2 to 2: look at its encoder, and at its driver's unit",
    )
    robot.placed = HOME
    robot.go(goal=0.5)
    robot.run(0.5)
    robot.placed = np.array([0.1, where])
    robot.run(1.0, goal=0.5)
    assert robot.states[-1] is MotionState.HOLDING
    robot.assert_within_limits()


def test_a_joint_that_is_measured_a_turn_outside_its_range_is_led_into_it():
    robot = Placed()
    robot.placed = np.array([0.0, 2.0 + 2.0 * np.pi])
    robot.run(1.0, goal=0.5)
    assert len(robot.sent) == 1 and robot.sent[0].positions[-1, 1] == 2.0


def test_a_chunk_that_waits_and_is_of_the_future_when_the_clock_was_set_back_is_refused():
    robot = Robot()
    for _ in range(200):
        robot.tick()
        robot.send(0.5, robot.now + 99 * MS)
        change, path = robot.follower.step(robot.now - 15 * MS)
        robot.deliver(path)
        if change is not None:
            break
    assert change is not None and change.after is MotionState.RUNNING and path is None
    assert robot.follower.counts["refused"] == 1
