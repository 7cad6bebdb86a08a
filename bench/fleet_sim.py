"""Scheduling policies of a fleet in simulated time: five workloads, with loads below and above capacity.

    python bench/fleet_sim.py [--seeds 6] [--processes 1] [--quick] [--out FOLDER]

All figures are simulated; the durations of batches are assumed (fleet/simulator/workloads.py). Every policy
gets the same tasks and arrivals, so changes against another policy are computed seed by seed, with Student's
t interval at 95 %. Below a load of 1 a run has LONG times the workload's tasks, so that it is stationary. At
higher loads no run is: it is a burst of so many tasks. `lengths` shows what that means. `clairvoyant` is an
oracle: it first serves the tasks that truly need the fewest rounds, which makes the mean about as small as
possible. Dynamic horizons are an oracle, too: they are drawn, at no cost in success. Prints tables and
writes bench/results/fleet_sim.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fleet_sim_closed import closed, deadlines, decisions, lengths
from fleet_sim_paper import NO_HORIZON, NO_SCHEDULER, TABLE_2, WHOLE
from fleet_sim_statistics import change, interval

from vla_accel_ros.engine.request import Request
from vla_accel_ros.extensions import BUILT_IN, FLEET_POLICIES, find
from vla_accel_ros.fleet.policies.kairos import HighestWaitRatio
from vla_accel_ros.fleet.policies.policy import FleetPolicy, FleetSetup, InOrder, PolicyOptions
from vla_accel_ros.fleet.simulator.figures import figures
from vla_accel_ros.fleet.simulator.profiles import assumed
from vla_accel_ros.fleet.simulator.runs import Load, open_loop
from vla_accel_ros.fleet.simulator.simulation import Settings
from vla_accel_ros.fleet.simulator.workloads import DYNAMIC, STATIC, WORKLOADS
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.tools.provenance import provenance

RESULTS = Path(__file__).parent / "results"
FIFO, LAS, KAIROS, AGED, SRPT, CLAIRVOYANT = (
    "fifo", "las", "kairos", "aged_remaining", "aged_srpt", "clairvoyant"
)  # fmt: skip
LOADS = (0.8, 1.2)
LONG = 3
"""Times the workload's tasks, for loads below 1."""
TOP = {name: 2.4 if name == "mixed_fleet" else 1.6 for name in WORKLOADS}
"""The highest load."""
METRICS = ("avg", "p25", "p95", "p99", "first_wait", "stall", "standing")


class Clairvoyant(InOrder):
    """Serves first the robots that truly need the fewest rounds. rounds: by robot."""

    def __init__(self, setup: FleetSetup, rounds: dict[str, int]) -> None:
        super().__init__(setup, math.inf)
        self._needed = rounds

    def keys(self, ready: Sequence[Request], now_s: float) -> Sequence[int]:
        return [self._needed[request.robot] - request.task.rounds for request in ready]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, simulate, print and write; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    parser.add_argument("--seeds", type=int, default=6, help="runs of each case (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="that simulate at once (default: 1)")
    parser.add_argument("--quick", action="store_true", help="few tasks, to try the command")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of fleet_sim.json")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Raises ValueError for fewer than two seeds."""
    if arguments.seeds < 2:
        raise ValueError(f"--seeds is {arguments.seeds}; give 2 or more, as an interval needs them.")
    tasks, began_s = 30 if arguments.quick else None, time.process_time()
    seeds = tuple(range(arguments.seeds))
    jobs = list(cases(seeds, tasks))
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = dict(zip(jobs, pool.map(simulate, jobs, chunksize=2), strict=True))
    document: dict[str, Any] = {"simulated": True, "profiles": "assumed", "seeds": len(seeds), **provenance()}
    document["open"] = list(compared(found, seeds))
    document["table_2"] = list(table_2(found, seeds))
    document["lengths"] = list(lengths(seeds[:2], arguments.quick))
    document["settings"] = list(settings_compared(found, seeds))
    document["kairos_choices"] = list(kairos_choices(seeds[:4], tasks))
    document["closed"] = list(closed(seeds[:3], arguments.quick))
    document["deadlines"] = list(deadlines(seeds, arguments.quick))
    document["decision_ms"] = decisions(20 if arguments.quick else 1000)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "fleet_sim.json").write_text(json.dumps(document, indent=1) + "\n")
    show(document)
    print(f"{len(jobs)} runs, {time.process_time() - began_s:.0f} s of this process")
    return 0


