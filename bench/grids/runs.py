"""The file of figures, cell by cell: what a run adds to it, what is missing, and where each part is from.

A grid may take longer than a GPU is available. So it is cut into cells, the most valuable first: a run
measures those that the file lacks until its time is up; the file is written after each, and says what was not
measured. Cells of another plan, GPU or version of torch or triton do not fit into one table with new ones:
they are removed when the part is measured again.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from full_size.figures import write
from grids.shares import Group
from vla_accel_ros.tools.provenance import provenance

Figures = dict[str, Any]
"""What a cell adds to its part: lists are appended to those that are there, all else is set. The rows
of lists name their cell, and a run its cells: so it is known of each when and where it was measured."""


class Part(NamedTuple):
    """cells: by name, the most valuable first. open: makes the model, once, and returns the function that
    measures a cell. counts: sample sizes, for the reader. groups: what one process measures, see shares."""

    cells: Mapping[str, Any]
    open: Callable[[], Callable[[Any], Figures]]
    counts: Figures
    groups: Sequence[Group]


class Budget:
    """Seconds since the process's work began, after which no cell begins; None: unlimited."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._begin, self._seconds = clock, clock(), seconds

    @property
    def over(self) -> bool:
        """Whether it is used up."""
        return self._seconds is not None and self._clock() - self._begin >= self._seconds


class Results:
    """The figures of all parts, in a file if one is given.

    resume: keep what the file has of a part and measure the rest, instead of measuring all of it again. Parts
    that are not measured stay as they are. source: further provenance of the figures.
    Raises ValueError if the file is not one of ours.
    """

    def __init__(
        self, file: Path | None, plan: str, dtype: str, resume: bool, source: Figures | None = None
    ) -> None:
        self._file, self._resume = file, resume
        cores = {"usable_cores": len(os.sched_getaffinity(0))}
        self._source = {"plan": plan, "dtype": dtype, **(source or {}), **cores, **provenance()}
        self.document: Figures = read(file) if file is not None and file.exists() else {}

    def measure(
        self,
        name: str,
        part: Part,
        budget: Budget,
        say: Callable[[str], None],
        ours: Collection[str] | None = None,
    ) -> Figures:
        """Measure the missing cells of a part; returns everything that exists of it.

        ours: the cells of this process's share, None = all. A failing cell is listed under `failed`, and the
        others are tried.
        """
        found = self._begin(name, part)
        run: Figures = {**self._source, "cells": [], "seconds": 0.0}
        measured: Callable[[Any], Figures] | None = None
        missing = [cell for cell in found["not_measured"] if ours is None or cell in ours]
        for done, cell in enumerate(missing):
            if budget.over:
                say(f"{name}: time is up, {len(missing) - done} of {len(ours or part.cells)} cells are left")
                break
            begin = time.monotonic()
            try:
                if measured is None:
                    found["runs"].append(run)
                    measured = part.open()
                    run["set_up_seconds"] = round(time.monotonic() - begin, 1)
                add(found, measured(part.cells[cell]), cell)
            except Exception as error:
                traceback.print_exc()
                found.setdefault("failed", {})[cell] = f"{type(error).__name__}: {error}"
                if measured is None:
                    break
                continue
            found["not_measured"].remove(cell)
            taken = time.monotonic() - begin
            run["cells"].append(cell)
            run["seconds"] = round(run["seconds"] + taken, 1)
            say(f"{name}, {cell}: {taken:.1f} s")
            self.write()
        self.write()
        return found

    def write(self) -> None:
        """Write the file, if there is one."""
        if self._file is not None:
            write(self._file, self.document)

    def _begin(self, name: str, part: Part) -> Figures:
        found = self.document.get(name)
        if not (self._resume and found and self._continues(found, part)):
            found = {"rows": [], "runs": [], "not_measured": list(part.cells)}
        found.pop("failed", None)
        found["counts"] = part.counts
        self.document[name] = found
        return found

    def _continues(self, found: Figures, part: Part) -> bool:
        alike = all(table_of(run) == table_of(self._source) for run in found["runs"])
        return alike and set(found["not_measured"]) <= part.cells.keys()


def add(part: Figures, figures: Figures, cell: str) -> None:
    """Add a cell's figures to those of the others."""
    for name, value in figures.items():
        if isinstance(value, list):
            part.setdefault(name, []).extend({**row, "cell": cell} for row in value)
        else:
            part[name] = value


def table_of(run: Figures) -> list[Any]:
    """What must be the same for figures to stand in one table: plan, numbers, GPU, versions."""
    versions = [run["versions"].get(package) for package in ("torch", "triton", "transformers")]
    return [run["plan"], run["dtype"], run["machine"].get("gpu"), *versions]


def read(file: Path) -> Figures:
    """The parts of a file. Raises ValueError for one that is none of ours."""
    try:
        document: Figures = json.loads(file.read_text())
        known = all({"rows", "runs", "not_measured"} <= part.keys() for part in document.values())
    except (ValueError, AttributeError):
        known = False
    if not known:
        raise ValueError(f"{file} is not a file of figures of this bench: give another one, or remove it.")
    return document
