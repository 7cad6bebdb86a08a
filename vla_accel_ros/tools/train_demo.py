"""`vla train-demo`: trains the bundled demo policy from seeds, on a GPU in under half an hour.

Interrupted, it continues where its last finished round ended. The result is a checkpoint folder, a loss plot
and the log.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from vla_accel_ros.tools.options import chosen_contract, contract_option, subcommand


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "train-demo", "train the bundled demo policy", run)
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo_policy"), help="folder of the run (default: %(default)s)"
    )
    parser.add_argument("--device", default="auto", help="cuda, cpu or auto (default)")
    parser.add_argument(
        "--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="that record data"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tiny run that only shows that everything works"
    )
    contract_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train, plot, say where the result is."""
    import torch

    from vla_accel_ros.contract.contract import Contract
    from vla_accel_ros.tools.demo_policy.plot import plot_loss
    from vla_accel_ros.tools.demo_policy.recipe import QUICK, Recipe
    from vla_accel_ros.tools.demo_policy.train import train

    chosen = arguments.device
    if chosen == "auto":
        chosen = "cuda" if torch.cuda.is_available() else "cpu"
    contract = Contract.load(chosen_contract(arguments))
    recipe = QUICK if arguments.quick else Recipe()
    policy = train(arguments.out, recipe, contract.delta_mask, torch.device(chosen), arguments.processes)
    plot_loss(arguments.out / "loss.json", arguments.out / "loss.png")
    print(f"policy: {policy}\nloss plot: {arguments.out / 'loss.png'}")
    return 0
