"""The fleet's policies by remaining work on seeds that were not used to choose them, beside their bounds.

    python bench/fleet_sim_fresh.py [--seeds 8]

`known` is aged_remaining with the true number of rounds of each task: the most that better predictions could
bring. `clairvoyant` serves the task with the fewest true rounds first, without ageing: about the smallest
mean of any order. Both are oracles. Changes against fifo at the highest load, static horizons, in percent
with intervals at 95 %; simulated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from fleet_sim import AGED, CLAIRVOYANT, FIFO, METRICS, SRPT, TOP, changes, clairvoyant, collected, summarized

from run import Bench, Given, Row, main
from vla_accel_ros.engine.request import Request
from vla_accel_ros.extensions import FLEET_RULES, find
from vla_accel_ros.fleet.rules.remaining import AgedRemaining
from vla_accel_ros.fleet.rules.rule import FleetSetup
from vla_accel_ros.fleet.simulator.profiles import assumed
from vla_accel_ros.fleet.simulator.runs import Load, Make, open_loop
from vla_accel_ros.fleet.simulator.workloads import WORKLOADS

FIRST_SEED, KNOWN = 5000, "known"
CASES = (*TOP.items(), ("mixed_fleet", 1.6))


class Known(AgedRemaining):
    """rounds: the number that each robot's task truly needs."""

    def __init__(self, setup: FleetSetup, rounds: dict[str, int]) -> None:
        super().__init__(setup)
        self._needed = rounds

    def keys(self, ready: Sequence[Request], now_s: float) -> Sequence[float]:
        rounds = [float(self._needed[request.robot] - request.task.rounds) for request in ready]
        return self.order([request.task for request in ready], rounds, now_s)


def options(add: Callable[..., Any]) -> None:
    add("--seeds", type=int, default=8, help="runs of each case (default: %(default)s)")


def measure(given: Given) -> Iterator[Row]:
    """A row for each workload and policy. Raises ValueError for fewer than two seeds."""
    if given.seeds < 2:
        raise ValueError(f"--seeds is {given.seeds}; give 2 or more, as an interval needs them.")
    for workload, load in CASES:
        runs: dict[str, list[dict[str, float]]] = {}
        for seed in range(FIRST_SEED, FIRST_SEED + given.seeds):
            drawn = Load.of(WORKLOADS[workload], seed, tasks=30 if given.small else None)
            for policy, make in makers(drawn).items():
                outcome = open_loop(drawn, make, load, {"edge": assumed(WORKLOADS[workload])})
                runs.setdefault(policy, []).append(summarized(outcome))
        samples = {policy: collected(each) for policy, each in runs.items()}
        for policy in (AGED, SRPT, KNOWN, CLAIRVOYANT):
            row = {"workload": workload, "load": load, "policy": policy}
            row["oracle"] = policy in (KNOWN, CLAIRVOYANT)
            yield row | changes(samples[policy], samples[FIFO], METRICS)


def makers(drawn: Load) -> dict[str, Make]:
    """Functions that make each policy for these tasks."""
    rounds = {f"/r{number}": script.rounds for number, script in enumerate(drawn.scripts)}
    ordinary = {name: find(FLEET_RULES, name) for name in (FIFO, AGED, SRPT)}
    return {**ordinary, KNOWN: partial(Known, rounds=rounds), CLAIRVOYANT: clairvoyant(drawn)}


BENCH = Bench(
    "fleet_sim_fresh",
    measure,
    options,
    about={"simulated": True, "first_seed": FIRST_SEED},
    rows="rows",
    small=True,
    smoke="--small --seeds 2",
)

if __name__ == "__main__":
    sys.exit(main(BENCH))
