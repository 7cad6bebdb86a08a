"""`vla tune`: times every way to launch each kernel on this GPU and keeps the fastest as its tuning table.

The table goes to the user's cache, named by GPU and versions, where engines find it; --out writes it
elsewhere, for instance to be given to others with the same device. --sms tunes for a partition, whose table
is found by engines that run with one of so many multiprocessors.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

from vla_accel_ros.kernels.tuning import WAYS
from vla_accel_ros.tools.options import subcommand
from vla_accel_ros.tools.provenance import provenance


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(
        subparsers, "tune", "time the kernels' block shapes on this GPU and keep the best", run
    )
    parser.add_argument("--batches", nargs="+", type=int, default=(1,), help="chunks denoised at once")
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=WAYS,
        help="kinds of kernels to time; with fewer than all, the table in use is what they must beat",
    )  # fmt: skip
    parser.add_argument(
        "--weights", nargs="+", choices=("fp8", "int8", "int4"), default=(),
        help="kinds of quantised weights whose products are timed, too (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--sms", type=int, metavar="N",
        help="time on a partition of N multiprocessors, or the next larger that the GPU has, for an engine "
        "with partition N:M or M:N (default: on all)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="file to write (default: the user's cache)")


def run(arguments: argparse.Namespace) -> int:
    """Time, print, write. Raises RuntimeError without a CUDA device or triton, or for --sms where the GPU
    cannot be divided; ValueError for a number that it does not have."""
    import torch

    from vla_accel_ros.engine.lanes.partitions import of_size
    from vla_accel_ros.kernels.ops import ops_for
    from vla_accel_ros.kernels.tuning import cache_file
    from vla_accel_ros.models.config import PI05
    from vla_accel_ros.tools.tune.choose import tune, tune_small

    if not torch.cuda.is_available():
        raise RuntimeError("kernels are tuned on a GPU, and torch sees no CUDA device here.")
    device = torch.device("cuda")
    ops_for(device)
    ways, say = tuple(arguments.ways), partial(print, flush=True)
    sms, on = None, None
    if arguments.sms is not None:
        part = of_size(device, arguments.sms)
        sms, on = part.sms, part.streams[0]
        say(f"on {sms} multiprocessors")
    with torch.cuda.stream(on):
        table = tune(PI05, device, tuple(arguments.batches), say, ways, sms)
        for kind in arguments.weights:
            tune_small(table, PI05, device, kind, say)
    out = arguments.out or cache_file(device, sms)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**table.to_json(), **provenance()}, indent=1) + "\n")
    print(f"written: {out}")
    return 0
