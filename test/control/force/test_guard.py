"""An arm that touches something: it gives way or stops, within the limits of its joints."""

from __future__ import annotations

import re

import numpy as np
import pytest
from force_arm import FREE, GOAL, JOINTS, LIMITS, MS, START, ForceArm, S

from vla_accel_ros.control.following.watchdog import OPERATOR, RELEASED
from vla_accel_ros.control.force.executed import ExecutedPath, Retreat
from vla_accel_ros.control.force.guard import Phase, Why
from vla_accel_ros.control.orders.moves import move


def wall(at: float, stiffness: float = 400.0):
    """A wall that joint a touches at a position; N per rad."""
    return lambda now, p: ((0.0, 0.0, stiffness * max(p[0] - at, 0.0), 0.0, 0.0, 0.0), now)


def test_an_arm_that_touches_a_wall_goes_back_the_way_it_came_and_goes_on_when_that_is_over(arm):
    arm.sample, arm.speed = wall(0.4), 0.5
    arm.go(GOAL)
    arm.until(lambda: bool(arm.reactions))
    first = arm.reactions[0]
    assert first.why is Why.CONTACT
    assert re.match(r"force is 1\d\.\d N, most of it \+1\d\.\d on z; the limit is 10 N", first.sentence)
    furthest = 0.0
    arm.until(lambda: not arm.running)
    for _ in range(3000):
        arm.step()
        furthest = max(furthest, arm.commanded[0])
        if arm.running:
            break
    assert 0.4 < furthest < 0.7
    assert [r.why for r in arm.reactions] == [Why.CONTACT, Why.RETREAT, Why.OVER]
    assert arm.commanded[0] < 0.4 + 0.5 * 10 / 400
    assert not arm.held.faults
    assert arm.broken() == []


def test_what_does_not_go_back_stays_and_the_others_are_never_where_they_have_not_been(arm):
    arm.sample, arm.speed = wall(0.4), 0.5
    arm.go(GOAL)
    arm.until(lambda: arm.guard.phase is Phase.RETREATING)
    count = len(arm.ticks)
    arm.until(lambda: not arm.running)
    arm.until(lambda: arm.guard.phase is Phase.STOPPED)
    arm.run(0.2)
    if arm.streamed:
        path = np.array([p for _, p in arm.ticks])
    else:
        _, path = arm.controller.path(arm.now)
        count = len(path) - 500
    furthest = int(np.argmax(path[:, 0]))
    way, back = path[:furthest], path[furthest:]
    assert len(back) > 10 and back[-1, 0] < path[furthest, 0] - 0.02
    for position in back[::10]:
        assert np.abs(way[:, :2] - position[:2]).max(axis=1).min() < 0.01
    after = path[max(furthest + 60, count) :, 2]  # its own brake is over
    assert np.ptp(after) < 1e-9


def test_a_collision_stops_it_until_somebody_resumes_and_then_it_goes_back(arm):
    arm.go(GOAL)
    arm.until(lambda: arm.commanded[0] > 0.4)
    arm.sample = lambda now, _: ((-35.0, 5.0, 1.0, 0.0, 0.0, 0.0), now)
    arm.until(lambda: not arm.running, 0.1)
    (reaction,) = arm.reactions
    assert reaction.why is Why.COLLISION
    (fault,) = arm.held.faults
    assert "force is 35.4 N, most of it -35.0 on x; the limit is 30 N: free the arm; ~/resume" in fault
    arm.run(2.0)
    assert not arm.running
    standstill = arm.commanded.copy()
    arm.run(1.0)
    np.testing.assert_array_equal(arm.commanded, standstill)
    arm.resume()  # still in contact: only the way back is free
    arm.run(3.0)
    assert arm.commanded[0] < standstill[0] - 0.1 and not arm.running
    assert any("gave way as far as it may, but still force is 35.4 N" in fault for fault in arm.held.faults)
    arm.sample = lambda now, _: (FREE, now)
    arm.resume()
    arm.until(lambda: arm.running)
    assert arm.broken() == []


