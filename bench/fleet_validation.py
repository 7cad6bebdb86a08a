"""Compares the fleet's simulator with the node fleet_scheduler on the same tasks.

    python bench/fleet_validation.py [--repeats 3] [--policies fifo kairos] [--small]

Tasks of about a minute, at a load of 1.6, go through the real node (its own process, DDS, monotonic time),
whose replica waits for the recorded time of each chunk instead of computing, and through the simulator. The
simulator is given the median message delay of the node's run, which it cannot know. A second simulation is
also given the median excess time of a chunk, which comes from this machine's threads that wake up late while
others compute.
Compared are the mean and the P95 of the tasks' latencies, the stall, and the share of pairs of chunks that
are served in the same order. A bag of each run of the node is also converted to tasks (`vla fleet-trace`),
which are simulated as well. Prints a table and writes bench/results/fleet_validation.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from fleet_replay.robots import Ran, Robots
from fleet_replay.tasks import make_tasks
from rclpy.node import Node

from vla_accel_ros.extensions import FLEET_POLICIES, find
from vla_accel_ros.fleet.simulator import profiles, traces
from vla_accel_ros.fleet.simulator.figures import figures
from vla_accel_ros.fleet.simulator.runs import Load, open_loop
from vla_accel_ros.fleet.simulator.simulation import Outcome, Settings
from vla_accel_ros.fleet.simulator.traces import Trace
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.tools.fleet_sim import trace as bags
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.tools.running import graph
from vla_accel_ros.tools.running.processes import NodeProcess

RESULT = Path(__file__).parent / "results" / "fleet_validation.json"
PROGRAM = (sys.executable, "-m", "fleet_replay.scheduler")
STALE_S, CALL_S, LEAD_S, LOAD, SEED = 0.2, 0.1, 0.305, 1.6, 7
NODE = {
    "stale_s": STALE_S,
    "call_s": CALL_S,
    "gone_s": 3600.0,
    "serve_s": 60.0,
    "most_robots": 1024,
    "most_load": 1.0,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, print and write; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--repeats", type=int, default=3, help="runs of the node for each policy (default: %(default)s)")
    add("--policies", nargs="+", default=["fifo", "kairos"], help="(default: fifo kairos)")
    add("--small", action="store_true", help="three tasks, to try the command")
    add("--out", type=Path, default=RESULT, help="file (default: bench/results/fleet_validation.json)")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Raises TimeoutError if the node does not serve."""
    rounds = make_tasks(3 if arguments.small else 24, LOAD, SEED)
    trace, rows = traces.of_rounds(rounds), []
    domain, lock = graph.claim_domain()
    environment = graph.graph_environment(domain)
    graph.enter(environment)
    with lock, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        traces.save(folder / "tasks.jsonl", rounds)
        for policy in arguments.policies:
            for repeat in range(arguments.repeats):
                bag = folder / f"{policy}-{repeat}"
                ran = through_node(trace, folder / "tasks.jsonl", policy, bag, environment)
                rows.append(compared(policy, trace, ran, bag))
                show(rows[-1])
    document = {
        "load": LOAD, "tasks": len(trace.scripts), "chunks": len(rounds), "seed": SEED, "stale_s": STALE_S,
        "rows": rows, "policies": {policy: worst(rows, policy) for policy in arguments.policies},
        **provenance(),
    }  # fmt: skip
    print(json.dumps(document["policies"], indent=1))
    arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def through_node(trace: Trace, tasks: Path, policy: str, bag: Path, environment: dict[str, str]) -> Ran:
    """The tasks in real time."""
    parameters = {"policy": policy, "autostart": "true", **NODE}
    given = [word for name, each in parameters.items() for word in ("-p", f"{name}:={each}")]
    paths = [str(Path(__file__).parent), environment.get("PYTHONPATH", "")]
    environment = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    log, program = bag.with_suffix(".log"), (*PROGRAM, str(tasks))
    scheduler = NodeProcess("fleet_scheduler", given, environment, log, program=program)
    scheduler.start()
    context = rclpy.Context()
    rclpy.init(context=context)
    node = Node("robots", context=context)
    try:
        last_s = (trace.arrived_s or (0.0,))[-1]
        return Robots(node, trace, demo_contract(), bag, LEAD_S).run(60.0 + 10.0 * last_s)
    except TimeoutError:
        print(log.read_text()[-3000:], file=sys.stderr)
        raise
    finally:
        node.destroy_node()
        rclpy.shutdown(context=context)
        scheduler.end(20.0)


