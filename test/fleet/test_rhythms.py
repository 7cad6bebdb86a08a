"""How a robot asks, from when it asked; and what a scheduler makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fleet_stand_ins import Fleet, TimedReplica
from simulated_engine import BATCHES, measured

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.admission.forecast import Room, at_once, room
from vla_accel_ros.fleet.admission.verdict import Limits, admit
from vla_accel_ros.fleet.replicas.replica import FRAMES, SERVE
from vla_accel_ros.fleet.serving.rhythms import LEAST, PAUSE, Asked
from vla_accel_ros.fleet.serving.settings import Settings

HZ, WITHIN_S, ROBOTS = 3.0, 0.09, 16


def asked(*times_s: float, buffer_s: float = 0.0) -> Asked:
    found = Asked()
    for at_s in times_s:
        found.note(at_s, buffer_s)
    return found


def test_period_jitter_and_phase_follow_from_when_it_asked() -> None:
    rhythm = asked(0.0, 0.5, 1.0, 1.5, buffer_s=0.1).rhythm(1.6)
    assert rhythm is not None and rhythm.buffer_s == 0.1
    assert (rhythm.period_s, rhythm.jitter, rhythm.next_s) == pytest.approx((0.5, 0.0, 0.4))
    chance = np.random.default_rng(0)
    times_s = np.cumsum(0.5 * (1.0 + chance.uniform(-0.2, 0.2, 40))).tolist()
    varies = asked(*times_s).rhythm(times_s[-1])
    assert varies is not None and varies.period_s == pytest.approx(0.5, rel=0.1)
    assert varies.jitter == pytest.approx(0.2, abs=0.06) and varies.buffer_s == math.inf


def test_little_says_nothing_and_a_pause_forgets_it() -> None:
    few = [0.5 * number for number in range(LEAST - 1)]
    assert asked(*few).rhythm(few[-1]) is None and asked().rhythm(0.0) is None
    known = asked(*few, 1.5)
    assert known.rhythm(1.5) is not None and known.rhythm(1.5 + 1.1 * PAUSE * 0.5) is None
    known.note(10.0)
    assert known.rhythm(10.0) is None
    assert known.rhythm(1.5) is None, "it begins anew"


def test_one_that_is_late_asks_next_at_once() -> None:
    found = asked(0.0, 0.5, 1.0, 1.5).rhythm(2.2)
    assert found is not None and found.next_s == 0.0


def test_new_instructions_while_the_clock_stands_show_no_rhythm_and_others_are_judged() -> None:
    fleet = make_fleet(Told())
    fleet.now_s = 10.0
    for task in range(LEAST + 1):
        for robot in range(ROBOTS):
            fleet.ask(f"/r{robot}", task=task)
    fleet.describe("/late", chunks_per_s=HZ)
    fleet.step()
    assert told(fleet).admitted


class Told:
    """A Forecast that records what rooms are asked for, and gives the one that the test says."""

    def __init__(self, found: Room | None = None) -> None:
        self.found, self.asked = found, list[tuple[Any, ...]]()

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if function is not room:
            return at_once(function, *arguments)
        self.asked.append(arguments)
        return at_once(function, *arguments) if self.found is None else self.found


def make_fleet(forecast: Told, replicas: int = 1, **limits: Any) -> Fleet:
    """Robots that are served, by an engine with the policy `batches`."""
    known, made = measured(BATCHES), []
    times = {(SERVE, batch): seconds for batch, seconds in known.serve}
    times |= {(FRAMES, batch): seconds for batch, seconds in known.frames}
    for number in range(replicas):
        made.append(TimedReplica(f"r{number}", most=known.limit))
        made[-1].profile, made[-1].config = Profile(times), BATCHES
    given = Limits(**{"most_robots": 100, "load": 0.95, "within_s": WITHIN_S, **limits})
    settings = Settings(gone_s=1e6, stale_s=1e6, limits=given)
    fleet = Fleet(replicas=made, settings=settings, forecast=forecast)
    for number in range(ROBOTS):
        fleet.describe(f"/r{number}", chunks_per_s=HZ)
    return fleet


def play(fleet: Fleet, spread: float, rounds: int = 6, takes_s: float = 0.03, first: int = 0) -> None:
    """All ask so many times, at once or by turns, and are answered."""
    for number in range(first, first + rounds):
        for robot in range(ROBOTS):
            fleet.now_s = (number + spread * robot / ROBOTS) / HZ
            fleet.ask(f"/r{robot}", number)
        fleet.step()
        fleet.now_s += takes_s
        for replica in fleet.replicas:
            while replica.jobs:
                replica.finish()
                fleet.step()


def told(fleet: Fleet, robot: str = "/late") -> Any:
    return [one for one in fleet.told.admissions if one.robot == robot][-1]


def test_the_forecast_is_of_the_robots_as_they_were_seen_to_ask() -> None:
    forecast = Told()
    fleet = make_fleet(forecast)
    assert not forecast.asked, "nobody was seen: by what is expected of any"
    play(fleet, spread=1.0)
    fleet.describe("/late", chunks_per_s=HZ)
    assert told(fleet).admitted and not told(fleet).reason
    (one,) = forecast.asked
    known, robots, wanted_hz, least, within_s, took_s, slower = one
    assert (wanted_hz, least, within_s, slower) == (HZ, 0.5, WITHIN_S, 1.0)
    assert known.config == BATCHES and len(robots) == ROBOTS and took_s is not None
    last_s = [(5 + robot / ROBOTS) / HZ for robot in range(ROBOTS)]
    expected = [max(0.0, at_s + 1 / HZ - fleet.now_s) for at_s in last_s]
    assert [robot.next_s for robot in robots] == pytest.approx(expected)
    assert {round(robot.period_s, 6) for robot in robots} == {round(1 / HZ, 6)}


def test_who_finds_no_room_beside_them_is_refused_and_judged_again_later() -> None:
    forecast = Told()
    fleet = make_fleet(forecast)
    play(fleet, spread=0.0)
    fleet.describe("/late", chunks_per_s=HZ)
    fleet.describe("/later", chunks_per_s=HZ)
    assert not told(fleet).admitted and not told(fleet, "/later").admitted
    assert f"beside the {ROBOTS} robots that are served, as they ask now" in told(fleet).reason
    judged = len(forecast.asked)
    play(fleet, spread=1.0, rounds=24, first=6)
    assert len(forecast.asked) == judged, "not each time that there may be room"
    play(fleet, spread=1.0, rounds=24, first=30)
    assert len(forecast.asked) > judged and told(fleet).admitted, "they take turns now"


def test_a_robot_that_goes_makes_room_at_once() -> None:
    forecast = Told(Room(0.0, 0.9))
    fleet = make_fleet(forecast)
    play(fleet, spread=1.0)
    fleet.describe("/late", chunks_per_s=HZ)
    assert not told(fleet).admitted
    forecast.found = Room(HZ, 1.0)
    fleet.scheduler.gone("/r0", fleet.now_s)
    fleet.step()
    assert told(fleet).admitted


def test_more_than_was_expected_of_any_may_be_served_where_they_were_seen_and_are_not_slowed_for_it() -> None:
    forecast = Told(Room(HZ, 1.0))
    fleet = make_fleet(forecast, within_s=0.05)
    expected = fleet.scheduler.in_time_hz / HZ
    play(fleet, spread=1.0, takes_s=0.02)
    late = [f"/late{number}" for number in range(round(1.15 * expected) - ROBOTS)]
    for name in late:
        fleet.describe(name, chunks_per_s=HZ)
    assert all(told(fleet, name).admitted for name in late)
    for _ in range(3):
        fleet.step(2.1)
    assert all(told(fleet, name).admitted and not told(fleet, name).reason for name in late)


def test_with_several_replicas_it_is_what_is_expected_of_any() -> None:
    forecast = Told(Room(0.0, 0.0))
    fleet = make_fleet(forecast, replicas=2)
    play(fleet, spread=0.0)
    fleet.describe("/late", chunks_per_s=HZ)
    assert told(fleet).admitted and not forecast.asked


def test_a_part_of_its_rate_is_given_with_the_reason_or_none_if_that_is_too_little() -> None:
    some = admit(10.0, [3.0] * 4, 200.0, Limits(within_s=0.09), room=Room(7.0, 0.97))
    assert some.admitted and some.chunks_per_s == 7.0
    assert some.reason == (
        "10 chunks a second are asked for, but beside the 4 robots that are served, as they ask now, 97 in "
        "100 chunks would come within 0.09 s, where 99 are wanted; it is served at that rate, 7 a second"
    )
    few = admit(10.0, [3.0] * 4, 200.0, Limits(within_s=0.09), room=Room(4.0, 0.97))
    assert not few.admitted and few.reason.endswith("ask for fewer, or add a replica")
    assert admit(10.0, [3.0] * 4, 200.0, Limits(within_s=0.09), room=Room(10.0, 1.0)).reason == ""
    full = admit(10.0, [3.0] * 60, 200.0, Limits(within_s=0.09), room=Room(10.0, 1.0))
    assert not full.admitted and "of the 200 that the replicas make are left" in full.reason
