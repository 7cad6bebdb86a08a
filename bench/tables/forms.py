"""How a table is made: registered by name, rows of cells from values of results.

A table is a generator: a tuple is a row of cells (the first one is the head), a text a line of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
Line = Sequence[str] | str
TABLES: dict[str, Callable[[], Iterable[Line]]] = {}


def table(make: Callable[[], Iterable[Line]]) -> Callable[[], Iterable[Line]]:
    """Register a table by its function's name, with dashes."""
    TABLES[make.__name__.replace("_", "-")] = make
    return make


def markdown(lines: Iterable[Line]) -> str:
    """Rows as a table of Markdown, texts as they are."""
    written: list[str] = []
    for line in lines:
        if isinstance(line, str):
            written.append(line)
            continue
        is_head = not written or not written[-1].startswith("|")
        written.append("|" + "".join(f" {cell} |" if cell else " |" for cell in line))
        written += ["|" + "---|" * len(line)] * is_head
    return "\n".join(written)


def result(name: str) -> Any:
    """What bench/results/NAME.json has."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def one(rows: Iterable[Mapping[str, Any]], **fields: Any) -> Any:
    """The first row with these fields."""
    return next(row for row in rows if all(row.get(name) == value for name, value in fields.items()))


def at(row: Mapping[str, Any], path: str) -> Any:
    """A value of a row by its path, "engine.p50_ms"."""
    value: Any = row
    for name in path.split("."):
        value = value[name]
    return value


def cells(row: Mapping[str, Any], *forms: str) -> list[str]:
    """Values of a row as text: "engine.p50_ms:.2f" is a path and a format, "late:.1%" one in percent."""
    return [_cell(row, *form.partition(":")[::2]) for form in forms]


def _cell(row: Mapping[str, Any], path: str, form: str) -> str:
    value, percent = at(row, path), form.endswith("%")
    text = format(100 * value if percent else value, form.removesuffix("%") + "f" * percent)
    return f"{text} %" if percent else text


def views(count: int) -> str:
    """A number of cameras in words."""
    return f"{count} view{'s' * (count > 1)}"


def between(measure: Mapping[str, Any], form: str, scale: float = 1.0) -> str:
    """A median with its interval at 95 %."""
    if measure["median"] is None:
        return "-"
    middle, low, high = (
        format(scale * value, form) for value in (measure["median"], *measure["interval_95"])
    )
    return f"{middle} ({low} to {high})"


def won(row: Mapping[str, Any]) -> str:
    """Episodes that succeeded, with their share's interval at 95 %."""
    low, high = (100 * bound for bound in row["interval_95"])
    return f"{row['won']} of {row['n']} ({low:.0f} to {high:.0f} %)"
