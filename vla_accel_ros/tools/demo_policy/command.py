"""`vla train-demo` and `vla eval`: train the bundled demo policy from seeds, and measure its success.

What trains it is in the sources' folder training/, not in the package. Training takes under half an hour on a
GPU; after an interruption it resumes from its last finished round. The result is a checkpoint folder, a loss
plot and the log. Success is measured in closed loop, with an engine in
this process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import import_module
from pathlib import Path

from vla_accel_ros.tools.options import (
    chosen_contract,
    chosen_model,
    contract_option,
    model_option,
    output_file,
    subcommand,
)

SOURCES = Path(__file__).parents[3]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add both subcommands."""
    parser = subcommand(subparsers, "train-demo", "train the bundled demo policy", train)
    add = parser.add_argument
    add("--out", type=Path, default=Path("out/demo_policy"), help="folder of the run (default: %(default)s)")
    add("--device", default="auto", help="cuda, cpu or auto (default)")
    add("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="processes that record data")
    add("--quick", action="store_true", help="a tiny run that only shows that everything works")
    contract_option(parser)

    purpose = "play the bundled tasks many times: success with its 95 % interval"
    parser = subcommand(subparsers, "eval", purpose, evaluate, aliases=["eval-demo"])
    add = parser.add_argument
    add(
        "--episodes",
        type=int,
        default=50,
        help="episodes of each task family and condition (default: %(default)s)",
    )
    add(
        "--conditions",
        default="normal",
        help="of normal, shuffled, blank, still: what success depends on (default: %(default)s)",
    )
    add("--families", default="reach,place,follow", help="comma-separated (default: %(default)s)")
    add(
        "--precision",
        help="precision of the fast stages: exact, fp8, int8 or int4 (default: the plain network)",
    )
    add("--processes", type=int, default=os.cpu_count() or 1, help="processes that play episodes")
    add("--json", type=output_file, help="write the summary and every episode here")
    model_option(parser)
    contract_option(parser)


def train(arguments: argparse.Namespace) -> int:
    """Train, plot, and print where the result is."""
    import torch

    from vla_accel_ros.contract.contract import Contract

    if not (SOURCES / "training" / "demonstrations.py").is_file():
        raise ValueError(
            f"the bundled policy is trained from the sources, and {SOURCES} has no folder training: run "
            "`pip install -e .` in a checkout of vla_accel_ros, then `vla train-demo` again."
        )
    sys.path.append(str(SOURCES))
    training, recipes = import_module("training.train"), import_module("training.recipe")
    kind = arguments.device
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    contract = Contract.load(chosen_contract(arguments))
    recipe = recipes.QUICK if arguments.quick else recipes.Recipe()
    out, device = arguments.out, torch.device(kind)
    policy = training.train(out, recipe, contract.delta_mask, device, arguments.processes)
    training.plot_loss(out / "loss.json", out / "loss.png")
    print(f"policy: {policy}\nloss plot: {out / 'loss.png'}")
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """Play the episodes, print the summary, write the JSON."""
    from vla_accel_ros.tools.demo_policy import evaluate as evaluation
    from vla_accel_ros.tools.provenance import provenance

    plan = evaluation.Plan(
        policy=chosen_model(arguments),
        contract=chosen_contract(arguments),
        episodes=arguments.episodes,
        conditions=tuple(arguments.conditions.split(",")),
        families=tuple(arguments.families.split(",")),
        precision=arguments.precision,
    )
    episodes = evaluation.evaluate(plan, arguments.processes)
    table = evaluation.summary(episodes)
    print("\n".join(evaluation.lines(table)))
    if arguments.json is not None:
        every = evaluation.as_json(episodes)
        document = {"summary": table, "plan": plan.as_dict(), **provenance(), "episodes": every}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0
