"""A force sensor that is late, wrong or not tared: the arm stops within its limits, and waits."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from force_arm import FREE, GOAL, MS, START, ForceArm, S, make_sensor
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_accel_ros.control.following.watchdog import OPERATOR
from vla_accel_ros.control.force.executed import Retreat
from vla_accel_ros.control.force.guard import Phase, Why
from vla_accel_ros.control.force.sensor import SensorWatch

FAULTS = {
    "silent": (lambda now, since: None, "nothing from the last 0.02 s", False),
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
    tell, words, person = FAULTS[fault]
    well, since = arm.sample, arm.now
    arm.sample = lambda now, _: tell(now, since)
    moved = arm.commanded.copy()
    arm.until(lambda: not arm.running, 1.0)
    arm.run(0.6)
    assert arm.reactions and arm.reactions[-1].why in (Why.BLIND, Why.COLLISION)
    standstill = arm.commanded.copy()
    assert (np.abs(standstill - moved) < 0.9).all()
    assert any(words in reason for reason in arm.held.holds), list(arm.held.holds)
    arm.run(0.3)
    np.testing.assert_array_equal(arm.commanded, standstill)
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
    standstill = arm.commanded.copy()
    arm.run(0.1)
    np.testing.assert_array_equal(arm.commanded, standstill)
    assert arm.now > START
