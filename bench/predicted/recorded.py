"""Plans against existing figures: those of bench/results/ and published ones of other engines.

No figure here was used to make a device file, except those that a row's reason or a docstring names.
Published rows are of other engines with their own kernels: the comparison shows whether a plan from public
rates comes near them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vla_accel_ros.planning.device import Device, load
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.work import Work
from vla_accel_ros.tools.bench.planned import compared, row

RESULTS = Path(__file__).parents[1] / "results"
PUBLISHED_AIM = 0.15
FP8 = "the rate of fp8 products is the datasheet's ratio, not measured; other stages were slower in that run"
PAIR = "blocks of further chunks are planned as whole rounds after the first; some fit beside it"
CACHE = "probably its 72 MB of L2, which keep what the plan has go through memory"
FEW = "products of so few rows have not been measured"
VIEWS = "their time hardly grows with views: what does not grow is twice what is planned"
FOUR = "the rate in 4 bits is the datasheet's ratio, and what is between products is planned in bfloat16"


class Published(NamedTuple):
    """A row of somebody else: which device, model, views, precision, chunk, prompt, milliseconds."""

    device: str
    model: str
    views: int
    precision: str
    ms: float
    by: str
    chunk: int | None = None
    prompt: int = 20
    reason: str = ""


PAPER = {"chunk": 63, "prompt": 1, "by": "realtime-VLA paper"}
PUBLISHED = (
    Published("orin-agx-64", "pi05", 2, "exact", 165.7, "ApxInf"),
    Published("orin-agx-64", "pi05", 2, "all-int8", 124.0, "FlashRT, ApxInf"),
    Published("thor", "pi05", 2, "all-fp8", 41.2, "FlashRT"),
    Published("thor", "pi05", 1, "all-fp4", 23.0, "FlashRT", reason=FOUR),
    Published("thor", "pi05", 2, "all-fp4", 27.2, "FlashRT", reason=FOUR),
    Published("thor", "pi05", 3, "all-fp4", 31.7, "FlashRT", reason=FOUR),
    *(
        Published("rtx-4090", "pi0", views, "exact", ms, "realtime-VLA paper", 63, 1, CACHE)
        for views, ms in ((1, 20.0), (2, 27.3), (3, 36.8))
    ),
    Published("rtx-4090", "pi05", 2, "exact", 31.4, "ApxInf", reason=CACHE),
    *(
        Published("rtx-5090", "pi0", views, "exact", ms, "realtime-VLA paper", 63, 1)
        for views, ms in ((1, 17.6), (2, 24.0), (3, 31.9))
    ),
    *(
        Published("rtx-5090", "pi05", views, "all-fp8", ms, "FlashRT", reason=VIEWS)
        for views, ms in ((1, 18.4), (2, 21.2), (3, 24.5))
    ),
)


def rows() -> list[dict[str, Any]]:
    """All of them."""
    return [*ours(), *published()]


def published() -> Iterator[dict[str, Any]]:
    """Of other engines on devices that nobody here has."""
    for p in PUBLISHED:
        work = Work(p.views, p.prompt, chunk=p.chunk, precision=p.precision)
        plan = make_plan(MODELS[p.model], load(p.device), work)
        yield row(plan, "whole", p.ms, f"published: {p.by}", PUBLISHED_AIM, p.reason)


def ours() -> Iterator[dict[str, Any]]:
    """Of this engine on an H200, and the one figure there is of an H100."""
    h200 = load("h200")
    yield from _engine(h200)
    yield from _precision(h200)
    yield from _chunks(h200)
    yield from _language(h200)
    yield from _here(h200)
    plan = make_plan(MODELS["pi0"], load("h100"), Work())
    yield row(plan, "denoise", 4.67, "docs/lab/performance.md, a trial without a file")
    yield from _rows_in_8_bits(load("h100"))


def _engine(device: Device) -> Iterator[dict[str, Any]]:
    for case in _result("engine")["cases"]:
        plan = make_plan(MODELS[case["kind"]], device, Work(case["views"]))
        for stage in ("encode", "prefill", "denoise", "whole"):
            measured = case["ours"]["total" if stage == "whole" else stage]["p50_ms"]
            yield row(plan, stage, measured, "engine.json")


def _precision(device: Device) -> Iterator[dict[str, Any]]:
    for case in _result("precision_random")["cases"]:
        if case["precision"] == "exact":
            continue
        plan = make_plan(MODELS[case["kind"]], device, Work(case["views"], precision=case["precision"]))
        for stage, name in (("prefill", "prefill"), ("whole", "total")):
            yield row(plan, stage, case[name]["p50_ms"], "precision_random.json", reason=FP8)
    for kind, ms in (("pi0", 8.72), ("pi05", 8.97)):
        plan = make_plan(MODELS[kind], device, Work(precision="fp8"))
        yield row(plan, "whole", ms, "2026-11-22, without a file")


def _rows_in_8_bits(device: Device) -> Iterator[dict[str, Any]]:
    """Whole stages on an H100, in the tiles that come with the package. The device file has the times of
    single products, as `vla tune` measured them on that GPU on the same day."""
    for case in _result("precision_w8a8")["cases"]:
        if case["precision"] != "w8a8":
            continue
        plan = make_plan(MODELS[case["kind"]], device, Work(case["views"], precision="w8a8"))
        for stage in ("encode", "prefill", "whole"):
            measured = case["total" if stage == "whole" else stage]["p50_ms"]
            yield row(plan, stage, measured, "precision_w8a8.json")


def _chunks(device: Device) -> Iterator[dict[str, Any]]:
    for case in _result("chunks_at_once")["cases"]:
        plan = make_plan(MODELS[case["kind"]], device, Work(batch=case["chunks"]))
        yield row(plan, "denoise", case["p50_ms"], "chunks_at_once.json", reason=PAIR)


def _language(device: Device) -> Iterator[dict[str, Any]]:
    stored = _result("pipeline")
    for case in stored["actionflow"]["forwards"]:
        if case["tokens"] == 7:
            plan = make_plan(MODELS["openvla"], device, Work(prompt=case["prompt"] - 256))
            yield row(plan, "prefill", case["drafted_ms"], "pipeline.json")
            yield row(plan, "decode", case["decode_ms"], "pipeline.json")
    parts = stored["oxygen"]["parts_ms"]
    for batch in (1, 16):
        head = parts["head 1"] + (parts["head 64"] - parts["head 1"]) * (batch - 1) / 63
        plan = make_plan(MODELS["pi05"], device, Work(batch=batch))
        yield row(plan, "decode", parts[f"decode {batch}"] + head, "pipeline.json", reason=FEW)


def _here(device: Device) -> Iterator[dict[str, Any]]:
    """What bench/plan.py measured on an H200, by the plan of now; the file has those of then. SmolVLA had no
    stages of kernels then."""
    cases: dict[tuple[str, int, str], dict[str, float]] = {}
    for stored in _result("plan_h200")["rows"]:
        if stored["model"] == "smolvla":
            continue
        times = cases.setdefault((stored["model"], stored["views"], stored["precision"]), {})
        times[stored["stage"]] = stored["measured_ms"]
    for (model, views, precision), ms in cases.items():
        case = {"views": views, "precision": precision, "ms": ms}
        for stage in compared(MODELS[model], device, case, 20):
            yield {**stage, "source": "plan_h200.json"}


def _result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())