def test_one_that_comes_into_a_collision_while_it_brakes_goes_back_all_the_same_and_needs_a_person():
    arm = ForceArm(True)
    arm.sample, arm.speed = wall(0.4, 600.0), 1.5
    arm.go(GOAL)
    arm.until(lambda: bool(arm.held.faults))
    arm.run(2.0)
    assert [r.why for r in arm.reactions] == [Why.CONTACT, Why.RETREAT, Why.OVER]
    assert any("the limit is 30 N: the arm retreated; ~/resume goes on" in fault for fault in arm.held.faults)
    assert not arm.running and arm.commanded[0] < 0.41
    arm.resume()
    arm.until(lambda: arm.running)
    assert arm.broken() == []


def test_a_contact_that_grows_on_the_way_back_stops_it(streamed_or_not):
    arm = ForceArm(streamed_or_not, retreat=Retreat(rad=1.0, speed=0.3, s=3.0))
    arm.go(GOAL)
    arm.run(0.9)
    arm.sample = lambda now, _: ((15.0, *FREE[1:]), now)
    arm.until(lambda: bool(arm.reactions))
    arm.run(0.4)
    arm.sample = lambda now, _: ((-45.0, *FREE[1:]), now)
    arm.run(0.3)
    assert [r.why for r in arm.reactions] == [Why.CONTACT, Why.RETREAT, Why.COLLISION]
    standstill = arm.commanded.copy()
    arm.run(1.0)
    np.testing.assert_array_equal(arm.commanded, standstill)
    assert arm.broken() == []


def test_a_contact_of_torque_counts_too(arm):
    arm.go(GOAL)
    arm.run(0.3)
    arm.sample = lambda now, _: ((0.0, 0.0, 0.0, 0.0, 3.0, 0.0), now)
    arm.run(0.05)
    assert "torque is" in arm.reactions[0].sentence and "Nm" in arm.reactions[0].sentence


def test_who_pecks_again_and_again_is_stopped():
    arm = ForceArm(True, retreat=Retreat(most=2, rest_s=0.1))
    arm.sample, arm.speed = wall(0.4), 0.5
    arm.go(GOAL)
    arm.until(lambda: bool(arm.held.faults), 20.0)
    assert any("gave way again and again" in fault for fault in arm.held.faults)
    assert arm.guard.yields == 3
    arm.run(1.0)
    assert not arm.running
    assert arm.broken() == []


def retreating(streamed):
    """An arm on a long way back."""
    arm = ForceArm(streamed, retreat=Retreat(rad=1.0, speed=0.3, s=3.0))
    arm.go(GOAL)
    arm.run(0.6)
    arm.sample = lambda now, _: ((15.0, *FREE[1:]), now)
    arm.until(lambda: bool(arm.reactions))
    arm.run(0.3)
    assert arm.guard.phase is Phase.RETREATING
    return arm


def assert_it_goes_back_no_further(arm):
    assert arm.reactions[-1].why is Why.OVER
    arm.run(0.25)
    standstill = arm.commanded.copy()
    arm.run(1.0)
    np.testing.assert_array_equal(arm.commanded, standstill)
    assert arm.broken() == []


def test_an_order_to_hold_ends_a_retreat_at_once(streamed_or_not):
    arm = retreating(streamed_or_not)
    arm.held.hold(OPERATOR)
    arm.run(0.02)
    assert_it_goes_back_no_further(arm)


@pytest.mark.parametrize("order", ["released or sent home", "deactivated"])
def test_an_arm_that_others_are_about_to_move_does_not_go_back_unwatched(streamed_or_not, order):
    arm = retreating(streamed_or_not)
    if order == "deactivated":
        arm.deactivate()
    else:
        arm.held.hold(RELEASED)
        arm.run(0.02)
    assert_it_goes_back_no_further(arm)


