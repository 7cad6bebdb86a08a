"""Scheduling policies of a fleet in simulated time: five workloads, with loads below and above capacity.

    python bench/fleet_sim.py [--seeds 6] [--processes 1] [--quick]

All figures are simulated; the durations of batches are assumed (fleet/simulator/workloads.py). Every policy
gets the same tasks and arrivals, so changes against another policy are computed seed by seed, with Student's
t interval at 95 %. Below a load of 1 a run has LONG times the workload's tasks, so that it is stationary. At
higher loads no run is: it is a burst of so many tasks; `lengths` shows what that means. `closed` are fleets
whose robots do their tasks back to back, which are stationary: each also does half as many tasks, and
`same_sign` says whether that leads to the same conclusion. `deadlines` are fleets whose chunks are useless
after WITHIN_S, with each policy as it is, and as it would be if it did not skip robots that cannot be
answered in time. `clairvoyant` is an oracle: it first serves the tasks that truly need the fewest rounds,
which makes the mean about as small as possible. Dynamic horizons are an oracle, too: they are drawn, at no
cost in success.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from run import Bench, Given, Row, main
from shared.intervals import change, doubling, interval
from vla_accel_ros.engine.request import Act
from vla_accel_ros.extensions import BUILT_IN, FLEET_RULES, find, names
from vla_accel_ros.fleet.rules.kairos import HighestWaitRatio
from vla_accel_ros.fleet.rules.rule import FleetRule, FleetSetup, InOrder, ReplicaProfile, RuleOptions
from vla_accel_ros.fleet.simulator.profiles import assumed
from vla_accel_ros.fleet.simulator.runs import Load, closed_fleet, figures, open_loop
from vla_accel_ros.fleet.simulator.simulation import Outcome, Settings
from vla_accel_ros.fleet.simulator.workloads import DYNAMIC, STATIC, WORKLOADS
from vla_accel_ros.fleet.task import Task, TaskRequest

FIFO, LAS, KAIROS, AGED, SRPT, CLAIRVOYANT = (
    "fifo", "las", "kairos", "aged_remaining", "aged_srpt", "clairvoyant"
)  # fmt: skip
POLICIES = tuple(BUILT_IN[FLEET_RULES])
LOADS, LONG = (0.8, 1.2), 3
TOP = {name: 2.4 if name == "mixed_fleet" else 1.6 for name in WORKLOADS}
"""The highest load."""
METRICS = ("avg", "p25", "p95", "p99", "first_wait", "stall", "standing")
WORKLOAD, WITHIN_S = "libero_pi05", 1.5
"""Of all but the open loads."""
ROBOTS, PER_ROBOT, ONE_SEED = (10, 50, 100, 300), 40, 100
"""Of closed fleets: sizes, tasks of each robot, the most robots that are simulated with several seeds."""
LENGTHS = {"open": (300, 1000, 2000), "closed": (3, 10, 30, 60)}
"""Numbers of tasks of a burst at a load of 1.6, and of a robot of a hundred."""
VARIANTS: dict[str, Settings] = {
    "as late as possible": Settings(),
    "0.5 s before": Settings(lead_s=0.5),
    "when it stops": Settings(lead_s=0.0),
    "elastic horizon": Settings(elastic=True),
    "with a cloud": Settings(),
    "cloud alone": Settings(),
}
USUAL, CLOUD, CLOUD_ALONE = "as late as possible", "with a cloud", "cloud alone"
CLOUD_IS = {"faster": 2.5, "network_s": 0.2}
KAIROS_CHOICES: dict[str, dict[str, Any]] = {
    **{f"ageing {ageing_s} s": {"kairos_ageing_s": ageing_s} for ageing_s in (5, 10, 20, 30, 120)},
    "2 buckets": {"kairos_buckets": 2},
    "100 buckets": {"kairos_buckets": 100},
}
"""What the paper leaves open."""
Make = Callable[[FleetSetup], FleetRule]
Samples = dict[str, np.ndarray]


class Clairvoyant(InOrder):
    """Serves first the robots that truly need the fewest rounds. rounds: by robot."""

    def __init__(self, setup: FleetSetup, rounds: dict[str, int]) -> None:
        super().__init__(setup, math.inf)
        self._needed = rounds

    def keys(self, ready: Sequence[TaskRequest], now_s: float) -> Sequence[int]:
        return [self._needed[request.robot] - request.task.rounds for request in ready]


def options(add: Callable[..., Any]) -> None:
    add("--seeds", type=int, default=6, help="runs of each case (default: %(default)s)")
    add("--processes", type=int, default=1, help="that simulate at once (default: 1)")
    add("--quick", action="store_true", help="few tasks, to try the command")


def measure(given: Given) -> Iterator[None]:
    """All parts. Raises ValueError for fewer than two seeds."""
    if given.seeds < 2:
        raise ValueError(f"--seeds is {given.seeds}; give 2 or more, as an interval needs them.")
    document, seeds, tasks = given.document, range(given.seeds), 30 if given.quick else None
    jobs = list(cases(seeds, tasks))
    with ProcessPoolExecutor(given.processes) as pool:
        runs = dict(zip(jobs, pool.map(simulate, jobs, chunksize=2), strict=True))
    samples = {
        case: collected(runs[(*case[:4], seed, tasks, case[4])] for seed in seeds)
        for case in dict.fromkeys((*job[:4], job[6]) for job in jobs)
    }
    document["open"] = list(compared(samples))
    document["table_2"] = list(table_2(samples))
    document["settings"] = list(settings_compared(samples))
    yield None
    document["lengths"] = list(lengths(seeds[:2], given.quick))
    document["kairos_choices"] = list(kairos_choices(seeds[:4], tasks))
    yield None
    document["closed"] = list(closed(seeds[:3], given.quick))
    yield None
    document["deadlines"] = list(deadlines(seeds, given.quick))
    document["decision_ms"] = decisions(20 if given.quick else 1000)
    yield None


Case = tuple[str, str, float, str, str]
"""Workload, horizon, load, policy, and of VARIANTS."""
Job = tuple[str, str, float, str, int, int | None, str]
"""Of a case, with its seed and number of tasks before the last."""


def cases(seeds: Iterable[int], tasks: int | None) -> Iterator[Job]:
    """All open-loop runs."""
    for seed in seeds:
        for name in WORKLOADS:
            for load in (*LOADS, TOP[name]):
                for policy in POLICIES:
                    yield name, STATIC, load, policy, seed, tasks, USUAL
            for policy in (FIFO, LAS, KAIROS, AGED, SRPT):
                yield name, DYNAMIC, TOP[name], policy, seed, tasks, USUAL
            yield name, STATIC, TOP[name], CLAIRVOYANT, seed, tasks, USUAL
        for variant in VARIANTS:
            for load in (0.8, 1.6) if variant != USUAL else ():
                for policy in (FIFO, KAIROS, AGED):
                    yield WORKLOAD, STATIC, load, policy, seed, tasks, variant


def simulate(job: Job) -> dict[str, float]:
    """The figures of a run."""
    name, horizon, load, policy, seed, tasks, variant = job
    workload = WORKLOADS[name]
    drawn = Load.of(workload, seed, horizon, tasks or workload.tasks * (LONG if load < 1.0 else 1))
    make = clairvoyant(drawn) if policy == CLAIRVOYANT else find(FLEET_RULES, policy)
    edge, cloud = assumed(workload), assumed(workload, **CLOUD_IS)
    replicas = {CLOUD: {"edge": edge, "cloud": cloud}, CLOUD_ALONE: {"cloud": cloud}}.get(
        variant, {"edge": edge}
    )
    # A load is relative to the edge's capacity.
    drawn = replace(drawn, arrived_s=drawn.arrivals_s(load, edge).tolist())
    return summarized(open_loop(drawn, make, None, replicas, VARIANTS[variant]))


def clairvoyant(drawn: Load) -> Make:
    """The oracle for these tasks."""
    rounds = {f"/r{number}": script.rounds for number, script in enumerate(drawn.scripts)}
    return partial(Clairvoyant, rounds=rounds)


def summarized(outcome: Outcome) -> dict[str, float]:
    """The figures of a run."""
    result = figures(outcome)
    latency, stall, age = result["latency_s"], result["stall_s"], result["observation_age_s"]
    first_wait_s, late_chunks = result["first_wait_s"]["avg"], outcome.late
    return {
        **{name: latency[name] for name in ("avg", "p25", "p50", "p95", "p99")},
        "stall": stall["avg"], "stall_p95": stall["p95"], "age": age["avg"], "age_p95": age["p95"],
        "first_wait": first_wait_s, "standing": first_wait_s + stall["avg"],
        "tasks_per_min": result["tasks_per_min"],
        **{name: result[name] for name in ("tasks", "tasks_per_robot", "little", "rounds", "beyond")},
        "load": max(result["gpu_load"].values()),
        **{f"load_{lane}": share for lane, share in result["gpu_load"].items()},
        "late": float(sum(late_chunks)), "wasted": late_chunks[1] / sum(outcome.batches),
        "chunks_per_s": sum(robot.rounds for robot in outcome.robots) / result["run_s"],
    }  # fmt: skip


def collected(runs: Iterable[Mapping[str, float]]) -> Samples:
    """The values of all runs, by figure."""
    every = list(runs)
    return {name: np.array([run[name] for run in every]) for name in every[0]}


def changes(new: Samples, old: Samples, metrics: Sequence[str]) -> Row:
    """In percent, seed by seed."""
    return {metric: change(new[metric], old[metric]) for metric in metrics}


def means(samples: Samples, *metrics: str) -> Row:
    """With their intervals."""
    return {metric: interval(samples[metric]) for metric in metrics or samples}


def compared(samples: dict[Case, Samples]) -> Iterator[Row]:
    """Each policy at each load, and its change against fifo at the same horizon."""
    for (name, horizon, load, policy, variant), values in samples.items():
        if variant == USUAL:
            row = {**means(values), "workload": name, "horizon": horizon, "load": load, "policy": policy}
            base = samples[name, horizon, load, FIFO, variant]
            yield {**row, "against_fifo": changes(values, base, METRICS)}


def table_2(samples: dict[Case, Samples]) -> Iterator[Row]:
    """Reductions in the shape of Kairos' Table 2, at the highest load."""
    for name in WORKLOADS:
        for base in (FIFO, LAS):
            old = samples[name, STATIC, TOP[name], base, USUAL]
            for horizon, policy in (
                (DYNAMIC, KAIROS), (STATIC, KAIROS), (DYNAMIC, base), (DYNAMIC, AGED), (DYNAMIC, SRPT)
            ):  # fmt: skip
                row = {
                    "workload": name,
                    "load": TOP[name],
                    "against": base,
                    "policy": policy,
                    "horizon": horizon,
                }
                yield row | changes(samples[name, horizon, TOP[name], policy, USUAL], old, METRICS)


