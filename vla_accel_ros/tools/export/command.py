"""`vla export`: the subcommand."""

from __future__ import annotations

import argparse
from pathlib import Path

from vla_accel_ros.recording.marks import OUTCOMES
from vla_accel_ros.tools.options import namespace_option, say, subcommand


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "export", "make a LeRobot dataset (version 3.0) from recordings", run)
    add = parser.add_argument
    add("bags", type=Path, nargs="+", metavar="BAG", help="folders of bags, or .mcap files; an episode each")
    add("--output", type=Path, required=True, metavar="DIR", help="the dataset, a new folder")
    add("--fps", type=int, default=0, help="frames a second (default: the rate of the contract's actions)")
    add(
        "--actions",
        choices=("commanded", "measured"),
        default="commanded",
        help="what the joints were commanded to be, or where they were, a step later (default: %(default)s)",
    )
    add(
        "--split",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="begin a new episode where the instruction changes (default: yes)",
    )
    add("--outcome", choices=OUTCOMES, default="", help="only the episodes that were marked so (vla record)")
    namespace_option(parser, in_bag=True)
    add("--task", default="", metavar="TEXT", help="instruction to use instead of the recorded ones")


def run(arguments: argparse.Namespace) -> int:
    """Export, and print the result."""
    if not 0 <= arguments.fps <= 240:
        raise ValueError(f"--fps is {arguments.fps}: give 1 to 240")

    from vla_accel_ros.tools.export.convert import export
    from vla_accel_ros.tools.running.processes import ended_by_signals

    with ended_by_signals():
        total = export(
            arguments.bags,
            arguments.output,
            fps=arguments.fps,
            actions=arguments.actions,
            split=arguments.split,
            task=arguments.task,
            robot=arguments.namespace,
            outcome=arguments.outcome,
            say=say,
        )
    print(f"{arguments.output}: {total} episodes")
    return 0
