"""`vla fleet-sim`: how a scheduling policy would serve a fleet of robots, in simulated time.

Named workloads come with assumed durations of batches; --profile gives measured ones. Nothing here says how
fast a GPU is or how well a model acts: what is compared is the order in which robots are served.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from vla_accel_ros.extensions import FLEET_POLICIES, find, names
from vla_accel_ros.fleet.policies.policy import ReplicaProfile
from vla_accel_ros.fleet.simulator import profiles, traces
from vla_accel_ros.fleet.simulator.figures import figures
from vla_accel_ros.fleet.simulator.runs import Load, closed_fleet, open_loop
from vla_accel_ros.fleet.simulator.simulation import Settings
from vla_accel_ros.fleet.simulator.workloads import HORIZONS, STATIC, WORKLOADS
from vla_accel_ros.tools.options import subcommand

HEAD = f"{'':>16} {'avg':>8} {'p25':>8} {'p50':>8} {'p95':>8} {'p99':>8}"
ROWS = {
    "task latency": "latency_s", "stall of a task": "stall_s", "wait for a first": "first_wait_s",
    "observation age": "observation_age_s",
}  # fmt: skip


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "fleet-sim", "simulate how a policy serves a fleet of robots", run)
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--workload", choices=tuple(WORKLOADS), help="tasks of a named workload")
    what.add_argument(
        "--trace", type=Path, help="recorded tasks: a JSON line for each round; needs --profile"
    )
    add("--policy", default="fifo", help=f"who is served next, such as {', '.join(names(FLEET_POLICIES))}")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--load", type=float, help="arrivals; 1 = what a replica serves (default: 1)")
    amount.add_argument(
        "--robots", type=int, help="robots that do the tasks back to back, instead of arrivals"
    )
    add("--tasks", type=int, help="how many (default: the workload's)")
    add("--seed", type=int, default=0, help="of tasks and arrivals (default: %(default)s)")
    add("--horizon", choices=HORIZONS, default=STATIC, help="of a workload's chunks (default: %(default)s)")
    add("--profile", type=Path, help="JSON of what a batch takes (default: assumed for the workload)")
    add(
        "--replicas", nargs="+", default=["edge"], metavar="NAME[:FASTER[:NETWORK_MS]]",
        help="with how many times the speed, and how far there and back (default: edge)",
    )  # fmt: skip
    add(
        "--lead",
        type=float,
        help="ask when motion of so many s is left (default: what a request takes alone)",
    )
    add("--elastic", action="store_true", help="without a new chunk go on beyond the horizon")
    add("--json", type=Path, help="file for all figures, - for standard output")


def run(arguments: argparse.Namespace) -> int:
    """Simulate, print, write. Raises ValueError for options that cannot be."""
    replicas = _replicas(arguments)
    make = find(FLEET_POLICIES, arguments.policy)
    what, settings = _load(arguments), Settings(lead_s=arguments.lead, elastic=arguments.elastic)
    if arguments.robots is not None:
        outcome = closed_fleet(what, make, arguments.robots, replicas, settings)
    else:
        load = 1.0 if arguments.load is None else arguments.load
        outcome = open_loop(what, make, load, replicas, settings)
    found = {"simulated": True, **_asked(arguments), **figures(outcome)}
    if arguments.json is None or str(arguments.json) != "-":
        _print(found)
    if arguments.json is not None:
        text = json.dumps(found, indent=1)
        if str(arguments.json) == "-":
            print(text)
        else:
            arguments.json.write_text(text + "\n")
    return 0


def _load(arguments: argparse.Namespace) -> Load:
    if arguments.tasks is not None and arguments.tasks < 1:
        raise ValueError(f"--tasks is {arguments.tasks}; give 1 or more.")
    if arguments.seed < 0:
        raise ValueError(f"--seed is {arguments.seed}; give 0 or more.")
    if arguments.trace is None:
        return Load.of(WORKLOADS[arguments.workload], arguments.seed, arguments.horizon, arguments.tasks)
    scripts = traces.load(arguments.trace)[: arguments.tasks]
    return Load(scripts, scripts, arguments.seed)


def _replicas(arguments: argparse.Namespace) -> dict[str, ReplicaProfile]:
    if arguments.profile is None and arguments.workload is None:
        raise ValueError("--trace says nothing of durations; give --profile FILE as well.")
    replicas = {}
    for word in arguments.replicas:
        name, *rest = word.split(":")
        try:
            faster, network_ms = _numbers(rest)
            if not name or name in replicas or not 0 < faster < float("inf"):
                raise ValueError
        except ValueError:
            raise ValueError(
                f"--replicas {word}: give a name of its own, and perhaps how many times as fast it is, and "
                "ms of network there and back, such as cloud:2.5:200."
            ) from None
        replicas[name] = _replica(arguments, faster, network_ms / 1e3)
    return replicas


def _numbers(words: list[str]) -> tuple[float, float]:
    faster, network_ms = [*map(float, words), *(1.0, 0.0)[len(words) :]]
    return faster, network_ms


def _replica(arguments: argparse.Namespace, faster: float, network_s: float) -> ReplicaProfile:
    if arguments.profile is None:
        return profiles.assumed(WORKLOADS[arguments.workload], faster, network_s)
    return profiles.load(arguments.profile, faster, network_s)


def _asked(arguments: argparse.Namespace) -> dict[str, Any]:
    names = (
        "workload",
        "trace",
        "policy",
        "load",
        "robots",
        "seed",
        "horizon",
        "profile",
        "replicas",
        "lead",
        "elastic",
    )
    asked = {name: getattr(arguments, name) for name in names}
    return {name: str(value) if isinstance(value, Path) else value for name, value in asked.items()}


def _print(found: dict[str, Any]) -> None:
    print(
        f"simulated: {found['tasks']} tasks in {found['run_s']:.0f} s, {found['rounds']:.1f} rounds each",
        HEAD,
        sep="\n",
    )
    for name, key in ROWS.items():
        print(f"{name:>16} " + " ".join(f"{value:6.2f} s" for value in found[key].values()))
    loads = ", ".join(f"{lane} {100 * load:.0f} %" for lane, load in found["gpu_load"].items())
    print(
        f"GPU load: {loads}; mean batch {found['batch']:.1f}; {100 * found['beyond']:.1f} % of actions "
        "beyond the horizon"
    )