Job = tuple[str, str, float, str, int, int | None, str]
"""Workload, horizon, load, policy, seed, tasks, and of SETTINGS."""
SETTINGS: dict[str, Any] = {
    "as late as possible": Settings(),
    "0.5 s before": Settings(lead_s=0.5),
    "when it stops": Settings(lead_s=0.0),
    "elastic horizon": Settings(elastic=True),
    "with a cloud": Settings(),
    "cloud alone": Settings(),
}
USUAL, CLOUD, CLOUD_ALONE = "as late as possible", "with a cloud", "cloud alone"
IN_SETTINGS = (FIFO, KAIROS, AGED)
CLOUD_IS = {"faster": 2.5, "network_s": 0.2}


def cases(seeds: Iterable[int], tasks: int | None) -> Iterable[Job]:
    """All open-loop runs."""
    for seed in seeds:
        for name in WORKLOADS:
            for load in (*LOADS, TOP[name]):
                for policy in BUILT_IN[FLEET_POLICIES]:
                    yield name, STATIC, load, policy, seed, tasks, USUAL
            for policy in (FIFO, LAS, KAIROS, AGED, SRPT):
                yield name, DYNAMIC, TOP[name], policy, seed, tasks, USUAL
            yield name, STATIC, TOP[name], CLAIRVOYANT, seed, tasks, USUAL
        for how in SETTINGS:
            if how != USUAL:
                for load in (0.8, 1.6):
                    for policy in IN_SETTINGS:
                        yield "libero_pi05", STATIC, load, policy, seed, tasks, how


def simulate(job: Job) -> dict[str, float]:
    """The figures of a run."""
    name, horizon, load, policy, seed, tasks, how = job
    what = WORKLOADS[name]
    drawn = Load.of(what, seed, horizon, tasks or what.tasks * (LONG if load < 1.0 else 1))
    make: Callable[[FleetSetup], FleetPolicy]
    if policy == CLAIRVOYANT:
        rounds = {f"/r{number}": script.rounds for number, script in enumerate(drawn.scripts)}
        make = partial(Clairvoyant, rounds=rounds)
    else:
        make = find(FLEET_POLICIES, policy)
    edge, cloud = assumed(what), assumed(what, **CLOUD_IS)
    replicas = {
        CLOUD: {"edge": edge, "cloud": cloud}, CLOUD_ALONE: {"cloud": cloud}
    }.get(how, {"edge": edge})  # fmt: skip
    drawn = replace(
        drawn, arrived_s=drawn.arrivals_s(load, edge).tolist()
    )  # a load is relative to the edge's capacity
    found = figures(open_loop(drawn, make, None, replicas, SETTINGS[how]))
    latency, stall, age = found["latency_s"], found["stall_s"], found["observation_age_s"]
    first_wait_s = found["first_wait_s"]["avg"]
    return {
        **{name: latency[name] for name in ("avg", "p25", "p50", "p95", "p99")},
        "stall": stall["avg"], "stall_p95": stall["p95"], "age": age["avg"], "age_p95": age["p95"],
        "first_wait": first_wait_s, "standing": first_wait_s + stall["avg"],
        "tasks": found["tasks"], "tasks_per_robot": found["tasks_per_robot"],
        "little": found["little"],
        "rounds": found["rounds"], "beyond": found["beyond"],
        **{f"load_{lane}": share for lane, share in found["gpu_load"].items()},
    }  # fmt: skip


Found = dict[Job, dict[str, float]]


def values(found: Found, seeds: Sequence[int], metric: str, *case: Any) -> np.ndarray:
    """The values of each seed. case: workload, horizon, load, policy, and setting."""
    name, horizon, load, policy, how = case
    tasks = next(iter(found))[5]
    return np.array([found[name, horizon, load, policy, seed, tasks, how][metric] for seed in seeds])


def compared(found: Found, seeds: Sequence[int]) -> Iterable[dict[str, Any]]:
    """Each policy at each load, and its change against fifo at the same horizon."""
    for name, horizon, load, policy, how in dict.fromkeys((*job[:4], job[6]) for job in found):
        if how != USUAL:
            continue
        case = (name, horizon, load, policy, how)
        row: dict[str, Any] = dict(zip(("workload", "horizon", "load", "policy"), case[:4], strict=True))
        for metric in found[name, horizon, load, policy, seeds[0], next(iter(found))[5], how]:
            row[metric] = interval(values(found, seeds, metric, *case))
        base = (name, horizon, load, FIFO, how)
        row["against_fifo"] = {
            metric: change(values(found, seeds, metric, *case), values(found, seeds, metric, *base))
            for metric in METRICS
        }
        yield row


