"""How fast images become actions on this GPU, the roofline, and how alternatives compare.

    python bench/engine.py [--quick] [--kinds pi0 pi05] [--views 1 2 3]

For pi0 and pi0.5 at 1, 2 and 3 views: the roofline; our stages, each and together; plain torch, eager and in
one CUDA graph; torch.compile within a time budget; kernels per call, bytes allocated, and the error of the
actions against float32. First every kernel is compared with its reference at these sizes; if one is wrong,
the command ends with status 1, because its figures would be worthless. torch.compile takes minutes:
--only-compile adds its figures, with those they are compared with, to the file of an earlier run. Prints a
table and writes bench/results/engine.json and engine.png.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from full_size.figures import write
from full_size.report import chart, table
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.tools.provenance import provenance

if TYPE_CHECKING:
    import torch

    from full_size.compiled import Case

KINDS = ("pi0", "pi05")
STEPS = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--views", nargs="+", type=int, default=(1, 2, 3), help="numbers of cameras")
    parser.add_argument("--prompt", type=int, default=20, help="tokens of the prompt (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=200, help="replays of each (default: %(default)s)")
    parser.add_argument(
        "--compile-s", type=float, default=300.0, help="time for torch.compile in each case; 0: leave it out"
    )
    parser.add_argument(
        "--only-compile",
        action="store_true",
        help="measure torch.compile alone, a case on each GPU at once, and put it into engine.json",
    )
    parser.add_argument(
        "--quick", action="store_true", help="2 views, fewer replays, no torch.compile: under four minutes"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("bench/results"), help="folder of engine.json and engine.png"
    )
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Check, measure, print, write. Raises RuntimeError without a CUDA device."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("the engine is measured on a GPU, and torch sees no CUDA device here.")
    if arguments.only_compile:
        return _only_compile(arguments)
    if arguments.quick:
        arguments.views, arguments.runs, arguments.compile_s = [2], min(arguments.runs, 100), 0.0
    device = torch.device("cuda")
    document = _document(arguments)
    document["kernels"] = [check for kind in arguments.kinds for check in _checks(kind, device)]
    document["cases"] = []
    wrong = _wrong(document["kernels"])
    if not wrong:
        for kind in arguments.kinds:
            for case in _cases(kind, arguments, device):
                document["cases"].append(case)
                write(arguments.out / "engine.json", document)  # an interrupted run keeps its results
                total = case["ours"]["total"]["p50_ms"]
                print(f"{kind}, {case['views']} views: ours {total:.2f} ms", flush=True)
    print(table(document), flush=True)
    write(arguments.out / "engine.json", document)
    if wrong:
        raise RuntimeError(f"wrong results, so nothing was measured: {', '.join(wrong)}.")
    chart(document, arguments.out / "engine.png")
    return 0


def _only_compile(arguments: argparse.Namespace) -> int:
    import torch

    from full_size import compiled
    from full_size.gpu import gpu_id

    file = arguments.out / "engine.json"
    document = json.loads(file.read_text()) if file.exists() else _document(arguments)
    gpus = [gpu_id(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]
    cases = [
        compiled.Case(kind, views, arguments.prompt, arguments.runs)
        for kind in arguments.kinds
        for views in arguments.views
    ]
    for case, figures in compiled.measure_all(cases, [gpu for gpu in gpus if gpu], arguments.compile_s):
        put_compiled(document, case, {**figures, **provenance()})
        print(f"{case.kind}, {case.views} views: {json.dumps(figures)}", flush=True)
        write(arguments.out / "engine.json", document)
    print(table(document), flush=True)
    chart(document, arguments.out / "engine.png")
    return 0


def put_compiled(document: dict[str, Any], case: Case, figures: dict[str, Any]) -> None:
    """Put the figures into the case's row, or into a new one. Raises ValueError for figures of another
    prompt."""
    if document["prompt"] != case.prompt:
        raise ValueError(
            f"engine.json has prompts of {document['prompt']} tokens, not {case.prompt}: give --prompt "
            f"{document['prompt']}, or another folder by --out."
        )
    rows = [row for row in document["cases"] if (row["kind"], row["views"]) == (case.kind, case.views)]
    if not rows:
        rows = [_row(case.kind, case.views, case.prompt)]
        document["cases"] += rows
    rows[0]["compiled"] = figures


def _document(arguments: argparse.Namespace) -> dict[str, Any]:
    counts = {"steps": STEPS, "prompt": arguments.prompt, "runs": arguments.runs}
    return {**counts, **provenance(), "kernels": [], "cases": []}


def _row(kind: str, views: int, prompt: int) -> dict[str, Any]:
    from full_size import roofline

    times = roofline.stages(_config(kind), views, prompt, STEPS)
    return {"kind": kind, "views": views, "roofline_ms": {name: round(ms, 3) for name, ms in times.items()}}


def _wrong(checks: list[dict[str, Any]]) -> list[str]:
    from vla_accel_ros.tools.tune.pieces import NEAR

    return [
        f"{name} of {check['kind']} at batch {check['batch']} ({row['error']:.1e})"
        for check in checks
        for name, row in check["kernels"].items()
        if not row["error"] <= NEAR
    ]


def _checks(kind: str, device: torch.device) -> list[dict[str, Any]]:
    from full_size import roofline
    from vla_accel_ros.kernels.ops import TritonOps
    from vla_accel_ros.tools.tune import pieces

    config, found = _config(kind), []
    for views, batch in ((2, 1), (3, 4)):
        keys = views * config.vision.tokens + 20
        ops = TritonOps(device)
        rows: dict[str, dict[str, float]] = {
            name: {"error": error} for name, error in pieces.errors(config, keys, device, batch, ops)
        }
        if batch == 1:
            roofs = roofline.kernels_us(config, views, 20)
            for name, us in pieces.times_us(config, keys, device).items():
                rows[name] |= {"us": round(us, 2), "roofline_us": round(roofs[name], 2)}
        found.append({"kind": kind, "keys": keys, "batch": batch, "kernels": rows})
    return found


def _cases(kind: str, arguments: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    import torch

    from full_size import compiled
    from full_size.figures import allocated_by, kernels_of, summary
    from vla_accel_ros.tools.bench.subjects import Ours, plain, random_inputs, random_model, relative
    from vla_accel_ros.tools.tune.pieces import Body, times_ms

    config = _config(kind)
    inputs = {views: random_inputs(config, views, arguments.prompt, device) for views in arguments.views}
    model = random_model(config, device)
    with torch.inference_mode():
        exact = {views: plain(model, given)().clone() for views, given in inputs.items()}
    model.set_precision(torch.bfloat16)
    torch.cuda.empty_cache()
    for views, given in inputs.items():
        case = _row(kind, views, arguments.prompt)
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
            one = compiled.Case(kind, views, arguments.prompt, arguments.runs)
            case["compiled"] = compiled.measure(one, arguments.compile_s)
        yield case


def _config(kind: str) -> Any:
    from vla_accel_ros.models.config import PI0, PI05

    return PI0 if kind == "pi0" else PI05


if __name__ == "__main__":
    sys.exit(main())
