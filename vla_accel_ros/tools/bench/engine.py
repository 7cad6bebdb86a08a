"""`vla bench engine`: how fast images become actions on this GPU, what bounds it, and what else there is.

For pi0 and pi0.5 at 1, 2 and 3 views: the roofline, our stages (each and all), plain torch eagerly and in one
CUDA graph, torch.compile within a time budget; kernels per call, bytes allocated, and the error of the
actions against float32. First every kernel is compared with its twin at these sizes: figures of a wrong
kernel would be worth nothing, so the command ends there with status 1 if one is.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_accel_ros.tools.bench.report import chart, table
from vla_accel_ros.tools.options import subcommand
from vla_accel_ros.tools.provenance import provenance

if TYPE_CHECKING:
    import torch

KINDS = ("pi0", "pi05")
STEPS = 10


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subject."""
    parser = subcommand(
        subparsers, "engine", "images to actions on a GPU, beside other ways and the roofline", run
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--views", nargs="+", type=int, default=(1, 2, 3), help="numbers of cameras")
    parser.add_argument("--prompt", type=int, default=20, help="tokens of the prompt (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=200, help="replays of each (default: %(default)s)")
    parser.add_argument(
        "--compile-s", type=float, default=300.0, help="time for torch.compile in each case; 0: leave it out"
    )
    parser.add_argument(
        "--quick", action="store_true", help="2 views, fewer replays, no torch.compile: under four minutes"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("bench/results"), help="folder of engine.json and engine.png"
    )


def run(arguments: argparse.Namespace) -> int:
    """Check, measure, print, write. Raises RuntimeError without a CUDA device."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("the engine is measured on a GPU, and torch sees no CUDA device here.")
    if arguments.quick:
        arguments.views, arguments.runs, arguments.compile_s = [2], min(arguments.runs, 100), 0.0
    device = torch.device("cuda")
    document: dict[str, Any] = {
        "steps": STEPS,
        "prompt": arguments.prompt,
        "runs": arguments.runs,
        **provenance(),
    }
    document["kernels"] = [check for kind in arguments.kinds for check in _checks(kind, device)]
    document["cases"] = []
    wrong = _wrong(document["kernels"])
    if not wrong:
        for kind in arguments.kinds:
            document["cases"] += _cases(kind, arguments, device)
    print(table(document), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "engine.json").write_text(json.dumps(document, indent=1) + "\n")
    if wrong:
        raise RuntimeError(f"wrong results, so nothing was measured: {', '.join(wrong)}.")
    chart(document, arguments.out / "engine.png")
    return 0


def _wrong(checks: list[dict[str, Any]]) -> list[str]:
    from vla_accel_ros.tools.bench.pieces import NEAR

    return [
        f"{name} of {check['kind']} at batch {check['batch']} ({row['error']:.1e})"
        for check in checks
        for name, row in check["kernels"].items()
        if not row["error"] <= NEAR
    ]


def _checks(kind: str, device: torch.device) -> list[dict[str, Any]]:
    from vla_accel_ros.kernels.ops import TritonOps
    from vla_accel_ros.tools.bench import pieces

    config, found = _config(kind), []
    for views, batch in ((2, 1), (3, 4)):
        keys = views * config.vision.tokens + 20
        ops = TritonOps(device)
        rows: dict[str, dict[str, float]] = {
            name: {"error": error} for name, error in pieces.errors(config, keys, device, batch, ops)
        }
        if batch == 1:
            roofs = pieces.predicted_us(config, views, 20)
            for name, us in pieces.times_us(config, keys, device).items():
                rows[name] |= {"us": round(us, 2), "roofline_us": round(roofs[name], 2)}
        found.append({"kind": kind, "keys": keys, "batch": batch, "kernels": rows})
    return found


def _cases(kind: str, arguments: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    import torch

    from vla_accel_ros.tools.bench import compiled, roofline
    from vla_accel_ros.tools.bench.subjects import Ours, plain, random_inputs, random_model, relative
    from vla_accel_ros.tools.bench.timing import Body, allocated_by, kernels_of, summary, times_ms

    config = _config(kind)
    inputs = {views: random_inputs(config, views, arguments.prompt, device) for views in arguments.views}
    model = random_model(config, device)
    with torch.inference_mode():
        exact = {views: plain(model, given)().clone() for views, given in inputs.items()}
    model.set_precision(torch.bfloat16)
    torch.cuda.empty_cache()
    cases = []
    for views, given in inputs.items():
        case: dict[str, Any] = {"kind": kind, "views": views}
        case["roofline_ms"] = {
            name: round(time, 3)
            for name, time in roofline.stages(config, views, arguments.prompt, STEPS).items()
        }
        with torch.inference_mode():
            eager = plain(model, given)
            error = relative(eager(), exact[views])
            times = times_ms(eager, max(5, arguments.runs // 10))
            case["plain eager"] = {**summary(times), "error": error, "kernels": kernels_of(eager)}
            graph = Body(eager, device)
            case["plain graph"] = {**summary(times_ms(graph.run, arguments.runs)), "error": error}
            del graph
        ours = Ours(model, given)
        parts = ours.parts()
        case["ours"] = {name: summary(times_ms(part, arguments.runs)) for name, part in parts.items()}
        case["ours"] |= {
            "error": relative(ours.actions, exact[views]),
            "kernels": kernels_of(parts["total"]),
            "allocated_bytes": allocated_by(parts["total"]),
        }
        del ours, parts
        torch.cuda.empty_cache()
        if arguments.compile_s:
            case["compiled"] = compiled.measure(
                kind, views, arguments.prompt, arguments.runs, arguments.compile_s
            )
        cases.append(case)
    return cases


def _config(kind: str) -> Any:
    from vla_accel_ros.models.config import PI0, PI05

    return PI0 if kind == "pi0" else PI05
