"""Compare a plan with measurements: rows for stages and memory, and their table."""

from __future__ import annotations

from typing import Any

from vla_accel_ros.planning.device import Device
from vla_accel_ros.planning.plan import Plan, make_plan
from vla_accel_ros.planning.work import STAGES, Sizes, Work

AIM = 0.10
UNKNOWN = "no cause known"
DERIVED_FP8 = "the rate of fp8 products is the datasheet's ratio, not measured"


def row(
    plan: Plan, stage: str, measured_ms: float, source: str, aim: float = AIM, reason: str = ""
) -> dict[str, Any]:
    """Return one comparison. stage: of STAGES or `whole`; its launches alone, without the host's part.
    reason: why a row misses its aim, if it does."""
    names = [name for name in STAGES[:3] if name in plan.stages] if stage == "whole" else [stage]
    times = [plan.stages[name].time for name in names]
    middle, low, high = (sum(getattr(t, bound) for t in times) / 1e3 for bound in ("us", "low_us", "high_us"))
    off = middle / measured_ms - 1.0
    missed = abs(off) > aim
    return {
        "device": plan.device.name,
        "model": plan.sizes.kind,
        "views": plan.work.views,
        "batch": plan.work.batch,
        "precision": plan.work.precision,
        "stage": stage,
        "measured_ms": round(measured_ms, 3),
        "predicted_ms": round(middle, 3),
        "low_ms": round(low, 3),
        "high_ms": round(high, 3),
        "off_percent": round(100 * off, 1),
        "aim_percent": round(100 * aim),
        "met": not missed,
        "reason": (reason or UNKNOWN) if missed else "",
        "source": source,
    }


def compared(sizes: Sizes, device: Device, case: dict[str, Any], prompt: int) -> list[dict[str, Any]]:
    """Return a row for each stage of a case."""
    plan = make_plan(sizes, device, Work(case["views"], prompt, precision=case["precision"]))
    fp8 = case["precision"] == "fp8" and device.numbers["fp8_tflops"].source != "measured"
    return [
        row(plan, stage, ms, "here", reason=DERIVED_FP8 if fp8 and stage in ("prefill", "whole") else "")
        for stage, ms in case["ms"].items()
    ]


def memory_row(sizes: Sizes, device: Device, case: dict[str, Any]) -> dict[str, Any]:
    work = Work(case["views"], precision=case["precision"])
    predicted = make_plan(sizes, device, work, slots=case["slots"]).memory.allocated
    off = predicted / case["allocated_bytes"] - 1
    return {
        "model": sizes.kind,
        "views": case["views"],
        "precision": case["precision"],
        "measured_bytes": case["allocated_bytes"],
        "held_before_bytes": case["held_before_bytes"],
        "predicted_bytes": predicted,
        "off_percent": round(100 * off, 2),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as text, one line each."""
    lines = [
        f"{'device':13}{'model':9}{'views':>5}{'batch':>6} {'precision':10}{'stage':9}"
        f"{'measured':>9}{'plan':>8}{'off %':>7}"
    ]
    for r in rows:
        reason = "" if r["met"] else f"  {r['reason']}"
        lines.append(
            f"{r['device']:13}{r['model']:9}{r['views']:5d}{r['batch']:6d} {r['precision']:10}{r['stage']:9}"
            f"{r['measured_ms']:9.2f}{r['predicted_ms']:8.2f}{r['off_percent']:+7.1f}{reason}"
        )
    return "\n".join(lines)


def counted(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Count how many rows meet their aims, for whole engines and for all."""
    whole = [r for r in rows if r["stage"] == "whole"]
    return {
        "met": sum(r["met"] for r in rows),
        "of": len(rows),
        "whole_met": sum(r["met"] for r in whole),
        "whole_of": len(whole),
    }
