"""A person takes the arm over and gives it back: within the limits, without a drop, and never by accident."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from person import JOG, JOY, LEADER, LIMITS, MAX_AGE_S, MS, NAMES, Arm
from world import Disk

from vla_accel_ros.control.following.watchdog import OPERATOR, RELEASED, MotionState
from vla_accel_ros.control.holds import RESTARTED

AWAY = np.array([-0.5, 0.5, 0.5])
ALIGN_SHARE = 0.3  # the default of move_speed


def taken(arm: Arm) -> Arm:
    """A person has it, and it is where the leader arm is."""
    arm.goes()
    arm.leader = AWAY.copy()
    arm.call("take_over")
    arm.run(2.0)
    assert arm.reports[-1] == "human"
    return arm


def test_the_arm_goes_to_the_leader_arm_at_a_share_of_its_speed_and_follows_it_then():
    arm = Arm().goes()
    arm.leader, began_ns = AWAY.copy(), arm.now
    arm.call("take_over")
    arm.run(2.0)
    assert [s for s in arm.reports[-3:] if s != "running"] == ["aligning", "human"]
    np.testing.assert_allclose(arm.position, AWAY, atol=1e-3)
    speed = np.abs(np.diff(arm.path(began_ns + 300 * MS), axis=0)).max(axis=0) * 500
    assert (speed[:2] <= ALIGN_SHARE * LIMITS.velocity[:2] * 1.01).all()
    arm.leader = AWAY + [0.1, -0.1, 0.0]
    arm.run(0.4)
    np.testing.assert_allclose(arm.position, arm.leader, atol=0.01)
    assert not arm.broken()


def test_the_policys_chunks_move_nothing_until_the_arm_is_given_back_and_then_do():
    arm = taken(Arm())
    arm.policy = np.array([1.5, 1.5, 0.5])
    arm.run(1.0)
    np.testing.assert_allclose(arm.position, AWAY, atol=1e-3)
    beginning = arm.node.robot.beginning
    arm.call("give_back")
    arm.run(1.5)
    assert (arm.position[:2] > 0.6).all() and arm.reports[-1] == "running"
    assert arm.node.robot.beginning > beginning  # what inference computed before is not continued
    assert not arm.broken()


def test_a_chunk_that_was_observed_before_the_arm_was_given_back_does_not_move_it():
    arm = taken(Arm())
    arm.policy = None
    arm.call("give_back")
    arm._chunk(np.ones(3))  # of an image before
    arm.run(0.3)
    np.testing.assert_allclose(arm.position, AWAY, atol=1e-3)


def test_a_person_who_falls_silent_stops_the_arm_and_is_named_and_the_policy_does_not_go_on():
    arm = taken(Arm())
    arm.leader = None
    arm.run(1.0)
    position = arm.position
    assert arm.state is MotionState.HOLDING
    assert "teleop is" in arm.reasons and LEADER.topic in arm.reasons
    arm.run(2.0)
    np.testing.assert_array_equal(arm.position, position)
    arm.leader = AWAY + 0.05
    arm.run(1.0)
    np.testing.assert_allclose(arm.position[:2], arm.leader[:2], atol=1e-3)
    assert not arm.broken()


def test_a_controller_holds_no_more_motion_than_the_persons_age_limit_and_a_stop():
    arm = taken(Arm())
    arm.leader = AWAY + [1.0, 0.0, 0.0]
    arm.run(0.3)
    assert arm.speed > 0.3
    brake_s = float((LIMITS.velocity / LIMITS.acceleration).max())
    path = arm.controller.pieces[-1][0]
    moving = np.flatnonzero(np.abs(path.speeds).max(axis=1))
    end_ns = path.times_ns[min(int(moving.max()) + 1, len(path) - 1)]
    assert end_ns <= arm.now + (MAX_AGE_S + brake_s + 0.02) * 1e9


@pytest.mark.parametrize(
    ("names", "numbers", "words"),
    [
        (NAMES, [np.nan, 0.0, 0.0], "nan"),
        (NAMES, [0.0, np.inf, 0.0], "inf"),
        (NAMES, [57.3, 0.0, 0.0], "rad"),
        (NAMES[:2], [0.0, 0.0], "gripper"),
        (NAMES, [0.0, 0.0], "2 positions"),
        ((), (), "no joint"),
        (NAMES * 100, [0.0] * 300, "300"),
    ],
)
def test_commands_that_cannot_be_meant_are_refused_by_name_and_count_as_none(names, numbers, words):
    arm = taken(Arm())
    arm.leader = None
    for _ in range(30):
        arm.node.command(names, numbers, arm.now)
        arm.run(0.02)
    assert arm.state is MotionState.HOLDING and words in arm.reasons and LEADER.topic in arm.reasons
    np.testing.assert_allclose(arm.position, AWAY, atol=1e-3)
    assert not arm.broken()


def test_a_leader_arm_that_leaps_is_approached_slowly_again():
    arm = taken(Arm())
    arm.leader, began_ns = np.array([1.9, 0.5, 0.5]), arm.now
    arm.run(0.6)
    assert arm.reports[-1] == "aligning"
    speed = np.abs(np.diff(arm.path(began_ns), axis=0)).max() * 500
    assert speed <= ALIGN_SHARE * LIMITS.velocity[0] * 1.25
    assert not arm.broken()


def test_what_a_gripper_holds_is_kept_until_the_leaders_gripper_has_come_there():
    arm = Arm()
    arm.policy = np.array([0.0, 0.0, 0.5])
    arm.run(2.0)
    arm.leader = np.array([0.0, 0.0, 1.0])  # the leader's is open
    arm.call("take_over")
    arm.run(1.0)
    assert arm.reports[-1] == "human"
    assert arm.position[2] == pytest.approx(0.5, abs=1e-6)
    arm.leader = np.array([0.0, 0.0, 0.52])
    arm.run(0.3)
    arm.leader = np.array([0.0, 0.0, 1.0])
    arm.run(1.0)
    assert arm.position[2] == pytest.approx(1.0, abs=0.01)


def test_a_gripper_that_the_leader_has_passed_is_met_too():
    arm = Arm().goes(0.0)
    arm.leader = np.array([0.0, 0.0, 1.0])
    arm.call("take_over")
    arm.run(0.5)
    arm.leader = np.array([0.0, 0.0, 0.1])  # in one message
    arm.run(1.0)
    assert arm.position[2] == pytest.approx(0.1, abs=1e-3)


def test_a_joint_that_the_leader_arm_does_not_have_stays_where_it_is():
    arm = Arm(replace(LEADER, joints={name: name for name in NAMES[:2]})).goes()
    arm.call("take_over")
    arm.run(0.5)
    gripper = arm.position[2]
    arm.leader = np.array([0.3, 0.3, 0.0])
    arm.run(1.5)
    np.testing.assert_allclose(arm.position, [0.3, 0.3, gripper], atol=1e-3)


@pytest.mark.parametrize("order", ["hold", "release"])
def test_what_is_held_or_released_stays_so_whoever_commands(order):
    arm = Arm().goes()
    arm.node.order(order)
    arm.run(1.5)
    position, reason = arm.position, OPERATOR if order == "hold" else RELEASED
    arm.leader = position + 0.2
    for name in ("take_over", "give_back", "take_over", "take_over"):
        assert reason.split(";")[0] in arm.call(name)
        arm.run(0.5)
        np.testing.assert_array_equal(arm.position, position)
    arm.node.order("resume" if order == "hold" else "reclaim")
    arm.run(1.5)
    np.testing.assert_allclose(arm.position[:2], arm.leader[:2], atol=1e-3)
    assert not arm.broken()


def test_an_arm_that_is_held_when_a_person_takes_it_follows_the_person_once_it_is_resumed():
    arm = Arm().goes()
    arm.node.order("hold")
    arm.call("take_over")
    arm.run(1.0)
    arm.leader = AWAY.copy()
    arm.node.order("resume")
    arm.run(2.0)
    np.testing.assert_allclose(arm.position[:2], AWAY[:2], atol=1e-3)


def test_an_arm_that_a_person_has_is_not_given_to_the_policy_by_a_restart():
    arm = taken(Arm())
    for go_on in (True, False):
        after = Arm(disk=arm.disk, go_on=go_on)
        after.policy = np.ones(3)
        after.run(1.5)
        np.testing.assert_allclose(after.position, 0.0, atol=1e-3)
        assert after.node.motion.holds.human
    assert RESTARTED in after.node.holds
    after.call("give_back")
    after.node.order("resume")
    after.run(1.0)
    assert after.position[0] > 0.3
    assert not Arm(disk=after.disk).node.motion.holds.human


def test_the_button_takes_the_arm_over_while_it_is_held_and_gives_it_back_when_it_is_let_go():
    arm = Arm(JOY)
    arm.pressed = False
    arm.goes()
    arm.leader = AWAY.copy()
    arm.run(0.2)
    assert not arm.node.motion.holds.human
    arm.pressed = True
    arm.run(2.0)
    np.testing.assert_allclose(arm.position, AWAY, atol=1e-3)
    arm.pressed = False
    arm.run(1.0)
    assert not arm.node.motion.holds.human and arm.position[0] > 0.2
    assert not arm.broken()


def test_a_button_that_falls_silent_stops_the_arm_and_its_return_unpressed_does_not_give_it_back():
    arm = Arm(JOY)
    arm.pressed = True
    arm.policy = np.ones(3)
    arm.leader = AWAY.copy()
    arm.run(3.0)
    assert arm.reports[-1] == "human"
    arm.pressed = None  # the stick has no power any more
    arm.run(1.0)
    assert arm.state is MotionState.HOLDING and "deadman" in arm.reasons and "joy" in arm.reasons
    position = arm.position
    arm.pressed = False
    arm.run(1.0)
    assert arm.node.motion.holds.human
    np.testing.assert_array_equal(arm.position, position)
    arm.call("give_back")
    arm.run(1.0)
    assert arm.position[0] > position[0] + 0.2


def test_the_service_needs_the_button_too_where_there_is_one():
    arm = Arm(JOY)
    arm.pressed = False
    arm.goes()
    arm.leader = AWAY.copy()
    arm.call("take_over")
    arm.run(1.0)
    assert arm.state is MotionState.HOLDING and "button 4" in arm.reasons


def test_velocities_move_the_joints_that_they_name_and_their_end_stops_them():
    arm = Arm(JOG)
    arm.leader = None
    arm.velocity = np.zeros(3)
    arm.goes()
    arm.call("take_over")
    arm.run(0.5)
    position = arm.position
    arm.velocity = np.array([0.5, 0.0, 0.0])
    arm.run(1.0)
    assert arm.position[0] - position[0] == pytest.approx(0.5, abs=0.1)
    np.testing.assert_allclose(arm.position[1:], position[1:], atol=1e-3)
    arm.velocity = None
    arm.run(1.0)
    assert arm.state is MotionState.HOLDING and arm.speed == 0.0 and "jog" in arm.reasons
    assert not arm.broken()


def test_velocities_that_no_joint_has_are_refused():
    arm = Arm(JOG)
    arm.leader, arm.velocity = None, np.array([100.0, 0.0, 0.0])
    arm.goes()
    arm.call("take_over")
    arm.run(1.0)
    assert arm.state is MotionState.HOLDING and "rad/s" in arm.reasons


def test_a_person_moves_the_arm_when_inference_and_cameras_are_dead():
    arm = taken(Arm())
    arm.policy = None
    arm.run(2.0)
    arm.leader = AWAY + 0.1
    arm.run(1.0)
    assert arm.reports[-1] == "human"
    np.testing.assert_allclose(arm.position[:2], arm.leader[:2], atol=1e-3)


def test_a_robot_whose_contract_names_no_teleop_is_not_handed_over():
    arm = Arm(teleop=None)
    arm.leader = None
    arm.goes()
    arm.node.order("take_over")
    success, words = arm.node.answers["take_over"]
    assert not success and "teleop" in words
    arm.node.order("give_back")
    arm.run(0.3)
    assert arm.state is MotionState.RUNNING


def test_a_clock_that_is_set_does_not_give_the_arm_to_the_policy():
    arm = taken(Arm())
    arm.now += 100 * 10**9
    arm.node.motion.jump()
    arm.run(2.0)
    assert arm.node.motion.holds.human and arm.reports[-1] == "human"
    np.testing.assert_allclose(arm.position, AWAY, atol=0.02)


def test_twice_taken_is_taken_once_and_both_are_answered():
    disk = Disk()
    arm = Arm(disk=disk).goes()
    arm.call("take_over")
    arm.run(0.1)
    beginning = arm.node.robot.beginning
    assert LEADER.topic in arm.call("take_over")
    assert arm.node.robot.beginning == beginning
