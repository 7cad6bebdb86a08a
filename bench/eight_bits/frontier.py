"""What `vla plan` predicts for an AGX Orin with each option, what bounds it, and which rate the targets need.

Nothing is measured. Times are of launches alone, from images to actions. bound: milliseconds of launches that
are bound by arithmetic, by memory, or by launch overhead. rates: the same with other rates of int8 products
than the device file's, beside the published row against which the file's rate is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from vla_accel_ros.planning.cost import price
from vla_accel_ros.planning.device import Device, load
from vla_accel_ros.planning.families.find import operations
from vla_accel_ros.planning.families.work import Work
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.sizes import MODELS

DEVICE, MODEL, STAGES = "orin-agx-64", "pi05", ("encode", "prefill", "denoise")
PUBLISHED_MS, AIMS = 124.0, {"w8a8": 90.0, "w8a8-int4": 75.0}
RATES = (31.0, 36.0, 41.5, 52.0, 60.0, 70.0, 85.0)
"""TOPS: the least that others report of products, one more, the file's, their most, two, the datasheet's."""


def measure() -> dict[str, Any]:
    """Predict the rows of options and of rates."""
    device = load(DEVICE)
    rows = []
    for views in (2, 1):
        for precision in ("exact", "int4", "w8a8", "w8a8-int4"):
            for steps, prompt in ((10, 20), (5, 20), (5, 16)):
                if prompt == 20 or (views == 2 and precision.startswith("w8a8")):
                    work = Work(views, prompt, steps, precision=precision)
                    rows.append(_row(device, work))
    rates = [_rates(device, tops) for tops in RATES]
    return {"what": "predicted", "device": DEVICE, "kind": MODEL, "rows": rows, "rates": rates}


def _row(device: Device, work: Work) -> dict[str, Any]:
    plan = make_plan(MODELS[MODEL], device, work)
    times = {name: plan.stages[name].time for name in STAGES}
    bound = {"arithmetic": 0.0, "memory": 0.0, "start": 0.0}
    ops = operations(MODELS[MODEL], plan.work)
    for op in (op for name in STAGES for op in ops[name]):
        time = price(op, device)
        bound[time.bound] += time.ms
    whole, low, high = (
        sum(getattr(t, of) for t in times.values()) / 1e3 for of in ("us", "low_us", "high_us")
    )
    return {
        "precision": work.precision,
        "views": work.views,
        "evaluations": work.steps,
        "prompt": work.prompt,
        **{name: round(time.ms, 2) for name, time in times.items()},
        "whole": round(whole, 2),
        "low": round(low, 2),
        "high": round(high, 2),
        "bound": {name: round(ms, 2) for name, ms in bound.items()},
    }


def _rates(device: Device, tops: float) -> dict[str, Any]:
    number = replace(device.numbers["int8_tflops"], value=tops)
    other = replace(device, numbers={**device.numbers, "int8_tflops": number})

    def ms(precision: str, steps: int = 10) -> float:
        plan = make_plan(MODELS[MODEL], other, Work(2, steps=steps, precision=precision))
        return round(sum(plan.stages[name].time.ms for name in STAGES), 1)

    return {
        "tops": tops,
        "published_as": ms("all-int8"),
        **{precision: ms(precision) for precision in AIMS},
        **{f"{precision}, 5": ms(precision, 5) for precision in AIMS},
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Return the tables in Markdown."""
    columns = (*STAGES, "whole", "at least, at most", "arithmetic", "memory", "start")
    yield f"| pi0.5 on Orin AGX | {' | '.join(columns)} |"
    yield "|---" * (1 + len(columns)) + "|"
    for row in found["rows"]:
        times = " | ".join(f"{row[name]:.1f}" for name in (*STAGES, "whole"))
        bound = " | ".join(f"{ms:.1f}" for ms in row["bound"].values())
        views = f"{row['views']} view{'s' * (row['views'] > 1)}"
        about = f"{row['precision']}, {views}, {row['evaluations']} evaluations, prompt of {row['prompt']}"
        yield f"| option: {about} | {times} | {row['low']:.1f}, {row['high']:.1f} | {bound} |"
    yield ""
    yield "| int8 products at | the published row | w8a8 | w8a8-int4 | w8a8, 5 | w8a8-int4, 5 |"
    yield "|---|---|---|---|---|---|"
    for row in found["rates"]:
        names = ("published_as", *AIMS, *(f"{precision}, 5" for precision in AIMS))
        yield f"| rate: {row['tops']:g} TOPS | {' | '.join(f'{row[name]:.1f}' for name in names)} |"
