"""Makes the tables and pictures of docs/fleet_sim.md from bench/results/fleet_sim.json.

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

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "fleet_sim.md", ROOT / "bench" / "results"
RESULT, FRESH, VALIDATION = (RESULTS / f"fleet_{name}.json" for name in ("sim", "sim_fresh", "validation"))
Document = Mapping[str, Any]
CHANGES = ("avg", "p25", "p95", "p99", "stall")


def overload(document: Document) -> Iterable[Sequence[str]]:
    """Changes against fifo at the highest load, static horizons."""
    yield "workload", "load", "policy", "average", "P25", "P95", "P99", "stall"
    for row in _rows(document, "static", _tops(document)):
        if row["policy"] != "fifo":
            named = row["workload"], f"{row['load']:g}", row["policy"]
            yield *named, *(_percent(row["against_fifo"][metric]) for metric in CHANGES)


def seconds(document: Document) -> Iterable[Sequence[str]]:
    """Seconds of fifo and the best policies."""
    yield "workload", "load", "policy", "average", "P25", "P95", "P99", "stall", "observation age", "GPU"
    for row in _rows(document, "static", _tops(document)):
        if row["policy"] in ("fifo", "kairos", "aged_remaining"):
            figures = (f"{row[metric]['mean']:.1f} s" for metric in CHANGES)
            age, gpu = f"{1e3 * row['age']['mean']:.0f} ms", f"{100 * row['load_edge']['mean']:.0f} %"
            yield row["workload"], f"{row['load']:g}", row["policy"], *figures, age, gpu


def loads(document: Document) -> Iterable[Sequence[str]]:
    """Changes against fifo at lower loads, static horizons."""
    steps = (0.8, 1.2)
    yield (
        "workload",
        "policy",
        *(f"{what} at {load:g}" for load in steps for what in ("average", "P95", "stall")),
    )
    found = {(row["workload"], row["policy"], row["load"]): row for row in _rows(document, "static", steps)}
    for workload, policy in dict.fromkeys(key[:2] for key in found):
        if policy not in ("fifo", "clairvoyant"):
            changes = [found[workload, policy, load]["against_fifo"] for load in steps]
            yield (
                workload,
                policy,
                *(_percent(one[metric]) for one in changes for metric in ("avg", "p95", "stall")),
            )


def kairos(document: Document) -> Iterable[Sequence[str]]:
    """In the shape of Kairos' Table 2."""
    titles = ("kairos", "without dynamic horizon", "without scheduler", "aged_remaining")
    yield "workload", "against", *titles
    for row in document["table_2"]:
        each = (
            " / ".join(f"{row[title][metric]['mean']:+.0f}" for metric in ("p25", "avg", "p95", "stall"))
            for title in titles
        )
        yield row["workload"], row["against"], *each


def settings(document: Document) -> Iterable[Sequence[str]]:
    """Of libero_pi05."""
    yield "", "load", "policy", "average", "P95", "stall", "observation age", "beyond the horizon"
    for row in document["settings"]:
        if row["settings"] != "as late as possible":
            changes = (_percent(row["against_usual"][metric]) for metric in ("avg", "p95", "stall", "age"))
            beyond = f"{100 * row['beyond']['mean']:.1f} %"
            yield row["settings"], f"{row['load']:g}", row["policy"], *changes, beyond


def choices(document: Document) -> Iterable[Sequence[str]]:
    """What the paper leaves open, against the defaults."""
    yield "workload", "choice", "average", "P95", "stall"
    for row in document["kairos_choices"]:
        yield row["workload"], row["choice"], *(_percent(row[metric]) for metric in ("avg", "p95", "stall"))


def closed(document: Document) -> Iterable[Sequence[str]]:
    """Fleets of libero_pi05."""
    yield (
        "robots",
        "policy",
        "horizon",
        "average",
        "P25",
        "P95",
        "P99",
        "stall",
        "average against fifo",
        "P95",
    )
    for row in document["closed"]:
        figures = (f"{row[metric]['mean']:.1f} s" for metric in CHANGES)
        against = (_percent(row["against_fifo"][metric]) for metric in ("avg", "p95"))
        yield str(row["robots"]), row["policy"], row["horizon"], *figures, *against


def deadlines(document: Document) -> Iterable[Sequence[str]]:
    """Closed fleets, with and without skipping robots that cannot be answered in time."""
    head = ("chunks a second", "computed for nobody", "average", "P95")
    yield "robots", "policy", *head, *(f"{name}, regardless" for name in head)
    rows = {(row["robots"], row["policy"], row["passed_by"]): row for row in document["deadlines"]}
    for robots, policy in dict.fromkeys(key[:2] for key in rows):
        each = (rows[robots, policy, passed] for passed in (True, False))
        told = (
            (
                f"{row['chunks_per_s']['mean']:.1f}",
                f"{100 * row['wasted']['mean']:.1f} %",
                *(f"{row[name]['mean']:.1f} s" for name in ("avg", "p95")),
            )
            for row in each
        )
        yield str(robots), policy, *(word for words in told for word in words)


def fresh(document: Document) -> Iterable[Sequence[str]]:
    """Results on seeds that were not used to choose."""
    yield "workload", "load", "policy", "average", "P25", "P95", "P99", "stall"
    for row in json.loads(FRESH.read_text())["rows"]:
        named = row["workload"], f"{row['load']:g}", row["policy"]
        changes = (f"{row[name]['mean']:+.1f} ± {row[name]['half']:.1f} %" for name in CHANGES)
        yield *named, *changes


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
        loads,
        kairos,
        settings,
        choices,
        closed,
        deadlines,
        decisions,
        fresh,
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
