"""Attention over keys in two places, in plain torch: the reference of triton/attention.py.

A prefix is in a slot of the pool, its continuation in a small buffer beside it; neither is copied. Lengths
and slots are tensors on the device, so that one captured graph serves every frame. GPU kernels split the
keys, because a few dozen tokens have fewer rows than the GPU has SMs; results do not depend on it beyond
rounding.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.kernels.reference.linear import place_qkv


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    lengths: Tensor,
    out: Tensor,
    k_tail: Tensor | None = None,
    v_tail: Tensor | None = None,
    tails: Tensor | None = None,
    alone: int = 0,
    seen: Tensor | None = None,
) -> None:
    """Grouped-query attention of q over k, v and the tail.

    q [B, T, heads, D]. k, v [slots, kv_heads, tokens, D]: sequence b reads the first lengths[b] tokens of
    slots[b]. k_tail, v_tail [B, kv_heads, tokens, D]: it reads the first tails[b]. slots, lengths, tails
    int32 [B]. alone: the first `alone` tokens of q see only the first `alone` keys of the tail (the state
    token of pi0). seen int32 [B, T]: how many of its sequence's keys, those of the tail last, a token sees;
    None = all. out [B, T, heads * D] is written; a query that sees no key gives zeros.
    """
    batch, tokens, heads, width = q.shape
    groups = heads // k.shape[1]
    for b in range(batch):
        keys, values = (_sequence(x, b, slots, lengths, t, tails) for x, t in ((k, k_tail), (v, v_tail)))
        scores = q[b].transpose(0, 1).float() @ keys.repeat_interleave(groups, 0).float().transpose(1, 2)
        scores *= width**-0.5
        if alone and tails is not None:
            visible = torch.ones(tokens, keys.shape[1], dtype=torch.bool, device=q.device)
            visible[:alone, int(lengths[b]) + alone :] = False
            scores = scores.masked_fill(~visible, -math.inf)
        if seen is not None:
            key = torch.arange(keys.shape[1], device=q.device)
            scores = scores.masked_fill(key >= seen[b, :, None], -math.inf)
        weights = torch.softmax(scores, dim=2).nan_to_num_()
        result = weights.to(values.dtype) @ values.repeat_interleave(groups, 0)
        out[b] = result.transpose(0, 1).flatten(1)


def attend_views(qkv: Tensor, heads: int, views: int) -> Tensor:
    """Attention within each view of the image encoder.

    qkv [views * tokens, 3 * W], queries first -> new tensor [views * tokens, W].
    """
    parts = qkv.unflatten(0, (views, -1)).unflatten(2, (3, heads, -1))
    q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).flatten(0, 1)


def attend_full(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    mask: Tensor | None = None,
    tail: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Attention of q [B, T, heads, D] over k, v [B, n, heads, D]; strides but that of D may be any.

    mask bool [B, n], False = a key that nobody sees, None = all are seen. tail: further keys and values that
    all see [B, m, heads, D]. out [B, T, heads * D] is written.
    """
    if tail is not None:
        k, v = (torch.cat(parts, dim=1) for parts in zip((k, v), tail, strict=True))
        mask = None if mask is None else F.pad(mask, (0, tail[0].shape[1]), value=True)
    visible = None if mask is None else mask[:, None, None]
    queries, keys, values = (part.transpose(1, 2) for part in (q, k, v))
    attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible)
    out.copy_(attended.transpose(1, 2).flatten(2))


def attend_rotary(
    y: Tensor,
    cos: Tensor,
    sin: Tensor,
    q: Tensor,
    k_tail: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    lengths: Tensor,
    out: Tensor,
    alone: int = 0,
    seen: Tensor | None = None,
) -> None:
    """As attend, for queries and a tail that a product just computed.

    y [B, T, (heads + 2 kv_heads) * D]: queries, keys and values, to be rotated from position lengths[b] on.
    cos, sin float32 [positions, D / 2]. q [B, T, heads, D] and k_tail [B, kv_heads, T, D] are scratch memory
    for rotated queries and keys. The tail is all T tokens.
    """
    batch, tokens, _ = y.shape
    v_tail = torch.empty_like(k_tail)
    zeros = torch.zeros_like(lengths)
    place_qkv(
        y, cos, sin, lengths, q, k_tail, v_tail, torch.arange(batch, device=y.device).to(slots.dtype), zeros
    )
    attend(q, k, v, slots, lengths, out, k_tail, v_tail, zeros + tokens, alone, seen)


def _sequence(
    x: Tensor, b: int, slots: Tensor, lengths: Tensor, tail: Tensor | None, tails: Tensor | None
) -> Tensor:
    prefix = x[int(slots[b]), :, : int(lengths[b])]
    if tail is None or tails is None:
        return prefix
    return torch.cat((prefix, tail[b, :, : int(tails[b])]), dim=1)
