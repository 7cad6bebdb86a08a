"""What a second replica does for the slowest answers, and what it costs: hedged requests of a fleet.

    python bench/fleet_hedging.py [--seeds 4] [--seconds 120] [--small] [--json FILE]

Simulated: the node's FleetScheduler with two replicas in simulated time, and 12 robots that ask nearly
periodically. A chunk takes 30 ms plus up to a tenth, four at once. Either one replica stalls for 1 s, every 5
s on average (stalling); or each of its chunks takes three times as long (slow); or both replicas are well.
Each case runs with and without hedging: time from request to answer, the share of requests that were computed
twice, and the share of the replicas' time spent on chunks that nobody used. Prints a table and writes
bench/results/fleet_hedging.json; --small takes 30 s and one seed, and writes only to --json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from fleets.loads import make_trace
from fleets.replicas import Undescribed
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.extensions import FLEET_POLICIES, find
from vla_accel_ros.fleet.admission.verdict import Rules
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

RESULT = Path(__file__).parent / "results" / "fleet_hedging.json"
ROBOTS, HZ, MOST, TAKES_S, STEP_S, LINK_S = 12, 3.0, 4, 0.03, 0.02, 0.002
STALL_S, BETWEEN_S, SLOW = 1.0, 5.0, 3.0
FAULTS = ("none", "slow", "stalling")
CHUNK = np.zeros((50, 7), np.float32)


class FaultyReplica(Undescribed):
    """Computes several chunks at once, each in its own time. fault: of FAULTS. spent_s, wasted_s: time
    computed in all, and for chunks that were cancelled."""

    def __init__(self, name: str, fault: str, seed: int, clock: Clock) -> None:
        self.name, self.fault, self.clock = name, fault, clock
        self.most, self.network_s, self.profile = MOST, 0.0, Profile({(SERVE, MOST): TAKES_S})
        self.jobs: dict[Future[Served], tuple[Round, int, float]] = {}
        self.chance = np.random.default_rng([seed, 1])
        self.stands = self._stands(seed) if fault == "stalling" else []
        self.spent_s = self.wasted_s = 0.0

    def _stands(self, seed: int) -> list[tuple[float, float]]:
        gaps_s = np.random.default_rng([seed, 2]).exponential(BETWEEN_S, 2000)
        begins_s = np.cumsum(gaps_s + STALL_S)
        return [(float(begin_s), float(begin_s) + STALL_S) for begin_s in begins_s]

    def room(self) -> int:
        return self.most - len(self.jobs)

    def serve(self, round: Round, observation: EncodedObservation) -> Future[Served]:
        future: Future[Served] = Future()
        begin_s = self.clock.now_s
        self.jobs[future] = round, observation.stamp_ns, begin_s
        takes_s = TAKES_S * (SLOW if self.fault == "slow" else 1.0)
        end_s = begin_s + takes_s * float(self.chance.uniform(1.0, 1.1))
        for stand_s, goes_on_s in self.stands:
            if stand_s < end_s and begin_s < goes_on_s:
                end_s += goes_on_s - max(stand_s, begin_s)
        self.clock.at(end_s, self, future)
        return future

    def cancel(self, served: Future[Served]) -> None:
        if (job := self.jobs.pop(served, None)) is not None:
            spent_s = min(self.clock.now_s - job[2], TAKES_S)
            self.spent_s += spent_s
            self.wasted_s += spent_s
            served.cancel()

    def finish(self, future: Future[Served]) -> None:
        """Finish a chunk, unless it was cancelled."""
        if (job := self.jobs.pop(future, None)) is not None:
            self.spent_s += TAKES_S
            chunk = Chunk(CHUNK, job[1], 1 / 30, 0, 0, CHUNK[:, 0])
            future.set_result(Served(job[0], chunk, self.clock.now_s - job[2]))


class Clock:
    """Simulated time and its events: a replica's chunk, or (None, robot) for a request or a check."""

    def __init__(self) -> None:
        self.now_s, self.number = 0.0, 0
        self.events: list[tuple[float, int, FaultyReplica | None, Any]] = []

    def at(self, at_s: float, replica: FaultyReplica | None, what: Any) -> None:
        self.number += 1
        heappush(self.events, (at_s, self.number, replica, what))


