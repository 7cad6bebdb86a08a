"""What goes out for each chunk, when the arm stops, and where it goes on from. Time is given."""

from __future__ import annotations

import numpy as np
import pytest
from following import MS, Robot

from vla_accel_ros.control.follower import MOVING
from vla_accel_ros.control.watchdog import Motion
from vla_accel_ros.engine.types import Chunk


def test_nothing_is_sent_until_everything_has_been_fresh_for_a_moment():
    robot = Robot()
    robot.run(1.0)
    assert robot.states == [] and robot.sent == []
    robot.run(0.15, goal=1.0)
    assert robot.sent == []
    robot.run(0.3, goal=1.0)
    assert robot.states == [Motion.RUNNING] and robot.sent


def test_without_chunks_it_stops_once_smoothly_within_the_age_limit_and_then_says_nothing():
    robot = Robot()
    robot.go()
    assert np.abs(robot.reference()[1]).max() > 0.3
    last_stamp, count = robot.now - 100 * MS - 50 * MS + 10 * MS, len(robot.sent)
    robot.run(2.0)
    assert robot.states == [Motion.RUNNING, Motion.STOPPING, Motion.HOLDING]
    (stop,) = robot.sent[count:]
    assert stop.start_ns - last_stamp <= 500 * MS + 20 * MS
    v = np.diff(stop.sample(np.arange(stop.start_ns, stop.end_ns, MS))[0], axis=0) * 1000
    assert np.abs(np.diff(v, axis=0)).max() * 1000 <= 20.0 * 1.01
    assert not stop.velocities[-1].any()


def test_it_goes_on_from_what_was_commanded_when_chunks_come_back():
    robot = Robot()
    robot.go()
    robot.run(2.0)
    held, _ = robot.reference()
    robot.sag = np.full(2, -0.05)
    count = len(robot.sent)
    robot.run(0.5, goal=0.0)
    assert robot.states[-1] is Motion.RUNNING
    first = robot.sent[count]
    np.testing.assert_allclose(first.sample(first.start_ns)[0], held, atol=1e-9)


def test_it_goes_on_from_where_the_robot_is_when_it_was_moved_while_held():
    robot = Robot()
    robot.go()
    robot.run(2.0)
    held, _ = robot.reference()
    for share in np.linspace(0.0, 1.0, 50):  # the first joint is led away by hand
        robot.placed = held - np.array([1.2, 0.0]) * share
        robot.run(0.01)
    count = len(robot.sent)
    robot.run(0.5, goal=0.0)
    assert robot.follower.counts["moved_while_held"] == 1
    first = robot.sent[count]
    np.testing.assert_allclose(first.sample(first.start_ns)[0], robot.placed, atol=1e-9)


def test_a_joint_that_never_was_where_it_is_commanded_to_be_keeps_its_command():
    robot = Robot()
    robot.go()
    for share in np.linspace(0.0, 1.0, 40):  # a gripper closes around a block
        robot.sag = np.array([0.0, 0.6]) * share
        robot.run(0.01)
    robot.run(2.0)
    held, _ = robot.reference()
    count = len(robot.sent)
    robot.run(0.5, goal=0.0)
    first = robot.sent[count]
    np.testing.assert_allclose(first.sample(first.start_ns)[0], held, atol=1e-9)
    assert robot.follower.counts["moved_while_held"] == 0


def test_joints_that_fell_silent_in_motion_go_on_from_where_they_are_when_they_come_back():
    robot = Robot()
    robot.go(0.5)
    last = robot.measured()
    robot.silent = True
    robot.run(1.5, goal=1.5)  # what is commanded goes on for a while
    assert robot.states[-1] is Motion.HOLDING
    held, _ = robot.reference()
    assert held[0] - last[0] > 0.2
    robot.placed, robot.silent = last - np.array([0.02, 0.8]), False
    np.testing.assert_allclose(robot.goes_on_from(), robot.placed, atol=1e-9)


def test_joints_that_fell_silent_while_held_go_on_from_where_they_are_when_they_come_back():
    robot = Robot()
    robot.go(0.5)
    robot.run(2.0)
    held, _ = robot.reference()
    assert robot.states[-1] is Motion.HOLDING
    robot.silent = True
    robot.run(1.0)
    robot.placed, robot.silent = held - np.array([0.1, 0.8]), False
    np.testing.assert_allclose(robot.goes_on_from(), robot.placed, atol=1e-9)


def test_a_gripper_keeps_what_it_holds_when_joints_fall_silent_while_it_is_held():
    robot = Robot()
    robot.go()
    for share in np.linspace(0.0, 1.0, 40):  # it closes around a block
        robot.sag = np.array([0.0, 0.6]) * share
        robot.run(0.01)
    robot.run(2.0)
    held, _ = robot.reference()
    robot.silent = True
    robot.run(0.45)
    robot.silent = False
    np.testing.assert_allclose(robot.goes_on_from(), held, atol=1e-9)


