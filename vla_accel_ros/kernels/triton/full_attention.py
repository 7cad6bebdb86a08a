"""Attention of a few hundred rows over a few hundred keys, with heads of any size, in one pass.

A program takes one head and some of its queries, and all keys. There is no tuning: the queries of a program
are fewer where programs would not fill the GPU. Results are written as the next product reads them.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.early import reads_early
from vla_accel_ros.kernels.triton.launch import after_previous, options, precision

KEYS, WARPS, STAGES = 64, 4, 2
PROGRAMS = 96
"""Enough of them to fill a large GPU."""


@triton.jit
def _over(
    queries, k, v, mask, keys, k_t, v_t, scale, total, most, weight,
    HEAD: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add keys and values to the weighted sum, the greatest score and the sum of weights."""
    d = tl.arange(0, BLOCK)
    inner = d < HEAD
    for start in range(0, keys, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        seen = n < keys
        key = tl.load(k + n[None, :] * k_t + d[:, None], mask=seen[None, :] & inner[:, None], other=0.0)
        value = tl.load(v + n[:, None] * v_t + d[None, :], mask=seen[:, None] & inner[None, :], other=0.0)
        if mask is not None:
            seen = seen & (tl.load(mask + n, mask=seen, other=0) != 0)
        scores = tl.dot(queries, key, input_precision=PRECISION) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        highest = tl.maximum(most, tl.max(scores, axis=1))
        above = tl.where(highest == float("-inf"), 0.0, highest)  # nothing was seen yet
        weights = tl.exp2(scores - above[:, None])
        before = tl.exp2(most - above)
        weight = weight * before + tl.sum(weights, axis=1)
        added = tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
        total, most = total * before[:, None] + added, highest
    return total, most, weight


@triton.jit
def _attend_full(
    q, k, v, out, mask, k_tail, v_tail, tokens, keys, tail, heads, scale,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, mask_b,
    k_tail_b, k_tail_t, k_tail_h, v_tail_b, v_tail_t, v_tail_h,
    HEAD: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        after_previous()
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = tl.program_id(1) % heads
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK)
    inside = (rows < tokens)[:, None] & (d < HEAD)[None, :]
    to_q = q + batch * q_b + rows[:, None] * q_t + head * q_h + d[None, :]
    queries = tl.load(to_q, mask=inside, other=0.0)
    total = tl.zeros((BLOCK_M, BLOCK), tl.float32)
    most = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    to_mask = mask
    if mask is not None:
        to_mask = mask + batch * mask_b
    total, most, weight = _over(
        queries, k + batch * k_b + head * k_h, v + batch * v_b + head * v_h, to_mask, keys, k_t, v_t, scale,
        total, most, weight, HEAD, BLOCK, BLOCK_N, PRECISION,
    )  # fmt: skip
    if k_tail is not None:
        total, most, weight = _over(
            queries, k_tail + batch * k_tail_b + head * k_tail_h, v_tail + batch * v_tail_b + head * v_tail_h,
            None, tail, k_tail_t, v_tail_t, scale, total, most, weight, HEAD, BLOCK, BLOCK_N, PRECISION,
        )  # fmt: skip
    result = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
    to_out = out + ((batch * tokens + rows[:, None]) * heads + head) * HEAD + d[None, :]
    tl.store(to_out, result.to(out.dtype.element_ty), mask=inside)


@reads_early()
def attend_full(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    mask: Tensor | None = None,
    tail: tuple[Tensor, Tensor] | None = None,
    *,
    pdl: bool = False,
) -> None:
    """See kernels.reference.attention.attend_full; out is contiguous."""
    batch, tokens, heads, head = q.shape
    seen = None if mask is None else mask.view(torch.uint8)
    k_tail, v_tail = tail or (None, None)
    tails = [part.stride()[:3] if part is not None else (0, 0, 0) for part in (k_tail, v_tail)]
    high = 64
    while high > 16 and triton.cdiv(tokens, high) * batch * heads < PROGRAMS:
        high //= 2
    _attend_full[(triton.cdiv(tokens, high), batch * heads)](
        q, k, v, out, seen, k_tail, v_tail,
        tokens, k.shape[1], 0 if k_tail is None else k_tail.shape[1], heads, head**-0.5 * math.log2(math.e),
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], 0 if seen is None else seen.stride(0),
        *tails[0], *tails[1],
        HEAD=head, BLOCK=max(16, triton.next_power_of_2(head)), BLOCK_M=high, BLOCK_N=KEYS,
        PRECISION=precision(q), **options(WARPS, STAGES, pdl),
    )  # fmt: skip
