"""Writes the tables into README.md and docs/.

A page has a table between `<!-- table: NAME -->` and `<!-- end -->`; where it is, only the page says.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tables import engine, fleets, motion, plans, robots  # noqa: F401  (they register their tables)
from tables.forms import TABLES, markdown

ROOT = Path(__file__).resolve().parents[2]
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """All that may have tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str) -> str:
    """A page with its tables. Raises KeyError for the name of none."""
    return MARKED.sub(lambda match: f"{match[1]}{markdown(TABLES[match[2]]())}\n{match[3]}", text)


def fill() -> None:
    """Write every table into its page."""
    for page in pages():
        text = page.read_text()
        if (new := filled(text)) != text:
            page.write_text(new)
            print(f"written: {page.relative_to(ROOT)}")


def command(words: Sequence[str]) -> int:
    """Write the tables, or only see whether they are those of the files; returns the exit status."""
    parser = argparse.ArgumentParser(prog="run.py tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if a page would change")
    if not parser.parse_args(words).check:
        fill()
        return 0
    changed = [
        str(page.relative_to(ROOT)) for page in pages() if filled(page.read_text()) != page.read_text()
    ]
    if changed:
        print(f"not as their figures: {', '.join(changed)}; python bench/run.py tables", file=sys.stderr)
    return int(bool(changed))
