"""How far our numbers may be from a recording's.

In float32 what rounding makes of numbers of that magnitude (closeness.py), 1e-5 around 1. A recording in
bfloat16 is itself off: what separates it from the same weights computed in float64 is the reference's own
rounding, and ours may be twice that from float64. No float32 recording is needed for it, because our float64
is the reference's float32 where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from closeness import rounding
from torch import Tensor


def distance(ours: Tensor, recorded: Tensor) -> float:
    """Of the two numbers that differ most."""
    assert ours.shape == recorded.shape
    assert torch.isfinite(ours).all()
    return float((ours.double() - recorded.double()).abs().max())


def bound(run: Any, what: Callable[[Any], Tensor], recorded: Tensor) -> float:
    """How far what(run) may be off. run: has `exact`, whether it is float32, and a twin `in_float64`."""
    ours = rounding(recorded.float())
    return ours if run.exact else 2 * distance(recorded, what(run.in_float64)) + ours


def agree(run: Any, what: Callable[[Any], Tensor], recorded: Tensor) -> None:
    """what(run) is the recorded, or in bfloat16 what it is in float64, within the bound."""
    wanted = recorded if run.exact else what(run.in_float64)
    assert distance(what(run), wanted) <= bound(run, what, recorded)