def test_an_arm_that_is_held_or_lent_does_not_move_whatever_pushes_it(arm):
    arm.go(GOAL)
    arm.run(0.5)
    arm.held.hold(OPERATOR)
    arm.run(1.0)
    standstill, count = arm.commanded.copy(), arm.sent
    arm.sample = lambda now, _: ((100.0, *FREE[1:]), now)
    arm.run(1.0)
    np.testing.assert_array_equal(arm.commanded, standstill)
    assert arm.sent == count
    arm.held.hold(RELEASED)
    arm.run(0.5)
    assert arm.sent == count and not arm.held.faults


def test_nothing_that_was_decided_before_a_reaction_is_sent_after_it():
    arm = ForceArm(True)
    arm.go(GOAL)
    arm.run(0.3)
    path = move(JOINTS, arm.commanded, GOAL, LIMITS, start_ns=arm.now)
    arm.sample = lambda now, _: ((40.0, *FREE[1:]), now)
    arm.until(lambda: bool(arm.reactions))
    count = arm.sent
    arm.node.robot.outputs.send(path, arm.now)
    assert arm.sent == count
    arm.node.watch()
    assert arm.follower.buffer.reference(arm.now + S)[1].any() == 0


def test_a_trajectory_that_takes_a_while_to_its_controller_still_joins_within_limits():
    arm = ForceArm(False)
    arm.late_ns = 40 * MS
    arm.sample = wall(0.4)
    arm.go(GOAL)
    arm.run(6.0)
    assert {r.why for r in arm.reactions} >= {Why.CONTACT, Why.OVER}
    assert arm.broken() == []


def test_the_way_back_begins_no_sooner_than_the_message_may_come_though_the_arm_rests_before():
    path = move(JOINTS, np.array([0.0, 0.0, 0.5]), np.array([0.5, 0.2, 0.5]), LIMITS, start_ns=START)
    executed = ExecutedPath(JOINTS, LIMITS, np.ones(3, dtype=bool), Retreat())
    executed.follow(path)
    now_ns, commit_ns = path.end_ns - 20 * MS, path.end_ns + 100 * MS
    retreat, back_ns = executed.retreat(now_ns, commit_ns)
    times = np.arange(now_ns, commit_ns + 1, MS)
    np.testing.assert_allclose(retreat.sample(times)[0], path.sample(times)[0], atol=1e-9)
    assert back_ns == commit_ns
    assert np.abs(retreat.positions[-1] - path.positions[-1]).max() > 0.15


def test_a_controller_never_holds_more_than_the_retreat_and_its_brakes(streamed_or_not):
    arm = ForceArm(streamed_or_not, retreat=Retreat(rad=10.0, s=0.4))
    arm.go(GOAL)
    arm.run(0.9)
    arm.sample = lambda now, _: ((15.0, *FREE[1:]), now)
    arm.until(lambda: len(arm.reactions) == 2)
    lasts_s = (arm.reactions[1].path.end_ns - arm.now) * 1e-9
    assert 0.3 < lasts_s < 0.4 + 2 * 0.15 + 0.06 + 0.01


def test_it_never_goes_back_along_a_retreat_which_is_towards_the_wall(streamed_or_not):
    arm = ForceArm(streamed_or_not, retreat=Retreat(rad=2.0, s=3.0))
    arm.sample, arm.speed = wall(0.4), 0.5
    arm.go(GOAL)
    arm.until(lambda: bool(arm.reactions))
    arm.until(lambda: not arm.running)
    arm.goal = np.array([0.0, 1.0, 0.5])
    arm.until(lambda: arm.running)
    begins = arm.commanded.copy()
    arm.run(0.5)
    assert arm.commanded[1] > begins[1] + 0.05
    arm.sample = lambda now, _: ((15.0, *FREE[1:]), now)
    arm.run(3.5)
    assert arm.commanded[1] < begins[1] + 0.02  # all the way to where it gave way
    assert (arm.commanded[:2] <= begins[:2] + 0.02).all()
    assert arm.guard.phase is Phase.STOPPED