def settings_compared(samples: dict[Case, Samples]) -> Iterator[Row]:
    """What asking earlier, an elastic horizon and a cloud change, for each policy against itself."""
    metrics = ("avg", "p95", "first_wait", "stall", "age")
    for load in (0.8, 1.6):
        for variant in VARIANTS:
            for policy in (FIFO, KAIROS, AGED):
                runs, base = (samples[WORKLOAD, STATIC, load, policy, name] for name in (variant, USUAL))
                row = {"settings": variant, "load": load, "policy": policy, **means(runs, *metrics, "beyond")}
                yield {**row, "against_usual": changes(runs, base, metrics)}


def kairos_choices(seeds: Sequence[int], tasks: int | None) -> Iterator[Row]:
    """What choices that the paper leaves open change, against the defaults, at the highest load."""
    for name in (WORKLOAD, "meta_smol"):
        replicas = {"edge": assumed(WORKLOADS[name])}
        drawn = [Load.of(WORKLOADS[name], seed, STATIC, tasks) for seed in seeds]
        runs = {
            title: collected(
                summarized(open_loop(load, partial(_kairos, **choice), TOP[name], replicas)) for load in drawn
            )
            for title, choice in {"": {}, **KAIROS_CHOICES}.items()
        }
        for title in KAIROS_CHOICES:
            metrics = ("avg", "p95", "first_wait", "stall")
            yield {"workload": name, "choice": title, **changes(runs[title], runs[""], metrics)}


