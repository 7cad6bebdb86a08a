"""An arm that touches something: it gives way, stops, and never goes on blind, within the limits of its
joints."""

from __future__ import annotations

import math
import re
from functools import partial

import numpy as np
import pytest
from force_arm import FREE, JOINTS, LIMITS, MS, START, ForceArm, S, make_sensor
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_accel_ros.control.following.watchdog import OPERATOR
from vla_accel_ros.control.force.executed import ExecutedPath, Retreat
from vla_accel_ros.control.force.guard import Phase, Why
from vla_accel_ros.control.force.sensor import SensorWatch
from vla_accel_ros.control.moves import move

GOAL = np.array([1.5, -1.2, 0.9])


def wall(at: float, stiffness: float = 400.0):
    """A wall that joint a touches at a position; N per rad."""
    return lambda now, p: ((0.0, 0.0, stiffness * max(p[0] - at, 0.0), 0.0, 0.0, 0.0), now)


@pytest.fixture(params=[True, False], ids=["streamed", "trajectories"])
def streamed_or_not(request) -> bool:
    return request.param


@pytest.fixture
def arm(streamed_or_not) -> ForceArm:
    return ForceArm(streamed_or_not)


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
    there, back = path[:furthest], path[furthest:]
    assert len(back) > 10 and back[-1, 0] < path[furthest, 0] - 0.02
    for position in back[::10]:
        assert np.abs(there[:, :2] - position[:2]).max(axis=1).min() < 0.01
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
    rest = arm.commanded.copy()
    arm.run(1.0)
    np.testing.assert_array_equal(arm.commanded, rest)
    arm.resume()  # still in contact: only the way back is free
    arm.run(3.0)
    assert arm.commanded[0] < rest[0] - 0.1 and not arm.running
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
    rest = arm.commanded.copy()
    arm.run(1.0)
    np.testing.assert_array_equal(arm.commanded, rest)
    assert arm.broken() == []


def test_a_contact_of_torque_counts_too(arm):
    arm.go(GOAL)
    arm.run(0.3)
    arm.sample = lambda now, _: ((0.0, 0.0, 0.0, 0.0, 3.0, 0.0), now)
    arm.run(0.05)
    assert "torque is" in arm.reactions[0].sentence and "Nm" in arm.reactions[0].sentence


