"""Merges the files of several shares: all figures, where each is from, and what none of them has.

Only figures that may stand in one table are merged: shares of one plan, measured on one kind of GPU with the
same versions, and no cell twice, because nothing would say which of its figures counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grids.runs import Figures, table_of


def merged(documents: Mapping[Path, Figures], cells: Mapping[tuple[str, str], Sequence[str]]) -> Figures:
    """All parts that any of the files has.

    cells: of each plan and part, in order. Raises ValueError, which names two files, if they do not fit
    together.
    """
    names = dict.fromkeys(name for document in documents.values() for name in document)
    found = {name: _measured_in(documents, name) for name in names}
    return {name: _part(name, shares, cells) for name, shares in found.items() if shares}


def measured(part: Figures) -> list[str]:
    """The cells of a part that have figures."""
    return [cell for run in part["runs"] for cell in run["cells"]]


def _measured_in(documents: Mapping[Path, Figures], name: str) -> dict[Path, Figures]:
    """The files whose process came to a cell of the part at all."""
    found = {file: document[name] for file, document in documents.items() if name in document}
    return {file: part for file, part in found.items() if part["runs"]}


def _part(
    name: str, shares: Mapping[Path, Figures], cells: Mapping[tuple[str, str], Sequence[str]]
) -> Figures:
    (first, one), *others = shares.items()
    for file, other in others:
        _fit(name, first, one, file, other)
    from_file: dict[str, Path] = {}
    for file, share in shares.items():
        for cell in measured(share):
            if cell in from_file:
                raise ValueError(
                    f"{name}, {cell} is in {from_file[cell]} and in {file}: give files of different shares."
                )
            from_file[cell] = file
    plan = one["runs"][0]["plan"]
    order = {cell: index for index, cell in enumerate(cells.get((plan, name), ()))}
    if unknown := [cell for cell in from_file if cell not in order]:
        raise ValueError(
            f"{name} of {from_file[unknown[0]]} has a cell that plan {plan} has not: {unknown[0]}."
        )
    whole: Figures = {"rows": [], "runs": [run for share in shares.values() for run in share["runs"]]}
    whole["not_measured"] = [cell for cell in order if cell not in from_file]
    for share in shares.values():
        for key, value in share.items():
            if key in ("runs", "not_measured", "failed"):
                continue
            if isinstance(value, list):
                rows = [*whole.get(key, ()), *value]
                whole[key] = sorted(rows, key=lambda row: order[row["cell"]])
            else:
                whole[key] = value
    failed = {cell: why for share in shares.values() for cell, why in share.get("failed", {}).items()}
    if still := {cell: why for cell, why in failed.items() if cell not in from_file}:
        whole["failed"] = still
    return whole


def _fit(name: str, first: Path, one: Figures, file: Path, other: Figures) -> None:
    theirs = {_words(run) for part in (one, other) for run in part["runs"]}
    if len(theirs) > 1:
        raise ValueError(
            f"{name} of {first} and of {file} are not of one table: {' and '.join(sorted(theirs))}."
        )
    if one["counts"] != other["counts"]:
        raise ValueError(f"{name} of {first} and of {file} count other numbers of frames.")


def _words(run: Mapping[str, Any]) -> str:
    return ", ".join(str(value) for value in table_of(dict(run)) if value is not None)
