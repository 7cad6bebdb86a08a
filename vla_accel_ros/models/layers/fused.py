"""Projections of one input as one matrix.

Fast stages compute query, key and value of an attention as one product, and gate and up of an MLP as another.
The model's parameters remain, as views of that matrix's rows, so the memory is spent once. Checkpoints are
loaded into such matrices (streaming.py), and `vla convert` stores them fused.
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
    """Return the parameters that are rows of one tensor, first rows first, by a name for that tensor."""
    parts = {}
    for path, module in model.named_modules():
        root = path + "." if path else ""
        for name, projections in FUSED.get(type(module), {}).items():
            for leaf, _ in module.get_submodule(projections[0]).named_parameters():
                parts[f"{root}{name}.{leaf}"] = tuple(f"{root}{part}.{leaf}" for part in projections)
    return parts


def fuse(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Return one matrix [sum of out, in] and bias for linears with the same input.

    The linears' parameters become views of it. If they already are, as in a loaded model, no memory is
    allocated.
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
    # As the parameters were made, not as this is called: the plain network may compute gradients with them.
    with torch.inference_mode(first.is_inference()):
        joined = torch.cat(parts)
        for parameter, part in zip(parameters, joined.split([part.shape[0] for part in parts]), strict=True):
            parameter.data = part
    return joined
