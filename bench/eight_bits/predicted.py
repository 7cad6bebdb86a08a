"""What `vla plan` predicts for each precision on devices that were not available."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vla_accel_ros.planning.device import load
from vla_accel_ros.planning.families.work import ENGINE_PRECISIONS, Work
from vla_accel_ros.planning.plan import Plan, make_plan
from vla_accel_ros.planning.sizes import MODELS

DEVICES, KINDS, VIEWS = ("orin-agx-64", "h200"), ("pi0", "pi05"), 2
STAGES = ("encode", "prefill", "denoise")


def measure() -> dict[str, Any]:
    """Predict the milliseconds of each stage and of all stages, from launches alone. low, high: see
    docs/lab/plan.md."""
    rows = []
    for name in DEVICES:
        for kind in KINDS:
            device = load(name)
            for precision in ENGINE_PRECISIONS:
                try:
                    plan = make_plan(MODELS[kind], device, Work(VIEWS, precision=precision))
                except ValueError:  # nothing there multiplies it
                    continue
                rows.append({"device": name, "kind": kind, "precision": precision, **_times(plan)})
    return {"what": "predicted", "views": VIEWS, "rows": rows}


def _times(plan: Plan) -> dict[str, float]:
    made = {name: plan.stages[name].time for name in STAGES}
    parts = {name: time.us for name, time in made.items()}
    low, high = (sum(getattr(time, of) for time in made.values()) for of in ("low_us", "high_us"))
    named = {**parts, "whole": sum(parts.values()), "low": low, "high": high}
    return {name: round(us / 1e3, 2) for name, us in named.items()}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Return the table in Markdown."""
    yield "| predicted, 2 views | encode | prefill | denoise | whole | at least, at most |"
    yield "|---|---|---|---|---|---|"
    for row in found["rows"]:
        times = " | ".join(f"{row[name]:.1f}" for name in (*STAGES, "whole"))
        about = f"{row['kind']} on {row['device']}, {row['precision']}"
        yield f"| {about} | {times} | {row['low']:.1f}, {row['high']:.1f} |"
