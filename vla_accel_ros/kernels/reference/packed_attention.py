"""Attention of a packed forward in plain torch: the reference of triton/packed_attention.py.

The rows of several segments are consecutive in one matrix [rows, (heads + 2 kv_heads) * D], the output of the
fused QKV product. Rotary positions are applied in place, and keys and values are written to their destination
(FusedRoPEAndWriteKV of ActionFlow). Then every row reads its segment's past where it lies, and its own
segment's rows. Nothing is gathered, padded or shifted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vla_accel_ros.kernels.work import Work


def rotary_write(qkv: Tensor, cos: Tensor, sin: Tensor, work: Work, layer: int, heads: int) -> None:
    """Rotate queries and keys in place, and write keys and values to the places in `work`.

    qkv [rows, (heads + 2 kv_heads) * D]; cos, sin float32 [positions, D / 2].
    """
    width = 2 * cos.shape[1]
    rows = qkv.unflatten(1, (-1, width))
    kv_heads = (rows.shape[1] - heads) // 2
    starts = torch.tensor([segment.start for segment in work.now], device=qkv.device)
    angles = starts[work.owner.long()] + work.within
    c, s = cos[angles][:, None], sin[angles][:, None]
    turned = rows[:, : heads + kv_heads]
    first, second = turned.float().chunk(2, dim=2)
    turned.copy_(torch.cat((first * c - second * s, second * c + first * s), dim=2))
    keys, values = rows[:, heads:].split(kv_heads, dim=1)
    for segment, start in zip(work.now, work.starts, strict=False):
        if segment.to is not None:
            end = start + segment.out.tokens
            segment.to.k[layer][0].copy_(keys[start:end].transpose(0, 1))
            segment.to.v[layer][0].copy_(values[start:end].transpose(0, 1))


def attend(qkv: Tensor, work: Work, layer: int, heads: int, width: int, out: Tensor) -> None:
    """Attention of every row over its segment's past and the segment's own rows; written to out [rows, heads
    * D].

    qkv: from rotary_write. width: D.
    """
    rows = qkv.unflatten(1, (-1, width))
    kv_heads = (rows.shape[1] - heads) // 2
    q, k, v = rows.split((heads, kv_heads, kv_heads), dim=1)
    for segment, start, end in zip(work.now, work.starts, work.starts[1:], strict=False):
        span = slice(start, end)
        keys = torch.cat([*(part.k[layer][0] for part in segment.past), k[span].transpose(0, 1)], dim=1)
        values = torch.cat([*(part.v[layer][0] for part in segment.past), v[span].transpose(0, 1)], dim=1)
        keys, values = (x.repeat_interleave(heads // kv_heads, dim=0) for x in (keys, values))
        scores = q[span].transpose(0, 1).float() @ keys.float().transpose(1, 2) * width**-0.5
        old = keys.shape[1] - (end - start)
        column = torch.arange(keys.shape[1], device=qkv.device)
        scores = scores.masked_fill(column >= old + work.seen[span, None], -torch.inf)
        read = torch.softmax(scores, dim=2).to(values.dtype) @ values
        out[span] = read.transpose(0, 1).flatten(1)
