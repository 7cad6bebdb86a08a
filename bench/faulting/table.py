"""The table of faults in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import median_low

from faulting.measure import Row

# What is told on the way back to motion, whatever had stopped it.
PASSING = (
    "everything is fresh",
    "going to where",
    "waiting for the controllers",
    "beginning anew",
    "the joints are moving",
    "coming to rest",
)
SENTENCES = 1
HEAD = (
    "| fault | runs | stands after [s] | peak speed | peak acceleration | goes on by itself | a person "
    "| said |",
    "|---|---|---|---|---|---|---|---|",
)


def lines(runs: Mapping[str, list[Row]], wanted: Mapping[str, int]) -> list[str]:
    """Return the table; peaks are relative to the contract's limits. wanted: how many runs each fault is to
    have, by name."""
    return [*HEAD, *(_line(rows, wanted[name]) for name, rows in runs.items() if rows)]


def _line(rows: list[Row], wanted: int) -> str:
    row = rows[0]
    words = [reason for reason in row.said if not reason.startswith(PASSING)][:SENTENCES]
    said = "<br>".join(words) or "-"
    if notes := Counter(row.note for row in rows if row.note):
        said += "".join(f"<br>*{note}{_share(count, len(rows))}*" for note, count in notes.items())
    cells = (
        row.title,
        str(len(rows)) if len(rows) >= wanted else f"{len(rows)} of {wanted}",
        _spread([row.stop_s for row in rows], "goes on", len(rows)),
        _spread([row.velocity for row in rows]),
        _spread([row.acceleration for row in rows]),
        _resumed(rows),
        _most(row.person or "-" for row in rows),
        said,
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _spread(values: Iterable[float | None], without: str = "", runs: int = 0) -> str:
    """The median and the worst; without: the word for None, and how many there are."""
    known = [value for value in values if value is not None]
    if not known:
        return without
    words = _worst(median_low(known), max(known))
    return words if len(known) >= runs else f"{words}; {without}{_share(runs - len(known), runs)}"


def _worst(middle: float, worst: float, unit: str = "") -> str:
    return f"{middle:.2f}{unit}" if f"{middle:.2f}" == f"{worst:.2f}" else f"{middle:.2f}{unit}, {worst:.2f}"


def _share(count: int, runs: int) -> str:
    return "" if count == runs else f" ({count} of {runs})"


def _resumed(rows: list[Row]) -> str:
    words = Counter(
        "never stood" if row.stop_s is None else "no" if row.resumed_s is None else "yes" for row in rows
    )
    after = [row.resumed_s for row in rows if row.stop_s is not None and row.resumed_s is not None]
    parts = []
    for word, count in words.most_common():
        if word == "yes":
            word = (
                "before it was over"
                if max(after) < 0.0
                else f"{_worst(median_low(after), max(after))} s after it"
            )
        parts.append(f"{word}{_share(count, len(rows))}")
    return "; ".join(parts)


def _most(words: Iterable[str]) -> str:
    counts = Counter(words)
    return "; ".join(f"{word}{_share(count, counts.total())}" for word, count in counts.most_common())
