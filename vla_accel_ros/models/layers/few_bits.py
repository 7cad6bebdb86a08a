"""Layers whose matrices are there in fewer bits alone.

A layer keeps them beside its parameters, which are `meta` then: their shapes and dtypes are known, their
numbers are gone, and plain torch refuses to compute with them. Who gives them up, and for what, is
engine.stages.dropping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from vla_accel_ros.models.layers.quantized import Quantized

FEW_BITS, AS, NUMBERS = "in_few_bits", "given_up_as", "first_numbers"
SAMPLED = 64
"""Numbers of a matrix that is given up which stay, to tell models apart (models.calibration.fingerprint)."""


def give(
    layer: nn.Module, matrices: Mapping[str, Quantized], linears: Iterable[nn.Linear], called: str
) -> None:
    """Let a layer have these instead of the weights of its linears, whose memory is given back. called: how
    it was done, see given_as."""
    setattr(layer, FEW_BITS, dict(matrices))
    setattr(layer, AS, called)
    for linear in linears:
        setattr(linear, NUMBERS, first_numbers(linear))
        empty = torch.empty_like(linear.weight, device="meta")
        linear.weight = nn.Parameter(empty, requires_grad=False)


def given(layer: nn.Module) -> Mapping[str, Quantized]:
    """By the name of the folded matrix (models.pi.folded); empty for a layer with its exact weights."""
    found: Mapping[str, Quantized] = getattr(layer, FEW_BITS, {})
    return found


def given_as(model: nn.Module) -> set[str]:
    """By which precisions, and calibrations, layers of the model have them: one, or none."""
    return {getattr(module, AS) for module in model.modules() if hasattr(module, AS)}


def first_numbers(linear: nn.Linear) -> Tensor:
    """Up to SAMPLED of its exact weights, on the host, whether they are there or were given up."""
    kept: Tensor | None = getattr(linear, NUMBERS, None)
    return linear.weight.detach().flatten()[:SAMPLED].cpu().clone() if kept is None else kept


def wide(layer: nn.Module, name: str, exact: Tensor) -> Tensor:
    """float32 [N, K]: the matrix of that name, which is `exact` unless it is there in fewer bits alone."""
    small = given(layer).get(name)
    return exact.float() if small is None else small.dequantized()
