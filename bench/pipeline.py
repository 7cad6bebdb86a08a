"""What sharing forwards brings: one table for each way to share them.

    python bench/pipeline.py [--quick] [--parts oxygen actionflow staggered mps] [--budget-s N] [--resume]
    python bench/pipeline.py --share 1/4 --json 1.json
    python bench/pipeline.py --merge 1.json 2.json 3.json 4.json
    python bench/pipeline.py --tables

oxygen: text beside actions (OxyGen's grid). mps: the two as separate processes (its "Parallel" baseline).
    actionflow: frames in one pipeline (ActionFlow's grid). staggered: chunks at different denoising steps in
    one batch.

Random weights of the published sizes, bfloat16, on a GPU. --budget-s ends a run between two cells; the file
says what was not measured, and --resume goes on from there. Several GPUs can measure side by side: run one
process --share I/N on each, with its own GPU and cores (CUDA_VISIBLE_DEVICES=0 taskset -c 0-15 python ...);
--merge joins their files. Writes bench/results/pipeline.json, or the file that --json names, and its tables
into docs/lab/pipeline.md; --tables does only the latter. --small runs the same code with small models in
float32 on a CPU, and writes only to files that are named. Its figures mean nothing, but all tokens must be
equal, else the status is 1.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from full_size.figures import write
from grids.shares import dealt, share
from grids.tables import render
from vla_accel_ros.tools.cli import finish

if TYPE_CHECKING:
    from grids.runs import Part

PARTS = ("oxygen", "actionflow", "staggered", "mps")


RESULT = Path(__file__).parent / "results" / "pipeline.json"
PAGE = Path(__file__).parent.parent / "docs" / "lab" / "pipeline.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="tables (default: all)")
    add("--quick", action="store_true", help="only the rows that have targets: two minutes of an H200")
    add("--small", action="store_true", help="small models on the CPU, to try the command itself")
    add("--json", type=Path, metavar="FILE", help="write the figures here, to those of other parts")
    add("--resume", action="store_true", help="measure what FILE lacks, not what it has")
    add(
        "--budget-s",
        type=float,
        metavar="N",
        help="begin no cell later than this",
    )
    add(
        "--share",
        type=share,
        metavar="I/N",
        help="measure a part of the cells: one of N processes with the same --parts, each with a GPU to "
        "itself (CUDA_VISIBLE_DEVICES) and a FILE of its own",
    )
    add(
        "--merge",
        nargs="+",
        type=Path,
        metavar="SHARE",
        help="measure nothing: join the files of shares and write FILE",
    )
    add("--tables", action="store_true", help="measure nothing: write docs/lab/pipeline.md")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Raises RuntimeError without a CUDA device, and for tokens that differ."""
    published = arguments.json is None and not arguments.small and not arguments.share
    if published:
        arguments.json = RESULT
    for option in ("resume", "share", "merge"):
        if getattr(arguments, option) and arguments.json is None:
            raise ValueError(f"--{option} needs a file of figures: give it by --json FILE.")
    try:
        if arguments.tables:
            return 0
        return _merge(arguments) if arguments.merge else _measure(arguments)
    finally:
        if published and RESULT.exists():
            PAGE.write_text(render(json.loads(RESULT.read_text())))


def _measure(arguments: argparse.Namespace) -> int:
    import torch

    from full_size.gpu import alone, gpu_id
    from grids import sizes
    from grids.measure import counted_j
    from grids.parts import part
    from grids.runs import Budget, Results

    if not arguments.small and not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device here; --small tries the command on a CPU.")
    budget = Budget(arguments.budget_s)
    plan = sizes.plan("small" if arguments.small else "quick" if arguments.quick else "full")
    device = torch.device("cpu" if arguments.small else "cuda")
    dtype = torch.float32 if arguments.small else torch.bfloat16
    gpu = gpu_id(device)
    source = {} if gpu is None else {"gpu": gpu}
    source |= {} if arguments.share is None else {"share": str(arguments.share)}
    parts = {name: part(name, plan, device, dtype) for name in arguments.parts}
    ours = _ours(parts, arguments)
    results = Results(arguments.json, plan.name, str(dtype).removeprefix("torch."), arguments.resume, source)
    if device.type == "cuda" and counted_j(device) is None:
        _say("No power and energy: nvidia-ml-py is not installed, or this GPU does not count them.")
    failed = []
    with alone(gpu):
        for name, made in parts.items():
            found = results.measure(name, made, budget, _say, ours and ours[name])
            _say(_table(name, found))
            failed += [f"{name}, {cell}: {reason}" for cell, reason in found.get("failed", {}).items()]
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    if failed:
        raise RuntimeError(f"not all was measured: {'; '.join(failed)}")
    unequal = [f"{name} {row}" for name in parts for row in _unequal(results.document[name])]
    if arguments.small and unequal:
        raise RuntimeError(f"tokens differ from those alone: {'; '.join(unequal)}")
    return 0


def _ours(parts: dict[str, Part], arguments: argparse.Namespace) -> dict[str, frozenset[str]] | None:
    from grids.parts import SET_UP_S

    if arguments.share is None:
        return None
    groups = {name: part.groups for name, part in parts.items()}
    return dealt(groups, SET_UP_S, arguments.share.count)[arguments.share.number - 1]


def _merge(arguments: argparse.Namespace) -> int:
    import torch

    from grids import merging, sizes
    from grids.parts import part
    from grids.runs import read

    cells = {
        (plan, name): tuple(part(name, sizes.plan(plan), torch.device("cpu"), torch.float32).cells)
        for plan in sizes.PLANS
        for name in PARTS
    }
    found = merging.merged({file: read(file) for file in arguments.merge}, cells)
    there = read(arguments.json) if arguments.json.exists() else {}
    write(arguments.json, {**there, **found})
    for name, made in found.items():
        measured, left = len(merging.measured(made)), len(made["not_measured"])
        _say(f"{name}: {measured} of {measured + left} cells, of {len(made['runs'])} runs")
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def _unequal(found: dict[str, Any]) -> list[str]:
    return [
        str({name: row[name] for name in ("system", "steps", "tokens", "per_frame") if name in row})
        for row in found["rows"]
        if row.get("tokens_equal", 1.0) != 1.0
    ]


def _table(name: str, found: dict[str, Any]) -> str:
    from grids.report import table

    extra = [f"{key}: {value}" for key, value in found.items() if key not in ("rows", "runs")]
    return "\n".join([name, table(found["rows"]), *extra])


if __name__ == "__main__":
    sys.exit(main())
