"""The file of figures, cell by cell: what a run adds to it, what is missing, and where each part is from.

A grid may take longer than a GPU is at hand for. So it is cut into cells, in the order of what they are
worth: a run measures those that the file lacks until its time is up, the file is written after each, and says
what was not measured. Cells of another plan, GPU or version of torch or triton are not of one table with new
ones: they go when the part is measured again.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vla_accel_ros.tools.provenance import provenance

Figures = dict[str, Any]
"""What a cell adds to its part: lists are appended to those that are there, all else is set."""


class Part(NamedTuple):
    """cells: by name, those worth most first. open: makes the model, once, and returns what measures a cell.
    counts: of what a figure is made, for the reader."""

    cells: Mapping[str, Any]
    open: Callable[[], Callable[[Any], Figures]]
    counts: Figures


class Budget:
    """Seconds since the process's work began, after which no cell begins; None: no end."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._begin, self._seconds = clock, clock(), seconds

    @property
    def over(self) -> bool:
        """Whether it is used up."""
        return self._seconds is not None and self._clock() - self._begin >= self._seconds


class Results:
    """The figures of all parts, in a file if there is one.

    resume: keep what the file has of a part and measure the rest, instead of all of it anew. Parts that are
    not measured stay as they are. Raises ValueError for a file that is none of ours.
    """

    def __init__(self, file: Path | None, plan: str, dtype: str, resume: bool) -> None:
        self._file, self._resume = file, resume
        self._source = {"plan": plan, "dtype": dtype, **provenance()}
        self.document: Figures = _read(file) if file is not None and file.exists() else {}

    def measure(self, name: str, part: Part, budget: Budget, say: Callable[[str], None]) -> Figures:
        """Measure the cells of a part that are missing; returns all that there is of it.

        A cell that fails is told of under `failed`, and the others are tried.
        """
        found = self._begin(name, part)
        run = {**self._source, "cells": 0, "seconds": 0.0}
        measured: Callable[[Any], Figures] | None = None
        for cell in list(found["not_measured"]):
            if budget.over:
                say(f"{name}: time is up, {len(found['not_measured'])} of {len(part.cells)} cells are left")
                break
            begin = time.monotonic()
            try:
                if measured is None:
                    found["runs"].append(run)
                    measured = part.open()
                    run["set_up_seconds"] = round(time.monotonic() - begin, 1)
                add(found, measured(part.cells[cell]))
            except Exception as error:
                traceback.print_exc()
                found.setdefault("failed", {})[cell] = f"{type(error).__name__}: {error}"
                if measured is None:
                    break
                continue
            found["not_measured"].remove(cell)
            taken = time.monotonic() - begin
            run["cells"], run["seconds"] = run["cells"] + 1, round(run["seconds"] + taken, 1)
            say(f"{name}, {cell}: {taken:.1f} s")
            self.write()
        self.write()
        return found

    def write(self) -> None:
        """The file, whole or not at all."""
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        beside = self._file.with_suffix(".part")
        beside.write_text(json.dumps(self.document, indent=1) + "\n")
        beside.replace(self._file)

    def _begin(self, name: str, part: Part) -> Figures:
        found = self.document.get(name)
        if not (self._resume and found and self._continues(found, part)):
            found = {"rows": [], "runs": [], "not_measured": list(part.cells)}
        found.pop("failed", None)
        found["counts"] = part.counts
        self.document[name] = found
        return found

    def _continues(self, found: Figures, part: Part) -> bool:
        alike = all(_table_of(run) == _table_of(self._source) for run in found["runs"])
        return alike and set(found["not_measured"]) <= part.cells.keys()


def add(part: Figures, figures: Figures) -> None:
    """Put a cell's figures to those of the others."""
    for name, value in figures.items():
        if isinstance(value, list):
            part.setdefault(name, []).extend(value)
        else:
            part[name] = value


def _table_of(run: Figures) -> list[Any]:
    """What must be the same for figures to stand in one table."""
    versions = [run["versions"].get(package) for package in ("torch", "triton", "transformers")]
    return [run["plan"], run["dtype"], run["machine"].get("gpu"), *versions]


def _read(file: Path) -> Figures:
    try:
        document: Figures = json.loads(file.read_text())
        known = all({"rows", "runs", "not_measured"} <= part.keys() for part in document.values())
    except (ValueError, AttributeError):
        known = False
    if not known:
        raise ValueError(f"{file} is not a file of figures of this bench: give another one, or remove it.")
    return document
