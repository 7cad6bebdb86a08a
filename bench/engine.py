"""How fast images become actions on this GPU, the roofline, and how plain torch compares.

    python bench/engine.py [--quick] [--kinds pi0 pi05] [--views 1 2 3]

For pi0 and pi0.5 at 1, 2 and 3 views: the roofline; our stages, each and together; plain torch, eager and in
one CUDA graph; kernels per call, bytes allocated, and the error of the actions against float32. First every
kernel is compared with its reference at these sizes; if one is wrong, the command ends with status 1, because
its figures would be worthless.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from run import Bench, Given, Row, main
from shared import roofline
from shared.models import KINDS, config_of
from shared.subjects import plain, relative
from shared.timing import allocated_by, kernels_of, summary
from vla_accel_ros.kernels.ops import TritonOps
from vla_accel_ros.tools.bench.subjects import Ours, random_inputs, random_model
from vla_accel_ros.tools.tune import pieces
from vla_accel_ros.tools.tune.pieces import NEAR, Body, times_ms

STEPS = 10


def options(add: Callable[..., Any]) -> None:
    add("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    add("--views", nargs="+", type=int, default=(1, 2, 3), help="numbers of cameras")
    add("--prompt", type=int, default=20, help="tokens of the prompt (default: %(default)s)")
    add("--runs", type=int, default=200, help="replays of each (default: %(default)s)")
    add("--quick", action="store_true", help="2 views, fewer replays: under four minutes")


def measure(given: Given) -> Iterator[Row | None]:
    """A row for each model and number of views. Raises RuntimeError if a kernel is wrong."""
    if given.quick:
        given.views, given.runs = [2], min(given.runs, 100)
    if given.small:  # the kernels need a GPU
        yield from (row_of(kind, views, given) for kind in given.kinds for views in given.views)
        return
    checks = given.document["kernels"] = [c for kind in given.kinds for c in checked(kind, given.device)]
    yield None
    failures = [
        f"{name} of {check['kind']} at batch {check['batch']} ({row['error']:.1e})"
        for check in checks
        for name, row in check["kernels"].items()
        if not row["error"] <= NEAR
    ]
    if failures:
        raise RuntimeError(f"wrong results, so nothing was measured: {', '.join(failures)}.")
    for kind in given.kinds:
        yield from cases(kind, given)


def row_of(kind: str, views: int, given: Given) -> Row:
    """A case with its roofline."""
    times = roofline.stages(KINDS[kind], views, given.prompt, STEPS)
    return {"kind": kind, "views": views, "roofline_ms": {name: round(ms, 3) for name, ms in times.items()}}


def checked(kind: str, device: torch.device) -> list[Row]:
    """The error of each kernel against its reference, and its time beside the roofline."""
    config, checks = config_of(kind, False), []
    for views, batch in ((2, 1), (3, 4)):
        keys = views * config.vision.tokens + 20
        ops = TritonOps(device)
        rows: dict[str, dict[str, float]] = {
            name: {"error": error} for name, error in pieces.errors(config, keys, device, batch, ops)
        }
        if batch == 1:
            roofs = roofline.kernels_us(config, views, 20)
            with torch.inference_mode():
                for piece in pieces.pieces(config, keys, device, batch):
                    us = pieces.chain_us(getattr(ops, piece.kernel), piece, device)
                    rows[piece.name] |= {"us": round(us, 2), "roofline_us": round(roofs[piece.name], 2)}
        checks.append({"kind": kind, "keys": keys, "batch": batch, "kernels": rows})
    return checks


def cases(kind: str, given: Given) -> Iterator[Row]:
    """Measure each number of views."""
    config, device = config_of(kind, False), given.device
    inputs = {views: random_inputs(config, views, given.prompt, device) for views in given.views}
    model = random_model(config, device)
    with torch.inference_mode():
        exact = {views: plain(model, frames)().clone() for views, frames in inputs.items()}
    model.set_precision(torch.bfloat16)
    torch.cuda.empty_cache()
    for views, frames in inputs.items():
        case = row_of(kind, views, given)
        with torch.inference_mode():
            eager = plain(model, frames)
            error = relative(eager(), exact[views])
            times = times_ms(eager, max(5, given.runs // 10))
            case["plain eager"] = {**summary(times), "error": error, "kernels": kernels_of(eager)}
            graph = Body(eager, device)
            case["plain graph"] = {**summary(times_ms(graph.run, given.runs)), "error": error}
            del graph
        ours = Ours(model, frames)
        parts = ours.parts()
        case["ours"] = {name: summary(times_ms(part, given.runs)) for name, part in parts.items()}
        case["ours"] |= {
            "error": relative(ours.actions, exact[views]),
            "kernels": kernels_of(parts["total"]),
            "allocated_bytes": allocated_by(parts["total"]),
        }
        del ours, parts
        torch.cuda.empty_cache()
        yield case


BENCH = Bench(
    "engine", measure, options, about={"steps": STEPS}, gpu=True, smoke="--small --kinds pi0 --views 2"
)

if __name__ == "__main__":
    sys.exit(main(BENCH))
