"""How many robots fit: against queues that are known, and an engine that is simulated in every detail."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleet_builders import robots_in_time
from simulated_engine import BATCHES, STAGGERED, maker, measured, waited_s
from simulated_fleet import Fleet

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import MicroBatch
from vla_accel_ros.engine.rules.batches import Batches
from vla_accel_ros.engine.rules.chunks import StaggeredChunks
from vla_accel_ros.engine.simulated import IDLE
from vla_accel_ros.fleet.admission.forecast import (
    MOST_OF_A_DRAW,
    ROUNDS,
    SHARE,
    STALL,
    Rhythm,
    chunks_hz,
    drawn,
    fits,
    fleet_hz,
    pace,
    room,
)
from vla_accel_ros.fleet.admission.replica_model import FRAME, STEP, STEPS, Measured, ReplicaModel

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
SERIAL = Measured(((1, 0.01), (4, 0.04)))
H200 = Measured(
    ((1, 0.01096), (2, 0.019147), (4, 0.031063), (8, 0.053562), (16, 0.109558), (20, 0.135303)),
    limit=20,
    config=STAGGERED,
)
HZ, WITHIN_S = 3.0, 0.09


def waits_s(model: ReplicaModel, asked_s: list[float]) -> list[float]:
    """Of robots that ask once each."""
    return [took_s for _, took_s in model.play(asked_s, lambda robot, now_s: math.inf)]


def test_what_takes_as_long_for_each_is_a_queue_of_one_server() -> None:
    model = ReplicaModel.of(SERIAL)
    assert model.profile.usual_s(FRAME, 1) + model.steps * model.profile.usual_s(STEP, 1) == pytest.approx(
        0.01, rel=1e-3
    )
    assert waits_s(model, [0.0, 0.001, 0.002, 1.0]) == pytest.approx([0.01, 0.019, 0.028, 0.01], rel=1e-3)


def test_batches_that_cost_nothing_more_begin_together() -> None:
    model = ReplicaModel.of(Measured(((1, 0.1), (10, 0.1))))
    assert model.profile.usual_s(FRAME, 10) == 0.0 and model.profile.usual_s(STEP, 10) == pytest.approx(
        0.1 / STEPS, rel=1e-3
    )
    assert max(waits_s(model, [0.0] * 10)) == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("config", [STAGGERED, BATCHES])
def test_the_model_makes_as_many_chunks_as_were_measured(config: EngineConfig) -> None:
    known = measured(config)
    model = ReplicaModel.of(known)
    for batch, seconds in known.serve:
        assert batch * model.interval_s(batch) == pytest.approx(seconds, rel=0.05), batch
    alone = known.serve[0][1]
    assert waits_s(model, [3.0]) == pytest.approx([alone], rel=0.01)


def test_the_model_runs_the_policy_that_the_engine_runs() -> None:
    assert isinstance(ReplicaModel.of(measured(BATCHES)).make(), Batches)
    assert isinstance(ReplicaModel.of(measured(STAGGERED)).make(), StaggeredChunks)
    assert type(maker(BATCHES)()) is type(ReplicaModel.of(measured(BATCHES)).make())
    without = Measured(H200.serve, limit=20)
    assert isinstance(ReplicaModel.of(without).make(), StaggeredChunks), "the options are not known"


def test_frames_that_were_not_measured_are_about_what_they_would_be() -> None:
    known = measured(STAGGERED)
    without = ReplicaModel.of(Measured(known.serve, (), known.limit, known.config))
    assert without.profile.usual_s(FRAME, 1) == pytest.approx(known.frames[0][1], rel=0.2)


def asked_s(robots: int, seconds: float, seed: int, jitter: float = 0.1) -> list[list[float]]:
    """When each of so many robots asks, from a random phase on."""
    chance = np.random.default_rng(seed)
    gaps = (1.0 + chance.uniform(-jitter, jitter, (robots, int(seconds * HZ) + 2))) / HZ
    gaps[:, 0] = chance.uniform(0.0, 1.0 / HZ, robots)
    return [[at_s for at_s in row if at_s < seconds] for row in gaps.cumsum(axis=1).tolist()]


def largest(fit: Callable[[int], bool], least: int = 20, most: int = 60, near: int = 40) -> int:
    """The last of those that fit, of which all smaller ones are taken to fit. near: where to look first."""
    low, high, asked, step = least, most, near, 1
    while high - low > 1:
        if not low < asked < high:
            asked = (low + high) // 2
        if fit(asked):
            low, asked = asked, asked + step
        else:
            high, asked = asked, asked - step
        step *= 2
    return low


@pytest.mark.parametrize("config", [STAGGERED, BATCHES])
def test_as_many_robots_fit_as_in_a_simulation_of_every_detail(config: EngineConfig) -> None:
    """Unseen seeds: the forecast draws with 0, 1, 2, ...; the median of the largest numbers."""
    seconds, warm_s = ROUNDS / HZ + 1.0, 1.0

    def found(seed: int, near: int) -> int:
        times = asked_s(60, seconds, seed)

        def fit(robots: int) -> bool:
            return waited_s(config, sorted(chain(*times[:robots])), warm_s) <= WITHIN_S

        return largest(fit, near=near)

    most = list(accumulate(range(500, 505), lambda near, seed: found(seed, near), initial=40))
    truly = float(np.median(most[1:]))
    predicted = chunks_hz(measured(config), HZ, WITHIN_S) / HZ
    assert predicted / truly == pytest.approx(1.0, abs=0.05), (predicted, truly)


@pytest.mark.parametrize("config", [STAGGERED, BATCHES])
def test_the_same_requests_wait_as_long_as_in_every_detail(config: EngineConfig) -> None:
    model, times = ReplicaModel.of(measured(config)), sorted(chain(*asked_s(36, 6.0, seed=77)))
    took = [took_s for at_s, took_s in model.play(times, lambda *_: math.inf) if at_s >= 1.0]
    assert float(np.percentile(took, 99)) == pytest.approx(waited_s(config, times, 1.0), rel=0.1)


@pytest.mark.parametrize("config", [STAGGERED, BATCHES])
def test_a_forecast_is_what_the_loop_of_an_engine_would_make(config: EngineConfig) -> None:
    """With the same durations, which the model gives to the rule without that loop."""
    model, times = ReplicaModel.of(measured(config)), sorted(chain(*asked_s(36, 3.0, seed=78)))
    engine = Fleet(model.make(), model.limit, profile=model.profile, captured=False, host=IDLE)
    engine.play(times)
    took = sorted(model.play(times, lambda *_: math.inf))
    np.testing.assert_allclose(sorted(engine.took_s), took, rtol=1e-6, atol=1e-8)


def test_batches_are_modelled_and_more_robots_fit() -> None:
    fit = {config: chunks_hz(measured(config), HZ, WITHIN_S) for config in (STAGGERED, BATCHES)}
    assert fit[BATCHES] > 1.1 * fit[STAGGERED]
    model = ReplicaModel.of(measured(BATCHES))
    other, robots = replace(model, make=maker(STAGGERED)), [Rhythm(1 / HZ)] * 40
    waits = [[drawn(one, robots, WITHIN_S, seed).p99_s for seed in range(6)] for one in (model, other)]
    assert np.median(waits[0]) < 0.9 * np.median(waits[1]), "of the same times another policy makes more"


@pytest.mark.parametrize("config", [STAGGERED, BATCHES])
def test_robots_that_ask_at_once_leave_less_room_than_those_that_take_turns(config: EngineConfig) -> None:
    known = measured(config)
    model = ReplicaModel.of(known)

    def fit(spread: float, robots: int) -> bool:
        each = [Rhythm(1 / HZ, 0.01, spread * robot / robots / HZ) for robot in range(robots)]
        return fits(model, each, WITHIN_S)[0]

    at_once, in_turns = (largest(partial(fit, spread), 1, 60) for spread in (0.0, 1.0))
    assert at_once < 0.5 * in_turns
    expected = chunks_hz(known, HZ, WITHIN_S) / HZ
    assert at_once < 0.6 * expected and in_turns > expected, "nobody knows when they ask: between"


def test_a_robot_finds_room_beside_those_that_take_turns_and_none_beside_those_that_ask_at_once() -> None:
    known = measured(BATCHES)
    count = round(0.8 * chunks_hz(known, HZ, WITHIN_S) / HZ)
    in_turns = tuple(Rhythm(1 / HZ, 0.02, robot / count / HZ) for robot in range(count))
    at_once = tuple(Rhythm(1 / HZ, 0.02, 0.001 * robot) for robot in range(count))
    assert room(known, in_turns, HZ, 0.5, WITHIN_S).rate_hz == HZ
    none = room(known, at_once, HZ, 0.5, WITHIN_S)
    assert none.rate_hz == 0.0 and none.in_time < SHARE


def test_a_robot_that_asks_once_in_a_quarter_of_an_hour_makes_no_forecast_long() -> None:
    chosen = 0

    class Counted(StaggeredChunks):
        def next(self, *given: Any) -> MicroBatch | None:
            nonlocal chosen
            chosen += 1
            return super().next(*given)

    model = replace(ReplicaModel.of(SERIAL), make=lambda: Counted(4))
    often = [Rhythm(0.2, next_s=0.02 * number) for number in range(8)]
    outlook = drawn(model, [*often, Rhythm(1000.0)], WITHIN_S, 0)
    assert chosen < 5 * MOST_OF_A_DRAW and outlook.fits
    assert not drawn(model, [*often, Rhythm(1000.0)], 0.005, 0).fits, "the others are simulated"


def test_a_lower_rate_may_fit_where_the_full_one_does_not() -> None:
    known = measured(BATCHES)
    model = ReplicaModel.of(known)
    robots = 40
    while fits(model, [Rhythm(1 / HZ, 0.05, n / robots / HZ) for n in range(robots)], WITHIN_S)[0]:
        robots += 1
    seen = tuple(Rhythm(1 / HZ, 0.05, n / (robots - 4) / HZ) for n in range(robots - 4))
    greedy = 20.0 * HZ
    found = room(known, seen, greedy, 0.5, WITHIN_S)
    assert found.rate_hz < greedy
    assert room(known, seen, 0.2, 0.5, WITHIN_S).rate_hz == 0.2, "who asks seldom fits"


def test_arms_that_have_little_motion_left_stand_sooner() -> None:
    model = ReplicaModel.of(measured(STAGGERED))
    robots = [Rhythm(1 / HZ, next_s=robot / 30 / HZ, buffer_s=0.02) for robot in range(30)]
    assert drawn(model, robots, WITHIN_S, 0).stall > STALL
    long = [Rhythm(1 / HZ, next_s=one.next_s, buffer_s=1.0) for one in robots]
    assert drawn(model, long, WITHIN_S, 0).stall == 0.0
    assert fits(model, long, WITHIN_S)[0] and not fits(model, robots, WITHIN_S)[0]


def test_a_replica_that_is_slower_than_measured_is_found_by_what_requests_take() -> None:
    model = ReplicaModel.of(measured(STAGGERED))
    robots = tuple(Rhythm(1 / HZ, 0.05, robot / 30 / HZ) for robot in range(30))
    for factor in (1.0, 1.15, 1.4):
        took_s = float(np.median([drawn(model.slower(factor), robots, 1.0, s).p50_s for s in range(90, 96)]))
        assert pace(model, robots, took_s) == pytest.approx(factor, rel=0.05)
    known, slow_s = measured(STAGGERED), 1.5 * took_s
    assert room(known, robots, HZ, 0.5, WITHIN_S).rate_hz == HZ
    assert room(known, robots, HZ, 0.5, WITHIN_S, slow_s).rate_hz == 0.0


def test_more_time_and_a_faster_replica_take_more_robots_and_none_takes_more_than_there_is() -> None:
    rates = [chunks_hz(H200, HZ, within_s) for within_s in (0.005, 0.03, WITHIN_S, 9.0)]
    assert rates == sorted(rates) and rates[0] == 0.0 < rates[1] and rates[-1] <= 20 / 0.135303
    assert chunks_hz(H200.slower(0.5), HZ, WITHIN_S) > 1.5 * chunks_hz(H200, HZ, WITHIN_S)
    assert chunks_hz(H200, HZ, math.inf) == chunks_hz(Measured(()), HZ, 0.1) == math.inf


def test_periodic_robots_fit_where_random_ones_would_not() -> None:
    """One server, 80 robots a second of 100: of random arrivals one in a hundred waits for 20 and more."""
    random = np.random.default_rng(0).exponential(1 / 80.0, 20_000).cumsum().tolist()
    late = np.mean(np.array(waits_s(ReplicaModel.of(SERIAL), random)) > 0.1)
    assert late > 0.01 and chunks_hz(SERIAL, 2.0, 0.1) >= 80.0


def test_replicas_add_up_and_what_is_slower_makes_less() -> None:
    profile = Profile({("serve", batch): seconds for batch, seconds in H200.serve})
    one = Measured.read(profile, 20, STAGGERED)
    assert one == H200 and Measured.read(Profile()).capacity_hz == math.inf
    assert fleet_hz([one, one], HZ, WITHIN_S) == 2 * fleet_hz([one], HZ, WITHIN_S)
    assert fleet_hz([one], HZ, WITHIN_S, slower=1.2) < fleet_hz([one], HZ, WITHIN_S)


def test_about_as_many_fit_as_did_on_an_h200() -> None:
    """Which was one draw of phases; draws lie further apart (bench/results/fleet_admission.json)."""
    (found,) = json.loads((RESULTS / "fleet.json").read_text())["admission"]
    curve = tuple(sorted((int(batch), 1e-3 * ms) for batch, ms in found["curve_ms"].items()))
    known = Measured(curve, limit=curve[-1][0], config=STAGGERED)
    assert abs(robots_in_time(known, HZ, WITHIN_S) / found["most"] - 1.0) <= 0.12
