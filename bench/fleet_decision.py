"""The time of a whole step of a fleet's scheduler: `FleetScheduler.step`, instead of the policy's ordering
alone.

    python bench/fleet_decision.py [--robots 1000] [--steps 4000] [--policies ...]

The node's scheduler, with a replica that computes nothing: it takes 20 requests at once and returns 177 a
second, like an H200 (bench/fleet.py). Robots ask, are called for another observation and are answered in
simulated time. Measured is the real time of `step`, including garbage collection and answers, after a
warm-up. Two fleets: in one each robot asks again half a second after its answer, so that nearly all wait; in
the other each executes so long that the replica has a load of 0.8.
"""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np

from fleets.replicas import Undescribed
from run import Bench, Given, Row, main
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.extensions import FLEET_RULES, find, names
from vla_accel_ros.fleet.admission.verdict import Limits
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
from vla_accel_ros.types import Chunk

CHUNKS_HZ, MOST = 177.0, 20
TICK_S, LINK_S, WITHIN_S, KINDS, ROUNDS = 0.02, 0.005, 60.0, 40, 12
PAUSES: dict[str, Callable[[int], float]] = {
    "all wait": lambda robots: 0.5,
    "load 0.8": lambda robots: robots / (0.8 * CHUNKS_HZ) - MOST / CHUNKS_HZ,
}
"""For each fleet: seconds from an answer to the next request."""


class Pipeline(Undescribed):
    """A replica that returns CHUNKS_HZ chunks a second; the owner of the clock finishes them."""

    def __init__(self) -> None:
        self.name, self.limit, self.network_s = "gpu", MOST, 0.0
        self.profile = Profile({(SERVE, 1): 0.011, (SERVE, 4): 0.031, (SERVE, MOST): MOST / CHUNKS_HZ})
        self.begun: list[tuple[Future[Served], Round, EncodedObservation]] = []
        self.jobs = 0

    def room(self) -> int:
        return self.limit - self.jobs

    def serve(self, round: Round, observation: EncodedObservation) -> Future[Served]:
        future: Future[Served] = Future()
        self.begun.append((future, round, observation))
        self.jobs += 1
        return future

    def cancel(self, served: Future[Served]) -> None:
        if served.cancel():
            self.jobs -= 1


