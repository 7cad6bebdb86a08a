"""What commands that measure full-size models share: the device, and the files of their figures."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vla_accel_ros.tools.provenance import provenance

RESULTS = Path(__file__).parents[1] / "results"


def measuring(
    description: str | None, run: Callable[[argparse.Namespace], int], name: str
) -> argparse.ArgumentParser:
    """The parser of a command that writes NAME.json, with the options that `place` needs."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    parser.add_argument("--small", action="store_true", help="tiny models on the CPU, to try the command")
    parser.add_argument("--out", type=Path, help=f"folder of {name}.json (default: bench/results)")
    return parser


def place(arguments: argparse.Namespace) -> tuple[torch.device, torch.dtype, Path | None]:
    """Device and dtype, and the folder for results, None for no results. arguments: with `small` (tiny models
    on one CPU thread, to try the command) and `out` (a folder, or None).

    Raises RuntimeError without a CUDA device, unless `small`.
    """
    if arguments.small:
        torch.set_num_threads(1)
        return torch.device("cpu"), torch.float32, arguments.out
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device here; --small tries the command on a CPU.")
    return torch.device("cuda"), torch.bfloat16, arguments.out or RESULTS


def new_document(dtype: torch.dtype, seeds: str, **settings: Any) -> dict[str, Any]:
    """The contents of a file of figures that has no cases yet."""
    head = {**settings, "dtype": str(dtype).removeprefix("torch."), "seeds": seeds}
    return {**head, **provenance(), "cases": []}
