"""Compares predictions of `vla plan` with measurements.

    python bench/plan.py [--recorded] [--kinds pi0 pi05 openvla smolvla] [--views 1 2 3] [--small]

Without a GPU, or with --recorded: against figures in bench/results/ and published figures of other engines;
plan.json. On a GPU: micro-benchmarks of memory, products and launches for a minute, which give a device file
(device.yaml beside the results); then the engine's stages of the models at 1 to 3 views in bfloat16 and 8
bits, against a plan from that file and from the shipped one; memory against the allocator's peak;
plan_GPU.json. The shipped device is the one with the GPU's name: the H100's has the H200's figures scaled by
public data. Micro-benchmarks take a third of --seconds; then exact stages of all models come before those in
8 bits; what would begin too late is left out and named. --tuned FILE prints the products of 8-bit rows that
`vla tune` timed, in the form of a device file.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from predicted import recorded
from run import Bench, Given, Row, main
from vla_accel_ros.models.config import PI05
from vla_accel_ros.planning.device import load, named_like
from vla_accel_ros.planning.measure import to_yaml
from vla_accel_ros.planning.operations import GATED, ROWS
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.tools.bench.planned import counted, table
from vla_accel_ros.tools.bench.stages import against_plans
from vla_accel_ros.tools.bench.tiny import tiny_models
from vla_accel_ros.tools.tune.row_pieces import products


def options(add: Callable[..., Any]) -> None:
    add("--recorded", action="store_true", help="against what is measured already, also on a GPU")
    add("--tuned", type=Path, metavar="FILE", help="print what `vla tune` timed for a device file")
    add("--kinds", nargs="+", choices=tuple(tiny_models()), default=tuple(tiny_models()))
    add("--views", nargs="+", type=int, default=(1, 2, 3))
    add("--prompt", type=int, default=20, help="tokens (default: %(default)s)")
    add("--runs", type=int, default=50, help="replays of each (default: %(default)s)")
    add("--device", help="shipped device that is compared, too (default: the one like this GPU, or h200)")
    add("--seconds", type=float, default=230.0, help="after which nothing is begun (default: %(default)g)")


def measure(given: Given) -> Iterator[None]:
    """Compare."""
    if given.tuned:
        given.file = None
        print("\n".join(shapes(json.loads(given.tuned.read_text()))))
        return
    if given.small or (torch.cuda.is_available() and not given.recorded):
        on_device(given)
    else:
        rows = recorded.rows()
        given.document |= {"rows": rows, **counted(rows)}
    print(table(given.document["rows"]), flush=True)
    yield None


def on_device(given: Given) -> None:
    """Against what this GPU takes."""
    began_s, small = time.monotonic(), given.small
    title = "" if small else torch.cuda.get_device_name()
    like = named_like(title)
    models = tiny_models() if small else {kind: MODELS[kind] for kind in given.kinds}
    device, compared = against_plans(
        models,
        load(given.device or like or "h200"),
        torch.device("cpu" if small else "cuda"),
        given.views,
        ["exact"] if small else ["exact", "fp8", "int8"],
        4 if small else given.prompt,
        given.runs,
        given.seconds,
    )
    for kind, reason in compared["left_out"].items():
        print(f"left out: {kind}, as {reason}")
    for row in compared["memory"]:
        used_gb, case = row["measured_bytes"] / 1e9, f"{row['model']} {row['views']} views {row['precision']}"
        print(f"memory {case}: {used_gb:.2f} GB, plan {row['off_percent']:+.1f} %")
    given.document |= {**compared, "took_s": round(time.monotonic() - began_s, 1)}
    if given.file is not None:
        name = "small" if small else like or "_".join(re.findall(r"[a-z0-9]+", title.lower()))
        given.file = given.file.with_name(f"plan_{name}.json")
        if not small:
            given.file.with_name("device.yaml").write_text(to_yaml(device, title, "Made by bench/plan.py."))


def shapes(tuned: Row) -> Iterator[str]:
    """The products of 8-bit rows that `vla tune --weights w8a8` timed, as `gemm` in a device
    file."""
    by_name = {product.name: product for product in products(PI05, (2, 1, 3), tuned["about"]["batches"])}
    for label, gain in tuned["done"].items():
        name, _, end = label.rpartition(", ")
        if end != "w8a8 rows" or gain is None:
            continue
        product = by_name[name]
        gated = product.finish == "gated"
        dtype = f"int8 {GATED if gated else ROWS}"
        columns = product.columns * (2 if gated else 1)
        yield f"  - [{product.rows}, {columns}, {product.inner}, {dtype}, {round(gain['us'], 2):g}]"


BENCH = Bench("plan", measure, options, rows="rows", small=True, smoke="--small --views 1 --runs 2")

if __name__ == "__main__":
    sys.exit(main(BENCH))
