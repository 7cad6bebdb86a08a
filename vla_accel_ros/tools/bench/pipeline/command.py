"""`vla bench pipeline`: what sharing forwards brings, one table for each way to share them.

text beside action (OxyGen's grid), frames in one pipeline (ActionFlow's grid), chunks denoised at different
times in one batch; random weights of the published sizes, bfloat16, on a GPU. --small is the same code with
small models in float32 on a CPU: its figures mean nothing, but there all tokens must be equal, and the status
is 1 if they are not.
"""

from __future__ import annotations

import argparse
import gc
import json
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_accel_ros.tools.options import subcommand
from vla_accel_ros.tools.provenance import provenance

if TYPE_CHECKING:
    import torch

PARTS = ("oxygen", "actionflow", "staggered")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "pipeline", "text beside action, frames in one pipeline", run)
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="tables (default: all)")
    add("--quick", action="store_true", help="only the rows that have targets: five minutes of an H200")
    add("--small", action="store_true", help="small models on the CPU, to try the command itself")
    add("--json", type=Path, metavar="FILE", help="write the figures here, too")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Raises RuntimeError without a CUDA device, and for tokens that differ."""
    import torch

    from vla_accel_ros.tools.bench.pipeline import sizes
    from vla_accel_ros.tools.bench.pipeline.measure import counted_j

    if not arguments.small and not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device here; --small tries the command on a CPU.")
    plan = sizes.small() if arguments.small else sizes.quick() if arguments.quick else sizes.full()
    device = torch.device("cpu" if arguments.small else "cuda")
    dtype = torch.float32 if arguments.small else torch.bfloat16
    document: dict[str, Any] = {"plan": plan.name, "dtype": str(dtype).removeprefix("torch."), **provenance()}
    failed: list[str] = []
    if device.type == "cuda" and counted_j(device) is None:
        print(
            "No power and energy: nvidia-ml-py is not installed, or this GPU does not count them.", flush=True
        )
    for part in arguments.parts:
        try:
            document[part] = _part(part, plan, device, dtype)
        except Exception as error:  # the other tables are worth having
            traceback.print_exc()
            failed.append(f"{part}: {error}")
            document[part] = {"rows": [], "none": str(error)}
        print(_table(part, document), flush=True)
        if arguments.json:  # a run that is broken off leaves what it has
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            arguments.json.write_text(json.dumps(document, indent=1) + "\n")
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if failed:
        raise RuntimeError(f"not all was measured: {'; '.join(failed)}")
    unequal = [f"{part} {row}" for part in arguments.parts for row in _unequal(document[part])]
    if arguments.small and unequal:
        raise RuntimeError(f"tokens differ from those alone: {'; '.join(unequal)}")
    return 0


def _part(part: str, plan: Any, device: torch.device, dtype: torch.dtype) -> Any:
    def say(text: str) -> None:
        print(text, flush=True)

    if part == "oxygen":
        from vla_accel_ros.tools.bench.pipeline import oxygen

        return oxygen.measure(plan.oxygen_model, plan.oxygen, device, dtype, say)
    if part == "actionflow":
        from vla_accel_ros.tools.bench.pipeline import actionflow

        return actionflow.measure(plan.actionflow_model, plan.actionflow, device, dtype, say)
    from vla_accel_ros.tools.bench.pipeline import staggered

    rows = staggered.measure(plan.staggered_model, plan.staggered_steps, plan.chunks, device, dtype)
    return {"rows": rows}


def _unequal(result: dict[str, Any]) -> list[str]:
    return [
        str({name: row[name] for name in ("system", "steps", "tokens", "per_frame") if name in row})
        for row in result["rows"]
        if row.get("tokens_equal", 1.0) != 1.0 or "none" in row
    ]


def _table(part: str, document: dict[str, Any]) -> str:
    from vla_accel_ros.tools.bench.pipeline.report import table

    extra = [f"{name}: {value}" for name, value in document[part].items() if name != "rows"]
    return "\n".join([part, table(document[part]["rows"]), *extra])
