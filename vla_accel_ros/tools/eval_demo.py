"""`vla eval-demo`: success of the demo policy, in closed loop through the engine in process."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from vla_accel_ros.tools.options import (
    chosen_contract,
    chosen_model,
    contract_option,
    model_option,
    subcommand,
)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "eval-demo", "measure the demo policy's success", run)
    parser.add_argument(
        "--episodes", type=int, default=200, help="per task family and condition (default: %(default)s)"
    )
    parser.add_argument(
        "--conditions", default="normal,shuffled,blank,still", help="comma-separated (default: %(default)s)"
    )
    parser.add_argument(
        "--families", default="reach,place,follow", help="comma-separated (default: %(default)s)"
    )
    parser.add_argument(
        "--precision", help="of the fast stages: exact, fp8, int8 or int4 (default: the plain network)"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that play episodes")
    parser.add_argument("--json", type=Path, help="write the summary and every episode here")
    model_option(parser)
    contract_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Play, summarise, write."""
    from vla_accel_ros.tools.demo_policy.evaluate import Plan, as_json, evaluate, lines, summary
    from vla_accel_ros.tools.provenance import provenance

    plan = Plan(
        policy=chosen_model(arguments),
        contract=chosen_contract(arguments),
        episodes=arguments.episodes,
        conditions=tuple(arguments.conditions.split(",")),
        families=tuple(arguments.families.split(",")),
        precision=arguments.precision,
    )
    episodes = evaluate(plan, arguments.processes)
    table = summary(episodes)
    print("\n".join(lines(table)))
    if arguments.json is not None:
        document = {"summary": table, "plan": plan.as_dict(), **provenance(), "episodes": as_json(episodes)}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0