def _kairos(setup: FleetSetup, **choice: Any) -> FleetRule:
    options = {name: choice.pop(name) for name in tuple(choice) if hasattr(setup.options, name)}
    return HighestWaitRatio(replace(setup, options=RuleOptions(**options)), **choice)


def closed(seeds: Sequence[int], quick: bool) -> Iterator[Row]:
    """Fleets that do their tasks back to back. half_as_long: the changes in runs of half the length."""
    for robots in ROBOTS[:2] if quick else ROBOTS:
        tasks_each, own_seeds = 6 if quick else PER_ROBOT, seeds[:1] if robots > ONE_SEED else seeds
        base: dict[int, Samples] = {}
        for policy, horizon in (*((name, STATIC) for name in POLICIES), (KAIROS, DYNAMIC)):
            make = find(FLEET_RULES, policy)
            runs = {
                tasks: collected(_closed(make, robots, seed, tasks, horizon) for seed in own_seeds)
                for tasks in (tasks_each // 2, tasks_each)
            }
            base = base or runs
            half, whole = (
                changes(values, base[tasks], ("avg", "p95", "stall")) for tasks, values in runs.items()
            )
            yield {
                **means(runs[tasks_each]), "robots": robots, "policy": policy, "horizon": horizon,
                "tasks_per_robot": tasks_each, "seeds": len(own_seeds), "against_fifo": whole,
                "half_as_long": half,
                "same_sign": all(doubling(half[name], whole[name]) for name in ("avg", "p95")),
            }  # fmt: skip


def lengths(seeds: Sequence[int], quick: bool) -> Iterator[Row]:
    """Changes against fifo in ever longer runs: a burst, and a hundred robots."""
    workload, load, robots = WORKLOADS[WORKLOAD], 1.6, 100
    for regime, counts in LENGTHS.items():
        for count in counts[:2] if quick else counts:
            base: Samples = {}
            for policy in POLICIES:
                make = find(FLEET_RULES, policy)
                values = collected(
                    _closed(make, robots, seed, count)
                    if regime == "closed"
                    else summarized(open_loop(Load.of(workload, seed, STATIC, count), make, load, _edge()))
                    for seed in seeds
                )
                base = base or values
                tasks, tasks_each = (count * robots, count) if regime == "closed" else (count, 1)
                yield {
                    "regime": regime, "tasks": tasks, "tasks_per_robot": tasks_each, "policy": policy,
                    "seeds": len(seeds), **means(values, "little"),
                    "against_fifo": changes(values, base, ("avg", "p95")),
                }  # fmt: skip


def deadlines(seeds: Sequence[int], quick: bool) -> Iterator[Row]:
    """Fleets of 30 robots, with and without skipping robots that cannot be answered in time."""
    robots, tasks_each = 30, 2 if quick else PER_ROBOT // 2
    for policy in POLICIES:
        for passed_by in (True, False):
            make = find(FLEET_RULES, policy)
            make = make if passed_by else partial(_regardless, make)
            values = collected(
                _closed(make, robots, seed, tasks_each, settings=Settings(within_s=WITHIN_S))
                for seed in seeds
            )
            row = {"robots": robots, "tasks_per_robot": tasks_each, "policy": policy, "passed_by": passed_by}
            yield {**means(values), **row, "within_s": WITHIN_S}


def _edge() -> Mapping[str, ReplicaProfile]:
    return {"edge": assumed(WORKLOADS[WORKLOAD])}


def _closed(
    make: Make, robots: int, seed: int, each: int, horizon: str = STATIC, settings: Settings | None = None
) -> dict[str, float]:
    drawn = Load.of(WORKLOADS[WORKLOAD], seed, horizon, robots * each)
    return summarized(closed_fleet(drawn, make, robots, _edge(), settings))


def _regardless(make: Make, setup: FleetSetup) -> FleetRule:
    """A policy that also serves robots that cannot be answered in time."""
    policy: Any = make(setup)
    policy._in_time = lambda replica, ready, now_s: ready
    return policy


def decisions(times: int, robots: int = 1000) -> dict[str, dict[str, float]]:
    """Milliseconds of one decision while 1000 robots wait: CPU time, and wall time."""
    rows = {}
    for name in names(FLEET_RULES):
        chance, policy = random.Random(0), find(FLEET_RULES, name)(FleetSetup(_edge()))
        ready = tuple(_waiting(f"/r{number}", chance) for number in range(robots))
        for _ in range(400):
            policy.ended(_waiting("/ended", chance).task, 0.0)
        times_s = []
        for step in range(times):
            began_s, wall_s = time.thread_time(), time.perf_counter()
            policy.next("edge", ready, 100.0 + step)
            times_s.append((time.thread_time() - began_s, time.perf_counter() - wall_s))
        p50, p99 = 1e3 * np.percentile(times_s, (50, 99), axis=0)
        quantiles = {"p50": p50[0], "p99": p99[0], "wall_p50": p50[1], "wall_p99": p99[1]}
        rows[name] = {quantile: round(value, 3) for quantile, value in quantiles.items()}
    return rows


def _waiting(robot: str, chance: random.Random) -> TaskRequest:
    task = Task(robot, 0, f"{chance.randrange(40)}", chance.uniform(0.0, 50.0))
    for number in range(chance.randint(1, 20)):
        task.dispatched(50.0 + number)
        task.answered(50.5 + number, chance.uniform(0.3, 1.6))
    task.asked_s = chance.uniform(70.0, 100.0)
    return TaskRequest(Act(), robot, task=task)


BENCH = Bench(
    "fleet_sim",
    measure,
    options,
    about={"simulated": True, "profiles": "assumed"},
    rows="open",
    smoke="--quick --seeds 2",
)

if __name__ == "__main__":
    sys.exit(main(BENCH))
