"""`vla doctor`: the subcommand. Status 0 when the robot could move now and there is no error among the
findings, else 1. It prints a table for people, in which each finding without a problem takes one line, or
JSON for programs."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vla_accel_ros.contract.checks.findings import ERROR, OK, WARNING, Finding
from vla_accel_ros.tools.options import namespace_option, subcommand, training_option

_MARKS = {OK: ("ok", "green"), WARNING: ("warning", "yellow"), ERROR: ("error", "bold red")}
QUESTION = "could this robot move now?"


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

    from vla_accel_ros.tools.doctor.examine import Question, examine

    question = Question(
        arguments.contract, arguments.model, arguments.trained_as, arguments.namespace, arguments.seconds
    )
    with Console(stderr=True).status("") as progress:
        examination = examine(question, lambda what: progress.update(f"{what} ..."))
    if arguments.json:
        print(as_json(examination.why_not, examination.sections))
    else:
        show(examination.why_not, examination.sections, Console())
    return 1 if examination.why_not or count(examination.sections, ERROR) else 0


def count(sections: dict[str, list[Finding]], level: str) -> int:
    """Return the number of findings of a level."""
    return sum(finding.level == level for findings in sections.values() for finding in findings)


def as_json(why_not: Sequence[Finding], sections: dict[str, list[Finding]]) -> str:
    """Return {"could_move": bool, "why_not": [{"level", "about", "what", "mend"}, ...], "errors": n,
    "warnings": n, "findings": [{"section", "level", "about", "what", "mend"}, ...]}."""
    findings = [
        {"section": section, **_fields(finding)}
        for section, findings in sections.items()
        for finding in findings
    ]
    counts = {"errors": count(sections, ERROR), "warnings": count(sections, WARNING)}
    verdict = {"could_move": not why_not, "why_not": [_fields(finding) for finding in why_not]}
    return json.dumps({**verdict, **counts, "findings": findings}, indent=1)


def _fields(finding: Finding) -> dict[str, str]:
    return {"level": finding.level, "about": finding.about, "what": finding.fact, "mend": finding.fix}


def show(why_not: Sequence[Finding], sections: dict[str, list[Finding]], console: Console) -> None:
    """Print the verdict with its reasons, the table with the worst findings first in each section, and a
    summary line."""
    if not why_not:
        console.print(Text(f"{QUESTION} yes", style=_MARKS[OK][1]))
    for i, finding in enumerate(why_not):
        begin = "and" if i else f"{QUESTION} no,"
        because = f"{begin} because {finding.about}: {finding.fact}"
        console.print(Text(because, style=_MARKS[ERROR][1]), soft_wrap=True)
        console.print(Text(f"-> {finding.fix}", style="cyan"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for section, findings in sections.items():
        order = (ERROR, WARNING, OK)
        for row, finding in enumerate(sorted(findings, key=lambda finding: order.index(finding.level))):
            mark, style = _MARKS[finding.level]
            words = Text(f"{finding.about}: " if finding.about else "")
            words.append(finding.fact)
            if finding.fix:
                words.append(f"\n-> {finding.fix}", style="cyan")
            table.add_row(Text(section if not row else "", style="bold"), Text(mark, style=style), words)
    console.print(table)
    errors, warnings = count(sections, ERROR), count(sections, WARNING)
    verdict = f"{errors} errors, {warnings} warnings" if errors or warnings else "all is well"
    console.print(Text(verdict, style=_MARKS[ERROR if errors else WARNING if warnings else OK][1]))
