"""`vla bench pipeline`: what sharing forwards brings, one table for each way to share them.

text beside action (OxyGen's grid), the two as processes of their own (its "Parallel" baseline), frames in one
pipeline (ActionFlow's grid), chunks denoised at different times in one batch; random weights of the published
sizes, bfloat16, on a GPU. A run may be shorter than its plan: --budget-s ends it between two cells, the file
says what was not measured, and --resume goes on from there. --small is the same code with small models in
float32 on a CPU: its figures mean nothing, but there all tokens must be equal, and the status is 1 if not.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_accel_ros.tools.options import subcommand

if TYPE_CHECKING:
    import torch

    from vla_accel_ros.tools.bench.pipeline.runs import Part

PARTS = ("oxygen", "actionflow", "staggered", "mps")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "pipeline", "text beside action, frames in one pipeline", run)
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="tables (default: all)")
    add("--quick", action="store_true", help="only the rows that have targets: two minutes of an H200")
    add("--small", action="store_true", help="small models on the CPU, to try the command itself")
    add("--json", type=Path, metavar="FILE", help="write the figures here, too, to those of other parts")
    add("--resume", action="store_true", help="measure what FILE lacks, not what it has")
    add(
        "--budget-s",
        type=float,
        metavar="N",
        help="begin no cell later than this",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Raises RuntimeError without a CUDA device, and for tokens that differ."""
    import torch

    from vla_accel_ros.tools.bench.pipeline import sizes
    from vla_accel_ros.tools.bench.pipeline.measure import counted_j
    from vla_accel_ros.tools.bench.pipeline.runs import Budget, Results

    if not arguments.small and not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device here; --small tries the command on a CPU.")
    if arguments.resume and arguments.json is None:
        raise ValueError("--resume goes on with a file: give it by --json FILE.")
    budget = Budget(arguments.budget_s)
    plan = sizes.plan("small" if arguments.small else "quick" if arguments.quick else "full")
    device = torch.device("cpu" if arguments.small else "cuda")
    dtype = torch.float32 if arguments.small else torch.bfloat16
    results = Results(arguments.json, plan.name, str(dtype).removeprefix("torch."), arguments.resume)
    if device.type == "cuda" and counted_j(device) is None:
        _say("No power and energy: nvidia-ml-py is not installed, or this GPU does not count them.")
    failed = []
    for name in arguments.parts:
        found = results.measure(name, _part(name, plan, device, dtype), budget, _say)
        _say(_table(name, found))
        failed += [f"{name}, {cell}: {reason}" for cell, reason in found.get("failed", {}).items()]
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if failed:
        raise RuntimeError(f"not all was measured: {'; '.join(failed)}")
    unequal = [f"{part} {row}" for part in arguments.parts for row in _unequal(results.document[part])]
    if arguments.small and unequal:
        raise RuntimeError(f"tokens differ from those alone: {'; '.join(unequal)}")
    return 0


def _part(name: str, plan: Any, device: torch.device, dtype: torch.dtype) -> Part:
    from vla_accel_ros.tools.bench.pipeline import actionflow, mps, oxygen
    from vla_accel_ros.tools.bench.pipeline.runs import Part

    if name == "mps":

        def processes() -> Callable[[bool], dict[str, Any]]:
            return lambda with_mps: mps.measure(plan.name, plan.mps, with_mps)

        return Part(plan.mps.cells(), processes, plan.mps.counts())
    if name == "staggered":
        from vla_accel_ros.tools.bench.pipeline import staggered

        def chunks() -> Callable[[tuple[int, ...]], dict[str, Any]]:
            model = plan.staggered_model
            return lambda steps: {"rows": staggered.measure(model, steps, plan.chunks, device, dtype)}

        return Part({"all": plan.staggered_steps}, chunks, {"chunks": plan.chunks})
    if name == "oxygen":
        grid = plan.oxygen
        return Part(
            grid.cells(),
            lambda: oxygen.Bench(plan.oxygen_model, grid, device, dtype).measure,
            grid.counts(),
        )

    def frames_in_turn() -> Callable[[tuple[int, int]], dict[str, Any]]:
        model = actionflow.random_llama(plan.actionflow_model, device, dtype)
        return actionflow.Bench(model, plan.actionflow).measure

    return Part(plan.actionflow.cells(), frames_in_turn, plan.actionflow.counts())


def _say(text: str) -> None:
    print(text, flush=True)


def _unequal(found: dict[str, Any]) -> list[str]:
    return [
        str({name: row[name] for name in ("system", "steps", "tokens", "per_frame") if name in row})
        for row in found["rows"]
        if row.get("tokens_equal", 1.0) != 1.0
    ]


def _table(name: str, found: dict[str, Any]) -> str:
    from vla_accel_ros.tools.bench.pipeline.report import table

    extra = [f"{key}: {value}" for key, value in found.items() if key not in ("rows", "runs")]
    return "\n".join([name, table(found["rows"]), *extra])
