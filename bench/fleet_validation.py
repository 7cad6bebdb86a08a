"""Compares the fleet's simulator with the node fleet_scheduler on the same tasks.

    python bench/fleet_validation.py [--repeats 3] [--policies fifo kairos] [--tasks 24]

Tasks of about a minute, at a load of 1.6, go through the real node (its own process, DDS, monotonic time),
whose replica waits for the recorded time of each chunk instead of computing, and through the simulator. The
simulator is given the median message delay of the node's run, which it cannot know. A second simulation is
also given the median excess time of a chunk, which comes from this machine's threads that wake up late while
others compute.
Compared are the mean and the P95 of the tasks' latencies, the stall, and the share of pairs of chunks that
are served in the same order. A bag of each run of the node is also converted to tasks (`vla fleet-trace`),
which are simulated as well.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rclpy.node import Node

from fleet_replay.robots import Ran, Robots
from fleet_replay.tasks import make_tasks
from run import Bench, Given, Row, main
from vla_accel_ros.extensions import FLEET_RULES, find
from vla_accel_ros.fleet.simulator import profiles, traces
from vla_accel_ros.fleet.simulator.figures import figures
from vla_accel_ros.fleet.simulator.runs import Load, open_loop
from vla_accel_ros.fleet.simulator.simulation import Outcome, Settings
from vla_accel_ros.fleet.simulator.traces import Trace
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.tools.fleet_sim import trace as bags
from vla_accel_ros.tools.running import graph
from vla_accel_ros.tools.running.processes import NodeProcess

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


def measure(given: Given) -> Iterator[Row]:
    """Each policy, repeatedly. Raises TimeoutError if the node does not serve."""
    rounds = make_tasks(given.tasks, LOAD, SEED)
    trace, document = traces.of_rounds(rounds), given.document
    document |= {"tasks": len(trace.scripts), "chunks": len(rounds), "policies": {}}
    domain, lock = graph.claim_domain()
    environment = graph.graph_environment(domain)
    graph.enter(environment)
    with lock, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        traces.save(folder / "tasks.jsonl", rounds)
        for policy in given.policies:
            for repeat in range(given.repeats):
                bag = folder / f"{policy}-{repeat}"
                ran = through_node(trace, folder / "tasks.jsonl", policy, bag, environment)
                row = compared(policy, trace, ran, bag)
                summary = worst([*document["rows"], row], policy)
                document["policies"] = {**document["policies"], policy: summary}
                yield row


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
    return open_loop(what, find(FLEET_RULES, policy), None, {"replay": profiles.recorded(trace)}, settings)


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


def options(add: Callable[..., Any]) -> None:
    """Runs and policies."""
    add("--repeats", type=int, default=3, help="runs of the node for each policy (default: %(default)s)")
    add("--policies", nargs="+", default=["fifo", "kairos"], help="(default: fifo kairos)")
    add("--tasks", type=int, default=24, help="(default: %(default)s)")


BENCH = Bench(
    "fleet_validation", measure, options, {"load": LOAD, "seed": SEED, "stale_s": STALE_S}, rows="rows",
    smoke="--tasks 3 --repeats 1 --policies kairos", starts_nodes=True,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(BENCH))
