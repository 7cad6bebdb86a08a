"""Llama's stack over rows that all attend to each other, on a residual stream (layers/residual.py).

OpenVLA's modules. Queries, keys and values are one product, as are gate and up.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.gemma import Attention, rotary_tables, rotate
from vla_accel_ros.models.layers.llama import Layer, Llama
from vla_accel_ros.models.layers.residual import attention, gated, residual_stream, rotated


def hidden_states(stack: Llama, x: Tensor, read: slice = slice(None)) -> Tensor:
    """x [B, T, W], at positions from 0 on -> the rows that are read after the final norm."""
    positions = torch.arange(x.shape[1], device=x.device)[None]
    tables = rotary_tables(positions, stack.head_dim, stack.dtype)
    stream, last = residual_stream(x.to(stack.dtype)), stack.layers[-1]
    for layer in cast("list[Layer]", [*stack.layers]):
        own, mlp, norm = layer.self_attn, layer.mlp, layer.input_layernorm
        rows = read if layer is last else slice(None)
        attended = _attended(own, stream.rms_norm(norm.weight, norm.eps), tables, rows)
        stream.keep(rows)
        stream.add(attended, own.o_proj)
        norm, (weight, _) = layer.post_attention_layernorm, fuse((mlp.gate_proj, mlp.up_proj))
        stream.add(gated(F.linear(stream.rms_norm(norm.weight, norm.eps), weight)), mlp.down_proj)
    return stream.rms_norm(stack.norm.weight, stack.norm.eps)


def _attended(own: Attention, x: Tensor, tables: tuple[Tensor, Tensor], rows: slice) -> Tensor:
    """What goes into `o_proj`, of some rows."""
    weight, _ = fuse((own.q_proj, own.k_proj, own.v_proj))
    heads, (cos, sin) = F.linear(x, weight).unflatten(-1, (-1, own.head_dim)), tables
    queries, keys = (len(linear.weight) // own.head_dim for linear in (own.q_proj, own.k_proj))
    qk = rotated(heads[:, :, :-keys], queries, cos[0, 0], sin[0, 0])
    if qk is None:
        turned = rotate(heads[:, :, :-keys].transpose(1, 2), *tables).transpose(1, 2)
        qk = turned[:, :, :queries], turned[:, :, queries:]
    k, v = (
        part.unsqueeze(3).expand(-1, -1, -1, queries // keys, -1).flatten(2, 3)
        for part in (qk[1], heads[:, :, -keys:])
    )
    return attention(qk[0][:, rows], k, v)
