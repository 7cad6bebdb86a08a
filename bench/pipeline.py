"""What sharing forwards brings: one table for each way to share them.

    python bench/pipeline.py [--quick] [--parts oxygen actionflow staggered] [--budget-s N]

oxygen: text beside actions (OxyGen's grid). actionflow: frames in one pipeline (ActionFlow's grid).
staggered:
    chunks at different denoising steps in one batch.

Random weights of the published sizes, bfloat16, on a GPU: ten minutes for all, two with --quick. --budget-s
ends a part between two cells; the file says what was not measured. In a --small run all tokens must be equal.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from grids import actionflow, oxygen, staggered
from grids.sizes import Plan, plan
from run import Bench, Given, Row, main
from shared.subjects import random_llama
from vla_accel_ros.tools.provenance import provenance

Cells = tuple[Mapping[str, Any], Callable[[], Callable[[Any], Row]], Row]
"""By name, the most valuable first; what makes the model and returns what measures a cell; sample sizes."""


def options(add: Callable[..., Any]) -> None:
    add("--quick", action="store_true", help="only the rows that have targets: two minutes of an H200")
    add(
        "--budget-s",
        type=float,
        default=float("inf"),
        metavar="N",
        help="of a part, after which no cell begins",
    )


def cells_of(name: str, sizes: Plan, device: torch.device, dtype: torch.dtype) -> Cells:
    """Of a part."""
    if name == "oxygen":
        grid = sizes.oxygen
        return (
            grid.cells(),
            lambda: oxygen.Bench(sizes.oxygen_model, grid, device, dtype).measure,
            grid.counts(),
        )
    if name == "actionflow":
        frames = sizes.actionflow
        model = partial(random_llama, sizes.actionflow_model, device, dtype)
        return frames.cells(), lambda: actionflow.Bench(model(), frames).measure, frames.counts()

    def chunks() -> Callable[[tuple[int, ...]], Row]:
        model = sizes.staggered_model
        return lambda steps: {"rows": staggered.measure(model, steps, sizes.chunks, device, dtype)}

    counts = {"chunks": sizes.chunks, "path": staggered.PATH, "seeds": staggered.SEEDS}
    return {"all": sizes.staggered_steps}, chunks, counts


def measure(name: str, given: Given) -> Row:
    """A part: its rows name their cell, and its run its cells. A cell that fails is named with the reason."""
    sizes = plan("small" if given.small else "quick" if given.quick else "full")
    cells, make, counts = cells_of(name, sizes, given.device, given.dtype)
    run: Row = {"plan": sizes.name, "dtype": str(given.dtype).removeprefix("torch."), **provenance()}
    run |= {"usable_cores": len(os.sched_getaffinity(0)), "cells": []}
    part: Row = {"rows": [], "runs": [run], "not_measured": list(cells), "counts": counts}
    began_s = time.monotonic()
    measure_cell = make()
    for cell, settings in cells.items():
        if time.monotonic() - began_s > given.budget_s:
            break
        try:
            figures = measure_cell(settings)
        except Exception as error:
            traceback.print_exc()
            part.setdefault("failed", {})[cell] = f"{type(error).__name__}: {error}"
            continue
        for key, value in figures.items():
            if isinstance(value, list):
                part.setdefault(key, []).extend({**row, "cell": cell} for row in value)
            else:
                part[key] = value
        part["not_measured"].remove(cell)
        run["cells"].append(cell)
        run["seconds"] = round(time.monotonic() - began_s, 1)
        print(f"{name}, {cell}: {run['seconds']:.1f} s", flush=True)
    if given.small and any(row.get("tokens_equal", 1.0) != 1.0 for row in part["rows"]):
        raise RuntimeError(f"{name}: tokens differ from those alone")
    del measure_cell
    gc.collect()
    if given.device.type == "cuda":
        torch.cuda.empty_cache()
    return {name: part}


PARTS = ("oxygen", "actionflow", "staggered")
BENCH = Bench(
    "pipeline",
    parts={name: partial(measure, name) for name in PARTS},
    options=options,
    gpu=True,
    smoke="--small",
)

if __name__ == "__main__":
    sys.exit(main(BENCH))
