"""For fleet_sim.py: fleets whose robots do their tasks back to back, deadlines, and the time of a
decision."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from fleet_sim_statistics import change, interval

from vla_accel_ros.engine.request import ACT, Request
from vla_accel_ros.extensions import FLEET_POLICIES, find, names
from vla_accel_ros.fleet.policies.policy import FleetPolicy, FleetSetup, ReplicaProfile
from vla_accel_ros.fleet.simulator.figures import figures
from vla_accel_ros.fleet.simulator.profiles import assumed
from vla_accel_ros.fleet.simulator.runs import Load, closed_fleet
from vla_accel_ros.fleet.simulator.simulation import Settings
from vla_accel_ros.fleet.simulator.workloads import DYNAMIC, STATIC, WORKLOADS
from vla_accel_ros.fleet.task import Task

ROBOTS = (10, 50, 100, 1000)
WORKLOAD, WITHIN_S = "libero_pi05", 1.5
POLICIES = ("fifo", "las", "kairos", "oldest", "gfair", "aged_remaining")
FIGURES = ("avg", "p25", "p95", "p99", "stall", "load", "chunks_per_s", "late", "wasted")
Make = Callable[[FleetSetup], FleetPolicy]


def closed(seeds: Sequence[int], quick: bool) -> Iterable[dict[str, Any]]:
    """Fleets that do 300 tasks back to back, or two for each robot; 1000 robots with one seed."""
    for robots in ROBOTS[:2] if quick else ROBOTS:
        base: dict[str, np.ndarray] = {}
        for policy, horizon in (*((name, STATIC) for name in POLICIES), ("kairos", DYNAMIC)):
            tasks = 30 if quick else max(300, 2 * robots)
            chosen = seeds[:1] if robots > 100 else seeds
            runs = [_run(find(FLEET_POLICIES, policy), robots, seed, horizon, tasks) for seed in chosen]
            found = {name: np.array([run[name] for run in runs]) for name in FIGURES}
            base = base or found
            yield {
                "robots": robots, "policy": policy, "horizon": horizon, "tasks": tasks, "seeds": len(chosen),
                **{name: _interval(values) for name, values in found.items()},
                "against_fifo": {
                    name: _change(found[name], base[name])
                    for name in ("avg", "p95", "stall")
                },
            }  # fmt: skip


def deadlines(seeds: Sequence[int], quick: bool) -> Iterable[dict[str, Any]]:
    """Chunks are useless after WITHIN_S. Each policy as it is, and as it would be if it did not skip robots
    that cannot be answered in time."""
    for robots in (30,):
        for policy in POLICIES:
            for passed in (True, False):
                make = find(FLEET_POLICIES, policy)
                made = make if passed else partial(_regardless, make)
                tasks = 30 if quick else 300
                settings = Settings(within_s=WITHIN_S)
                runs = [_run(made, robots, seed, STATIC, tasks, settings) for seed in seeds]
                found = {name: _interval(np.array([run[name] for run in runs])) for name in FIGURES}
                yield {"robots": robots, "policy": policy, "passed_by": passed, "within_s": WITHIN_S, **found}


def _run(
    make: Make, robots: int, seed: int, horizon: str, tasks: int, settings: Settings | None = None
) -> dict[str, float]:
    what = WORKLOADS[WORKLOAD]
    replicas: Mapping[str, ReplicaProfile] = {"edge": assumed(what)}
    outcome = closed_fleet(Load.of(what, seed, horizon, tasks), make, robots, replicas, settings)
    found = figures(outcome)
    latency, late = found["latency_s"], outcome.late
    return {
        **{name: latency[name] for name in ("avg", "p25", "p95", "p99")}, "stall": found["stall_s"]["avg"],
        "load": found["gpu_load"]["edge"], "late": float(sum(late)),
        "chunks_per_s": sum(robot.rounds for robot in outcome.robots) / found["run_s"],
        "wasted": late[1] / sum(outcome.batches),
    }  # fmt: skip


def _regardless(make: Make, setup: FleetSetup) -> FleetPolicy:
    """A policy that also serves robots that cannot be answered in time."""
    policy: Any = make(setup)
    policy._in_time = lambda replica, ready, now_s: ready
    return policy


def _interval(values: np.ndarray) -> dict[str, float]:
    return interval(values) if len(values) > 1 else {"mean": round(float(values[0]), 3)}


def _change(new: np.ndarray, old: np.ndarray) -> dict[str, float]:
    if len(new) > 1:
        return change(new, old)
    return {"mean": round(float(100.0 * (new[0] / max(old[0], 1e-9) - 1.0)), 3)}


def decisions(times: int, robots: int = 1000) -> dict[str, dict[str, float]]:
    """Milliseconds of one decision while 1000 robots wait: CPU time, and wall time."""
    found = {}
    for name in names(FLEET_POLICIES):
        chance, what = random.Random(0), WORKLOADS[WORKLOAD]
        policy = find(FLEET_POLICIES, name)(FleetSetup({"edge": assumed(what)}))
        ready = tuple(_waiting(f"/r{number}", chance) for number in range(robots))
        for _ in range(400):
            policy.ended(_waiting("/ended", chance).task, 0.0)
        took = []
        for step in range(times):
            began_s, wall_s = time.thread_time(), time.perf_counter()
            policy.next("edge", ready, 100.0 + step)
            took.append((time.thread_time() - began_s, time.perf_counter() - wall_s))
        p50, p99 = 1e3 * np.percentile(took, (50, 99), axis=0)
        found[name] = {
            "p50": round(p50[0], 3), "p99": round(p99[0], 3),
            "wall_p50": round(p50[1], 3), "wall_p99": round(p99[1], 3),
        }  # fmt: skip
    return found


def _waiting(robot: str, chance: random.Random) -> Request:
    task = Task(robot, 0, f"{chance.randrange(40)}", chance.uniform(0.0, 50.0))
    for number in range(chance.randint(1, 20)):
        task.dispatched(50.0 + number)
        task.answered(50.5 + number, chance.uniform(0.3, 1.6))
    task.skipped = chance.randrange(30)
    return Request(ACT, robot, task=task)
