"""How well admission predicts the largest number of robots whose chunks come in time.

    python bench/fleet_admission.py [--draws 30] [--small] [--json FILE]

simulated: the node's FleetScheduler and policies in simulated time, with a replica that computes a frame and then a
step of all chunks that it has begun, as fleet/replicas/local.py does; other times of frames and steps than
fleet/admission/forecast.py derives, which sees only what such a replica measures at its start. The largest number of robots with
99 of 100 chunks in time, over fresh draws of their phases, against the prediction.
measured: the windows of the part `admission` of bench/fleet.py on an H200, and the same robots, with the same phases,
by the forecast's model of what was measured at the start. The prediction knows no phases: how far single draws of them
lie apart is shown beside it.

Prints tables and writes bench/results/fleet_admission.json; --small takes one case and writes only to --json.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from fleets.loads import make_trace, most_robots
from fleets.replicas import Undescribed
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.extensions import FLEET_POLICIES, find
from vla_accel_ros.fleet.admission import forecast
from vla_accel_ros.fleet.admission.verdict import Rules, capacity_hz, robots_in_time
from vla_accel_ros.fleet.protocol import (
    ChunkAnswer,
    ChunkRequest,
    EncodedObservation,
    RobotDescription,
    Round,
)
from vla_accel_ros.fleet.replicas.replica import SERVE, Served
from vla_accel_ros.fleet.serving.scheduler import FleetScheduler
from vla_accel_ros.fleet.serving.settings import Ports, Settings
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.types import Chunk

RESULTS = Path(__file__).parent / "results"
FRESH = 1000
"""First of the seeds; none of those that the forecast draws with."""
LINK_S, STEPS, AHEAD = 0.002, 10, 4
CHUNK = np.zeros((50, 7), np.float32)


@dataclass(frozen=True)
class Engine:
    """Seconds of a frame, of a step, and what each chunk adds to it; seats: chunks that share steps."""

    frame_s: float
    step_s: float
    each_s: float
    seats: int = 16

    def takes_s(self, chunks: int) -> float:
        """A step of so many."""
        return self.step_s + self.each_s * chunks


ENGINES = {
    "pi0.5, 1 view, H200": Engine(0.0033, 0.00060, 0.00008),
    "pi0.5, 2 views, H200": Engine(0.0053, 0.00060, 0.00008),
    "pi0.5, 3 views, H200": Engine(0.0069, 0.00065, 0.00008),
    "slow frames": Engine(0.0200, 0.00040, 0.00001),
    "slow steps": Engine(0.0030, 0.00300, 0.00040),
}


@dataclass(frozen=True)
class Case:
    """engine: of ENGINES. hz: requests of a robot a second."""

    engine: str
    hz: float
    within_s: float
    policy: str = "fifo"


CASES = (
    Case("pi0.5, 2 views, H200", 3.0, 0.09),
    Case("pi0.5, 2 views, H200", 3.0, 0.09, "kairos"),
    Case("pi0.5, 2 views, H200", 3.0, 0.09, "aged_remaining"),
    Case("pi0.5, 1 view, H200", 3.0, 0.06),
    Case("pi0.5, 3 views, H200", 3.0, 0.15),
    Case("pi0.5, 2 views, H200", 1.0, 0.06),
    Case("pi0.5, 2 views, H200", 8.0, 0.09, "kairos"),
    Case("slow frames", 1.0, 0.2),
    Case("slow frames", 0.5, 0.5, "aged_remaining"),
    Case("slow steps", 1.0, 0.2),
    Case("slow steps", 2.0, 0.5, "kairos"),
)


class SimulatedReplica(Undescribed):
    """An engine in simulated time. It computes while `due_s` is finite; whoever has the clock calls `advance`
    then."""

    def __init__(self, engine: Engine) -> None:
        self.name, self.most, self.network_s, self.engine = "gpu", engine.seats + AHEAD, 0.0, engine
        self.profile = measured(engine)
        self.waiting: list[tuple[Future[Served], Round, int]] = []
        self.begun: list[list[Any]] = []
        self.due_s = float("inf")

    def room(self) -> int:
        return self.most - len(self.waiting) - len(self.begun)

    def serve(self, round: Round, observation: EncodedObservation) -> Future[Served]:
        future: Future[Served] = Future()
        self.waiting.append((future, round, observation.stamp_ns))
        return future

    def cancel(self, served: Future[Served]) -> None:
        self.waiting = [one for one in self.waiting if one[0] is not served]
        self.begun = [one for one in self.begun if one[0][0] is not served]

    def begin(self, now_s: float) -> None:
        """The next frame and a step."""
        if self.due_s < float("inf") or not (self.waiting or self.begun):
            return
        took_s = 0.0
        if self.waiting and len(self.begun) < self.engine.seats:
            self.begun.append([self.waiting.pop(0), STEPS])
            took_s = self.engine.frame_s
        self.due_s = now_s + took_s + self.engine.takes_s(len(self.begun))

    def advance(self) -> None:
        """What was begun is done."""
        self.due_s = float("inf")
        for one in self.begun:
            one[1] -= 1
        done = [one[0] for one in self.begun if one[1] <= 0]
        self.begun = [one for one in self.begun if one[1] > 0]
        for future, round_, stamp_ns in done:
            chunk = Chunk(CHUNK, stamp_ns, 1 / 30, 0, 0, CHUNK[:, 0])
            future.set_result(Served(round_, chunk, 0.1))


def measured(engine: Engine) -> Profile:
    """What LocalReplica.measure finds: b times the time between chunks if b requests are always there."""
    profile = Profile()
    most = engine.seats + AHEAD
    for batch in sorted({1, 2, 4, 8, 16, most}):
        seats, now_s, ends_s = list[int](), 0.0, list[float]()
        while len(ends_s) < 40 * batch:
            if len(seats) < min(batch, engine.seats):
                seats.append(STEPS)
                now_s += engine.frame_s
            now_s += engine.takes_s(len(seats))
            seats = [left - 1 for left in seats]
            ends_s += [now_s] * seats.count(0)
            seats = [left for left in seats if left]
        profile.note(SERVE, batch, batch * (ends_s[-1] - ends_s[10 * batch]) / (30 * batch - 1))
    return profile


def play(case: Case, robots: int, seconds: float, seed: int) -> list[float]:
    """From request to answer, of all robots in simulated time after a warm-up of a fourth."""
    replica, answers = SimulatedReplica(ENGINES[case.engine]), list[ChunkAnswer]()
    calls: list[Round] = []
    now_s, took_s = 0.0, list[float]()
    ports = Ports(lambda admission: None, calls.append, answers.append)
    make = find(FLEET_POLICIES, case.policy)
    settings = Settings(rules=Rules(most_robots=4096, load=1e9))
    scheduler = FleetScheduler("bench", [replica], make, ports, settings)
    for index in range(robots):
        scheduler.described(RobotDescription("bench", f"/robot{index}", "", chunks_per_s=case.hz), 0.0)
    planned: dict[str, list[float]] = {f"/robot{index}": [] for index in range(robots)}
    for due in make_trace(robots, case.hz, forecast.JITTER, seconds, seed):
        planned[due.robot].append(due.at_s)
    events: list[tuple[float, str, int, int]] = []
    asked: dict[str, tuple[int, float]] = {}
    for name, times in planned.items():
        heappush(events, (times[0], name, 0, 0))
    while events or replica.due_s < float("inf"):
        if events and events[0][0] < replica.due_s:
            now_s, name, number, attempt = heappop(events)
            if attempt == 0:
                asked[name] = number, now_s
            stamp_ns = round(1e9 * now_s)
            seen = EncodedObservation({}, {}, CHUNK[0], "reach", stamp_ns)
            round_ = Round("bench", name, 0, number)
            scheduler.asked(ChunkRequest(round_, attempt, stamp_ns, seen, 0.1, 3), now_s)
        else:
            now_s = replica.due_s
            replica.advance()
        scheduler.step(now_s)
        replica.begin(now_s)
        for round_ in calls:
            heappush(events, (now_s + 2 * LINK_S, round_.robot, round_.number, 1))
        calls.clear()
        for answer in answers:
            name, (number, since_s) = answer.round.robot, asked[answer.round.robot]
            if since_s > seconds / 4:
                took_s.append(now_s - since_s)
            if number + 1 < len(planned[name]):
                heappush(events, (max(now_s, planned[name][number + 1]), name, number + 1, 0))
        answers.clear()
    return took_s


def simulated(case: Case, draws: int, rounds: float) -> dict[str, Any]:
    """Prediction and largest number of a case."""
    profile = measured(ENGINES[case.engine])
    forecast.chunks_hz.cache_clear()
    began_s = time.thread_time()
    predicted = robots_in_time(profile, case.hz, case.within_s)
    ms = 1e3 * (time.thread_time() - began_s)
    again_s = time.thread_time()
    robots_in_time(profile, case.hz, case.within_s)
    cached_ms = 1e3 * (time.thread_time() - again_s)

    def p99_s(robots: int) -> float:
        runs = [play(case, robots, rounds / case.hz, FRESH + draw) for draw in range(draws)]
        return float(np.percentile(np.concatenate(runs), 99))

    def fits(robots: int) -> bool:
        return p99_s(robots) <= case.within_s

    low, high = max(1, int(0.75 * predicted)), int(1.3 * predicted) + 1
    most = most_robots(fits, low, high)
    return {
        "engine": case.engine, "hz": case.hz, "within_ms": 1e3 * case.within_s, "policy": case.policy,
        "predicted": predicted, "simulated": most,
        "error": round(predicted / most - 1.0, 4) if most else None,
        "load": round(most * case.hz / capacity_hz([profile]), 3),
        "predicted_in_cpu_ms": round(ms, 1), "again_in_cpu_ms": round(cached_ms, 3),
    }  # fmt: skip


def against_measured() -> dict[str, Any]:
    """The H200's windows, and the same robots by the forecast's model."""
    document = json.loads((RESULTS / "fleet.json").read_text())
    (found,) = document["admission"]
    hz, within_s, seconds = document["hz"], document["within_s"], document["seconds"]
    curve = tuple(sorted((int(batch), 1e-3 * ms) for batch, ms in found["curve_ms"].items()))
    gpu = forecast.Gpu.of(curve)
    length_s, warm_s = seconds["warm_up"] + seconds["window"], seconds["warm_up"]

    def took_ms(robots: int, seed: int, until_s: float = length_s) -> np.ndarray:
        asked = [due.at_s for due in make_trace(robots, hz, 0.1, until_s, seed)]
        took = forecast.waits_s(gpu, asked)
        return 1e3 * np.array([each for at, each in zip(asked, took, strict=True) if at >= warm_s])

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
    profile = Profile({(SERVE, batch): takes_s for batch, takes_s in curve})
    draws = [most(seed) for seed in range(FRESH, FRESH + 20)]
    predicted, same = robots_in_time(profile, hz, within_s), most(0)
    return {
        "setting": found["setting"], "measured": found["most"], "measured_on": document["machine"]["gpu"],
        "by_random_arrivals": found["expected"], "predicted": predicted,
        "predicted_error": round(predicted / found["most"] - 1.0, 4),
        "same_phases": same, "same_phases_error": round(same / found["most"] - 1.0, 4),
        "single_draws": {"least": min(draws), "median": float(np.median(draws)), "most": max(draws)},
        "windows": rows,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, predict, simulate; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draws", type=int, default=30, help="of phases (default: %(default)s)")
    parser.add_argument("--rounds", type=float, default=5.0, help="of a robot (default: %(default)s)")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    given = parser.parse_args(arguments)
    cases: Sequence[Case] = (Case("slow frames", 2.0, 0.1),) if given.small else CASES
    draws = 2 if given.small else given.draws
    document: dict[str, Any] = {"measured": against_measured(), "simulated": []}
    print(json.dumps(document["measured"], indent=1))
    for case in cases:
        document["simulated"].append(row := simulated(case, draws, given.rounds))
        print(row, flush=True)
    out = given.json or (None if given.small else RESULTS / "fleet_admission.json")
    if out is not None:
        seeds = f"phases {FRESH} to {FRESH + draws - 1}"
        out.write_text(json.dumps({**document, "seeds": seeds, **provenance()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
