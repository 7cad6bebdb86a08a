"""Compares the fleet's simulator with the node's scheduler at the rate of decisions of a real engine.

    python bench/fleet_agreement.py [--tasks 1000] [--seeds 3] [--policies ...]

The same tasks, in overload, go through the node's scheduler (fleets/scheduled.py) and through the simulator.
The scheduler gives each request to the replica as soon as that has room, DECISIONS_HZ times a second. In the
simulator the replica takes full batches, at the same rate of chunks. A policy that counted decisions would
differ. Compared is what each policy changes against fifo. All time is simulated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fleets.scheduled import ScheduledFleet, steady
from run import Bench, Given, Row, main
from vla_accel_ros.extensions import BUILT_IN, FLEET_RULES
from vla_accel_ros.fleet.rules.rule import RuleOptions, rule_factory
from vla_accel_ros.fleet.simulator.runs import Load, figures
from vla_accel_ros.fleet.simulator.simulation import Outcome, Settings, Simulation
from vla_accel_ros.fleet.simulator.workloads import WORKLOADS

DECISIONS_HZ, AT_ONCE = 177.0, 20
"""Chunks a second of pi0.5 on an H200, and how many it computes at once (docs/lab/fleet_scheduler.md)."""
WORKLOAD, LOAD = "libero_pi05", 1.6
FIGURES = ("avg", "p50", "p95", "first_wait", "stall")
NODE, BATCHES = "node", "simulated"


def measure(given: Given) -> Iterator[Row]:
    """Compare all policies."""
    fifo = [both("fifo", given.tasks, seed) for seed in range(given.seeds)]
    for policy in given.policies:
        runs = fifo if policy == "fifo" else [both(policy, given.tasks, seed) for seed in range(given.seeds)]
        yield {"policy": policy, **compared(runs, fifo)}


def both(
    policy: str, tasks: int, seed: int, options: RuleOptions | None = None
) -> dict[str, dict[str, float]]:
    """Figures of the node's scheduler and of the simulator, for the same tasks."""
    drawn, make = (
        Load.of(WORKLOADS[WORKLOAD], seed, tasks=tasks),
        rule_factory(policy, options or RuleOptions()),
    )
    replica = steady(DECISIONS_HZ, AT_ONCE)
    arrivals_s = drawn.arrivals_s(LOAD, replica).tolist()
    settings = Settings(lead_s=AT_ONCE / DECISIONS_HZ)
    node = ScheduledFleet(make, DECISIONS_HZ, AT_ONCE, settings).open(drawn.scripts, arrivals_s)
    simulated = Simulation({"gpu": replica}, make, settings).open(drawn.scripts, arrivals_s)
    return {NODE: _figures(node), BATCHES: _figures(simulated)}


def compared(
    runs: Sequence[dict[str, dict[str, float]]], fifo: Sequence[dict[str, dict[str, float]]]
) -> dict[str, Any]:
    """Mean figures over the seeds, changes against fifo in percent, and how many points the simulator's are
    from the node's."""
    row: dict[str, Any] = {}
    changes = {}
    for who in (NODE, BATCHES):
        new, old = (
            {name: np.array([run[who][name] for run in samples]) for name in FIGURES}
            for samples in (runs, fifo)
        )
        changes[who] = {
            name: float(np.mean(100.0 * (new[name] / old[name] - 1.0))) for name in ("avg", "p95")
        }
        row[who] = {name: round(float(values.mean()), 3) for name, values in new.items()}
    row["against_fifo"] = {
        who: {name: round(value, 2) for name, value in samples.items()} for who, samples in changes.items()
    }
    row["apart"] = {name: round(changes[BATCHES][name] - changes[NODE][name], 2) for name in ("avg", "p95")}
    return row


def _figures(outcome: Outcome) -> dict[str, float]:
    result = figures(outcome)
    waits = {"first_wait": result["first_wait_s"]["avg"], "stall": result["stall_s"]["avg"]}
    return {**{name: result["latency_s"][name] for name in ("avg", "p50", "p95")}, **waits}


def options(add: Callable[..., Any]) -> None:
    """Tasks, seeds and policies."""
    add("--tasks", type=int, default=1000, help="(default: %(default)s)")
    add("--seeds", type=int, default=3, help="(default: %(default)s)")
    add("--policies", nargs="+", default=list(BUILT_IN[FLEET_RULES]), help="(default: all built-in ones)")


ABOUT = {
    "simulated": True, "workload": WORKLOAD, "load": LOAD, "tasks_per_robot": 1,
    "decisions_hz": DECISIONS_HZ, "at_once": AT_ONCE,
}  # fmt: skip
SMOKE = "--tasks 60 --seeds 1 --policies fifo kairos"
BENCH = Bench("fleet_agreement", measure, options, ABOUT, rows="rows", smoke=SMOKE)

if __name__ == "__main__":
    sys.exit(main(BENCH))
