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

FEW_BITS = "in_few_bits"


def give(layer: nn.Module, matrices: Mapping[str, Quantized], linears: Iterable[nn.Linear]) -> None:
    """Let a layer have these instead of the weights of its linears, whose memory is given back."""
    setattr(layer, FEW_BITS, dict(matrices))
    for linear in linears:
        empty = torch.empty_like(linear.weight, device="meta")
        linear.weight = nn.Parameter(empty, requires_grad=False)


def given(layer: nn.Module) -> Mapping[str, Quantized]:
    """By the name of the folded matrix (models.pi.folded); empty for a layer with its exact weights."""
    found: Mapping[str, Quantized] = getattr(layer, FEW_BITS, {})
    return found


def kinds_given(model: nn.Module) -> set[str]:
    """In which kinds layers of the model have them."""
    return {matrix.kind for module in model.modules() for matrix in given(module).values()}


def wide(layer: nn.Module, name: str, exact: Tensor) -> Tensor:
    """float32 [N, K]: the matrix of that name, which is `exact` unless it is there in fewer bits alone."""
    small = given(layer).get(name)
    return exact.float() if small is None else small.dequantized()