def play(fault: str, hedge: bool, seconds: float, seed: int) -> tuple[list[float], dict[str, float]]:
    """Returns the times from request to answer, and the cost."""
    clock, answers, calls = Clock(), list[ChunkAnswer](), list[Round]()
    faults = {"first": fault, "second": "none"}
    replicas = [FaultyReplica(name, faults[name], seed, clock) for name in faults]
    ports = Ports(lambda admission: None, calls.append, answers.append)
    settings = Settings(hedge=hedge, rules=Rules(most_robots=4 * ROBOTS, load=1e9))
    scheduler = FleetScheduler("bench", replicas, find(FLEET_POLICIES, "fifo"), ports, settings)
    for index in range(ROBOTS):
        scheduler.described(RobotDescription("bench", f"/robot{index}", "", chunks_per_s=HZ), 0.0)
    planned: dict[str, list[float]] = {f"/robot{index}": [] for index in range(ROBOTS)}
    for due in make_trace(ROBOTS, HZ, 0.1, seconds, seed):
        planned[due.robot].append(due.at_s)
    for name, times in planned.items():
        clock.at(times[0], None, (name, 0, 0))
    clock.at(0.0, None, None)
    since_s: dict[str, float] = {}
    took_s: list[float] = []
    while clock.events and clock.now_s < seconds:
        clock.now_s, _, replica, what = heappop(clock.events)
        now_s = clock.now_s
        if replica is not None:
            replica.finish(what)
        elif what is None:
            clock.at(now_s + STEP_S, None, None)
        else:
            name, number, attempt = what
            if attempt == 0:
                since_s[name] = now_s
            stamp_ns = round(1e9 * now_s)
            seen = EncodedObservation({}, {}, CHUNK[0], "reach", stamp_ns)
            round_ = Round("bench", name, 0, number)
            scheduler.asked(ChunkRequest(round_, attempt, stamp_ns, seen, 0.1, 3), now_s)
        scheduler.step(now_s)
        for round_ in calls:
            clock.at(now_s + 2 * LINK_S, None, (round_.robot, round_.number, 1))
        calls.clear()
        for answer in answers:
            name, number = answer.round.robot, answer.round.number
            took_s.append(now_s - since_s[name])
            if number + 1 < len(planned[name]):
                clock.at(max(now_s, planned[name][number + 1]), None, (name, number + 1, 0))
        answers.clear()
    hedged = sum(report.counts.hedged for report in scheduler.reports(clock.now_s))
    spent_s = sum(one.spent_s for one in replicas)
    return took_s, {
        "hedged": hedged / max(1, len(took_s)),
        "wasted": sum(one.wasted_s for one in replicas) / spent_s,
        "load": spent_s / (seconds * MOST * len(replicas)),
    }


def measured(fault: str, hedge: bool, seconds: float, seeds: Sequence[int]) -> dict[str, Any]:
    """The figures of all seeds together."""
    runs = [play(fault, hedge, seconds, seed) for seed in seeds]
    took_ms = 1e3 * np.concatenate([took for took, _ in runs])
    p50, p99, p999 = np.percentile(took_ms, (50, 99, 99.9))
    cost = {name: round(float(np.mean([cost[name] for _, cost in runs])), 5) for name in runs[0][1]}
    return {
        "fault": fault, "hedge": hedge, "requests": len(took_ms), "p50_ms": round(float(p50), 1),
        "p99_ms": round(float(p99), 1), "p99.9_ms": round(float(p999), 1),
        "most_ms": round(float(took_ms.max()), 1), **cost,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, simulate; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    given = parser.parse_args(arguments)
    seeds = range(1 if given.small else given.seeds)
    seconds = 30.0 if given.small else given.seconds
    rows = []
    for fault in FAULTS:
        for hedge in (False, True):
            rows.append(row := measured(fault, hedge, seconds, seeds))
            print(row, flush=True)
    out = given.json or (None if given.small else RESULT)
    if out is not None:
        what = {"robots": ROBOTS, "hz": HZ, "takes_ms": 1e3 * TAKES_S, "seconds": seconds}
        document = {"simulated": rows, **what, "seeds": list(seeds), **provenance()}
        out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
