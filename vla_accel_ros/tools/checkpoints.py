"""`vla inspect PATH` and `vla convert PATH OUT`: describe a checkpoint folder, and convert it to our own
format.

inspect loads no weights: sizes, cameras, normalisation and missing parts come from the small files and the
headers of the weights. It prints a contract with everything that the model determines, as `vla contract make`
does.

convert keeps the stored numbers, with checksums and their source: a policy loaded from OUT equals the
original bit for bit. Tensors are stored as the engine reads them. --plain stores each parameter by itself,
for other tools, and turns a converted folder into a plain one. --adapter merges a LoRA adapter that peft
saved, in float32.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from vla_accel_ros.tools.options import subcommand, training_option


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add both subcommands."""
    parser = subcommand(subparsers, "inspect", "describe a checkpoint, and what it lacks", inspect)
    add = parser.add_argument
    add("path", type=Path, help="folder of a checkpoint, of any known format")
    add("--statistics", help="which statistics, if there are several: asset id or data set")
    training_option(parser)
    add("--verify", action="store_true", help="compare a converted folder's files with their SHA-256")
    add("--contract", action="store_true", help="print a contract alone: short for `vla contract make`")
    add("--urdf", type=Path, help="the robot's URDF, for names and limits of the contract's joints")

    parser = subcommand(
        subparsers, "convert", "write a checkpoint in this package's format, with checksums", convert
    )
    add = parser.add_argument
    add("path", type=Path, help="folder of a checkpoint, of any known format")
    add("out", type=Path, help="folder to write; it must not exist")
    training_option(parser)
    add("--plain", action="store_true", help="one tensor for each parameter")
    add(
        "--adapter",
        type=Path,
        help="folder of peft with a LoRA adapter of PATH, to be merged into the weights",
    )
    for former in ("--steps", "--denoise-steps", "--dtype"):  # of 0.2.0, which stored constants for them
        add(former, help=argparse.SUPPRESS)


def inspect(arguments: argparse.Namespace) -> int:
    """Print the description. Returns 1 if something prevents loading."""
    from vla_accel_ros.models.checkpoints.checkpoint import describe
    from vla_accel_ros.models.checkpoints.conversion import verify
    from vla_accel_ros.tools.contract.write import Robot, write_contract
    from vla_accel_ros.tools.summary import summary

    description = describe(arguments.path, arguments.statistics, arguments.trained_as)
    if arguments.contract:
        print(write_contract(description, Robot(urdf=arguments.urdf)), end="")
        return 0
    options = f"{arguments.path}"
    for option, value in (("--as", arguments.trained_as), ("--statistics", arguments.statistics)):
        options += f" {option} {shlex.quote(value)}" if value else ""
    print(summary(description))
    if arguments.verify:
        print()
        for name, digest in verify(arguments.path).items():
            print(f"{name} is unchanged since its conversion, SHA-256 {digest}")
    for problem in description.missing:
        print(f"\ncannot be loaded: {problem}")
    following = f"vla contract make --model {options} > robot.yaml"
    try:
        contract = write_contract(description, Robot(urdf=arguments.urdf))
    except ValueError as error:
        print(f"\nno contract can be written for it: {error}")
        following = (
            "copy the nearest contract of config/contracts (docs/guide/hands.md for a hand), then "
            f"vla contract check robot.yaml --model {options}"
        )
    else:
        print(f"\nthe robot's contract (--contract prints it alone):\n\n{contract}", end="")
    if description.missing:
        following = f"fix what cannot be loaded, then vla inspect {options}"
    print(f"\nnext: {following}")
    return 1 if description.missing else 0


def convert(arguments: argparse.Namespace) -> int:
    """Convert, and print what was written."""
    from vla_accel_ros.models.checkpoints import conversion
    from vla_accel_ros.models.checkpoints.checkpoint import describe
    from vla_accel_ros.models.checkpoints.progress import Meter
    from vla_accel_ros.tools.summary import prepared

    with Meter(f"converting {arguments.path.name}") as meter:
        out = conversion.convert(
            arguments.path, arguments.out, meter, arguments.plain, arguments.trained_as, arguments.adapter
        )
    adapter = arguments.adapter
    if adapter is not None and not conversion.has_statistics(adapter):
        print(
            f"{adapter} has no statistics: those of {arguments.path} are kept, which must be of its training"
        )
    print(f"{out}: {meter}; `vla inspect --verify {out}` compares it with its checksums")
    for name, text in prepared(describe(out)):
        print(f"  {name:<16}{text}")
    return 0
