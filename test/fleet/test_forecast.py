"""How many chunks come in time: against queues that are known, and a replica that is simulated otherwise."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.admission.forecast import (
    STEPS,
    Gpu,
    chunks_hz,
    curve_of,
    fleet_hz,
    trace,
    waits_s,
)
from vla_accel_ros.fleet.admission.verdict import robots_in_time

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
SERIAL = ((1, 0.01), (4, 0.04))
H200 = ((1, 0.01096), (2, 0.019147), (4, 0.031063), (8, 0.053562), (16, 0.109558), (20, 0.135303))


def always(gpu: Gpu, batch: int, rounds: int = 60) -> float:
    """From one chunk to the next where so many requests are always there: each asks when one is answered."""
    asked = [1e-6 * number for number in range(batch)]
    for _ in range(rounds):
        took_s = waits_s(gpu, asked)
        ends_s = sorted(at_s + each_s for at_s, each_s in zip(asked, took_s, strict=True))
        asked = asked[:batch] + [end_s + 1e-9 for end_s in ends_s]
    return (ends_s[-batch] - ends_s[len(ends_s) // 2]) / (len(ends_s) - batch - len(ends_s) // 2)


def test_what_takes_as_long_for_each_is_a_queue_of_one_server() -> None:
    gpu = Gpu.of(SERIAL)
    assert gpu.frame_s == pytest.approx(0.01)
    assert waits_s(gpu, [0.0, 0.001, 0.002, 1.0]) == pytest.approx([0.01, 0.019, 0.028, 0.01])


def test_a_request_alone_takes_what_was_measured_of_one() -> None:
    assert waits_s(Gpu.of(H200), [3.0]) == pytest.approx([0.01096], rel=1e-6)


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_as_many_as_are_always_there_make_chunks_as_often_as_was_measured(batch: int) -> None:
    gpu = Gpu.of(H200)
    assert always(gpu, batch) == pytest.approx(dict(H200)[batch] / batch, rel=0.08)


def test_batches_that_cost_nothing_more_begin_together() -> None:
    gpu = Gpu.of(((1, 0.1), (10, 0.1)))
    assert gpu.frame_s == 0.0 and gpu.step_s[10] == pytest.approx(0.1 / STEPS)
    assert max(waits_s(gpu, [0.0] * 10)) == pytest.approx(0.1)


def test_robots_ask_nearly_periodically_from_phases_of_their_own() -> None:
    asked = np.array(trace(1, 0.5, 50, seed=3))
    assert np.diff(asked).min() >= 0.45 and np.diff(asked).max() <= 0.55
    several = trace(40, 0.5, 4, seed=3)
    assert several == sorted(several) and len(several) == 160
    assert several[:5] == trace(40, 0.5, 4, seed=3)[:5] != trace(40, 0.5, 4, seed=4)[:5]


def test_more_time_and_a_faster_replica_take_more_robots_and_none_takes_more_than_there_is() -> None:
    rates = [chunks_hz(H200, 3.0, within_s) for within_s in (0.005, 0.03, 0.06, 0.09, 0.2, 9.0)]
    assert rates == sorted(rates) and rates[0] == 0.0 < rates[1] and rates[-1] <= 20 / 0.135303
    faster = tuple((batch, 0.5 * seconds) for batch, seconds in H200)
    assert chunks_hz(faster, 3.0, 0.09) > 1.5 * chunks_hz(H200, 3.0, 0.09)
    assert chunks_hz(H200, 3.0, math.inf) == chunks_hz((), 3.0, 0.1) == math.inf


def test_periodic_robots_fit_where_random_ones_would_not() -> None:
    """One server, 80 robots a second of 100: of random arrivals one in a hundred waits for 20 and more."""
    random = np.random.default_rng(0).exponential(1 / 80.0, 20_000).cumsum().tolist()
    within_s = 0.10
    late = np.mean(np.array(waits_s(Gpu.of(SERIAL), random)) > within_s)
    assert late > 0.01 and chunks_hz(SERIAL, 2.0, within_s) >= 80.0


def test_replicas_add_up_and_what_is_slower_makes_less() -> None:
    one = Profile({("serve", batch): seconds for batch, seconds in H200})
    assert curve_of(one) == H200
    assert fleet_hz([one, one], 3.0, 0.09) == 2 * fleet_hz([one], 3.0, 0.09)
    assert fleet_hz([one], 3.0, 0.09, slower=1.2) < fleet_hz([one], 3.0, 0.09)


def test_about_as_many_fit_as_did_on_an_h200() -> None:
    """Which was one draw of phases; draws lie further apart than that (bench/fleet_admission.py)."""
    (found,) = json.loads((RESULTS / "fleet.json").read_text())["admission"]
    curve = tuple(sorted((int(batch), 1e-3 * ms) for batch, ms in found["curve_ms"].items()))
    profile = Profile({("serve", batch): seconds for batch, seconds in curve})
    assert abs(robots_in_time(profile, 3.0, 0.09) / found["most"] - 1.0) <= 0.12
