"""Projections of one input as one matrix: which they are, and how they become one.

Whoever runs a network fast reads the query, key and value of an attention, and the gate and up of an MLP, as
one product. A model's parameters stay what they are: parts of that matrix's rows, so memory is spent once. A
checkpoint is loaded into such memory (streaming.py), and `vla convert` writes it as it is there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vla_accel_ros.models.layers import gemma, llama, vision

Projections = dict[str, tuple[str, ...]]
_QKV: Projections = {"qkv_proj": ("q_proj", "k_proj", "v_proj")}
_GATE_UP: Projections = {"gate_up_proj": ("gate_proj", "up_proj")}
FUSED: dict[type[nn.Module], Projections] = {
    gemma.Attention: _QKV,
    vision.Attention: _QKV,
    gemma.MLP: _GATE_UP,
    llama.MLP: _GATE_UP,
}


def fused_parts(model: nn.Module) -> Projections:
    """The parameters that are rows of one tensor, first rows first, under a name for that tensor."""
    parts = {}
    for path, module in model.named_modules():
        root = path + "." if path else ""
        for name, projections in FUSED.get(type(module), {}).items():
            for leaf, _ in module.get_submodule(projections[0]).named_parameters():
                parts[f"{root}{name}.{leaf}"] = tuple(f"{root}{part}.{leaf}" for part in projections)
    return parts


def fuse(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """One matrix [sum of out, in] and bias for layers that read the same input.

    The layers' parameters become parts of it. Done twice, or to a model that was loaded, it returns the
    memory that is there.
    """
    weight = _joined([linear.weight for linear in linears])
    if linears[0].bias is None:
        return weight, None
    return weight, _joined([linear.bias for linear in linears])


def _joined(parameters: Sequence[Tensor]) -> Tensor:
    first, parts = parameters[0], [parameter.data for parameter in parameters]
    rows = sum(part.shape[0] for part in parts)
    if first.is_meta:  # a shape without numbers, see few_bits.py
        return first.data.new_empty((rows, *first.shape[1:]))
    ends = [part.data_ptr() + part.nbytes for part in parts]
    starts = [part.data_ptr() for part in parts]
    same = len({part.untyped_storage().data_ptr() for part in parts}) == 1
    if same and ends[:-1] == starts[1:]:
        return first.data.as_strided((rows, *first.shape[1:]), first.stride())
    joined = torch.cat(parts)
    for parameter, part in zip(parameters, joined.split([part.shape[0] for part in parts]), strict=True):
        parameter.data = part
    return joined
