"""A forecast that takes long: who is served goes on being served, who came is told when it is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fleet_stand_ins import Fleet, TimedReplica

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.admission.background import Background
from vla_accel_ros.fleet.admission.forecast import Forecasting, at_once, chunks_hz
from vla_accel_ros.fleet.admission.replica_model import Measured
from vla_accel_ros.fleet.admission.verdict import Limits
from vla_accel_ros.fleet.serving.settings import Settings

H200 = {1: 0.01096, 2: 0.019147, 4: 0.031063, 8: 0.053562, 16: 0.109558, 20: 0.135303}
WAIT_S = 30.0


class Slow:
    """Forecasts that are computed when the test says so. asked: the rates that were."""

    def __init__(self) -> None:
        self.go_on, self.asked, self.woken = threading.Semaphore(0), list[float](), threading.Semaphore(0)

    def compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.asked.append(arguments[1])
        assert self.go_on.acquire(timeout=WAIT_S)
        return at_once(function, *arguments)

    def finish(self) -> None:
        """The one that is computed is there."""
        self.go_on.release()
        assert self.woken.acquire(timeout=WAIT_S)


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def background(slow: Slow) -> Iterator[Background]:
    background = Background(slow.woken.release, slow.compute)
    yield background
    slow.go_on.release(100)
    background.close()


@pytest.fixture
def make(background: Background) -> Callable[..., Fleet]:
    def make(**limits: Any) -> Fleet:
        replica = TimedReplica(most=20)
        replica.profile = Profile({("serve", batch): seconds for batch, seconds in H200.items()})
        given = Limits(**{"most_robots": 100, "load": 0.95, "within_s": 0.09, **limits})
        settings = Settings(gone_s=1e6, stale_s=1e6, limits=given)
        return Fleet(replicas=[replica], settings=settings, forecast=background)

    return make


def states(fleet: Fleet) -> dict[str, str]:
    return {report.robot: report.state for report in fleet.scheduler.reports(fleet.now_s)}


def admitted(fleet: Fleet) -> list[str]:
    return [one.robot for one in fleet.told.admissions if one.admitted]


def test_nobody_waits_for_a_forecast(background: Background, slow: Slow) -> None:
    asked = chunks_hz, Measured(tuple(H200.items())), 3.0, 0.09
    for _ in range(3):
        with pytest.raises(Forecasting):
            background(*asked)
    slow.finish()
    assert background(*asked) == at_once(*asked) and slow.asked == [3.0]


def test_chunks_are_answered_while_a_robot_is_judged_and_it_is_told_when_it_is(
    make: Callable[..., Fleet], slow: Slow
) -> None:
    fleet = make()
    fleet.describe("/a", chunks_per_s=3.0)
    assert states(fleet) == {"/a": "being judged"} and not fleet.told.admissions
    slow.finish()
    fleet.step()
    assert admitted(fleet) == ["/a"]
    fleet.describe("/b", chunks_per_s=2.0)
    fleet.ask("/a")
    fleet.begin("/b")
    assert fleet.told.refusals() == ["the scheduler is computing whether this robot fits"]
    assert fleet.told.answers[-1].retry_s <= 1.0, "it may ask again soon"
    fleet.serve(0.05)
    assert [chunk.robot for chunk in fleet.told.chunks()] == ["/a"] and states(fleet)["/b"] == "being judged"
    slow.finish()
    fleet.step()
    assert admitted(fleet) == ["/a", "/b"] and slow.asked == [3.0, 2.0]


def test_robots_are_judged_in_the_order_in_which_they_came(make: Callable[..., Fleet], slow: Slow) -> None:
    fleet = make(most_robots=2)
    fleet.describe("/a", chunks_per_s=3.0)
    slow.finish()
    fleet.step()
    fleet.describe("/b", chunks_per_s=2.0)
    fleet.describe("/c", chunks_per_s=3.0)  # its forecast is there, and its turn is after that of /b
    fleet.step()
    assert admitted(fleet) == ["/a"]
    slow.finish()
    fleet.step()
    assert admitted(fleet) == ["/a", "/b"]
    (refused,) = [one for one in fleet.told.admissions if one.robot == "/c"]
    assert not refused.admitted and "most_robots" in refused.reason


def test_a_robot_that_goes_while_it_is_judged_leaves_nothing(make: Callable[..., Fleet], slow: Slow) -> None:
    fleet = make()
    fleet.describe("/a", chunks_per_s=3.0)
    fleet.scheduler.gone("/a", 0.0)
    slow.finish()
    fleet.step()
    assert not fleet.told.admissions and not states(fleet)


def test_who_was_admitted_keeps_its_place_until_a_slower_replica_is_reckoned_with(
    make: Callable[..., Fleet], slow: Slow
) -> None:
    fleet = make()
    for number in range(30):
        fleet.describe(f"/r{number}", chunks_per_s=3.0)
    slow.finish()
    fleet.step()
    assert len(admitted(fleet)) == 30
    fleet.replica.profile.scale(2.0)
    fleet.step(2.5)
    known_hz = fleet.scheduler.in_time_hz
    assert set(states(fleet).values()) == {"idle"} and known_hz > 90.0
    slow.finish()
    fleet.step(0.01)
    assert 0 < sum(state == "refused" for state in states(fleet).values()) < 30
    assert fleet.scheduler.in_time_hz < known_hz
