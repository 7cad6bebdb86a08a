"""Print the verdict and the findings: a table for people, JSON for programs.

Each finding without a problem takes one line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vla_accel_ros.contract.checks.findings import ERROR, OK, WARNING, Finding

_MARKS = {OK: ("ok", "green"), WARNING: ("warning", "yellow"), ERROR: ("error", "bold red")}


def count(sections: dict[str, list[Finding]], level: str) -> int:
    """Return the number of findings of a level."""
    return sum(finding.level == level for findings in sections.values() for finding in findings)


QUESTION = "could this robot move now?"


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
