"""`vla replay`: the subcommand. Status 0 if everything is equal bit for bit, 1 if not."""

from __future__ import annotations

import argparse
from pathlib import Path

from vla_accel_ros.tools.options import say, subcommand, training_option


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(
        subparsers, "replay", "run a recording through its model again, and compare the actions", run
    )
    add = parser.add_argument
    add("bag", type=Path, metavar="BAG", help="folder of a bag, or an .mcap file")
    add("--model", type=Path, metavar="DIR", help="checkpoint folder (default: the recorded one)")
    training_option(parser)
    add("--device", choices=("cpu", "cuda"), help="default: as recorded")
    add("--dtype", choices=("float32", "bfloat16"), help="default: as recorded")
    add(
        "--publish",
        action="store_true",
        help="play the bag's inputs (cameras, joints, instruction, questions) to their topics, with /clock, "
        "and compute nothing",
    )
    add("--rate", type=float, default=1.0, metavar="X", help="speed of --publish (default: %(default)s)")
    add(
        "--commands",
        action="store_true",
        help="with --publish: also play what moves a robot; refused if a node subscribes to that",
    )


def run(arguments: argparse.Namespace) -> int:
    """Replay the bag, or play it with --publish. Raises ValueError for wrong options and a bag without
    chunks."""
    from vla_accel_ros.recording.reader import Bag

    bag = Bag(arguments.bag)
    if arguments.commands and not arguments.publish:
        raise ValueError("--commands changes what --publish plays: give --publish, too")
    if arguments.publish:
        if not 0.01 <= arguments.rate <= 100.0:
            raise ValueError(f"--rate is {arguments.rate:g}: give 0.01 to 100")
        from vla_accel_ros.nodes.recorder.player import play

        return play(bag, arguments.rate, arguments.commands, say)

    from vla_accel_ros.tools.replay.again import Otherwise, replay
    from vla_accel_ros.tools.replay.moments import Moments
    from vla_accel_ros.tools.replay.report import report

    moments = Moments(bag)
    otherwise = Otherwise(
        arguments.model, arguments.device or "", arguments.dtype or "", arguments.trained_as
    )
    result = replay(moments, otherwise, say)
    print("\n".join(report(bag, moments, result)))
    if not result.chunks:
        raise ValueError(
            f"{bag.path} has no chunk that can be computed again: "
            "record with the node recorder, or give --publish"
        )
    return 0 if result.equal else 1
