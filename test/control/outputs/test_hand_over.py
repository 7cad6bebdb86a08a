"""Trajectories that are sent later than they were decided: the controller keeps the limits."""

from __future__ import annotations

import numpy as np
import pytest
from handing_over import LEAD, LEAD_S, MS, Arm, play
from motion import JOINTS, LIMITS, S, make_ramp

from vla_accel_ros.control.limits.joint_limits import JointLimits, brake, cut
from vla_accel_ros.control.orders.moves import move
from vla_accel_ros.control.outputs.hand_over import HandOver
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("held_up", [0.02, 0.1, 0.7])
def test_however_late_a_trajectory_is_sent_the_controller_keeps_the_limits(held_up, seed):
    arm = Arm()
    play(arm, seed, held_up)
    assert arm.broken() == []
    assert bool(arm.hand_over.late) == (held_up > LEAD_S)


def test_as_it_was_decided_it_would_be_joined_with_a_step():
    arm = Arm(handed_over=False)
    play(arm, 0, 0.7)
    assert {broken.what for broken in arm.broken()} >= {"acceleration", "velocity"}


def test_in_time_it_is_sent_as_it_was_decided_until_so_long_before_it_differs():
    arm = Arm()
    first, decided_ns = arm.buffer.update(make_ramp(0.2, stamp_ns=arm.now), arm.now), arm.now
    assert first is not None
    for held_up in (0, LEAD - 3 * MS):
        path, by_ns = arm.hand_over.next(first, decided_ns, decided_ns + held_up, LEAD_S)
        assert path is first
        assert by_ns + LEAD == pytest.approx(decided_ns + 2 * LEAD, abs=2 * MS)
    path, by_ns = arm.hand_over.next(first, decided_ns, decided_ns + LEAD + 5 * MS, LEAD_S)
    assert path is not first and by_ns == decided_ns + 2 * LEAD + 5 * MS


