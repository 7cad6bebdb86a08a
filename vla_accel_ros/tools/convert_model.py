"""`vla convert PATH OUT`: any known checkpoint as one folder of ours, with checksums and where it came from.

Numbers stay as they are stored: a policy loaded from OUT is the same to the bit. They lie as the engine reads
them, and what it computes ahead lies beside them, for the steps and dtype that are named; --plain leaves both
out, for other tools, and makes a plain folder of a converted one.
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
    parser.add_argument("--plain", action="store_true", help="one tensor for each parameter, nothing folded")
    parser.add_argument(
        "--steps", type=int, default=10, help="denoise_steps that constants are folded for (default: 10)"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="bfloat16",
        help="dtype that they are folded for (default: bfloat16); the weights stay as they are stored",
    )


def run(arguments: argparse.Namespace) -> int:
    """Convert, and say what was written."""
    from vla_accel_ros.models.checkpoints.checkpoint import describe
    from vla_accel_ros.models.checkpoints.conversion import Target, convert
    from vla_accel_ros.models.checkpoints.progress import Meter
    from vla_accel_ros.tools.converted import prepared

    target = Target(arguments.plain, arguments.steps, arguments.dtype)
    with Meter(f"converting {arguments.path.name}") as meter:
        out = convert(arguments.path, arguments.out, meter, target)
    print(f"{out}: {meter}; `vla inspect --verify {out}` compares it with its checksums")
    for name, text in prepared(describe(out)):
        print(f"  {name:<16}{text}")
    return 0