FAULTS = {
    "silent": (
        lambda now, since: None,
        "has sent nothing from the last 0.02 s: is its driver running?",
        False,
    ),
    "old": (lambda now, since: (FREE, now - 50 * MS), "its samples are older: check its clock", False),
    "frozen stamp": (lambda now, since: (FREE, since), "its stamp does not change", False),
    "future": (lambda now, since: (FREE, now + S), "its stamp is in the future", False),
    "nan": (lambda now, since: ((math.nan, *FREE[1:]), now), "a number that is not finite", False),
    "huge": (
        lambda now, since: ((0.0, 1.7e308 * (-1) ** (now // MS), *FREE[2:]), now),
        "that no sensor measures",
        False,
    ),
    "short": (lambda now, since: (FREE[:3], now), "its sample has 3 numbers, not 6", False),
    "saturated": (
        lambda now, since: ((0.0, 0.0, -200.0, 0.0, 0.0, 0.0), now),
        "is saturated: force z is -200 N, its range ends at 200",
        True,
    ),
    "jumps": (
        lambda now, since: ((50.0 if now // MS % 4 == 0 else 0.01 * (now // MS % 3), *FREE[1:]), now),
        "jumps, 5 times within 1 s",
        True,
    ),
    "frozen": (lambda now, since: ((1.0, *FREE[1:]), now), "has repeated the same numbers for 0.5 s", True),
}


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_sensor_that_is_late_passes_by_itself_and_one_that_is_wrong_needs_a_person(fault, streamed):
    arm = ForceArm(streamed, make_sensor(frozen_s=0.5 if fault == "frozen" else math.inf))
    arm.sample = lambda now, _: ((0.01 * (now // MS % 7), *FREE[1:]), now)
    arm.go(GOAL)
    arm.until(lambda: arm.commanded[0] > 0.2)
    tell, sentence, person = FAULTS[fault]
    well, since = arm.sample, arm.now
    arm.sample = lambda now, _: tell(now, since)
    moved = arm.commanded.copy()
    arm.until(lambda: not arm.running, 1.0)
    arm.run(0.6)
    assert arm.reactions and arm.reactions[-1].why in (Why.BLIND, Why.COLLISION)
    rest = arm.commanded.copy()
    assert (np.abs(rest - moved) < 0.9).all()
    assert any(sentence in reason for reason in arm.held.holds), list(arm.held.holds)
    arm.run(0.3)
    np.testing.assert_array_equal(arm.commanded, rest)
    arm.sample = well
    arm.run(1.0)
    assert arm.running is not person
    if person:
        arm.resume()
        arm.until(lambda: arm.running)
    assert arm.broken() == []


def test_a_driver_that_begins_anew_with_the_numbers_it_ended_with_is_not_frozen(streamed_or_not):
    arm = ForceArm(streamed_or_not, make_sensor(frozen_s=0.5))
    count = []
    arm.sample = lambda now, _: ((0.01 * (now // MS % 7), *FREE[1:]), now)
    arm.go(GOAL)
    arm.until(lambda: arm.commanded[0] > 0.2)
    last = FREE
    arm.sample = lambda now, _: (last, now)
    arm.run(0.02)
    arm.sample = lambda now, _: None
    arm.run(1.0)
    assert arm.reactions[-1].why is Why.BLIND and not arm.running

    def again(now: int, _: object) -> tuple:
        count.append(now)
        return (last if len(count) < 20 else (0.01 * (now // MS % 7), *FREE[1:])), now

    arm.sample = again
    arm.until(lambda: arm.running)
    assert arm.broken() == []


def test_the_same_numbers_before_and_after_a_gap_are_not_frozen_and_told_on_they_are():
    """A sensor at rest tells the same again; one gap that is longer than `frozen_s` says nothing of it."""
    watch = SensorWatch(make_sensor(max_age_s=1.0, frozen_s=0.5))
    now = 0
    for gap_ms in (1, 700, 700, 990):
        now += gap_ms * MS
        assert watch.take(FREE, now, now) and not watch.wrong
    for _ in range(3):
        now += 200 * MS
        watch.take(FREE, now, now)
    assert "has repeated the same numbers for 0.5 s" in watch.wrong


def test_it_does_not_start_before_the_sensor_tells_and_is_tared(arm):
    arm = ForceArm(arm.streamed, make_sensor(bias=5.0))
    arm.sample = lambda now, _: None
    arm.goal = GOAL
    arm.run(1.0)
    assert not arm.running
    assert any("has sent nothing yet: start its driver" in reason for reason in arm.held.holds)
    arm.sample = lambda now, _: ((8.0, 0.0, 0.0, 0.0, 0.0, 0.0), now)
    arm.run(1.0)
    assert not arm.running
    assert any("force is 8 N while the arm stands, at most 5 is" in reason for reason in arm.held.holds)
    arm.sample = lambda now, _: ((4.0, 0.01 * (now // MS % 3), 0.0, 0.0, 0.0, 0.0), now)
    arm.until(lambda: arm.running)
    assert arm.guard.watches[0].bias[0] == pytest.approx(4.0)
    arm.sample = lambda now, _: ((12.0, 0.01 * (now // MS % 3), 0.0, 0.0, 0.0, 0.0), now)
    arm.run(0.1)
    assert not arm.reactions  # 8 N beyond its bias
    arm.sample = lambda now, _: ((15.0, 0.0, 0.0, 0.0, 0.0, 0.0), now)
    arm.run(0.1)
    assert arm.reactions


def test_a_bias_is_not_taken_of_what_is_not_still_nor_while_the_arm_moves():
    arm = ForceArm(True, make_sensor(bias=5.0))
    arm.sample = lambda now, _: ((4.9 if now // MS % 2 else -4.9, *FREE[1:]), now)
    arm.goal = GOAL
    arm.run(1.0)
    assert any("force is not still" in reason for reason in arm.held.holds)
    arm.sample = lambda now, _: (FREE, now)
    arm.until(lambda: arm.running)
    arm.run(0.2)
    arm.guard.begin_tare()  # whoever asks in motion stops it first
    arm.run(0.2)
    assert arm.reactions[-1].why is Why.BLIND and not arm.running
    arm.until(lambda: arm.running)
    assert arm.broken() == []


def test_one_wrong_sample_is_nothing(arm):
    arm.go(GOAL)
    begin = arm.now
    arm.sample = lambda now, _: ((500.0 if now == begin + 50 * MS else 0.0, *FREE[1:]), now)
    arm.run(0.4)
    assert not arm.reactions and arm.running


def test_noise_at_the_limit_is_one_contact():
    arm = ForceArm(True)
    rng = np.random.default_rng(0)
    arm.go(GOAL)
    arm.run(0.3)
    arm.sample = lambda now, _: ((10.5 + rng.normal(0.0, 1.5), *FREE[1:]), now)
    arm.run(2.0)
    assert [r.why for r in arm.reactions] == [Why.CONTACT, Why.RETREAT]


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


def test_an_order_to_hold_ends_a_retreat_at_once(streamed_or_not):
    arm = ForceArm(streamed_or_not, retreat=Retreat(rad=1.0, speed=0.3, s=3.0))
    arm.go(GOAL)
    arm.run(0.6)
    arm.sample = lambda now, _: ((15.0, *FREE[1:]), now)
    arm.until(lambda: bool(arm.reactions))
    arm.run(0.3)
    assert arm.guard.phase is Phase.RETREATING
    arm.held.hold(OPERATOR)
    arm.run(0.02)
    assert arm.reactions[-1].why is Why.OVER
    arm.run(0.25)
    rest = arm.commanded.copy()
    arm.run(1.0)
    np.testing.assert_array_equal(arm.commanded, rest)
    assert arm.broken() == []


@pytest.mark.parametrize("order", ["released or sent home", "deactivated"])
def test_an_arm_that_others_are_about_to_move_does_not_go_back_unwatched(streamed_or_not, order):
    arm = ForceArm(streamed_or_not, retreat=Retreat(rad=1.0, speed=0.3, s=3.0))
    arm.go(GOAL)
    arm.run(0.6)
    arm.sample = lambda now, _: ((15.0, *FREE[1:]), now)
    arm.until(lambda: bool(arm.reactions))
    arm.run(0.3)
    assert arm.guard.phase is Phase.RETREATING
    if order == "deactivated":
        arm.taking.end_retreat(arm.now)
    else:
        arm.held.hold(order)
        arm.held.lent = True
        arm.run(0.02)
    assert arm.reactions[-1].why is Why.OVER
    arm.run(0.25)
    rest = arm.commanded.copy()
    arm.run(1.0)
    np.testing.assert_array_equal(arm.commanded, rest)
    assert arm.broken() == []


def test_an_arm_that_is_held_or_lent_does_not_move_whatever_pushes_it(arm):
    arm.go(GOAL)
    arm.run(0.5)
    arm.held.hold(OPERATOR)
    arm.run(1.0)
    rest, count = arm.commanded.copy(), len(arm.sent)
    arm.sample = lambda now, _: ((100.0, *FREE[1:]), now)
    arm.run(1.0)
    np.testing.assert_array_equal(arm.commanded, rest)
    assert len(arm.sent) == count
    arm.held.lent = True
    arm.run(0.5)
    assert len(arm.sent) == count and not arm.held.faults


def test_nothing_that_was_decided_before_a_reaction_is_sent_after_it():
    arm = ForceArm(True)
    arm.go(GOAL)
    arm.run(0.3)
    path = arm.sent[-1]
    arm.sample = lambda now, _: ((40.0, *FREE[1:]), now)
    arm.until(lambda: bool(arm.reactions))
    count = len(arm.sent)
    arm.send(path)
    assert len(arm.sent) == count
    arm.taking.adopt(arm.now)
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
    kept = np.arange(now_ns, commit_ns + 1, MS)
    np.testing.assert_allclose(retreat.sample(kept)[0], path.sample(kept)[0], atol=1e-9)
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


TOLD = st.sampled_from(["free", "touch", "hit", "nan", "silent", "old", "spike", "noise", "short"])


@settings(max_examples=6)
@given(
    st.lists(st.tuples(TOLD, st.integers(1, 400)), min_size=1, max_size=12),
    st.booleans(),
    st.floats(0.2, 1.0),
    st.lists(st.sampled_from(["", "", "resume", "hold", "goal"]), min_size=12, max_size=12),
    st.integers(0, 2**31),
)
def test_whatever_a_sensor_tells_the_limits_are_kept_and_every_retreat_ends(
    episodes, streamed, speed, orders, seed
):
    rng = np.random.default_rng(seed)
    arm = ForceArm(streamed, retreat=Retreat(speed=speed, rest_s=0.1))
    arm.go(rng.uniform(arm.limits.lower, arm.limits.upper))
    arm.speed = 3.0
    arm.run(0.3)

    def tell(what: str, now: int):
        size = {"touch": 15.0, "hit": 60.0, "spike": 90.0 if rng.random() < 0.2 else 0.0}.get(what, 0.0)
        size += 0.01 * rng.random() + (rng.normal(9.0, 3.0) if what == "noise" else 0.0)
        numbers = (math.nan, *FREE[1:]) if what == "nan" else (size, *FREE[1:])
        stamp = now - (100 * MS if what == "old" else 0)
        return None if what == "silent" else (numbers[: 2 if what == "short" else 6], stamp)

    for (what, ms), order in zip(episodes, orders):
        arm.sample = partial(lambda what, now, _: tell(what, now), what)
        if order == "hold":
            arm.held.hold(OPERATOR)
        elif order == "resume":
            arm.resume()
        elif order == "goal":
            arm.goal = rng.uniform(arm.limits.lower, arm.limits.upper)
        arm.run(ms * 1e-3)
    assert arm.broken() == []
    arm.goal = None
    arm.run(2.5)
    assert arm.guard.phase is not Phase.RETREATING
    rest = arm.commanded.copy()
    arm.run(0.1)
    np.testing.assert_array_equal(arm.commanded, rest)
    assert arm.now > START


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
