"""The table of faults in Markdown, and the page that holds it between two markers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from faulting.measure import Row

BEGIN, END = "<!-- begin: python bench/faults.py -->", "<!-- end -->"
# What is told on the way back to motion, whatever had stopped it.
PASSING = (
    "everything is fresh",
    "going to where",
    "waiting for the controllers",
    "beginning anew",
    "the joints are moving",
    "coming to rest",
)
SENTENCES = 3
HEAD = (
    "| fault | stands after [s] | peak speed | peak acceleration | goes on by itself | a person | said |",
    "|---|---|---|---|---|---|---|",
)


def lines(rows: Iterable[Row]) -> list[str]:
    """Return the table; peaks are relative to the contract's limits."""
    return [*HEAD, *map(_line, rows)]


def write(page: Path, rows: Iterable[Row]) -> None:
    """Replace the page's table."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text("\n".join((f"{before}{BEGIN}", *lines(rows), f"{END}{after}")))


def _line(row: Row) -> str:
    stop = "goes on" if row.stop_s is None else f"{row.stop_s:.2f}"
    resumed = (
        "never stood" if row.stop_s is None else "no" if row.resumed_s is None else _resumed(row.resumed_s)
    )
    words = [reason for reason in row.said if not reason.startswith(PASSING)][:SENTENCES]
    said = "<br>".join(words) or "-"
    if row.note:
        said += f"<br>*{row.note}*"
    cells = (
        row.title,
        stop,
        f"{row.velocity:.2f}",
        f"{row.acceleration:.2f}",
        resumed,
        row.person or "-",
        said,
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _resumed(seconds: float) -> str:
    return f"{seconds:.2f} s after it" if seconds >= 0.0 else "before it was over"
