"""The fleet's policies by remaining work on seeds that were not used to choose them, beside their bounds.

    python bench/fleet_sim_fresh.py [--seeds 8]

`known` is aged_remaining with the true number of rounds of each task: the most that better predictions could
bring. `clairvoyant` serves the task with the fewest true rounds first, without ageing: about the smallest
mean of any order. Both are oracles. Changes against fifo at the highest load, static horizons, in
percent with intervals at 95 %; simulated. Prints a table and writes bench/results/fleet_sim_fresh.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fleet_sim import AGED, CLAIRVOYANT, FIFO, METRICS, RESULTS, SRPT, TOP, Clairvoyant
from fleet_sim_statistics import change

from vla_accel_ros.engine.request import Request
from vla_accel_ros.extensions import FLEET_POLICIES, find
from vla_accel_ros.fleet.policies.policy import FleetSetup
from vla_accel_ros.fleet.policies.remaining import AgedRemaining
from vla_accel_ros.fleet.simulator.figures import figures
from vla_accel_ros.fleet.simulator.profiles import assumed
from vla_accel_ros.fleet.simulator.runs import Load, Make, open_loop
from vla_accel_ros.fleet.simulator.workloads import WORKLOADS
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.tools.provenance import provenance

FIRST_SEED, KNOWN = 5000, "known"
CASES = (*TOP.items(), ("mixed_fleet", 1.6))


class Known(AgedRemaining):
    """rounds: the number that each robot's task truly needs."""

    def __init__(self, setup: FleetSetup, rounds: dict[str, int]) -> None:
        super().__init__(setup)
        self._needed = rounds

    def keys(self, ready: Sequence[Request], now_s: float) -> Sequence[float]:
        left = [float(self._needed[request.robot] - request.task.rounds) for request in ready]
        return self.order([request.task for request in ready], left, now_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, simulate, print and write; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    parser.add_argument("--seeds", type=int, default=8, help="runs of each case (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="few tasks, to try the command")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of fleet_sim_fresh.json")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Raises ValueError for fewer than two seeds."""
    if arguments.seeds < 2:
        raise ValueError(f"--seeds is {arguments.seeds}; give 2 or more, as an interval needs them.")
    seeds, rows = range(FIRST_SEED, FIRST_SEED + arguments.seeds), []
    for workload, load in CASES:
        found: dict[str, list[dict[str, float]]] = {}
        for seed in seeds:
            drawn = Load.of(WORKLOADS[workload], seed, tasks=30 if arguments.small else None)
            for policy, make in makers(drawn).items():
                found.setdefault(policy, []).append(one(workload, load, drawn, make))
        for policy in (AGED, SRPT, KNOWN, CLAIRVOYANT):
            pairs = {m: [np.array([r[m] for r in found[name]]) for name in (policy, FIFO)] for m in METRICS}
            changes = {metric: change(*pair) for metric, pair in pairs.items()}
            rows.append(
                {
                    "workload": workload,
                    "load": load,
                    "policy": policy,
                    "oracle": policy in (KNOWN, CLAIRVOYANT),
                    **changes,
                }
            )
            told = "  ".join(
                f"{name} {each['mean']:+.1f} +- {each['half']:.1f}" for name, each in changes.items()
            )
            print(f"{workload:>14} {policy:>15}  {told}")
    document: dict[str, Any] = {
        "simulated": True, "first_seed": FIRST_SEED, "seeds": len(seeds), "rows": rows, **provenance()
    }  # fmt: skip
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "fleet_sim_fresh.json").write_text(json.dumps(document, indent=1) + "\n")
    return 0


def makers(drawn: Load) -> dict[str, Make]:
    """Functions that make each policy for these tasks."""
    rounds = {f"/r{number}": script.rounds for number, script in enumerate(drawn.scripts)}
    return {
        FIFO: find(FLEET_POLICIES, FIFO),
        AGED: find(FLEET_POLICIES, AGED),
        SRPT: find(FLEET_POLICIES, SRPT),
        KNOWN: partial(Known, rounds=rounds),
        CLAIRVOYANT: partial(Clairvoyant, rounds=rounds),
    }


def one(workload: str, load: float, drawn: Load, make: Make) -> dict[str, float]:
    """The figures of a run."""
    replicas = {"edge": assumed(WORKLOADS[workload])}
    found = figures(open_loop(drawn, make, load, replicas))
    latency, first_wait_s, stall_s = found["latency_s"], found["first_wait_s"]["avg"], found["stall_s"]["avg"]
    of_task = {"first_wait": first_wait_s, "stall": stall_s, "standing": first_wait_s + stall_s}
    return {**{name: latency[name] for name in METRICS if name in latency}, **of_task}


if __name__ == "__main__":
    sys.exit(main())
