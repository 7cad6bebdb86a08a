"""How long a node takes to end after a signal during motion, and how long the arm moves on.

    python bench/shutdown.py [--times N]

The whole stack in separate processes, real DDS, the arm moving. One node gets the signal and is started again
afterwards. "exit_s" is from the signal until the process has ended. "rest_s" is until the last joint state
that moved faster than a hundredth of full speed; a robot whose inference ends moves on until its images are
too old, as the contract says.
"""

from __future__ import annotations

import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from run import Bench, Given, main, shown
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.running.environment import demo_contract, demo_model
from vla_accel_ros.tools.demo.stack import Stack
from vla_accel_ros.tools.running import graph

NODES = ("inference", "trajectory")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
MOVING_RAD_S = 0.3
REST_RAD_S = 0.03
STILL_NS = 500_000_000


def speed(state: Any) -> float:
    """Greatest |velocity| of a joint state, rad/s."""
    return float(np.abs(state.velocities).max())


def get_moving(stack: Stack, seed: int) -> None:
    """A new scene, and the arm moving in it."""
    operator = stack.operator
    since_ns = operator.now_ns()
    operator.instruct(stack.call(lambda: operator.reset("follow", seed)))
    stack.wait(
        lambda: any(j.stamp_ns > since_ns and speed(j) > MOVING_RAD_S for j in operator.joints[-20:]),
        30.0,
        "motion",
    )


def rest_s(operator: Operator, since_ns: int) -> float:
    """Seconds from then until the arm stands still for good."""

    def last_moving_ns() -> int:
        return max(
            (j.stamp_ns for j in operator.joints if j.stamp_ns >= since_ns and speed(j) > REST_RAD_S),
            default=since_ns,
        )

    def stands() -> bool:
        return operator.measured is not None and operator.measured.stamp_ns > last_moving_ns() + STILL_NS

    operator.wait(stands, 20.0, "standstill")
    return (last_moving_ns() - since_ns) * 1e-9


def ended(stack: Stack, name: str, number: signal.Signals) -> dict[str, float | int]:
    """End one node and start it again."""
    process = stack.processes[name].process
    since_ns, since = stack.operator.now_ns(), time.monotonic()
    process.send_signal(number)
    status = process.wait(30.0)
    exit_s = time.monotonic() - since
    result = {"exit_s": exit_s, "rest_s": rest_s(stack.operator, since_ns), "status": status}
    stack.processes[name].start()
    stack.wait_until_driving()
    return result


def summary(runs: list[dict[str, float | int]]) -> dict[str, Any]:
    """Median and greatest of each, and the exit statuses."""
    found: dict[str, Any] = {"n": len(runs), "statuses": sorted({run["status"] for run in runs})}
    for key in ("exit_s", "rest_s"):
        values = [run[key] for run in runs]
        found[key] = {"p50": round(float(np.median(values)), 3), "max": round(max(values), 3)}
    return found


def tell(sentence: str) -> None:
    """Print what the stack reports."""
    print(sentence, file=sys.stderr)


def of_nodes(times: int) -> dict[str, dict[str, Any]]:
    """node -> signal -> its summary."""
    domain, lock = graph.claim_domain()
    environment = graph.graph_environment(domain)
    graph.enter(environment)
    parameters: dict[str, dict[str, object]] = {
        "inference": {"autostart": True, "model": str(demo_model()), "steps": 5},
        "trajectory": {"autostart": True},
    }
    runs: dict[tuple[str, str], list] = {}
    contract = Contract.load(demo_contract())
    with (
        lock,
        tempfile.TemporaryDirectory() as folder,
        Stack(contract, parameters, Path(folder), environment, tell) as stack,
    ):
        stack.operator.wait(lambda: stack.operator.measured, 60.0, "joint state")
        stack.operator.instruct(stack.operator.reset("follow", 0))
        stack.wait_until_driving()
        for seed, (name, number) in enumerate(itertools.product(NODES, SIGNALS * times)):
            get_moving(stack, seed)
            runs.setdefault((name, number.name), []).append(ended(stack, name, number))
    return {name: {n.name: summary(runs[name, n.name]) for n in SIGNALS} for name in NODES}


def measure(given: Given) -> Iterator[None]:
    """All nodes."""
    given.document["nodes"] = of_nodes(given.times)
    print(shown(given.document["nodes"]))
    yield None


def options(add: Callable[..., Any]) -> None:
    """How often."""
    add("--times", type=int, default=10, help="per node and signal (default: %(default)s)")


BENCH = Bench("shutdown", measure, options, rows="nodes", smoke="--times 1", starts_nodes=True)

if __name__ == "__main__":
    sys.exit(main(BENCH))
