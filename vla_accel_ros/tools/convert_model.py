"""`vla convert PATH OUT`: any known checkpoint as one folder of ours, with a checksum and where it came from.

Numbers stay as they are stored: a policy loaded from OUT is the same to the bit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vla_accel_ros.tools.options import subcommand


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "convert", "write a checkpoint in our own layout, with a checksum", run)
    parser.add_argument("path", type=Path, help="folder of a checkpoint, of any known format")
    parser.add_argument("out", type=Path, help="folder to write; must not be there")


def run(arguments: argparse.Namespace) -> int:
    """Convert, and say what was written."""
    from vla_accel_ros.models.conversion import convert
    from vla_accel_ros.models.progress import Meter

    with Meter(f"converting {arguments.path.name}") as meter:
        out = convert(arguments.path, arguments.out, meter)
    print(f"{out}: {meter}; `vla inspect --verify {out}` compares it with its checksum")
    return 0
