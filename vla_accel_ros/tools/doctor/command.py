"""`vla doctor`: the subcommand. Status 0 when the robot could move now and there is no error among the
findings, else 1."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from vla_accel_ros.tools.options import namespace_option, subcommand, training_option


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(
        subparsers, "doctor", "check whether a robot can move; if not, say why and how to fix it", run
    )
    add = parser.add_argument
    add("--contract", type=Path, metavar="FILE", help="the robot's contract (default: the running nodes')")
    add("--model", type=Path, metavar="DIR", help="checkpoint folder (default: the running nodes')")
    training_option(parser)
    namespace_option(parser)
    add(
        "--seconds",
        type=float,
        default=3.0,
        metavar="S",
        help="time to watch the streams (default: %(default)s)",
    )
    add("--domain", type=int, metavar="ID", help="ROS domain (default: ROS_DOMAIN_ID)")
    add("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Examine and print. Returns 1 if the robot could not move or there is an error."""
    if not 0.5 <= arguments.seconds <= 600.0:
        raise ValueError(f"--seconds is {arguments.seconds:g}: give 0.5 to 600")
    if arguments.domain is not None:
        if not 0 <= arguments.domain <= 232:
            raise ValueError(f"--domain is {arguments.domain}: give 0 to 232")
        os.environ["ROS_DOMAIN_ID"] = str(arguments.domain)

    from rich.console import Console

    from vla_accel_ros.contract.checks.findings import ERROR
    from vla_accel_ros.tools.doctor import report
    from vla_accel_ros.tools.doctor.examine import Question, examine

    question = Question(
        arguments.contract, arguments.model, arguments.trained_as, arguments.namespace, arguments.seconds
    )
    with Console(stderr=True).status("") as progress:
        examination = examine(question, lambda what: progress.update(f"{what} ..."))
    if arguments.json:
        print(report.as_json(examination.why_not, examination.sections))
    else:
        report.show(examination.why_not, examination.sections, Console())
    return 1 if examination.why_not or report.count(examination.sections, ERROR) else 0
