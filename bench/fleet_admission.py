"""How well admission predicts the largest number of robots whose chunks come in time.

    python bench/fleet_admission.py [--seeds 40] [--seen 6]

simulated: the node's FleetScheduler in simulated time, with a replica that runs the engine's own scheduling
    policy (fleets/simulated.py). The simulation includes host time and varying durations; the forecast knows
    only what such a replica measures at its start. For each case: the largest number of robots with which,
    for half of the seeds, 99 of 100 chunks come in time and arms stand still for at most 0.1 % of the time,
    in 12 rounds after 6 of warm-up; and the number that the forecast expects before any is tried. For some
    seeds also: the largest number with that seed; the forecast for robots as the scheduler saw them ask in
    the warm-up; and how far the forecast for unseen robots is from the true number.
measured: the windows of the part `admission` of bench/fleet.py on an H200, and the forecast's model of the
    same robots, with the same phases, from what was measured at the start.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import numpy as np

from fleets.admitting import expected_beside
from fleets.loads import make_trace, most_robots
from fleets.simulated import LEFT, STEP_DT_S, Engine, Run, SimulatedReplica, plain, play
from fleets.simulated import measure as measure_replica
from run import Bench, Given, Row, main
from tables.forms import result
from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.fleet.admission import forecast
from vla_accel_ros.fleet.admission.replica_model import Measured, ReplicaModel

FRESH = 1000
"""First of the seeds; the forecast uses none of them."""
WARM_ROUNDS, ROUNDS = 6, 12
"""Rounds of each robot: warm-up, and measured."""
BUFFER_S = LEFT * STEP_DT_S

DEFAULT = EngineConfig(fast=True, staggered=16, seats_by_load=True)
BATCHES = EngineConfig(fast=True, staggered=16, seats_by_load=True, scheduling="batches", frames_together=4)
SETTINGS = {"default": DEFAULT, "batches": BATCHES}
STEPS_MS = 0.45, 0.93, 0.99, 1.25, 1.69
ENGINES = {
    "pi0.5, 1 view, H200": Engine((3.3, 5.3, 9.8), STEPS_MS),
    "pi0.5, 2 views, H200": Engine((5.3, 10.0, 17.9), STEPS_MS),
    "pi0.5, 3 views, H200": Engine((6.9, 14.2, 27.2), STEPS_MS),
    "slow steps": Engine((3.0, 6.0, 12.0), (3.0, 3.6, 4.2, 5.0, 7.0)),
}


@dataclass(frozen=True)
class Case:
    """setting: of SETTINGS. hz: requests a second of a robot. jitter: relative variation of its intervals.
    policy: of the fleet."""

    setting: str
    hz: float
    within_s: float = 0.09
    jitter: float = 0.1
    engine: str = "pi0.5, 2 views, H200"
    policy: str = "fifo"


CASES = (
    *(Case(setting, hz) for hz in (2.0, 3.0, 5.0) for setting in SETTINGS),
    *(Case(setting, 3.0, jitter=0.02) for setting in SETTINGS),
    *(Case(setting, 3.0, 0.06, engine="pi0.5, 1 view, H200") for setting in SETTINGS),
    *(Case(setting, 3.0, 0.15, engine="pi0.5, 3 views, H200") for setting in SETTINGS),
    *(Case(setting, 1.0, 0.2, engine="slow steps") for setting in SETTINGS),
    Case("batches", 3.0, policy="kairos"),
)


def simulated(case: Case, seeds: int, seen: int) -> dict[str, Any]:
    """Predictions and largest numbers of a case. seen: seeds for which the forecast uses robots as they were
    seen."""
    engine, config = ENGINES[case.engine], SETTINGS[case.setting]
    known = Measured.of(measure_replica(engine, config))
    forecast.chunks_hz.cache_clear()
    began_s = time.thread_time()
    hz, within_s = case.hz, case.within_s
    before = round(forecast.chunks_hz(known, hz, within_s, BUFFER_S) / hz)
    before_ms = 1e3 * (time.thread_time() - began_s)
    limit = math.floor(known.capacity_hz / hz) + 1

    @cache
    def run(robots: int, seed: int) -> Run:
        warm_s, until_s = WARM_ROUNDS / hz, (WARM_ROUNDS + ROUNDS) / hz
        replica = SimulatedReplica(engine, config, seed)
        return play([replica], robots, hz, case.jitter, warm_s, until_s, seed, case.policy)

    def most(*given: int) -> int:
        """Return the largest number of robots that is served well with half of these seeds."""

        def fits(robots: int) -> bool:
            well = [run(robots, seed).fits(within_s, forecast.STALL) for seed in given]
            return 2 * sum(well) >= len(well)

        return most_robots(fits, 1, limit, before)

    truly = most(*range(FRESH, FRESH + seeds))
    rows, judged_ms = [], list[float]()
    for seed in range(FRESH, FRESH + seen):
        own = most(seed)
        found = run(own, seed)
        told = [plain(one) for one in found.seen], found.took_before_s
        beside, _ = expected_beside(known, *told, hz, within_s, BUFFER_S, limit)
        began_s = time.thread_time()
        rhythms = tuple(one or forecast.Rhythm(1.0 / hz) for one in found.seen)
        forecast.room(known, rhythms, hz, 0.5, within_s, found.took_before_s)
        judged_ms.append(1e3 * (time.thread_time() - began_s))
        rows.append({"seed": seed, "simulated": own, "beside": beside})
    besides, unseen = (
        [abs(each / row["simulated"] - 1.0) for each, row in zip(of, rows, strict=True)]
        for of in ([row["beside"] for row in rows], [before] * len(rows))
    )
    return {
        "engine": case.engine, "setting": case.setting, "hz": hz, "within_ms": 1e3 * within_s,
        "jitter": case.jitter, "policy": case.policy, "predicted": before, "simulated": truly,
        "error": round(before / truly - 1.0, 4), "least": min(row["simulated"] for row in rows),
        "most": max(row["simulated"] for row in rows), "beside_error": round(median(besides), 4),
        "unseen_error": round(median(unseen), 4), "load": round(truly * hz / known.capacity_hz, 3),
        "predicted_in_cpu_ms": round(before_ms, 1), "judged_in_cpu_ms": round(max(judged_ms), 1),
        "seeds": rows,
    }  # fmt: skip


def against_measured() -> dict[str, Any]:
    """Compare the windows of the H200 with the forecast's model of the same robots."""
    document = result("fleet")
    (found,) = document["admission"]
    hz, within_s, seconds = document["hz"], document["within_s"], document["seconds"]
    curve = tuple(sorted((int(batch), 1e-3 * ms) for batch, ms in found["curve_ms"].items()))
    known = Measured(curve, limit=curve[-1][0], config=DEFAULT)
    model = ReplicaModel.of(known)
    length_s, warm_s = seconds["warm_up"] + seconds["window"], seconds["warm_up"]

    def took_ms(robots: int, seed: int, until_s: float = length_s) -> np.ndarray:
        asked = [due.at_s for due in make_trace(robots, hz, 0.1, until_s, seed)]
        took = model.play(asked, lambda robot, now_s: math.inf)
        return 1e3 * np.array([each for at, each in took if at >= warm_s])

    def most(seed: int) -> int:
        return most_robots(lambda n: float(np.percentile(took_ms(n, seed), 99)) <= 1e3 * within_s, 1, 96)

    def row(robots: int, seed: int, of: dict[str, Any], until_s: float) -> dict[str, Any]:
        p50, p99 = np.percentile(took_ms(robots, seed, until_s), (50, 99))
        return {
            "robots": robots, "seed": seed, "measured_p50_ms": of["p50_ms"], "measured_p99_ms": of["p99_ms"],
            "model_p50_ms": round(float(p50), 1), "model_p99_ms": round(float(p99), 1),
        }  # fmt: skip

    windows = sorted(found["windows"], key=lambda window: window["robots"])
    rows = [row(each["robots"], 0, each["image_to_chunk"], length_s) for each in windows]
    for each in document["fleet"]:
        if each["setting"] == found["setting"]:
            until_s = warm_s + seconds["fleet"]
            rows.append(row(each["robots"], each["seed"], each["image_to_chunk"], until_s))
    draws = [most(seed) for seed in range(FRESH, FRESH + 20)]
    predicted, same = round(forecast.chunks_hz(known, hz, within_s) / hz), most(0)
    return {
        "setting": found["setting"], "measured": found["most"], "measured_on": document["machine"]["gpu"],
        "by_random_arrivals": found["expected"], "predicted": predicted,
        "predicted_error": round(predicted / found["most"] - 1.0, 4),
        "same_phases": same, "same_phases_error": round(same / found["most"] - 1.0, 4),
        "single_draws": {"least": min(draws), "median": float(np.median(draws)), "most": max(draws)},
        "windows": rows,
    }  # fmt: skip


def measure(given: Given) -> Iterator[Row]:
    """First what was measured, then each case."""
    given.document["measured"] = against_measured()
    given.document["seeds"] = f"phases {FRESH} to {FRESH + given.seeds - 1}"
    for case in (Case("batches", 5.0),) if given.small else CASES:
        yield simulated(case, given.seeds, given.seen)


def options(add: Callable[..., Any]) -> None:
    """How many."""
    add("--seeds", type=int, default=40, help="of phases (default: %(default)s)")
    add("--seen", type=int, default=6, help="of these, for robots that were seen")


BENCH = Bench(
    "fleet_admission", measure, options, rows="simulated", small=True, smoke="--small --seeds 2 --seen 2",
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(BENCH))
