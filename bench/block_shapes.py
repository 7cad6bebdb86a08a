"""How good the block shapes are that kernels.block_shapes chooses: all of them timed, on this GPU.

    python bench/block_shapes.py [--sms 16 32] [--out DIR]   # measures: about eight minutes on an H100
    python bench/block_shapes.py --again FILE                # compares its launches with what is chosen now
    python bench/block_shapes.py --fit FILE [--rounds N]     # fits the constants to it, and prints them

Launches are single kernels of denoising steps (1 and 10 chunks, exact and with quantised weights), attention
of prefixes and staggered chunks, and products of 8-bit rows: at pi0.5's sizes, and at sizes of no published
model, to which the constants were not fitted. Each is compiled and compared with its reference in every block
shape, then timed alone in a captured chain over 18 layers' weights. --sms: again on so many multiprocessors
of the GPU, at pi0.5's sizes. Prints how many times as long as the best block shape those take that the model
chooses, that were taken before it (by the number of multiprocessors alone), and that the package's table has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from run import Bench, Given, main, shown, write
from shaping.fit import KINDS, fitted
from shaping.measure import checked, every_case, timed
from shaping.measured import load
from shaping.report import compared
from vla_accel_ros.engine.lanes.partitions import of_size
from vla_accel_ros.kernels.gpu import gpu_of

PUBLISHED, OTHER = "pi05", "other"
BATCHES = {PUBLISHED: (1, 10), OTHER: (1,)}
SEED = 0
KEPT = 32
"""Multiprocessors whose launches are not fitted to: they check the model."""


def options(add: Callable[..., Any]) -> None:
    add("--sms", type=int, nargs="*", default=[16], help="sizes of partitions (default: 16)")
    add("--again", type=Path, metavar="FILE", help="compare its launches again")
    add("--fit", type=Path, metavar="FILE", help="file of measured launches to fit the constants to")
    add("--rounds", type=int, default=1500, help="of the search (default: %(default)s)")


def measure(given: Given) -> Iterator[None]:
    """Measure, or fit. Raises RuntimeError without a CUDA device."""
    if given.fit is not None or given.again is not None:
        given.file = None
        again(given.again) if given.fit is None else fit(given.fit, given.rounds)
        return
    if not torch.cuda.is_available():
        raise RuntimeError("block shapes are timed on a GPU, and torch sees no CUDA device here.")
    device, say = torch.device("cuda"), partial(print, flush=True)
    whole = gpu_of(device)
    parts = {count: of_size(device, count) for count in given.sms}
    of_parts = {count: gpu_of(device, part.sms) for count, part in parts.items()}
    right = checked(BATCHES, [whole, *of_parts.values()])
    say(f"{sum(right.values())} of {len(right)} launches are right; timing them")
    measured = list(timed(every_case(BATCHES, device), whole, right, device, say))
    for count, part in parts.items():
        with torch.cuda.stream(part.streams[0]):
            few = every_case({PUBLISHED: BATCHES[PUBLISHED]}, device)
            measured += timed(few, of_parts[count], right, device, say)
    rows = compared(measured, whole)
    print("\n".join(map(shown, rows)))
    given.document |= {"gpu": vars(whole), "compared": rows, "cases": [case.to_json() for case in measured]}
    yield None


def again(path: Path) -> None:
    """Compare the launches of a file with what the model chooses now."""
    contents, gpu, cases = load(path)
    contents["compared"] = compared(cases, gpu)
    print("\n".join(map(shown, contents["compared"])))
    write(path, contents)


def fit(path: Path, rounds: int) -> None:
    """Print constants fitted to the launches at pi0.5's sizes of a file, and their error."""
    _, gpu, cases = load(path)
    matching = [case for case in cases if case.name.startswith(PUBLISHED) and case.processors != KEPT]
    for kind in KINDS:
        costs, error = fitted(kind, matching, gpu, rounds, SEED)
        print(f"{kind} = {costs}  # {error:.3f}")


BENCH = Bench("block_shapes", measure, options, about={"seeds": "0 for weights and activations"})

if __name__ == "__main__":
    sys.exit(main(BENCH))
