"""`vla tune`: times the launch settings of each kernel on this GPU, and keeps the fastest in its tuning
table.

The table goes to the user's cache, named by GPU and versions, where engines find it; --out writes it
elsewhere, for instance to share it. It is written after each step: a tuning that stopped, or that reached
--minutes, continues when called again. The gain over the table in use is printed at the end and kept in the
file. --sms tunes for a partition; engines with a partition of that many multiprocessors find its table.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from vla_accel_ros.kernels.shapes import WAYS
from vla_accel_ros.tools.options import output_file, subcommand

if TYPE_CHECKING:
    import torch

W8A8 = "w8a8"
"""The precision with 8-bit rows."""

UNFINISHED = 3
"""Exit status when --minutes ended before all steps were done."""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "tune", "find the fastest kernel settings of this GPU", run)
    parser.add_argument("--batches", nargs="+", type=int, default=(1,), help="chunks denoised at once")
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=WAYS,
        help="kinds of kernels to time; with fewer than all, the table in use is what they must beat",
    )  # fmt: skip
    parser.add_argument(
        "--weights", nargs="+", choices=("fp8", "int8", "int4", W8A8), default=(),
        help="kinds of quantised weights whose products are timed, too; w8a8 also has 8-bit rows "
        "(default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--only-weights", action="store_true",
        help="time the products of --weights alone, and leave all else as the table in use has it",
    )  # fmt: skip
    parser.add_argument(
        "--sms", type=int, metavar="N",
        help="time on a partition of N multiprocessors, or the next larger that the GPU has, for an engine "
        "with partition N:M or M:N (default: on all)",
    )  # fmt: skip
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="longest time to take (default: %(default)s)"
    )
    parser.add_argument(
        "--gib", type=float, default=6.0,
        help="most of the GPU's memory to take; kernels that need more are left as they were "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--out", type=output_file, help="file to write (default: the user's cache)")


def run(arguments: argparse.Namespace) -> int:
    """Time, print and write. Returns 0, or UNFINISHED if the time ended first.

    Raises RuntimeError without a CUDA device or triton, or if --sms cannot be had on this GPU; ValueError for
    a number out of range.
    """
    import torch

    from vla_accel_ros.engine.lanes.partitions import of_size
    from vla_accel_ros.kernels.ops import ops_for
    from vla_accel_ros.kernels.tuning import Table, cache_file, load_table
    from vla_accel_ros.models.config import PI05
    from vla_accel_ros.tools.tune.choose import LAYER, rows_steps, small_steps, starting_table, steps
    from vla_accel_ros.tools.tune.steps import Tuning

    if not torch.cuda.is_available():
        raise RuntimeError("kernels are tuned on a GPU, and torch sees no CUDA device: run it where one is.")
    device = torch.device("cuda", torch.cuda.current_device())
    ops_for(device)
    for name in ("minutes", "gib"):
        if not 0 < getattr(arguments, name) < float("inf"):
            raise ValueError(f"--{name} is {getattr(arguments, name)}; give more than 0.")
    bound_memory(device, arguments.gib)
    if arguments.only_weights and not arguments.weights:
        raise ValueError("--only-weights times the products of --weights alone; give some of them, too.")
    ways, say = tuple(arguments.ways), partial(print, flush=True)
    until_s = time.monotonic() + 60.0 * arguments.minutes
    sms, on = None, None
    if arguments.sms is not None:
        part = of_size(device, arguments.sms)
        sms, on = part.sms, part.streams[0]
        say(f"on {sms} multiprocessors")
    out = arguments.out or cache_file(device, sms)
    used = load_table(device, sms)
    about = {
        "batches": list(arguments.batches),
        "ways": list(ways),
        "weights": list(arguments.weights),
        "only_weights": arguments.only_weights,
        "sms": sms,
    }
    table = starting_table(Table(used.gpu, source="vla tune"), ways, used, arguments.only_weights)
    tuning = Tuning(table, used, out, about, say)
    if resumed := tuning.resume():
        say(f"{out}: {resumed} steps were done before; continuing with the next")
    with torch.cuda.stream(on):
        batches = tuple(arguments.batches)
        kinds = [
            rows_steps(PI05, device, batches, tuning)
            if kind == W8A8
            else small_steps(PI05, device, kind, tuning)
            for kind in arguments.weights
        ]
        whole = () if arguments.only_weights else steps(PI05, device, batches, tuning, ways)
        finished = tuning.run(chain(whole, *kinds), until_s)
    for label, gain in tuning.done.items():
        if gain is not None and label != LAYER:
            say(f"{label:44} {gain}")
    if (layer := tuning.done.get(LAYER)) is not None:
        say(f"{LAYER}: {layer}")
    print(f"written: {out}")
    if not finished:
        say(f"{arguments.minutes:g} minutes are over; run it again to continue.")
    return 0 if finished else UNFINISHED


def bound_memory(device: torch.device, gib: float) -> None:
    """Limit this process to `gib` of the GPU's memory."""
    import torch

    share = min(1.0, gib * 2**30 / torch.cuda.get_device_properties(device).total_memory)
    torch.cuda.set_per_process_memory_fraction(share, device)
