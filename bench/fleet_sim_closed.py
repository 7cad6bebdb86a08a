"""For fleet_sim.py: fleets whose robots do their tasks back to back, runs of several lengths, deadlines, and
the time of a decision."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from fleet_sim_statistics import change, doubling, interval

from vla_accel_ros.engine.request import ACT, Request
from vla_accel_ros.extensions import BUILT_IN, FLEET_POLICIES, find, names
from vla_accel_ros.fleet.policies.policy import FleetPolicy, FleetSetup, ReplicaProfile
from vla_accel_ros.fleet.simulator.figures import figures
from vla_accel_ros.fleet.simulator.profiles import assumed
from vla_accel_ros.fleet.simulator.runs import Load, closed_fleet, open_loop
from vla_accel_ros.fleet.simulator.simulation import Outcome, Settings
from vla_accel_ros.fleet.simulator.workloads import DYNAMIC, STATIC, WORKLOADS
from vla_accel_ros.fleet.task import Task

ROBOTS = (10, 50, 100, 300)
WORKLOAD, WITHIN_S = "libero_pi05", 1.5
POLICIES = tuple(BUILT_IN[FLEET_POLICIES])
PER_ROBOT = 40
"""Tasks of each robot. Each fleet also does half as many."""
FIGURES = (
    "avg", "p25", "p50", "p95", "p99", "first_wait", "stall", "standing", "tasks_per_min", "little", "load",
    "chunks_per_s", "late", "wasted",
)  # fmt: skip
OPEN, OPEN_LOAD, CLOSED_ROBOTS = (300, 1000, 2000), 1.6, 100
CLOSED = (3, 10, 30, 60)
"""Numbers of tasks, and of tasks of a robot, for `lengths`."""
Make = Callable[[FleetSetup], FleetPolicy]
Samples = dict[str, np.ndarray]


def closed(seeds: Sequence[int], quick: bool) -> Iterable[dict[str, Any]]:
    """Fleets that do their tasks back to back; more than 100 robots with one seed. half_as_long: the changes
    against fifo in runs of half the length; same_sign: whether they say the same (`doubling`)."""
    for robots in ROBOTS[:2] if quick else ROBOTS:
        each = 6 if quick else PER_ROBOT
        chosen = seeds[:1] if robots > 100 else seeds
        base: dict[int, Samples] = {}
        for policy, horizon in (*((name, STATIC) for name in POLICIES), ("kairos", DYNAMIC)):
            runs = {
                tasks: samples(
                    _run(find(FLEET_POLICIES, policy), robots, seed, horizon, robots * tasks)
                    for seed in chosen
                )
                for tasks in (each // 2, each)
            }
            base = base or runs
            half, whole = (
                {name: _change(runs[tasks][name], base[tasks][name]) for name in ("avg", "p95", "stall")}
                for tasks in (each // 2, each)
            )
            yield {
                "robots": robots, "policy": policy, "horizon": horizon, "tasks_per_robot": each,
                "seeds": len(chosen), **{name: _interval(values) for name, values in runs[each].items()},
                "against_fifo": whole, "half_as_long": half,
                "same_sign": all(doubling(half[name], whole[name]) for name in ("avg", "p95")),
            }  # fmt: skip


def lengths(seeds: Sequence[int], quick: bool) -> Iterable[dict[str, Any]]:
    """Changes against fifo in ever longer runs: a burst at OPEN_LOAD, and CLOSED_ROBOTS robots."""
    what = WORKLOADS[WORKLOAD]
    replicas: Mapping[str, ReplicaProfile] = {"edge": assumed(what)}
    for regime, counts in (
        (("open", OPEN[:2]), ("closed", CLOSED[:2])) if quick else (("open", OPEN), ("closed", CLOSED))
    ):
        for count in counts:
            base: Samples = {}
            for policy in POLICIES:
                make = find(FLEET_POLICIES, policy)
                if regime == "closed":
                    tasks = count * CLOSED_ROBOTS
                    found = samples(_run(make, CLOSED_ROBOTS, seed, STATIC, tasks) for seed in seeds)
                else:
                    tasks = count
                    found = samples(
                        _figures(open_loop(Load.of(what, seed, STATIC, tasks), make, OPEN_LOAD, replicas))
                        for seed in seeds
                    )
                base = base or found
                yield {
                    "regime": regime, "tasks": tasks, "tasks_per_robot": count if regime == "closed" else 1,
                    "policy": policy, "seeds": len(seeds), "little": _interval(found["little"]),
                    "against_fifo": {name: _change(found[name], base[name]) for name in ("avg", "p95")},
                }  # fmt: skip


def deadlines(seeds: Sequence[int], quick: bool) -> Iterable[dict[str, Any]]:
    """Chunks are useless after WITHIN_S. Each policy as it is, and as it would be if it did not skip robots
    that cannot be answered in time."""
    for robots in (30,):
        for policy in POLICIES:
            for passed in (True, False):
                make = find(FLEET_POLICIES, policy)
                made = make if passed else partial(_regardless, make)
                each = 2 if quick else PER_ROBOT // 2
                settings = Settings(within_s=WITHIN_S)
                runs = samples(_run(made, robots, seed, STATIC, each * robots, settings) for seed in seeds)
                found = {name: _interval(values) for name, values in runs.items()}
                case = {"robots": robots, "tasks_per_robot": each, "policy": policy, "passed_by": passed}
                yield {**case, "within_s": WITHIN_S, **found}


def _run(
    make: Make, robots: int, seed: int, horizon: str, tasks: int, settings: Settings | None = None
) -> dict[str, float]:
    what = WORKLOADS[WORKLOAD]
    replicas: Mapping[str, ReplicaProfile] = {"edge": assumed(what)}
    return _figures(closed_fleet(Load.of(what, seed, horizon, tasks), make, robots, replicas, settings))


def _figures(outcome: Outcome) -> dict[str, float]:
    found = figures(outcome)
    late, stall_s, first_wait_s = outcome.late, found["stall_s"]["avg"], found["first_wait_s"]["avg"]
    return {
        **{name: found["latency_s"][name] for name in ("avg", "p25", "p50", "p95", "p99")},
        "first_wait": first_wait_s, "stall": stall_s, "standing": first_wait_s + stall_s,
        "tasks_per_min": found["tasks_per_min"], "little": found["little"],
        "load": found["gpu_load"]["edge"], "late": float(sum(late)),
        "chunks_per_s": sum(robot.rounds for robot in outcome.robots) / found["run_s"],
        "wasted": late[1] / sum(outcome.batches),
    }  # fmt: skip


def samples(runs: Iterable[Mapping[str, float]]) -> Samples:
    """The values of all runs, by figure."""
    every = list(runs)
    return {name: np.array([run[name] for run in every]) for name in FIGURES}


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
    task.asked_s = chance.uniform(70.0, 100.0)
    return Request(ACT, robot, task=task)
