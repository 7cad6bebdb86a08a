"""Makes the tables and pictures of docs/lab/fleet_sim.md from bench/results/fleet_sim.json.

    python bench/fleet_sim_tables.py

Writes each table into the page between its marks, and pictures beside the page (matplotlib).
test/bench/test_bench_fleet_sim.py checks them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet_sim_paper import BUCKETS, CLOSED

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "lab" / "fleet_sim.md", ROOT / "bench" / "results"
RESULT, FRESH, AGREEMENT, VALIDATION = (
    RESULTS / f"fleet_{name}.json" for name in ("sim", "sim_fresh", "agreement", "validation")
)
Document = Mapping[str, Any]
CHANGES = ("avg", "p25", "p95", "first_wait", "stall", "standing")
HEAD = ("average", "P25", "P95", "first chunk", "stall", "standing in all")
ORACLES = ("clairvoyant", "known")
"""Policies that know what cannot be known. So do dynamic horizons, which are drawn at no cost in success."""


def overload(document: Document) -> Iterable[Sequence[str]]:
    """Changes against fifo at the highest load, static horizons."""
    yield "workload", "load", "tasks (a robot)", "policy", *HEAD, "Little's law"
    for row in _rows(document, "static", _tops(document)):
        if row["policy"] != "fifo":
            named = row["workload"], f"{row['load']:g}", _tasks(row), _policy(row)
            yield *named, *(_percent(row["against_fifo"][metric]) for metric in CHANGES), _little(row)


def seconds(document: Document) -> Iterable[Sequence[str]]:
    """Seconds of fifo and the best policies."""
    yield (
        "workload", "load", "tasks (a robot)", "policy", "average", "P25", "median", "P95", "P99",
        "first chunk", "stall", "observation age", "GPU",
    )  # fmt: skip
    for row in _rows(document, "static", _tops(document)):
        if row["policy"] in ("fifo", "kairos", "aged_remaining", "aged_srpt"):
            names = ("avg", "p25", "p50", "p95", "p99", "first_wait", "stall")
            figures = (f"{row[metric]['mean']:.1f} s" for metric in names)
            age, gpu = f"{1e3 * row['age']['mean']:.0f} ms", f"{100 * row['load_edge']['mean']:.0f} %"
            yield row["workload"], f"{row['load']:g}", _tasks(row), row["policy"], *figures, age, gpu


def lengths(document: Document) -> Iterable[Sequence[str]]:
    """Changes against fifo by the length of a run."""
    rows = document["lengths"]
    policies = [policy for policy in dict.fromkeys(row["policy"] for row in rows) if policy != "fifo"]
    yield "regime", "tasks (a robot)", *policies, "Little's law"
    for regime, tasks in dict.fromkeys((row["regime"], row["tasks"]) for row in rows):
        here = {row["policy"]: row for row in rows if (row["regime"], row["tasks"]) == (regime, tasks)}
        cells = (
            " / ".join(f"{here[policy]['against_fifo'][name]['mean']:+.0f}" for name in ("avg", "p95"))
            for policy in policies
        )
        off = max((row["little"]["mean"] - 1.0 for name, row in here.items() if name != "las"), key=abs)
        each = f"{tasks} ({here['fifo']['tasks_per_robot']})"
        yield REGIMES[regime], each, *cells, f"{100 * off:+.1f} %"


REGIMES = {"open": "open, load 1.6", "closed": "closed, 100 robots"}


def loads(document: Document) -> Iterable[Sequence[str]]:
    """Changes against fifo at lower loads, static horizons."""
    yield (
        "workload",
        "load",
        "tasks (a robot)",
        "policy",
        "average",
        "P95",
        "first chunk",
        "stall",
        "Little's law",
    )
    for row in _rows(document, "static", (0.8, 1.2)):
        if row["policy"] not in ("fifo", *ORACLES):
            changes = (_percent(row["against_fifo"][name]) for name in ("avg", "p95", "first_wait", "stall"))
            yield row["workload"], f"{row['load']:g}", _tasks(row), row["policy"], *changes, _little(row)


def kairos(document: Document) -> Iterable[Sequence[str]]:
    """In the shape of Kairos' Table 2, beside its figures."""
    names = ("p25", "avg", "p95")
    yield (
        "workload", "against", "policy", "horizons", "P25", "average", "P95", "first chunk", "stall",
        *(f"paper: {name}" for name in ("P25", "average", "P95")),
    )  # fmt: skip
    for row in document["table_2"]:
        ours = (f"{row[metric]['mean']:+.0f} %" for metric in (*names, "first_wait", "stall"))
        paper = ("-",) * 3 if row["paper"] is None else (f"{value:+.1f} %" for value in row["paper"])
        yield row["workload"], row["against"], row["policy"], _horizons(row), *ours, *paper


def settings(document: Document) -> Iterable[Sequence[str]]:
    """Of libero_pi05."""
    yield (
        "", "load", "policy", "average", "P95", "first chunk", "stall", "observation age",
        "beyond the horizon",
    )  # fmt: skip
    for row in document["settings"]:
        if row["settings"] != "as late as possible":
            names = ("avg", "p95", "first_wait", "stall", "age")
            changes = (_percent(row["against_usual"][metric]) for metric in names)
            beyond = f"{100 * row['beyond']['mean']:.1f} %"
            yield row["settings"], f"{row['load']:g}", row["policy"], *changes, beyond


def choices(document: Document) -> Iterable[Sequence[str]]:
    """What the paper leaves open, against the defaults."""
    yield "workload", "choice", "average", "P95", "first chunk", "stall", "paper: average"
    for row in document["kairos_choices"]:
        changes = (_percent(row[metric]) for metric in ("avg", "p95", "first_wait", "stall"))
        paper = f"up to {BUCKETS:+.1f} %" if row["choice"] == "2 buckets" else "-"
        yield row["workload"], row["choice"], *changes, paper