def test_a_late_stop_brakes_from_where_the_controller_is():
    arm = Arm()
    arm.send(arm.buffer.update(make_ramp(0.4, stamp_ns=arm.now), arm.now), 0, 0)
    arm.now += 200 * MS
    stop = arm.buffer.stop(arm.now)
    arm.send(stop, 300 * MS, LEAD // 2)
    arm.now += 200 * MS
    rests = arm.position
    arm.now += 2 * S
    assert arm.broken() == []
    np.testing.assert_array_equal(arm.position, rests)
    passed = (300 * MS + 3 * LEAD) * 1e-9 * 0.4
    assert (np.abs(rests - stop.positions[-1]) <= passed).all()


def test_a_join_that_is_sent_shortly_before_the_controller_rests_begins_when_it_may_have_come():
    arm = Arm()
    arm.send(arm.buffer.update(make_ramp(0.4, stamp_ns=arm.now), arm.now), 0, 0)
    arm.now += 300 * MS
    stop = arm.buffer.stop(arm.now)
    arm.send(stop, 0, 0)
    arm.now = stop.end_ns - 20 * MS
    arm.send(arm.buffer.go_to(np.zeros(3), np.full(3, 0.3), arm.now), 0, LEAD, waits=LEAD)
    arm.now += 2 * S
    assert arm.broken() == []
    np.testing.assert_allclose(arm.position, 0.0, atol=1e-9)


@pytest.mark.parametrize("held_up", [500 * MS, 5 * S])
def test_what_is_approached_is_moved_by_as_much_as_it_is_late(held_up):
    arm, goal = Arm(), np.array([0.5, -0.5, 0.2])
    decided = arm.buffer.go_to(goal, np.abs(goal), arm.now)
    path, _ = arm.hand_over.next(decided, arm.now, arm.now + held_up, LEAD_S)
    assert path is not None
    assert path.end_ns == decided.end_ns + held_up
    arm.send(decided, held_up, LEAD)
    arm.now += 3 * S
    assert arm.broken() == []
    np.testing.assert_array_equal(arm.position, goal)


@pytest.mark.parametrize("held_up", [0, 500 * MS])
def test_a_contact_on_the_way_does_not_wait_unless_that_was_moved(held_up):
    arm, goal = Arm(), np.array([0.5, -0.5, 0.2])
    arm.send(arm.buffer.go_to(goal, np.abs(goal), arm.now), held_up, 0)
    arm.now += 100 * MS
    retreat = Trajectory(JOINTS, arm.now + np.array([0, S]), np.array([goal, goal / 2]))
    path, by_ns = arm.hand_over.next(retreat, arm.now, arm.now, LEAD_S)
    assert path is (None if held_up else retreat) and (held_up or by_ns == arm.now + LEAD)
    assert arm.hand_over.late == (2 if held_up else 0)


def test_a_way_home_that_was_moved_is_broken_off_while_its_begin_is_approached():
    arm, begin = Arm(), np.array([0.1, 0.0, 0.0])
    approached_ns = 500 * MS
    home = move(JOINTS, begin, np.array([0.9, 0.0, 0.0]), LIMITS, 0.5, arm.now + approached_ns)
    arm.send(home, 400 * MS, 0)
    arm.now += 300 * MS  # to whoever decided, it is on its way; the controller approaches its begin
    assert home.start_ns < arm.now < arm.hand_over.rests_ns - home.end_ns + home.start_ns
    was_to_rest_ns = arm.hand_over.rests_ns
    kept_ns = arm.now + 2 * LEAD
    arm.send(
        home.since(arm.now).then(brake(JOINTS, TrajectoryPoint(kept_ns, *home.sample(kept_ns)), LIMITS)), 0, 0
    )
    assert arm.hand_over.rests_ns < was_to_rest_ns
    arm.now += 5 * S
    assert arm.broken() == []
    np.testing.assert_array_equal(arm.position, begin)


def test_more_of_a_way_home_that_was_moved_does_not_end_it():
    arm, begin = Arm(), np.array([0.1, 0.0, 0.0])
    home = move(JOINTS, begin, np.array([0.9, 0.0, 0.0]), LIMITS, 0.5, arm.now + 500 * MS)
    until_ns = home.end_ns - 100 * MS
    arm.send(cut(home, until_ns, LIMITS), 400 * MS, 0)
    arm.now += 300 * MS
    rests_ns = arm.hand_over.rests_ns
    assert home.end_ns < rests_ns
    assert arm.hand_over.next(home.since(arm.now), arm.now, arm.now, LEAD_S)[0] is None
    assert arm.hand_over.rests_ns == rests_ns


def test_what_is_approached_from_further_away_than_was_decided_takes_as_long_as_that_needs():
    arm = Arm()
    arm.send(arm.buffer.update(make_ramp(0.4, 30, stamp_ns=arm.now), arm.now), 0, 0)
    arm.now += 200 * MS
    stop = arm.buffer.stop(arm.now)
    arm.send(stop, 600 * MS, 0)
    join = arm.buffer.go_to(stop.positions[-1], np.full(3, 1e-3), arm.now)
    assert arm.hand_over.rests_ns > arm.now  # it still brakes, and to whoever decided it has stood for long
    arm.send(join, 0, LEAD // 2)
    assert arm.hand_over.rests_ns > join.end_ns
    arm.now = arm.hand_over.rests_ns + S
    assert arm.broken() == []
    np.testing.assert_allclose(arm.position, stop.positions[-1])


def test_whoever_decides_is_told_when_the_controller_rests_if_it_is_not_as_was_decided():
    arm = Arm()
    assert arm.hand_over.rests_ns == 0
    arm.send(arm.buffer.go_to(np.full(3, 0.2), np.full(3, 0.2), arm.now), 0, 0)
    assert arm.hand_over.rests_ns == 0
    arm.now += S
    join = arm.buffer.go_to(np.full(3, 0.1), np.full(3, 0.1), arm.now)
    arm.send(join, 300 * MS, 0)
    assert arm.hand_over.rests_ns == join.end_ns + 300 * MS


def test_a_controller_in_doubt_is_sent_a_stop_and_no_motion_that_speeds_up_however_soon_that_ends():
    """It reports to rest elsewhere while the last message may still be on its way."""
    limits = JointLimits(np.array([-2.0]), np.array([2.0]), np.array([2.5]), np.array([5.0]))
    lead, lead_s, at_ns = 150 * MS, 0.15, 10 * S

    def path(*positions):
        times_ns = at_ns + np.arange(len(positions)) * 200 * MS
        return Trajectory(("j0",), times_ns, *(np.array(x, float)[:, None] for x in zip(*positions)))

    moves = path((0, 0), (0, 0), (0, 0), (0.05, 0.5), (0.15, 0.5), (0.2, 0))
    stops = path((0, 0.5), (0.1, 0.5), (0.2, 0.5), (0.25, 0), (0.25, 0), (0.25, 0))
    for decided, is_sent in ((moves, False), (stops, True)):
        hand_over = HandOver(limits)
        hand_over.sent(path((0, 0), (0, 0)), decided, at_ns - 90 * MS)
        hand_over.rests(np.array([0.004]), at_ns - 10 * MS, lead_s, (np.array([0.004]), at_ns - 10 * MS))
        sent, _ = hand_over.next(decided, at_ns, at_ns, lead_s)
        assert (sent is not None) is is_sent
    assert decided.end_ns <= at_ns + 4 * lead + S // 2
