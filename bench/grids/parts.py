"""The parts of bench/pipeline.py for a plan: their cells, how cells are grouped, and what measures them.

Making a part makes no model: the first cell does that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from full_size.gpu import gpu_id
from grids import actionflow, mps, oxygen, staggered
from grids.runs import Part
from grids.shares import Group
from grids.sizes import Plan
from vla_accel_ros.tools.bench.subjects import random_llama

SET_UP_S = {"oxygen": 10.0, "actionflow": 6.0, "staggered": 8.0, "mps": 0.0}
"""About, of a part's model and what is captured once."""

STAGGERED_S = 14.0
"""About, of the one cell."""


def part(name: str, plan: Plan, device: torch.device, dtype: torch.dtype) -> Part:
    """oxygen, actionflow, staggered or mps."""
    if name == "mps":

        def processes() -> Callable[[bool], dict[str, Any]]:
            return lambda with_mps: mps.measure(plan.name, plan.mps, with_mps, gpu_id(device))

        return Part(plan.mps.cells(), processes, plan.mps.counts(), plan.mps.groups())
    if name == "staggered":

        def chunks() -> Callable[[tuple[int, ...]], dict[str, Any]]:
            model = plan.staggered_model
            return lambda steps: {"rows": staggered.measure(model, steps, plan.chunks, device, dtype)}

        counts = {"chunks": plan.chunks, "path": staggered.PATH, "seeds": staggered.SEEDS}
        return Part({"all": plan.staggered_steps}, chunks, counts, (Group(("all",), STAGGERED_S),))
    if name == "oxygen":
        grid = plan.oxygen

        def shared() -> Callable[[oxygen.Cell | None], dict[str, Any]]:
            return oxygen.Bench(plan.oxygen_model, grid, device, dtype).measure

        return Part(grid.cells(), shared, grid.counts(), grid.groups())

    def frames_in_turn() -> Callable[[tuple[int, int]], dict[str, Any]]:
        model = random_llama(plan.actionflow_model, device, dtype)
        return actionflow.Bench(model, plan.actionflow).measure

    frames = plan.actionflow
    return Part(frames.cells(), frames_in_turn, frames.counts(), frames.groups())
