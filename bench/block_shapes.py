"""How good the block shapes are that kernels.block_shapes chooses: all of them timed, on this GPU.

    python bench/block_shapes.py [--sms 16 32] [--out DIR]   # measures: about eight minutes on an H100
    python bench/block_shapes.py --again FILE                # compares its launches with what is chosen now
    python bench/block_shapes.py --fit FILE [--rounds N]     # fits the constants to it, and prints them

Launches are single kernels of denoising steps (1 and 10 chunks, exact and with quantised weights), attention
of prefixes and staggered chunks, and products of 8-bit rows: at pi0.5's sizes, and at sizes of no published
model, to which the constants were not fitted. Each is compiled and compared with its reference in every block
shape, then timed alone in a captured chain over 18 layers' weights. --sms: again on so many multiprocessors
of the GPU, at pi0.5's sizes. Prints how many times as long as the best block shape those take that the model
chooses, that were taken before it (by the number of multiprocessors alone), and that the package's table has;
writes block_shapes.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from shaping.fit import KINDS, fitted
from shaping.measure import checked, every_case, timed
from shaping.measured import load
from shaping.report import compared, table

from full_size.command import RESULTS
from full_size.figures import write
from vla_accel_ros.engine.lanes.partitions import of_size
from vla_accel_ros.kernels.gpu import gpu_of
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.tools.provenance import provenance

PUBLISHED, OTHER = "pi05", "other"
BATCHES = {PUBLISHED: (1, 10), OTHER: (1,)}
SEED = 0
KEPT = 32
"""Multiprocessors whose launches are not fitted to: they check the model."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure or fit; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    parser.add_argument("--sms", type=int, nargs="*", default=[16], help="sizes of partitions (default: 16)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of block_shapes.json")
    parser.add_argument("--again", type=Path, metavar="FILE", help="compare its launches again")
    parser.add_argument(
        "--fit", type=Path, metavar="FILE", help="file of measured launches to fit the constants to"
    )
    parser.add_argument("--rounds", type=int, default=1500, help="of the search (default: %(default)s)")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure, or fit. Raises RuntimeError without a CUDA device."""
    if arguments.fit is not None:
        return fit(arguments.fit, arguments.rounds)
    if arguments.again is not None:
        return again(arguments.again)
    if not torch.cuda.is_available():
        raise RuntimeError("block shapes are timed on a GPU, and torch sees no CUDA device here.")
    device, say = torch.device("cuda"), partial(print, flush=True)
    whole = gpu_of(device)
    parts = {count: of_size(device, count) for count in arguments.sms}
    of_parts = {count: gpu_of(device, part.sms) for count, part in parts.items()}
    right = checked(BATCHES, [whole, *of_parts.values()])
    say(f"{sum(right.values())} of {len(right)} launches are right; timing them")
    measured = list(timed(every_case(BATCHES, device), whole, right, device, say))
    for count, part in parts.items():
        with torch.cuda.stream(part.streams[0]):
            few = every_case({PUBLISHED: BATCHES[PUBLISHED]}, device)
            measured += timed(few, of_parts[count], right, device, say)
    rows = compared(measured, whole)
    print(table(rows))
    document = {
        **provenance(),
        "seeds": "0 for weights and activations",
        "gpu": vars(whole),
        "compared": rows,
        "cases": [case.to_json() for case in measured],
    }
    write(arguments.out / "block_shapes.json", document)
    return 0


def again(path: Path) -> int:
    """Compare the launches of a file with what the model chooses now."""
    contents, gpu, cases = load(path)
    contents["compared"] = compared(cases, gpu)
    print(table(contents["compared"]))
    write(path, contents)
    return 0


def fit(path: Path, rounds: int) -> int:
    """Print constants fitted to the launches at pi0.5's sizes of a file, and their error."""
    _, gpu, cases = load(path)
    own = [case for case in cases if case.name.startswith(PUBLISHED) and case.processors != KEPT]
    for kind in KINDS:
        costs, error = fitted(kind, own, gpu, rounds, SEED)
        print(f"{kind} = {costs}  # {error:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
