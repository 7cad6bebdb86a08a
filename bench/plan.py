"""Compares predictions of `vla plan` with measurements.

    python bench/plan.py [--recorded] [--kinds pi0 pi05 openvla smolvla] [--views 1 2 3] [--small]

Without a GPU, or with --recorded: against figures in bench/results/ and published figures of other engines;
OUT/plan.json. On a GPU: micro-benchmarks of memory, products and launches for a minute, which give a device
file (OUT/device.yaml); then the engine's stages of the models at 1 to 3 views in bfloat16 and 8 bits, against
a plan from that file and from the shipped one; memory against the allocator's peak; OUT/plan_GPU.json, and
the rows as a table. The shipped device is the one with the GPU's name: the H100's has the H200's figures
scaled by public data. Micro-benchmarks take a third of --seconds; then exact stages of all models come before
those in 8 bits; what would begin too late is left out and named. --small tries everything with tiny models on
a CPU, whose times mean nothing, and writes nothing without --out. --page FILE prints the rows of such a file
in the form of docs/lab/plan.md; --tuned FILE prints the products of 8-bit rows that `vla tune` timed, in the
form of a device file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from full_size.figures import write
from predicted import recorded
from predicted.page import page
from vla_accel_ros.planning.device import load, named_like
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.tools.bench.planned import counted, table
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.tools.provenance import provenance

RESULTS = Path("bench/results")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--recorded", action="store_true", help="against what is measured already, also on a GPU")
    add("--page", type=Path, metavar="FILE", help="print the rows of a plan_GPU.json for docs/lab/plan.md")
    add("--tuned", type=Path, metavar="FILE", help="print what `vla tune` timed for a device file")
    add("--small", action="store_true", help="tiny models on the CPU, to try the command")
    add("--kinds", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    add("--views", nargs="+", type=int, default=(1, 2, 3))
    add("--prompt", type=int, default=20, help="tokens (default: %(default)s)")
    add("--runs", type=int, default=50, help="replays of each (default: %(default)s)")
    add("--device", help="shipped device that is compared, too (default: the one like this GPU, or h200)")
    add("--seconds", type=float, default=230.0, help="after which nothing is begun (default: %(default)g)")
    add("--out", type=Path, help="folder (default: bench/results)")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, write."""
    if arguments.page:
        print(page(json.loads(arguments.page.read_text())["rows"], arguments.page.stem))
        return 0
    if arguments.tuned:
        from predicted import tuned

        print("\n".join(tuned.lines(json.loads(arguments.tuned.read_text()))))
        return 0
    if arguments.small:
        return _measured(arguments, arguments.out)
    if not arguments.recorded and _gpu():
        return _measured(arguments, arguments.out or RESULTS)
    rows = recorded.rows()
    print(table(rows), flush=True)
    write((arguments.out or RESULTS) / "plan.json", {**provenance(), "rows": rows, **counted(rows)})
    return 0


def _gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _measured(arguments: argparse.Namespace, out: Path | None) -> int:
    import torch

    from vla_accel_ros.planning.measure import to_yaml
    from vla_accel_ros.tools.bench.stages import against_plans
    from vla_accel_ros.tools.bench.tiny import tiny_models

    began, small = time.monotonic(), arguments.small
    title = "" if small else torch.cuda.get_device_name()
    like = named_like(title)
    models = tiny_models() if small else {kind: MODELS[kind] for kind in arguments.kinds}
    made, found = against_plans(
        models,
        load(arguments.device or like or "h200"),
        torch.device("cpu" if small else "cuda"),
        arguments.views,
        ["exact"] if small else ["exact", "fp8", "int8"],
        4 if small else arguments.prompt,
        arguments.runs,
        arguments.seconds,
    )
    print(table(found["rows"]), flush=True)
    for kind, why in found["left_out"].items():
        print(f"left out: {kind}, as {why}")
    for row in found["memory"]:
        held, case = row["measured_bytes"] / 1e9, f"{row['model']} {row['views']} views {row['precision']}"
        print(f"memory {case}: {held:.2f} GB, plan {row['off_percent']:+.1f} %")
    if out is not None:
        name = "small" if small else like or "_".join(re.findall(r"[a-z0-9]+", title.lower()))
        took_s = round(time.monotonic() - began, 1)
        write(out / f"plan_{name}.json", {**provenance(), **found, "took_s": took_s})
        if not small:
            (out / "device.yaml").write_text(to_yaml(made, title, "Made by bench/plan.py."))
    return 0


if __name__ == "__main__":
    sys.exit(main())
