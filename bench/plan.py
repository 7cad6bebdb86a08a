"""What `vla plan` predicts against what is measured.

    python bench/plan.py [--recorded] [--kinds pi0 pi05 openvla smolvla] [--views 1 2 3] [--small]

Without a GPU, or with --recorded: against the figures that are in bench/results/ already and what others
published of their engines; OUT/plan.json. On a GPU: micro-benchmarks of memory, products and launches for a
minute, from which a device file is made (OUT/device.yaml); then the engine's stages of the models at 1 to 3
views in bfloat16 and 8 bits, against a plan from that file and from the shipped one; memory against the
allocator's peak; OUT/plan_GPU.json, and the rows as a table. Four minutes on an H200 at most: models that
would begin later are left out, and named. --small tries all of it with tiny models on a CPU, whose times mean
nothing; nothing is written then without --out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from full_size.figures import write
from predicted import recorded
from vla_accel_ros.planning.device import Device, load
from vla_accel_ros.planning.families.find import Sizes
from vla_accel_ros.planning.families.work import Work
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.tools.provenance import provenance

RESULTS = Path("bench/results")
LEAST_S = {"pi0": 35.0, "pi05": 35.0, "openvla": 25.0, "smolvla": 20.0}
"""Seconds that a model's stages are known or guessed to take."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--recorded", action="store_true", help="against what is measured already, also on a GPU")
    add("--small", action="store_true", help="tiny models on the CPU, to try the command")
    add("--kinds", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    add("--views", nargs="+", type=int, default=(1, 2, 3))
    add("--prompt", type=int, default=20, help="tokens (default: %(default)s)")
    add("--runs", type=int, default=50, help="replays of each (default: %(default)s)")
    add("--device", default="h200", help="shipped device that is compared, too (default: %(default)s)")
    add("--seconds", type=float, default=230.0, help="after which no model is begun (default: %(default)g)")
    add("--out", type=Path, help="folder (default: bench/results)")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, write."""
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

    from predicted.stages import measured
    from vla_accel_ros.planning.measure import measure, shapes, to_yaml

    began, small = time.monotonic(), arguments.small
    device = torch.device("cpu" if small else "cuda")
    models = _small_models() if small else {kind: MODELS[kind] for kind in arguments.kinds}
    base = load(arguments.device)
    dtypes = ("bf16", "int8", "fp8")
    wanted = shapes(models.values(), arguments.views, dtypes, 4 if small else arguments.prompt)
    made = measure(base, device, wanted, 60.0, print, *((64, 1) if small else ()))
    made = replace(made, name="measured", title="this machine")
    if small:
        made = replace(made, gemm=())
    elif out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "device.yaml").write_text(
            to_yaml(made, torch.cuda.get_device_name(), "Made by bench/plan.py.")
        )
    rows: list[dict[str, Any]] = []
    memory: list[dict[str, Any]] = []
    left = []
    for kind, sizes in models.items():
        if time.monotonic() - began + LEAST_S[kind] > arguments.seconds:
            left.append(kind)
            continue
        precisions = ["exact"] if small else ["exact", "fp8", "int8"]
        prompt = 4 if small else arguments.prompt
        for case in measured(sizes, list(arguments.views), precisions, prompt, device, arguments.runs):
            for chosen in (made, base):
                rows += compared(sizes, chosen, case, prompt)
            if case.get("allocated_bytes"):
                memory.append(_memory(sizes, base, case))
    print(table(rows), flush=True)
    if left:
        print(f"left out for time: {', '.join(left)}")
    document = {**provenance(), "runs": arguments.runs, "rows": rows, "memory": memory, "left_out": left}
    if out is not None:
        name = "small" if small else torch.cuda.get_device_name().split()[-1].lower()
        write(
            out / f"plan_{name}.json",
            {**document, **counted(rows), "took_s": round(time.monotonic() - began, 1)},
        )
    return 0


def compared(sizes: Sizes, device: Device, case: dict[str, Any], prompt: int) -> list[dict[str, Any]]:
    """A row for each stage of a case; `frame` is encode and prefill."""
    plan = make_plan(sizes, device, Work(case["views"], prompt, precision=case["precision"]))
    found = []
    for stage, ms in case["ms"].items():
        if stage == "frame":
            both = [plan.stages[name].time for name in ("encode", "prefill")]
            joined = replace(
                both[0],
                us=sum(t.us for t in both),
                low_us=sum(t.low_us for t in both),
                high_us=sum(t.high_us for t in both),
            )
            whole = replace(plan, stages={"prefill": replace(plan.stages["prefill"], time=joined)})
            found.append({**recorded.row(whole, "prefill", ms, "here"), "stage": "frame"})
        else:
            found.append(recorded.row(plan, stage, ms, "here"))
    return found


def _memory(sizes: Sizes, device: Device, case: dict[str, Any]) -> dict[str, Any]:
    work = Work(case["views"], precision=case["precision"])
    predicted = make_plan(sizes, device, work, slots=case["slots"]).memory.allocated
    off = predicted / case["allocated_bytes"] - 1
    return {
        "model": sizes.kind,
        "views": case["views"],
        "precision": case["precision"],
        "measured_bytes": case["allocated_bytes"],
        "predicted_bytes": predicted,
        "off_percent": round(100 * off, 2),
    }


def _small_models() -> dict[str, Sizes]:
    from grids.sizes import config_of, small, small_smolvla

    return {
        "pi0": config_of("pi0", True),
        "pi05": config_of("pi05", True),
        "openvla": small().actionflow_model,
        "smolvla": small_smolvla(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """One line a row."""
    lines = [
        f"{'device':13}{'model':9}{'views':>5}{'batch':>6} {'precision':10}{'stage':9}"
        f"{'measured':>9}{'plan':>8}{'off %':>7}"
    ]
    for r in rows:
        why = "" if r["met"] else f"  {r['reason']}"
        lines.append(
            f"{r['device']:13}{r['model']:9}{r['views']:5d}{r['batch']:6d} {r['precision']:10}{r['stage']:9}"
            f"{r['measured_ms']:9.2f}{r['predicted_ms']:8.2f}{r['off_percent']:+7.1f}{why}"
        )
    return "\n".join(lines)


def counted(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many rows meet their aims, of whole engines and of all."""
    whole = [r for r in rows if r["stage"] == "whole"]
    return {
        "met": sum(r["met"] for r in rows),
        "of": len(rows),
        "whole_met": sum(r["met"] for r in whole),
        "whole_of": len(whole),
    }


if __name__ == "__main__":
    sys.exit(main())
