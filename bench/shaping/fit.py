"""Fits the constants of kernels.block_shapes to measured launches, by random search from those in use."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from shaping.measured import Measured
from vla_accel_ros.kernels import block_shapes
from vla_accel_ros.kernels.block_shapes import Costs
from vla_accel_ros.kernels.gpu import Gpu

KINDS = ("EXACT", "ROWS", "SMALL", "SMALL_PACKED", "ATTEND")
"""The constants' names in kernels.block_shapes."""
FIXED = {"EXACT": ("columns", "widen"), "ROWS": ("widen",), "SMALL": ("columns", "few_rows"),
         "SMALL_PACKED": ("columns", "few_rows"), "ATTEND": ("columns", "widen", "block_us")}  # fmt: skip
"""What is not fitted, because the launches do not depend on it."""
SHARPNESS = 20.0
"""A launch that is predicted to be 10 % slower than the fastest counts as chosen 0.15 times as often."""
OFF = 0.3
"""Weight of the error of predictions beside the time lost by choosing by them."""
MOST_OFF = 1.0
"""Logarithm of a ratio beyond which being further off counts no more."""


def fitted(kind: str, cases: Sequence[Measured], gpu: Gpu, rounds: int, seed: int) -> tuple[Costs, float]:
    """Return the constants by which the chosen block shapes are the least slower than the best ones, and that
    error (a mean of logarithms). rounds, seed: of the search."""
    mine = [each for each in cases if each.shape.kernel not in block_shapes.ENDS and _kind(each) == kind]
    before = getattr(block_shapes, kind)
    names = [each.name for each in dataclasses.fields(Costs) if each.name not in FIXED[kind]]
    rng = np.random.default_rng(seed)

    def error(costs: Costs) -> float:
        setattr(block_shapes, kind, costs)
        try:
            return float(np.mean([_error(case, gpu) for case in mine]))
        finally:
            setattr(block_shapes, kind, before)

    best, least, step = before, error(before), 0.3
    for _ in range(rounds):
        changed = [rng.choice(names)] if rng.random() < 0.7 else names
        factors = {name: getattr(best, name) * math.exp(step * rng.normal()) for name in changed}
        tried = dataclasses.replace(best, **factors)
        if (found := error(tried)) < least:
            best, least, step = tried, found, min(0.5, step * 1.1)
        else:
            step = max(0.01, step * 0.99)
    return best, least


def _kind(case: Measured) -> str:
    return next(each for each in KINDS if block_shapes.costs_of(case.shape) is getattr(block_shapes, each))


def _error(case: Measured, gpu: Gpu) -> float:
    here = case.on(gpu)
    both = [(block_shapes.predicted_us(case.shape, config, here), us) for config, us in case.times.items()]
    predicted, us = np.array([each for each in both if each[0] < math.inf]).T
    near = (us.min() / us) ** 2
    off = np.minimum(MOST_OFF, np.abs(np.log(predicted / us))) ** 1.5
    likely = (predicted.min() / predicted) ** SHARPNESS
    slower = np.log(us / us.min())
    return float(OFF * (near @ off) / near.sum() + (likely @ slower) / likely.sum())
