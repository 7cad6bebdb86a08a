"""`vla fleet-sim`: simulates how scheduling rules would serve a fleet of robots.

A named workload comes with assumed batch times, a recorded one with the measured time of each chunk;
--profile gives measured batch times. The simulation compares the order in which robots are served. It does
not say how fast a GPU is or how well a model acts.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from vla_accel_ros.extensions import FLEET_RULES, names
from vla_accel_ros.fleet.rules.rule import ReplicaProfile, RuleOptions, rule_factory
from vla_accel_ros.fleet.simulator import profiles, traces
from vla_accel_ros.fleet.simulator.runs import Load, closed_fleet, figures, open_loop
from vla_accel_ros.fleet.simulator.simulation import Settings
from vla_accel_ros.fleet.simulator.workloads import DYNAMIC, HORIZONS, STATIC, WORKLOADS
from vla_accel_ros.tools.fleet_sim.comparison import compared, draw
from vla_accel_ros.tools.options import output_file, subcommand, write_text

MOST_MS = 60_000
"""Longest network round trip."""
ASKED = (
    *("workload", "kairos_buckets", "kairos_ageing", "age_exponent", "load", "robots", "seed", "horizon"),
    *("profile", "replicas", "lead", "elastic"),
)
"""Options that the figures repeat."""
HEAD = f"{'':>16} {'avg':>8} {'p25':>8} {'p50':>8} {'p95':>8} {'p99':>8}"
ROWS = {
    "task latency": "latency_s", "first chunk after": "first_wait_s", "stall of a task": "stall_s",
    "observation age": "observation_age_s",
}  # fmt: skip


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "fleet-sim", "simulate how scheduling rules serve a fleet", run)
    add = parser.add_argument
    add(
        "--workload", required=True, metavar="NAME|FILE",
        help=f"tasks: {', '.join(WORKLOADS)}, or a file of recorded ones (vla fleet-trace)",
    )  # fmt: skip
    add(
        "--rule",
        "--policy",
        nargs="+",
        default=["fifo"],
        help=f"who is served next, such as {', '.join(names(FLEET_RULES))}; several are compared",
    )
    options = RuleOptions()
    add(
        "--kairos-buckets", type=int, default=options.kairos_buckets, metavar="B",
        help="buckets of wait ratios, for kairos (default: %(default)s)",
    )  # fmt: skip
    add(
        "--kairos-ageing", type=float, default=options.kairos_ageing_s, metavar="A",
        help="seconds of waiting that move a request up one bucket, for kairos (default: %(default)s)",
    )  # fmt: skip
    add(
        "--age-exponent", type=float, default=options.age_exponent, metavar="N",
        help="of 1 + age, which divides the remaining rounds, for aged_srpt (default: %(default)s)",
    )  # fmt: skip
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        "--load",
        type=float,
        nargs="+",
        help="arrivals; 1 = what a replica serves (default: 1, or as recorded); several are compared",
    )
    amount.add_argument(
        "--robots",
        type=int,
        nargs="+",
        help="robots that do the tasks back to back, instead of arrivals; several numbers are compared",
    )
    add("--tasks", type=int, help="number of tasks (default: the workload's)")
    add("--seed", type=int, default=0, help="seed of tasks and arrivals (default: %(default)s)")
    add(
        "--horizon",
        choices=HORIZONS,
        default=STATIC,
        help="horizon of a named workload's chunks (default: %(default)s); dynamic is an oracle: drawn, at "
        "no cost in success",
    )
    add("--profile", type=Path, help="JSON of the time of each batch size (default: assumed, or as recorded)")
    add(
        "--replicas", nargs="+", default=["edge"], metavar="NAME[:FASTER[:NETWORK_MS]]",
        help="names, with speed as a factor and network round trip in ms (default: edge)",
    )  # fmt: skip
    add(
        "--lead",
        type=float,
        help="ask when this many s of motion are left (default: the time of a request alone, or as recorded)",
    )
    add(
        "--elastic",
        action="store_true",
        help="execute actions beyond the horizon while no new chunk has come",
    )
    add("--json", type=output_file, help="file for all figures, - for standard output")
    add("--png", type=output_file, help="draw latency against --load or --robots, a line for each rule")


def run(arguments: argparse.Namespace) -> int:
    """Simulate, print and write the figures. Raises ValueError for wrong options."""
    trace = _trace(arguments)
    replicas = _replicas(arguments, trace)
    options = RuleOptions(arguments.kairos_buckets, arguments.kairos_ageing, arguments.age_exponent)
    makes = {rule: rule_factory(rule, options) for rule in arguments.rule}
    workload, settings = _load(arguments, trace), _settings(arguments, trace)
    oracle = trace is None and arguments.horizon == DYNAMIC
    runs = []
    for rule, make in makes.items():
        for amount in arguments.robots or arguments.load or [None]:
            if arguments.robots is not None:
                outcome = closed_fleet(workload, make, amount, replicas, settings)
            else:
                load = 1.0 if amount is None and workload.arrived_s is None else amount
                outcome = open_loop(workload, make, load, replicas, settings)
            entry = _asked(arguments) | {"policy": rule}  # the file's word of earlier versions
            entry |= {"load" if arguments.robots is None else "robots": amount}
            runs.append({"simulated": True, **entry, "oracle_horizons": oracle, **figures(outcome)})
    document = runs[0] if len(runs) == 1 else {"simulated": True, "runs": runs}
    if arguments.json is None or str(arguments.json) != "-":
        _print(runs[0]) if len(runs) == 1 else print(compared(runs))
    if arguments.png is not None:
        draw(runs, arguments.png)
    if arguments.json is not None:
        text = json.dumps(document, indent=1)
        if str(arguments.json) == "-":
            print(text)
        else:
            write_text(arguments.json, text + "\n")
    return 0


def _trace(arguments: argparse.Namespace) -> traces.Trace | None:
    """Return the recorded tasks, None for a named workload. Raises ValueError if --workload is neither."""
    if arguments.workload in WORKLOADS:
        return None
    try:
        return traces.load(Path(arguments.workload))
    except FileNotFoundError:
        raise ValueError(
            f"--workload {arguments.workload} is neither a file nor one of {', '.join(WORKLOADS)}."
        ) from None


def _load(arguments: argparse.Namespace, trace: traces.Trace | None) -> Load:
    if arguments.tasks is not None and arguments.tasks < 1:
        raise ValueError(f"--tasks is {arguments.tasks}; give 1 or more.")
    if arguments.seed < 0:
        raise ValueError(f"--seed is {arguments.seed}; give 0 or more.")
    if trace is None:
        return Load.of(WORKLOADS[arguments.workload], arguments.seed, arguments.horizon, arguments.tasks)
    scripts = trace.scripts[: arguments.tasks]
    if arguments.profile is not None or any(":" in word for word in arguments.replicas):
        scripts = tuple(replace(script, served_s=()) for script in scripts)
    arrived_s = None if trace.arrived_s is None else trace.arrived_s[: arguments.tasks]
    return Load(scripts, scripts, arguments.seed, arrived_s)


def _settings(arguments: argparse.Namespace, trace: traces.Trace | None) -> Settings:
    if trace is None:
        return Settings(lead_s=arguments.lead, elastic=arguments.elastic)
    lead_s = trace.lead_s if arguments.lead is None else arguments.lead
    rate_hz = Settings().rate_hz if trace.step_s is None else 1.0 / trace.step_s
    return Settings(rate_hz, lead_s, elastic=arguments.elastic)


def _replicas(arguments: argparse.Namespace, trace: traces.Trace | None) -> dict[str, ReplicaProfile]:
    replicas = {}
    for word in arguments.replicas:
        name, *rest = word.split(":")
        try:
            faster, network_ms = _numbers(rest)
            if not name or name in replicas or not (1e-3 <= faster <= 1e3 and 0 <= network_ms <= MOST_MS):
                raise ValueError
        except ValueError:
            raise ValueError(
                f"--replicas {word}: give a different name for each, and perhaps its speed as a factor from "
                f"0.001 to 1000 and the network round trip in ms, at most {MOST_MS}, such as cloud:2.5:200."
            ) from None
        replicas[name] = _replica(arguments, trace, faster, network_ms / 1e3)
    return replicas


def _numbers(words: list[str]) -> tuple[float, float]:
    faster, network_ms = [*map(float, words), *(1.0, 0.0)[len(words) :]]
    return faster, network_ms


def _replica(
    arguments: argparse.Namespace, trace: traces.Trace | None, faster: float, network_s: float
) -> ReplicaProfile:
    if arguments.profile is not None:
        return profiles.load(arguments.profile, faster, network_s)
    if trace is not None:
        return profiles.recorded(trace, faster, network_s)
    return profiles.assumed(WORKLOADS[arguments.workload], faster, network_s)


def _asked(arguments: argparse.Namespace) -> dict[str, Any]:
    options = {name: getattr(arguments, name) for name in ASKED}
    return {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}


def _print(found: dict[str, Any]) -> None:
    oracle = ", oracle horizons" if found["oracle_horizons"] else ""
    print(
        f"simulated: {found['tasks']} tasks in {found['run_s']:.0f} s, {found['tasks_per_robot']:.3g} a "
        f"robot, {found['rounds']:.1f} rounds each{oracle}",
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
    if not found["stationary"]:
        off = 100.0 * (found["little"] - 1.0)
        print(
            f"not stationary (Little's law: off by {off:+.1f} %): these figures change with the number of "
            "tasks. Give more --tasks; at a load above 1 the queue grows as long as tasks come."
        )
