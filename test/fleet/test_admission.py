"""How many robots a fleet takes, predicted from measured times before any is tried."""

from __future__ import annotations

import math

import pytest

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.admission.replica_model import Measured
from vla_accel_ros.fleet.admission.verdict import Limits, Verdict, admit, capacity_hz, robots_that_fit

MEASURED = Measured.read(
    Profile({("serve", 1): 0.010, ("serve", 4): 0.020, ("serve", 8): 0.050, ("act.denoise", 1): 1e-6})
)
FEW = Limits(most_robots=3)


def taken(asked_hz: float, measured: Measured, limits: Limits) -> int:
    """How many robots are admitted at the rate they ask for, one after another."""
    promised: list[float] = []
    while (verdict := admit(asked_hz, promised, capacity_hz([measured]), limits)).chunks_per_s == asked_hz:
        promised.append(verdict.chunks_per_s)
    return len(promised)


def test_a_replica_makes_what_its_best_batch_makes_and_replicas_add_up() -> None:
    assert capacity_hz([MEASURED]) == pytest.approx(200.0)
    assert capacity_hz([MEASURED, MEASURED]) == pytest.approx(400.0)
    assert capacity_hz([MEASURED, Measured(())]) == math.inf  # one that was never measured


@pytest.mark.parametrize(("hz", "robots"), [(2.0, 45), (1.8, 50), (90.0, 1), (100.0, 0)])
def test_as_many_fit_as_are_admitted_at_their_rate(hz: float, robots: int) -> None:
    limits = Limits(most_robots=50, load=0.45)
    assert robots_that_fit([MEASURED], hz, limits) == robots == min(50, taken(hz, MEASURED, limits))


def test_who_asks_for_more_than_is_left_is_slower_if_that_is_enough_for_it() -> None:
    verdict = admit(100.0, [100.0], 200.0)
    assert verdict.admitted and verdict.chunks_per_s == pytest.approx(80.0)
    assert "100 chunks a second are asked for, 80 of the 200" in verdict.reason
    assert "served at that rate" in verdict.reason


def test_who_could_have_less_than_half_is_refused_and_told_what_to_do() -> None:
    verdict = admit(100.0, [100.0, 31.0], 200.0)
    assert (verdict.admitted, verdict.chunks_per_s) == (False, 0.0)
    assert "ask for fewer, or add a replica" in verdict.reason
    assert not admit(1.0, [180.0], 200.0).admitted
    assert "0 of the 200" in admit(1.0, [300.0], 200.0).reason


def test_no_more_robots_than_allowed_whatever_they_ask_for() -> None:
    assert admit(0.1, [0.1] * 2, 200.0, FEW).admitted
    verdict = admit(0.1, [0.1] * 3, math.inf, FEW)
    assert not verdict.admitted and "most_robots" in verdict.reason


def test_a_replica_that_was_never_measured_takes_all_of_them() -> None:
    assert admit(50.0, [1e6], math.inf) == Verdict(True, 50.0)
    assert robots_that_fit([Measured(())], 50.0, FEW) == 3


@pytest.mark.parametrize("asked", [-1.0, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(asked: float) -> None:
    verdict = admit(asked, [], 200.0)
    assert not verdict.admitted and "chunks_per_s" in verdict.reason


def test_who_tells_no_rate_is_counted_as_one_a_second() -> None:
    assert admit(0.0, [], 200.0) == Verdict(True, 1.0)
    assert not admit(0.0, [1.0], 2.0, Limits(load=0.6)).admitted
