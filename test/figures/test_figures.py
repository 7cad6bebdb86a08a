"""The figures that README.md and docs print are those of bench/results/, to the digits that are printed.

A row of a table, or a passage, is named by how it begins; every number in it must be claimed by a figure of
a file, or by None where it is of no file: a target, a size, a run that is said to have none.
Tables between marks are made by bench/tables (test/bench/test_smoke.py).
"""

from __future__ import annotations

import re
from inspect import isfunction

import of_engine
import of_fleets
import of_motion
import pytest
from claims import ROOT, Claim, printed

PARTS = [
    part
    for module in (of_engine, of_fleets, of_motion)
    for part in vars(module).values()
    if isfunction(part) and part.__module__ == module.__name__
]


def passages(document: str, begins: str) -> list[int]:
    """Where rows of a table, or paragraphs, that begin so go on."""
    text = (ROOT / document).read_text()
    return [found.end() for found in re.finditer(f"^{re.escape(begins)}", text, re.MULTILINE)]


CLAIMS = [claim for part in PARTS for claim in part() if passages(*claim[:2])]
"""Of what pages print: a page chooses among the rows of a file."""


def passage(document: str, begins: str) -> str:
    """A row of a table, or a paragraph, after how it begins; links are their texts."""
    at, *others = passages(document, begins)
    assert not others, f"{document} has {1 + len(others)} passages that begin with '{begins}'"
    text = (ROOT / document).read_text()
    end = text.find("\n" if begins.startswith("|") else "\n\n", at)
    return re.sub(r"\]\([^)]*\)", "]", text[at:end])


def agrees(shown: str, value: float) -> bool:
    """Whether a number is shown as it is rounded to the shown digits."""
    digits = len(shown.partition(".")[2])
    return abs(float(shown.replace(",", "")) - value) <= 0.5 * 10.0**-digits * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim[0]} {claim[1]}")
def test_every_printed_figure_is_the_measured_one(claim: Claim) -> None:
    document, begins, figures = claim
    numbers = printed(passage(document, begins))
    assert len(numbers) == len(figures), f"{numbers} are not {figures}"
    wrong = [(a, b) for a, b in zip(numbers, figures) if b is not None and not agrees(a, b)]
    assert not wrong, f"printed, measured: {wrong}"


@pytest.mark.parametrize("document", sorted({claim[0] for claim in CLAIMS}))
def test_every_row_of_figures_is_claimed(document: str) -> None:
    """A row that is added or renamed must be claimed, too; a table between marks is made by its bench."""
    text = re.sub(r"<!-- (?!end).*?<!-- end.*?-->", "", (ROOT / document).read_text(), flags=re.DOTALL)
    rows = re.findall(r"^\| .*(?!\n\|[ -]+\|)$", text, re.MULTILINE)  # without heads
    figures = [line for line in rows if len(printed(re.sub(r"`[^`]*`", "", line.partition(" |")[2]))) > 1]
    begun = tuple(begins for page, begins, _ in CLAIMS if page == document)
    assert [row for row in figures if not row.startswith(begun)] == []
