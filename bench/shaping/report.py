"""Tables of how much slower the block shapes are that engines take than the best ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from shaping.by_count import by_count
from shaping.measured import Measured
from vla_accel_ros.kernels.block_shapes import chosen
from vla_accel_ros.kernels.gpu import Gpu
from vla_accel_ros.kernels.shapes import ATTENTION, INT8_GATED, INT8_PRODUCT, Config, Shape
from vla_accel_ros.kernels.tuning import packaged_table

GROUPS: dict[str, Callable[[Shape], bool]] = {
    "exact products of few rows": lambda shape: shape.kernel not in ATTENTION and shape.itemsize > 1,
    "attention": lambda shape: shape.kernel in ATTENTION,
    "products of 8-bit rows": lambda shape: shape.kernel in (INT8_PRODUCT, INT8_GATED),
    "products of quantised weights": lambda shape: (
        shape.itemsize == 1 and shape.kernel not in (INT8_PRODUCT, INT8_GATED)
    ),
}


def compared(cases: Iterable[Measured], gpu: Gpu) -> list[dict[str, Any]]:
    """Return, for each group of kernels, model and number of multiprocessors, how many times as long as the
    best block shape those take that the model chooses, that were taken before, and that the package's table
    has."""
    table = packaged_table(gpu)
    found: dict[tuple[str, str, int], list[Measured]] = {}
    for case in cases:
        group = next(name for name, of in GROUPS.items() if of(case.shape))
        found.setdefault((group, case.name.split(",")[0], case.processors), []).append(case)
    return [
        {
            "kernels": group,
            "sizes": sizes,
            "processors": processors,
            "launches": len(of),
            "chosen": _slower(of, lambda each: chosen(each.shape, each.on(gpu))),
            "by_count": _slower(of, lambda each: by_count(each.shape, each.processors)),
            "table": _slower(of, lambda each: table.pick(each.shape)),
        }
        for (group, sizes, processors), of in found.items()
    ]


def _slower(cases: Sequence[Measured], of: Callable[[Measured], Config]) -> dict[str, float]:
    ratios = [case.times[of(case)] / min(case.times.values()) for case in cases if of(case) in case.times]
    return {"mean": float(np.exp(np.mean(np.log(ratios)))), "most": max(ratios), "launches": len(ratios)}