def test_late_joints_stop_it_too():
    robot = Robot()
    robot.go()
    robot.silent = True
    robot.run(0.5, goal=1.5)
    assert Motion.STOPPING in robot.states
    assert robot.follower.safety.reasons[0].startswith("joint_states is")


def test_a_hold_stays_until_it_is_resumed():
    robot = Robot()
    robot.go()
    robot.follower.safety.hold()
    robot.run(2.0, goal=1.5)
    assert robot.states[-1] is Motion.HOLDING
    count = len(robot.sent)
    robot.run(1.0, goal=1.5)
    assert len(robot.sent) == count
    robot.follower.safety.resume()
    robot.run(0.5, goal=1.5)
    assert robot.states[-1] is Motion.RUNNING and len(robot.sent) > count


def test_one_wrong_joint_sample_changes_nothing_but_a_leap_that_stays_is_a_new_start():
    robot = Robot()
    robot.go(goal=0.3)
    robot.placed = np.array([1.5, -1.5])
    robot.run(0.01)
    robot.placed = None
    robot.run(0.1)
    assert robot.follower.counts["leaps"] == 0
    robot.placed = np.array([1.5, -1.5])
    robot.run(0.1)
    assert robot.follower.counts["leaps"] == 1
    np.testing.assert_allclose(robot.reference()[0], robot.placed)


def test_one_wrong_joint_sample_that_is_told_again_and_again_changes_nothing():
    robot = Robot()
    robot.go(goal=0.3)
    commanded, _ = robot.reference()
    wrong = robot.measured() + 1.0
    robot.now += 10 * MS
    for _ in range(10):  # other joints of the same topic come, and ours are what they were
        assert not robot.follower.felt(wrong, robot.now, robot.now)
    robot.run(0.1)
    assert robot.follower.counts["leaps"] == 0
    np.testing.assert_allclose(robot.reference()[0], commanded, atol=0.1)


def test_after_a_leap_a_stop_holds_where_the_joints_are_instead_of_what_was_sent_before():
    robot = Robot()
    robot.go(0.8)
    robot.placed = robot.measured() - 1.2
    robot.run(0.06)
    assert robot.follower.counts["leaps"] == 1
    robot.follower.safety.hold()
    count = len(robot.sent)
    robot.run(0.3)
    assert robot.states[-2:] == [Motion.STOPPING, Motion.HOLDING]
    (stop,) = robot.sent[count:]
    np.testing.assert_allclose(stop.positions, np.broadcast_to(robot.placed, stop.positions.shape), atol=1e-9)


def test_a_chunk_observed_before_a_leap_is_void():
    robot = Robot()
    robot.go(goal=0.3)
    stamp = robot.now
    robot.placed = np.array([1.5, -1.5])
    robot.run(0.1)
    count = len(robot.sent)
    robot.send(0.3, stamp)
    assert len(robot.sent) == count and robot.follower.counts["before_leap"] == 1
    robot.send(0.3, robot.now)
    assert len(robot.sent) == count + 1


def test_a_refused_chunk_does_not_count_as_seen():
    robot = Robot()
    robot.go(goal=0.3)
    newest = robot.follower.safety.watchdog.age_s("chunk", robot.now)
    wrong = Chunk(np.full((4, 2), np.nan, np.float32), robot.now, 1 / 30, 99, 99, np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="is nan at point 0"):
        robot.follower.follow(wrong, robot.now)
    assert robot.follower.safety.watchdog.age_s("chunk", robot.now) == newest


def test_the_ages_of_what_was_sent_are_told_and_old_ones_are_misses():
    robot = Robot()
    robot.go(0.01)
    robot.run(2.0, goal=0.5, latency_s=0.12)
    stats = robot.follower.stats(robot.now)
    assert stats.name == "image_to_trajectory" and stats.runs == len(robot.sent)
    assert stats.p50_s == pytest.approx(0.12) and stats.p99_s == pytest.approx(0.12)
    assert stats.measured_hz == pytest.approx(10.0) and stats.misses == 0


def test_it_begins_when_the_joints_stand_and_from_there():
    """Of a process that was killed, the controllers still execute the last trajectory."""
    robot = Robot()
    for share in np.linspace(0.0, 1.0, 80):
        robot.placed = np.array([0.5, -1.0]) * share
        robot.run(0.01, goal=0.0)
    assert robot.states == [] and robot.sent == []
    assert robot.follower.safety.reasons == (MOVING,)
    robot.run(0.6, goal=0.0)
    assert robot.states == [Motion.RUNNING]
    np.testing.assert_allclose(robot.sent[0].positions[0], robot.placed)
    robot.placed = None
    robot.run(0.5, goal=0.0)
    assert robot.states == [Motion.RUNNING], "its own motion does not hold it"


def test_noise_of_the_joints_does_not_keep_it_from_beginning():
    robot = Robot()
    noise = np.random.default_rng(0).normal(0.0, 0.004, (100, 2))
    for sample in noise:
        robot.placed = sample
        robot.run(0.01, goal=0.5)
    assert Motion.RUNNING in robot.states
