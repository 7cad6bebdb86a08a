"""`vla inspect PATH`: what a checkpoint folder is, and the contract that it needs, without loading it.

Sizes, cameras, normalisation and what is missing come from the small files and the headers of the weights.
The skeleton of a contract has everything the model determines filled in; what only the robot knows is a
placeholder that says so.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vla_accel_ros.tools.options import subcommand


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "inspect", "say what a checkpoint folder is and what it needs", run)
    parser.add_argument("path", type=Path, help="folder of a checkpoint, of any known format")
    parser.add_argument("--statistics", help="whose, where there are several: asset id or data set")
    parser.add_argument(
        "--verify", action="store_true", help="compare a converted folder's files with their SHA-256"
    )
    parser.add_argument(
        "--contract", action="store_true", help="print the skeleton of a contract alone, to be saved as YAML"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print; status 1 if something keeps the folder from being loaded."""
    from vla_accel_ros.models.checkpoints.checkpoint import describe
    from vla_accel_ros.models.checkpoints.conversion import verify
    from vla_accel_ros.tools.skeleton import summary, write_skeleton

    told = describe(arguments.path, arguments.statistics)
    skeleton = write_skeleton(told)
    if arguments.contract:
        print(skeleton, end="")
        return 0
    print(summary(told))
    if arguments.verify:
        print()
        for name, digest in verify(arguments.path).items():
            print(f"{name} is what was converted, SHA-256 {digest}")
    for sentence in told.missing:
        print(f"\ncannot be loaded: {sentence}")
    print(f"\nwhat the robot's contract must provide (--contract prints it alone):\n\n{skeleton}", end="")
    return 1 if told.missing else 0
