"""What robots are told: before they are tried, by a forecast, and afterwards, where it was wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fleet_builders import robots_in_time
from fleet_stand_ins import Fleet, TimedReplica

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.admission import forecast
from vla_accel_ros.fleet.admission.punctuality import ENOUGH, PATIENT, SLOWER, Punctuality
from vla_accel_ros.fleet.admission.replica_model import Measured
from vla_accel_ros.fleet.admission.verdict import Limits, Verdict, admit
from vla_accel_ros.fleet.protocol import Admission
from vla_accel_ros.fleet.serving.settings import Settings

H200 = {1: 0.01096, 2: 0.019147, 4: 0.031063, 8: 0.053562, 16: 0.109558, 20: 0.135303}
HZ, WITHIN_S = 3.0, 0.09


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """How near a forecast comes is not looked at here (test_forecast.py)."""
    forecast.chunks_hz.cache_clear()
    monkeypatch.setattr(forecast, "DRAWS", 3)
    yield
    forecast.chunks_hz.cache_clear()


def make_fleet(within_s: float = WITHIN_S, most: int = 20, least: float = 0.5, factor: float = 1.0) -> Fleet:
    replica = TimedReplica(most=most)
    replica.profile = Profile({("serve", batch): factor * seconds for batch, seconds in H200.items()})
    limits = Limits(most_robots=100, load=0.95, least=least, within_s=within_s)
    return Fleet(replicas=[replica], settings=Settings(gone_s=1e6, stale_s=1e6, limits=limits))


def told(fleet: Fleet, robot: str) -> Admission:
    """Its last word."""
    return [one for one in fleet.told.admissions if one.robot == robot][-1]


def describe(fleet: Fleet, count: int, hz: float = HZ) -> list[str]:
    names = [f"/r{number}" for number in range(count)]
    for name in names:
        fleet.describe(name, chunks_per_s=hz)
    return names


def test_as_many_robots_are_served_as_get_their_chunks_in_time_and_the_next_is_told_why_not() -> None:
    fleet = make_fleet(least=0.9)
    fit = robots_in_time(Measured.of(fleet.replica), HZ, WITHIN_S)
    assert HZ * fit < 0.95 * fleet.scheduler.capacity_hz, "the replica alone would allow more"
    names = describe(fleet, fit + 1)
    assert all(told(fleet, name).admitted and not told(fleet, name).reason for name in names[:-1])
    last = told(fleet, names[-1])
    assert not last.admitted and "of which 99 in 100 come within 0.09 s are left" in last.reason
    assert last.reason.endswith("ask for fewer, or add a replica")
    fleet.ask(names[-1])
    assert fleet.told.refusals() == [last.reason], "who asks nevertheless gets the same sentence"
    fleet.scheduler.gone(names[0], 1.0)
    fleet.step()
    assert told(fleet, names[-1]).admitted and not told(fleet, names[-1]).reason


def test_a_robot_for_which_half_is_left_is_served_more_slowly_and_told_the_rate() -> None:
    fleet = make_fleet()
    fit = robots_in_time(Measured.of(fleet.replica), HZ, WITHIN_S)
    describe(fleet, fit - 1)
    fleet.describe("/fast", chunks_per_s=1.5 * HZ)
    answer = told(fleet, "/fast")
    assert answer.admitted and 0.5 * 1.5 * HZ <= answer.chunks_per_s < 1.5 * HZ
    assert "it is served at that rate" in answer.reason


def test_more_time_takes_more_robots_until_the_replica_is_the_limit() -> None:
    served = []
    for within_s in (0.06, 0.09, 5.0):
        fleet = make_fleet(within_s, least=1.0)
        describe(fleet, 60)
        served.append(sum(one.state != "refused" for one in fleet.scheduler.reports(0.0)))
    assert served == sorted(served) and served[0] < served[1] < served[2]
    assert served[2] == int(0.95 * fleet.scheduler.capacity_hz / HZ)


def test_a_robot_alone_is_tried_however_late_its_chunks_are_expected() -> None:
    fleet = make_fleet(within_s=0.005)
    names = describe(fleet, 2)
    assert told(fleet, names[0]).admitted and not told(fleet, names[1]).admitted


def answer(fleet: Fleet, names: list[str], rounds: int, takes_s: float, first: int = 0) -> None:
    """Each robot gets so many chunks, each after so long."""
    for number in range(first, first + rounds):
        for name in names:
            fleet.ask(name, number)
        fleet.step()
        fleet.now_s += takes_s
        while fleet.replica.jobs:
            fleet.replica.finish()
            fleet.step()


def test_robots_that_truly_do_not_fit_are_slowed_or_refused_the_last_first_and_told_why() -> None:
    fleet = make_fleet()
    names = describe(fleet, robots_in_time(Measured.of(fleet.replica), HZ, WITHIN_S))
    before = len(fleet.told.admissions)
    answer(fleet, names, 8, takes_s=0.2)
    fleet.step(2.1)
    said = fleet.told.admissions[before:]
    assert said and said[0].robot == names[-1] and told(fleet, names[0]).reason == ""
    for one in said:
        assert one.reason.startswith(
            "its service was reduced because 100 of 100 chunks came later than 0.09 s"
        )
        assert one.chunks_per_s < HZ
    served = [one for one in fleet.scheduler.reports(fleet.now_s) if one.state != "refused"]
    assert sum(one.chunks_per_s for one in served) < HZ * len(names) / 1.05
    fleet.ask(names[-1], 99)
    refusals = fleet.told.refusals()
    assert told(fleet, names[-1]).admitted or refusals[-1] == told(fleet, names[-1]).reason


def test_robots_come_back_by_and_by_once_chunks_are_in_time_again() -> None:
    fleet = make_fleet()
    names = describe(fleet, robots_in_time(Measured.of(fleet.replica), HZ, WITHIN_S))
    answer(fleet, names, 8, takes_s=0.2)
    fleet.step(2.1)
    assert told(fleet, names[-1]).reason
    for number in range(3 * PATIENT):
        answer(fleet, names[:10], 1, takes_s=0.01, first=200 + number)
        fleet.step(2.1)
    assert told(fleet, names[-1]) == Admission("e1", names[-1], "s", True, "", HZ)


def test_a_replica_that_got_slower_serves_fewer() -> None:
    fleet = make_fleet(least=1.0)
    names = describe(fleet, robots_in_time(Measured.of(fleet.replica), HZ, WITHIN_S))
    for batch, seconds in H200.items():
        fleet.replica.profile.note("serve", batch, 1.2 * seconds)
    fleet.step(2.1)
    assert not told(fleet, names[-1]).admitted
    assert told(fleet, names[-1]).reason.startswith(
        "its service was reduced because the replicas have become slower"
    )
    assert told(fleet, names[0]).admitted and not told(fleet, names[0]).reason


def test_robots_of_other_rates_take_what_their_own_like_would() -> None:
    rates = {1.0: 50.0, 10.0: 100.0}  # chunks a second in time
    half = [1.0] * 25
    verdict = admit(10.0, half, 1000.0, Limits(least=0.5), rates.__getitem__)
    assert verdict == Verdict(True, 10.0)
    assert not admit(10.0, half + [10.0] * 5, 1000.0, Limits(least=0.5), rates.__getitem__).admitted


@pytest.mark.parametrize(("late", "count", "slower"), [(3, ENOUGH, 1.0), (40, ENOUGH, SLOWER), (9, 10, 1.0)])
def test_a_few_late_chunks_say_nothing(late: int, count: int, slower: float) -> None:
    punctuality = Punctuality(0.1)
    for number in range(count):
        punctuality.answered(0.2 if number < late else 0.05)
    punctuality.judge()
    assert punctuality.slower == slower
    punctuality.forget()
    assert punctuality.slower == 1.0