def table_2(found: Found, seeds: Sequence[int]) -> Iterable[dict[str, Any]]:
    """Reductions in the shape of Kairos' Table 2, at the highest load."""
    for name in WORKLOADS:
        for base in (FIFO, LAS):
            row = {"workload": name, "load": TOP[name], "against": base}
            old = (name, STATIC, TOP[name], base, USUAL)
            for title, horizon, policy in (
                (WHOLE, DYNAMIC, KAIROS), (NO_HORIZON, STATIC, KAIROS), (NO_SCHEDULER, DYNAMIC, base),
                ("", DYNAMIC, AGED), ("", DYNAMIC, SRPT),
            ):  # fmt: skip
                new = (name, horizon, TOP[name], policy, USUAL)
                changes = {
                    metric: change(values(found, seeds, metric, *new), values(found, seeds, metric, *old))
                    for metric in METRICS
                }
                paper = TABLE_2.get((name, base), {}).get(title)
                yield {**row, "policy": policy, "horizon": horizon, "paper": paper, **changes}


def settings_compared(found: Found, seeds: Sequence[int]) -> Iterable[dict[str, Any]]:
    """What asking earlier, an elastic horizon and a cloud change, for each policy against itself."""
    for load in (0.8, 1.6):
        for how in SETTINGS:
            for policy in IN_SETTINGS:
                case = ("libero_pi05", STATIC, load, policy, how)
                base = ("libero_pi05", STATIC, load, policy, USUAL)
                row: dict[str, Any] = {"settings": how, "load": load, "policy": policy}
                for metric in ("avg", "p95", "first_wait", "stall", "age", "beyond"):
                    row[metric] = interval(values(found, seeds, metric, *case))
                row["against_usual"] = {
                    metric: change(values(found, seeds, metric, *case), values(found, seeds, metric, *base))
                    for metric in ("avg", "p95", "first_wait", "stall", "age")
                }
                yield row


CHOICES: dict[str, dict[str, Any]] = {
    **{f"ageing {ageing_s} s": {"kairos_ageing_s": ageing_s} for ageing_s in (5, 10, 20, 30, 120)},
    "first wait counts": {"first_wait": True},
    "open wait counts": {"open_wait": True},
    "2 buckets": {"kairos_buckets": 2},
    "100 buckets": {"kairos_buckets": 100},
}


def kairos_choices(seeds: Sequence[int], tasks: int | None) -> Iterable[dict[str, Any]]:
    """What choices that the paper leaves open change, against the defaults, at the highest load."""
    for name in ("libero_pi05", "meta_smol"):
        runs: dict[str, list[dict[str, Any]]] = {}
        for title, choice in {"": {}, **CHOICES}.items():
            for seed in seeds:
                drawn, replicas = (
                    Load.of(WORKLOADS[name], seed, STATIC, tasks),
                    {"edge": assumed(WORKLOADS[name])},
                )
                outcome = open_loop(drawn, partial(_kairos, **choice), TOP[name], replicas)
                runs.setdefault(title, []).append(figures(outcome))
        for title in CHOICES:
            row: dict[str, Any] = {"workload": name, "choice": title}
            for metric, (of, which) in {
                "avg": ("latency_s", "avg"), "p95": ("latency_s", "p95"),
                "first_wait": ("first_wait_s", "avg"), "stall": ("stall_s", "avg"),
            }.items():  # fmt: skip
                new, old = (np.array([one[of][which] for one in runs[key]]) for key in (title, ""))
                row[metric] = change(new, old)
            yield row


def _kairos(setup: FleetSetup, **choice: Any) -> FleetPolicy:
    options = {name: choice.pop(name) for name in tuple(choice) if hasattr(setup.options, name)}
    return HighestWaitRatio(replace(setup, options=PolicyOptions(**options)), **choice)


def show(document: dict[str, Any]) -> None:
    """Changes against fifo, as a table."""
    for row in document["open"]:
        told = "  ".join(
            f"{metric} {each['mean']:+5.0f} +- {each['half']:3.0f} %"
            for metric, each in row["against_fifo"].items()
        )
        print(f"{row['workload']:>14} {row['horizon']:>7} {row['load']:3.1f} {row['policy']:>15}  {told}")
    print(json.dumps(document["decision_ms"]))


if __name__ == "__main__":
    sys.exit(main())