class Fleet:
    """Robots, a scheduler and a clock. pause_s: from an answer to a robot's next request."""

    def __init__(self, robots: int, policy: str, pause_s: float) -> None:
        self.replica, self.pause_s, self.now_s = Pipeline(), pause_s, 0.0
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.number, self.free_s = 0, 0.0
        self.took_ns: list[tuple[int, int]] = []
        self.answers, self.waiting = 0, list[int]()
        self.attempts: dict[Round, int] = {}
        ports = Ports(lambda admission: None, self.called, self.answered)
        limits = Limits(most_robots=2 * robots, load=1e9)
        settings = Settings(gone_s=600.0, serve_s=60.0, burst=10**9, limits=limits)
        make = find(FLEET_RULES, policy)
        self.scheduler = FleetScheduler("bench", [self.replica], make, ports, settings)
        chance = np.random.default_rng(0)
        for index in range(robots):
            description = RobotDescription("bench", f"/r{index}", "", chunks_per_s=0.1)
            self.scheduler.described(description, 0.0)
            first = Round("bench", f"/r{index}", 0, 0)
            self.at(float(chance.uniform(0.0, min(max(pause_s, 1.0), 7.0))), self.ask, first)

    def at(self, at_s: float, what: Callable[..., None], *of: Any) -> None:
        self.number += 1
        heapq.heappush(self.events, (at_s, self.number, what, of))

    def ask(self, round_: Round) -> None:
        attempt = self.attempts[round_] = self.attempts.get(round_, -1) + 1
        sent_ns, words = round(1e9 * self.now_s), f"task {int(round_.robot[2:]) % KINDS}"
        seen = EncodedObservation({}, {}, np.zeros(7, np.float32), words, sent_ns)
        executed_s = 0.5 if round_.number else -1.0
        request = ChunkRequest(round_, attempt, sent_ns, seen, executed_s, 3, within_s=WITHIN_S)
        self.scheduler.asked(request, self.now_s)
        self.step()

    def called(self, round_: Round) -> None:
        self.at(self.now_s + LINK_S, self.ask, round_)

    def answered(self, answer: ChunkAnswer) -> None:
        self.answers += 1
        self.attempts.pop(answer.round, None)
        old = answer.round
        over = old.number + 1 >= ROUNDS
        new = Round(old.engine, old.robot, old.task + over, 0 if over else old.number + 1)
        self.at(self.now_s + self.pause_s, self.ask, new)

    def done(self, future: Future[Served], round_: Round, seen: EncodedObservation) -> None:
        self.replica.jobs -= 1
        actions = np.zeros((50, 7), np.float32)
        chunk = Chunk(actions, seen.stamp_ns, 1 / 30, 0, 0, np.zeros(50, np.float32))
        future.set_result(Served(round_, chunk, 0.1))
        self.step()

    def tick(self) -> None:
        self.step()
        self.at(self.now_s + TICK_S, self.tick)

    def step(self) -> None:
        cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
        self.scheduler.step(self.now_s)
        self.took_ns.append((time.thread_time_ns() - cpu_ns, time.perf_counter_ns() - wall_ns))
        for job in self.replica.begun:
            self.free_s = max(self.now_s, self.free_s) + 1.0 / CHUNKS_HZ
            self.at(self.free_s, self.done, *job)
        self.replica.begun.clear()

    def run(self, steps: int) -> None:
        """Run so many steps."""
        self.took_ns.clear()
        while len(self.took_ns) < steps:
            self.now_s, _, what, of = heapq.heappop(self.events)
            what(*of)
            if len(self.took_ns) % 50 == 0:
                self.waiting.append(self.scheduler.waiting())


def measured(robots: int, policy: str, fleet: str, steps: int, warm_up_s: float) -> dict[str, Any]:
    """Milliseconds of a step, in CPU time and wall time."""
    run = Fleet(robots, policy, PAUSES[fleet](robots))
    run.at(0.0, run.tick)
    while run.now_s < warm_up_s:
        run.run(1)
    run.waiting.clear()
    before = run.answers, run.now_s
    run.run(steps)
    cpu, wall = 1e-6 * np.array(run.took_ns).T
    return {
        "fleet": fleet, "policy": policy, "robots": robots, "steps": steps,
        "waiting": round(float(np.mean(run.waiting)), 1),
        "chunks_hz": round((run.answers - before[0]) / (run.now_s - before[1]), 1),
        "cpu_ms": _quantiles(cpu), "wall_ms": _quantiles(wall),
    }  # fmt: skip


def _quantiles(took_ms: np.ndarray) -> dict[str, float]:
    p50, p99, most = np.percentile(took_ms, (50, 99, 100))
    return {"p50": round(float(p50), 4), "p99": round(float(p99), 4), "max": round(float(most), 4)}


def measure(given: Given) -> Iterator[Row]:
    """Each fleet under each policy."""
    for fleet in PAUSES:
        for policy in given.policies:
            yield measured(given.robots, policy, fleet, given.count, given.warm_up_s)


def options(add: Callable[..., Any]) -> None:
    """Robots, steps and policies."""
    add("--robots", type=int, default=1000)
    add("--steps", type=int, default=4000, dest="count")
    add("--policies", nargs="+", default=names(FLEET_RULES))
    add("--warm-up", type=float, default=15.0, dest="warm_up_s", help="seconds (default: %(default)s)")


ABOUT = {"chunks_hz": CHUNKS_HZ, "at_once": MOST, "seeds": "arrivals 0"}
SMOKE = "--robots 50 --steps 300 --warm-up 1 --policies fifo gfair"
BENCH = Bench("fleet_decision", measure, options, ABOUT, rows="steps", smoke=SMOKE)

if __name__ == "__main__":
    sys.exit(main(BENCH))
