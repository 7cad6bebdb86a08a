"""Prints the findings: a table for people, JSON for programs. Findings that are well take one line each."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vla_accel_ros.sensing.findings import ERROR, OK, WARNING, Finding

_MARKS = {OK: ("ok", "green"), WARNING: ("warning", "yellow"), ERROR: ("error", "bold red")}


def count(found: dict[str, list[Finding]], level: str) -> int:
    """How many findings are of a level."""
    return sum(finding.level == level for findings in found.values() for finding in findings)


def as_json(found: dict[str, list[Finding]]) -> str:
    """{"errors": n, "warnings": n, "findings": [{"section", "level", "about", "what", "mend"}, ...]}."""
    findings = [
        {"section": section, **asdict(finding)} for section, findings in found.items() for finding in findings
    ]
    counts = {"errors": count(found, ERROR), "warnings": count(found, WARNING)}
    return json.dumps({**counts, "findings": findings}, indent=1)


def show(found: dict[str, list[Finding]], console: Console) -> None:
    """The table, worst first within a section, and a line that sums it up."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for section, findings in found.items():
        order = (ERROR, WARNING, OK)
        for row, finding in enumerate(sorted(findings, key=lambda finding: order.index(finding.level))):
            mark, style = _MARKS[finding.level]
            words = Text(f"{finding.about}: " if finding.about else "")
            words.append(finding.what)
            if finding.mend:
                words.append(f"\n-> {finding.mend}", style="cyan")
            table.add_row(Text(section if not row else "", style="bold"), Text(mark, style=style), words)
    console.print(table)
    errors, warnings = count(found, ERROR), count(found, WARNING)
    verdict = f"{errors} errors, {warnings} warnings" if errors or warnings else "all is well"
    console.print(Text(verdict, style=_MARKS[ERROR if errors else WARNING if warnings else OK][1]))
