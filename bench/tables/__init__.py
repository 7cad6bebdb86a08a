"""The tables of README.md and docs/, made of the files of bench/results.

A page has a table between `<!-- table: NAME -->` and `<!-- end -->`; where it is, only the page says. A table
is a generator: a tuple is a row of cells (the first one is the head), a text a line of its own.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
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


def pages() -> list[Path]:
    """All that may have tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str) -> str:
    """A page with its tables. Raises KeyError for the name of none."""
    return MARKED.sub(lambda match: f"{match[1]}{markdown(TABLES[match[2]]())}\n{match[3]}", text)


def fill() -> None:
    """Write every table into its page."""
    load()
    for page in pages():
        text = page.read_text()
        if (new := filled(text)) != text:
            page.write_text(new)
            print(f"written: {page.relative_to(ROOT)}")


def load() -> None:
    """Register all tables."""
    from tables import engine, fleets, motion, plans, streams  # noqa: F401


def command(words: Sequence[str]) -> int:
    """Write the tables, or only see whether they are those of the files; returns the exit status."""
    parser = argparse.ArgumentParser(prog="run.py tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if a page would change")
    if not parser.parse_args(words).check:
        fill()
        return 0
    load()
    changed = [
        str(page.relative_to(ROOT)) for page in pages() if filled(page.read_text()) != page.read_text()
    ]
    if changed:
        print(f"not as their figures: {', '.join(changed)}; python bench/run.py tables", file=sys.stderr)
    return int(bool(changed))


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
