"""How far our numbers may be from a recording's.

In float32 what rounding makes of numbers of that magnitude (closeness.py), 1e-5 around 1. A recording in
bfloat16 is itself off from the same weights computed in float64, and so are we. The same roundings explain
both, so neither may be off by much more than the other: a mistake that float64 and bfloat16 share puts the
recording off alone, one of bfloat16 puts us off alone. Float32 recordings show that our float64 is the
reference's float32, and bound what bfloat16 makes of it: see `in_half`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from closeness import rounding
from torch import Tensor

OURS, RECORDED = 2.0, 4.0
"""How many times as far from float64 as the other one: we, and the recording, which may round more often."""

HALF = 3.5 * 2.0**-8
"""How far bfloat16 puts a network of one layer off, root mean square against root mean square; layers round
independently, so it grows with the root of their number. Measured: up to 2.1 units of 2^-8."""


def distance(ours: Tensor, recorded: Tensor) -> float:
    """Of the two numbers that differ most."""
    assert ours.shape == recorded.shape
    assert torch.isfinite(ours).all()
    return float((ours.double() - recorded.double()).abs().max())


def spread(ours: Tensor, recorded: Tensor) -> float:
    """The root mean square of all differences."""
    assert ours.shape == recorded.shape
    assert torch.isfinite(ours).all()
    return float((ours.double() - recorded.double()).square().mean().sqrt())


def bound(run: Any, what: Callable[[Any], Tensor], recorded: Tensor) -> float:
    """How far any number of what(run) may be off. run: has `exact`, whether it is float32, and a reference
    `in_float64`."""
    least = rounding(recorded.float())
    if run.exact:
        return least
    exact = what(run.in_float64)
    return OURS * min(distance(recorded, exact), RECORDED * distance(what(run), exact)) + least


def agree(run: Any, what: Callable[[Any], Tensor], recorded: Tensor) -> None:
    """what(run) is the recorded, or in bfloat16 both are as near to float64 as rounding lets them be."""
    ours, least = what(run), rounding(recorded.float())
    if run.exact and distance(ours, recorded) <= least:
        return
    exact = what(run.in_float64)
    if run.exact:  # the recording, too, is rounded
        assert distance(ours, exact) <= least / OURS
        assert distance(recorded, exact) <= OURS * least
        return
    for apart in (distance, spread):
        we, they = apart(ours, exact), apart(recorded, exact)
        assert we <= OURS * they + least, f"we are off by {we:.2g}, the recording by {they:.2g}"
        assert they <= RECORDED * we + least, f"the recording is off by {they:.2g}, we by {we:.2g}"


def in_half(ours: Tensor, recorded: Tensor, layers: int) -> None:
    """ours, in bfloat16, is what was recorded in float32."""
    size = spread(recorded, torch.zeros_like(recorded))
    assert spread(ours, recorded) <= HALF * sqrt(layers) * size