def compared(policy: str, trace: Trace, ran: Ran, bag: Path) -> dict[str, Any]:
    """A run of the node, beside simulations of its tasks and of the tasks from the run's bag."""
    link_s = float(np.median(ran.links_s)) / 2
    over_s = max(0.0, float(np.median(ran.over_s)))
    simulated = simulate(policy, trace, link_s)
    late = simulate(policy, later(trace, over_s), link_s)
    recorded = simulate(policy, traces.of_rounds(bags.read([bag])), link_s)
    node = told(ran.outcome)
    return {
        "policy": policy,
        "node": node,
        "simulated": told(simulated),
        "simulated_late": told(late),
        "simulated_from_bag": told(recorded),
        "distance": distance(told(simulated), node),
        "distance_late": distance(told(late), node),
        "distance_from_bag": distance(told(recorded), node),
        "same_order": same_order(simulated.served, ran.outcome.served),
        "link_ms": round(1e3 * link_s, 2),
        "over_ms": round(1e3 * over_s, 2),
        "calls": ran.calls,
        "load_of_the_machine": round(os.getloadavg()[0], 1),
    }


def later(trace: Trace, over_s: float) -> Trace:
    """The same tasks, with chunks that take longer by this much."""
    scripts = tuple(replace(one, served_s=tuple(s + over_s for s in one.served_s)) for one in trace.scripts)
    return replace(trace, scripts=scripts, served_s=(trace.served_s or 0.0) + over_s)


def simulate(policy: str, trace: Trace, link_s: float) -> Outcome:
    """Simulate with the settings of the node and its robots."""
    assert trace.step_s is not None
    what = Load(trace.scripts, trace.scripts, arrived_s=trace.arrived_s)
    settings = Settings(1.0 / trace.step_s, LEAD_S, link_s, STALE_S, call_s=CALL_S)
    return open_loop(what, find(FLEET_POLICIES, policy), None, {"replay": profiles.recorded(trace)}, settings)


def told(outcome: Outcome) -> dict[str, float]:
    """Seconds."""
    found = figures(outcome)
    latency, stall = found["latency_s"], found["stall_s"]
    named = {**{name: latency[name] for name in ("avg", "p25", "p50", "p95")}, "stall": stall["avg"]}
    return {name: round(each, 3) for name, each in named.items()}


def distance(simulated: dict[str, float], node: dict[str, float]) -> dict[str, float]:
    """Difference of the simulated figures from the node's, in percent."""
    return {name: round(100.0 * (simulated[name] / node[name] - 1.0), 2) for name in node if node[name]}


def same_order(one: Sequence[tuple[str, int]], other: Sequence[tuple[str, int]]) -> float:
    """Share of pairs of chunks of two robots, served in both, that were served in the same order."""
    place = {chunk: number for number, chunk in enumerate(other)}
    common = [chunk for chunk in one if chunk in place]
    robots = np.array([chunk[0] for chunk in common])
    places = np.array([place[chunk] for chunk in common])
    first, second = np.triu_indices(len(common), 1)
    apart = robots[first] != robots[second]
    return round(float((places[first] < places[second])[apart].mean()), 4)


def worst(rows: Sequence[dict[str, Any]], policy: str) -> dict[str, Any]:
    """For the repeats of a policy: the median and the largest difference in percent, and the smallest share
    of pairs in the same order."""
    mine = [row for row in rows if row["policy"] == policy]
    found: dict[str, Any] = {"same_order": min(row["same_order"] for row in mine)}
    for of in ("distance", "distance_late", "distance_from_bag"):
        for name in ("avg", "p95"):
            values = [row[of][name] for row in mine]
            found[f"{of}_{name}"] = {
                "median": round(float(np.median(values)), 2),
                "largest": max(values, key=abs),
            }
    return found


def show(row: dict[str, Any]) -> None:
    """A line."""
    away = ", ".join(f"{name} {each:+.1f} %" for name, each in row["distance"].items())
    print(
        f"{row['policy']:>8}: node {row['node']}, simulated {away}; "
        f"same order {100 * row['same_order']:.1f} %, link {row['link_ms']} ms, "
        f"over {row['over_ms']} ms, {row['calls']} calls; "
        f"late {row['distance_late']}; from the bag {row['distance_from_bag']}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
