"""The benches of a fleet's decisions, admission and hedging, small; and what was published of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fleet_admission
import fleet_decision
import fleet_hedging
import fleet_windows
import numpy as np
import pytest

from fleets import simulated
from fleets.admitting import half
from fleets.simulated import Engine, SimulatedReplica, measure
from vla_accel_ros.extensions import BUILT_IN, FLEET_POLICIES

RESULTS = fleet_admission.RESULTS


def published(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def test_a_small_run_of_decisions_measures_each_fleet(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    assert fleet_decision.main(["--small", "--policies", "fifo", "gfair", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["steps"]
    assert [(row["fleet"], row["policy"]) for row in rows] == [
        (fleet, policy) for fleet in fleet_decision.PAUSES for policy in ("fifo", "gfair")
    ]
    assert all(row["chunks_hz"] > 50 and row["cpu_ms"]["p50"] > 0 for row in rows)


def test_a_step_with_a_thousand_robots_takes_a_millisecond_at_most() -> None:
    rows = published("fleet_decision")["steps"]
    assert {row["robots"] for row in rows} == {1000} and len(rows) == 2 * len(BUILT_IN[FLEET_POLICIES])
    assert max(row["cpu_ms"]["p99"] for row in rows) <= 1.0
    assert min(row["waiting"] for row in rows if row["fleet"] == "all wait") > 800


def test_a_small_run_of_admission_predicts_and_simulates(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    assert fleet_admission.main(["--small", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    (row,) = found["simulated"]
    assert 0.8 <= row["predicted"] / row["simulated"] <= 1.25 and len(row["seeds"]) == 2
    assert found["measured"]["measured"] == published("fleet")["admission"][0]["most"]


def test_what_was_published_of_admission_is_nearly_all_within_five_percent() -> None:
    rows = published("fleet_admission")["simulated"]
    errors = [abs(row["error"]) for row in rows]
    assert sum(error <= 0.05 for error in errors) >= 14 and max(errors) <= 0.06
    assert {(row["setting"], row["hz"]) for row in rows} >= {
        (setting, hz) for setting in ("default", "batches") for hz in (2.0, 3.0, 5.0)
    }


def test_what_a_simulated_replica_measures_is_its_own_rate() -> None:
    engine = Engine((10.0, 20.0, 40.0), (1.0, 1.0, 1.0))
    known = measure(engine, fleet_admission.BATCHES).profile.known()
    assert known["serve", 1] == pytest.approx(0.02, rel=0.1) and known["frames", 4] > 0.04
    assert known["serve", 4] / 4 == pytest.approx(0.01 + 10 * 0.001 / 4, rel=0.1)


def test_twice_as_many_robots_on_two_engines_wait_as_long_as_on_one() -> None:
    engine, config = fleet_admission.ENGINES["pi0.5, 2 views, H200"], fleet_admission.BATCHES
    profile = measure(engine, config).profile

    def p99_s(engines: int) -> float:
        replicas = [SimulatedReplica(engine, config, seed, name=f"gpu{seed}") for seed in range(engines)]
        for one in replicas:
            one.profile = profile
        run = simulated.play(replicas, 40 * engines, 3.0, 0.1, 1.0, 4.0, seed=1)
        assert run.stall < 0.001
        return float(np.percentile(run.took_s, 99))

    assert p99_s(2) < 1.2 * p99_s(1)


def test_a_replica_that_stalls_holds_up_fewer_requests_for_long_if_they_are_hedged() -> None:
    (alone, no), (hedged, cost) = (fleet_hedging.play("stalling", hedge, 60.0, 0) for hedge in (False, True))
    assert no["hedged"] == 0.0 < cost["hedged"] < 0.1 and cost["wasted"] < 0.1
    long = [sum(took_s > 0.5 for took_s in of) for of in (alone, hedged)]
    assert len(hedged) == pytest.approx(len(alone), rel=0.01)
    assert long[1] < 0.7 * long[0], long
    rows = {(row["fault"], row["hedge"]): row for row in published("fleet_hedging")["simulated"]}
    assert rows["stalling", True]["p99.9_ms"] < 0.6 * rows["stalling", False]["p99.9_ms"]
    assert rows["slow", False]["p50_ms"] < 1.02 * rows["none", False]["p50_ms"]


def test_windows_are_those_of_the_model_but_for_one_that_was_held_up() -> None:
    settings = published("fleet_windows")["settings"]
    for row in (row for setting in settings for row in setting["measured"]):
        if row["late"] < 0.1:  # one has 29 % late, and more robots with the same phases have less
            assert row["measured_p99_ms"] == pytest.approx(row["model_p99_ms"], rel=0.06), row
    staggered, batches = (setting["spread"][0]["within_tolerance"] for setting in settings)
    assert staggered["2"] < 0.5 < 0.9 < batches["5"] and staggered["2"] < staggered["11"]


def test_a_small_run_of_windows_has_the_models_beside_the_measured(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    assert fleet_windows.main(["--small", "--json", str(file)]) == 0
    found, before = json.loads(file.read_text()), published("fleet_windows")
    assert [one["measured"] for one in found["settings"]] == [one["measured"] for one in before["settings"]]
    for one in found["settings"]:
        (spread,) = one["spread"]
        assert spread["least"] <= spread["median"] <= spread["most"]


@pytest.mark.parametrize("count", range(1, 8))
def test_half_of_the_windows_decide_and_no_more_are_tried(count: int) -> None:
    for good in range(count + 1):
        for order in (range(count), reversed(range(count))):
            tried: list[int] = []

            def well(seed: int, good: int = good, tried: list[int] = tried) -> bool:
                tried.append(seed)
                return seed < good

            assert half(list(order), well) == (2 * good >= count)
            assert len(set(tried)) == len(tried) <= count
    assert half(range(2), lambda seed: seed == 0)  # one that was held up does not decide
