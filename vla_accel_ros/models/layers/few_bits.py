"""Layers that keep only quantised copies of their matrices.

The copies are attributes of the layer. Its parameters move to `meta`: they keep shape and dtype but no
numbers, so plain torch cannot compute with them. engine.stages.dropping decides which layers drop their exact
weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from vla_accel_ros.models.layers.quantized import Quantized

FEW_BITS, AS, NUMBERS = "in_few_bits", "given_up_as", "first_numbers"
SAMPLED = 64
"""Exact numbers kept of a dropped matrix, to tell models apart (models.calibration.fingerprint)."""


def give(
    layer: nn.Module, matrices: Mapping[str, Quantized], linears: Iterable[nn.Linear], called: str
) -> None:
    """Give a layer these quantised matrices and free the weights of its linears. called: a description, see
    given_as."""
    setattr(layer, FEW_BITS, dict(matrices))
    setattr(layer, AS, called)
    for linear in linears:
        setattr(linear, NUMBERS, first_numbers(linear))
        empty = torch.empty_like(linear.weight, device="meta")
        linear.weight = nn.Parameter(empty, requires_grad=False)


def given(layer: nn.Module) -> Mapping[str, Quantized]:
    """Return the quantised matrices by the name of the folded matrix (models.pi.folded); empty if the layer
    is exact."""
    matrices: Mapping[str, Quantized] = getattr(layer, FEW_BITS, {})
    return matrices


def given_as(model: nn.Module) -> set[str]:
    """Return the descriptions, of precision and calibration, under which layers were quantised: one,
    or none."""
    return {getattr(module, AS) for module in model.modules() if hasattr(module, AS)}


def first_numbers(linear: nn.Linear) -> Tensor:
    """Return up to SAMPLED exact weights, on the host, even if the matrix was dropped."""
    numbers: Tensor | None = getattr(linear, NUMBERS, None)
    return linear.weight.detach().flatten()[:SAMPLED].cpu().clone() if numbers is None else numbers


def wide(layer: nn.Module, name: str, exact: Tensor) -> Tensor:
    """Return a named matrix as float32 [N, K]: dequantised if the layer keeps only a quantised copy, else
    `exact`."""
    small = given(layer).get(name)
    return exact.float() if small is None else small.dequantized()
