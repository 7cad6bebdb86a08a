"""Options that several subcommands share, so that they read alike."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from vla_accel_ros.share import bundled_policy, share_file

Run = Callable[[argparse.Namespace], int]
SIM_CONTRACT = "config/contracts/sim_arm.yaml"


def subcommand(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str, run: Run
) -> argparse.ArgumentParser:
    """A subcommand's parser; `run` gets its arguments and returns the exit status."""
    parser = subparsers.add_parser(name, help=what, description=what)
    parser.set_defaults(run=run)
    return parser


def contract_option(parser: argparse.ArgumentParser) -> None:
    """--contract FILE."""
    default = share_file(SIM_CONTRACT)
    parser.add_argument(
        "--contract", type=Path, default=default, help="the robot's contract (default: the simulated arm's)"
    )


def model_option(parser: argparse.ArgumentParser) -> None:
    """--model FOLDER."""
    parser.add_argument(
        "--model", type=Path, default=bundled_policy(), help="checkpoint folder (default: the bundled policy)"
    )
