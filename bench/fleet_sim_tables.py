"""Makes the tables of docs/lab/fleet_sim.md from bench/results/fleet_sim.json.

    python bench/fleet_sim_tables.py

Writes each table into the page between its marks.
test/bench/test_bench_fleet_sim.py checks them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet_sim_paper import CLOSED

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "lab" / "fleet_sim.md", ROOT / "bench" / "results"
RESULT, AGREEMENT = (RESULTS / f"fleet_{name}.json" for name in ("sim", "agreement"))
Document = Mapping[str, Any]
CHANGES = ("avg", "p95", "first_wait", "stall")
HEAD = ("average", "P95", "first chunk", "stall")
BURSTS, FLEET = ("libero_pi05", "mixed_fleet"), 100
"""Of all that was simulated, the workloads and the size of a closed fleet that the page shows."""
ORACLES = ("clairvoyant", "known")
"""Policies that know what cannot be known. So do dynamic horizons, which are drawn at no cost in success."""


def overload(document: Document) -> Iterable[Sequence[str]]:
    """Changes against fifo at the highest load, static horizons."""
    yield "workload", "tasks (a robot)", "policy", *HEAD
    tops = {row["workload"]: row["load"] for row in document["table_2"]}
    for row in document["open"]:
        shown = row["workload"] in BURSTS and row["load"] == tops[row["workload"]]
        if shown and row["horizon"] == "static" and row["policy"] != "fifo":
            tasks = f"{row['tasks']['mean']:.0f} ({row['tasks_per_robot']['mean']:.0f})"
            policy = f"{row['policy']} (oracle)" if row["policy"] in ORACLES else row["policy"]
            changes = (_percent(row["against_fifo"][metric]) for metric in CHANGES)
            yield row["workload"], tasks, policy, *changes


def closed(document: Document) -> Iterable[Sequence[str]]:
    """A fleet of libero_pi05."""
    yield (
        "robots", "tasks a robot", "policy", "horizons", "average", "P95", "first chunk", "stall",
        "average against fifo", "P95 against fifo", "P95, half as long", "Little's law", "paper: average",
    )  # fmt: skip
    shown = max(row["robots"] for row in document["closed"] if row["robots"] <= FLEET)
    for row in document["closed"]:
        if row["robots"] != shown:
            continue
        is_oracle = row["horizon"] == "dynamic"
        figures = (f"{row[metric]['mean']:.1f} s" for metric in ("avg", "p95", "first_wait", "stall"))
        against = (_percent(row["against_fifo"][metric]) for metric in ("avg", "p95"))
        paper = " to ".join(f"{value:.1f}" for value in CLOSED[shown]) + " %" if is_oracle else "-"
        horizons = "dynamic (oracle)" if is_oracle else row["horizon"]
        little = f"{100 * (row['little']['mean'] - 1.0):+.1f} %"
        yield (
            str(row["robots"]), str(row["tasks_per_robot"]), row["policy"], horizons, *figures, *against,
            _percent(row["half_as_long"]["p95"]), little, paper,
        )  # fmt: skip


def agreement(document: Document) -> Iterable[Sequence[str]]:
    """The simulator beside the node's scheduler, at the rate of decisions of an engine."""
    yield (
        "policy", "scheduler: average", "P95", "against fifo", "P95", "simulated: against fifo", "P95",
        "points apart", "P95",
    )  # fmt: skip
    for row in json.loads(AGREEMENT.read_text())["rows"]:
        figures = (f"{row['node'][name]:.2f} s" for name in ("avg", "p95"))
        both = (row["against_fifo"][who] for who in ("node", "simulated"))
        changes = (f"{of[name]:+.1f} %" for of in both for name in ("avg", "p95"))
        yield row["policy"], *figures, *changes, *(f"{row['apart'][name]:+.1f}" for name in ("avg", "p95"))


TABLES: dict[str, Callable[[Document], Iterable[Sequence[str]]]] = {
    table.__name__: table for table in (overload, closed, agreement)
}


def markdown(name: str, document: Document) -> str:
    """A table, with its marks."""
    head, *rows = TABLES[name](document)
    lines = ["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)]
    return "\n".join([f"<!-- {name} -->", *lines, f"<!-- end of {name} -->"])


def filled(page: str, document: Document) -> str:
    """The page with its tables. Raises ValueError for a table without marks in the page."""
    for name in TABLES:
        page, times = re.subn(
            f"<!-- {name} -->.*?<!-- end of {name} -->",
            lambda _, name=name: markdown(name, document),  # type: ignore[misc]
            page,
            flags=re.DOTALL,
        )
        if times != 1:
            raise ValueError(f"{PAGE} has the marks of table '{name}' {times} times; let it have them once.")
    return page


def _percent(change: Mapping[str, float]) -> str:
    half = f" ± {change['half']:.0f}" if "half" in change else ""
    return f"{change['mean']:+.0f}{half} %"


def main() -> int:
    """Write the page."""
    document = json.loads(RESULT.read_text())
    PAGE.write_text(filled(PAGE.read_text(), document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