def closed(document: Document) -> Iterable[Sequence[str]]:
    """Fleets of libero_pi05."""
    yield (
        "robots", "tasks a robot", "policy", "horizons", "average", "median", "P95", "first chunk", "stall",
        "tasks/min", "average against fifo", "P95 against fifo", "P95, half as long", "Little's law",
        "paper: average",
    )  # fmt: skip
    for row in document["closed"]:
        names = ("avg", "p50", "p95", "first_wait", "stall")
        figures = (f"{row[metric]['mean']:.1f} s" for metric in names)
        against = (_percent(row["against_fifo"][metric]) for metric in ("avg", "p95"))
        paper = "-"
        if row["horizon"] == "dynamic" and row["robots"] in CLOSED:
            paper = " to ".join(f"{value:.1f}" for value in CLOSED[row["robots"]]) + " %"
        yield (
            str(row["robots"]), str(row["tasks_per_robot"]), row["policy"], _horizons(row), *figures,
            f"{row['tasks_per_min']['mean']:.1f}", *against, _percent(row["half_as_long"]["p95"]),
            _little(row), paper,
        )  # fmt: skip


def deadlines(document: Document) -> Iterable[Sequence[str]]:
    """Closed fleets, with and without skipping robots that cannot be answered in time."""
    head = ("chunks a second", "computed for nobody", "average", "P95")
    yield "robots", "tasks a robot", "policy", *head, *(f"{name}, regardless" for name in head)
    rows = {(row["robots"], row["policy"], row["passed_by"]): row for row in document["deadlines"]}
    for robots, policy in dict.fromkeys(key[:2] for key in rows):
        each = [rows[robots, policy, passed] for passed in (True, False)]
        cells = (
            (
                f"{row['chunks_per_s']['mean']:.1f}",
                f"{100 * row['wasted']['mean']:.1f} %",
                *(f"{row[name]['mean']:.1f} s" for name in ("avg", "p95")),
            )
            for row in each
        )
        yield str(robots), str(each[0]["tasks_per_robot"]), policy, *(cell for row in cells for cell in row)


def fresh(document: Document) -> Iterable[Sequence[str]]:
    """Results on seeds that were not used to choose."""
    yield "workload", "load", "policy", *HEAD
    for row in json.loads(FRESH.read_text())["rows"]:
        named = row["workload"], f"{row['load']:g}", _policy(row)
        changes = (f"{row[name]['mean']:+.1f} ± {row[name]['half']:.1f} %" for name in CHANGES)
        yield *named, *changes


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


def validation(document: Document) -> Iterable[Sequence[str]]:
    """The simulator's distance from the node, of each run."""
    head = ("average", "P95")
    yield (
        "policy", "node: average", "P95", *(f"simulated: {name}" for name in head), "same order",
        *(f"from its bag: {name}" for name in head), "chunks late by",
    )  # fmt: skip
    for row in json.loads(VALIDATION.read_text())["rows"]:
        node = (f"{row['node'][name]:.2f} s" for name in ("avg", "p95"))
        away, bag = (
            [f"{row[of][name]:+.1f} %" for name in ("avg", "p95")] for of in ("distance", "distance_from_bag")
        )
        yield (
            row["policy"],
            *node,
            *away,
            f"{100 * row['same_order']:.1f} %",
            *bag,
            f"{row['over_ms']:.1f} ms",
        )


def decisions(document: Document) -> Iterable[Sequence[str]]:
    """With 1000 robots waiting."""
    yield "policy", "processor time, P50", "P99", "time that passes, P50", "P99"
    for policy, took in document["decision_ms"].items():
        yield policy, *(f"{took[name]:.2f} ms" for name in ("p50", "p99", "wall_p50", "wall_p99"))


TABLES: dict[str, Callable[[Document], Iterable[Sequence[str]]]] = {
    table.__name__: table
    for table in (
        overload,
        seconds,
        lengths,
        loads,
        kairos,
        settings,
        choices,
        closed,
        deadlines,
        decisions,
        fresh,
        agreement,
        validation,
    )
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


def _rows(
    document: Document, horizon: str, at: Sequence[float] | Mapping[str, float]
) -> list[dict[str, Any]]:
    def wanted(row: dict[str, Any]) -> bool:
        chosen = (at[row["workload"]],) if isinstance(at, Mapping) else at
        return row["horizon"] == horizon and row["load"] in chosen

    return [row for row in document["open"] if wanted(row)]


def _tops(document: Document) -> dict[str, float]:
    return {row["workload"]: row["load"] for row in document["table_2"]}


def _tasks(row: Mapping[str, Any]) -> str:
    return f"{row['tasks']['mean']:.0f} ({row['tasks_per_robot']['mean']:.0f})"


def _policy(row: Mapping[str, Any]) -> str:
    return f"{row['policy']} (oracle)" if row["policy"] in ORACLES else row["policy"]


def _horizons(row: Mapping[str, Any]) -> str:
    return "dynamic (oracle)" if row["horizon"] == "dynamic" else row["horizon"]


def _little(row: Mapping[str, Any]) -> str:
    """How far it is off."""
    return f"{100 * (row['little']['mean'] - 1.0):+.1f} %"


def _percent(change: Mapping[str, float]) -> str:
    half = f" ± {change['half']:.0f}" if "half" in change else ""
    return f"{change['mean']:+.0f}{half} %"


def main() -> int:
    """Write the page."""
    from fleet_sim_pictures import draw

    document = json.loads(RESULT.read_text())
    PAGE.write_text(filled(PAGE.read_text(), document))
    draw(document, PAGE.parent / "images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
