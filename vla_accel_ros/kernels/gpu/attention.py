"""Flash-decoding attention over keys that lie in two places, none of them copied and no logits stored.

All query heads that share a key head are rows of one product, so a block reads each key once for them. A
block takes a tile of rows and one part of the keys, prefix first and then the tail; parts are as long as the
lengths on the device make them, so nothing depends on how many keys there are. Each part leaves its own
normalised result and log-sum-exp (base 2), which gpu/linear.py combines as it reads them.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.gpu.launch import after_previous, options, precision
from vla_accel_ros.kernels.tuning import Config


@triton.jit
def _over(
    query, k, v, stride_k, stride_v, low, high, token, top, total, result, scale, alone,
    TAIL: tl.constexpr, PRECISION: tl.constexpr, HEAD: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Keys low..high of one place: the running maximum, sum of weights and weighted sum of values."""
    d = tl.arange(0, BLOCK_D)
    for start in range(low, high, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        ok = n < high
        inside = ok[:, None] & (d < HEAD)[None, :] if BLOCK_D > HEAD else ok[:, None]
        keys = tl.load(k + n[:, None] * stride_k + d[None, :], mask=inside, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision=PRECISION) * scale
        seen = ok[None, :]
        if TAIL:
            seen = seen & ((token[:, None] >= alone) | (n[None, :] < alone))
        scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp2(scores - highest[:, None])
        shrink = tl.exp2(top - highest)
        values = tl.load(v + n[:, None] * stride_v + d[None, :], mask=inside, other=0.0)
        total = total * shrink + tl.sum(weights, axis=1)
        result = result * shrink[:, None]
        result = tl.dot(weights.to(values.dtype), values, result, input_precision=PRECISION)
        top = highest
    return top, total, result


@triton.jit
def _attend(
    q, k, v, slots, lengths, partial, lse, k_tail, v_tail, tails, tokens, rows, scale, alone,
    k_slot, k_head, k_token, v_slot, v_head, v_token,
    kt_slot, kt_head, kt_token, vt_slot, vt_head, vt_token,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, HEAD: tl.constexpr, PARTS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        after_previous()
    part = tl.program_id(1)
    sequence = tl.program_id(2) // (HEADS // GROUPS)
    kv_head = tl.program_id(2) % (HEADS // GROUPS)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = row < tokens * GROUPS
    row = tl.minimum(row, tokens * GROUPS - 1)
    token, head = row // GROUPS, kv_head * GROUPS + row % GROUPS
    d = tl.arange(0, BLOCK_D)
    here = (sequence * tokens + token).to(tl.int64) * HEADS + head
    inside = row_ok[:, None] & (d < HEAD)[None, :]
    query = tl.load(q + here[:, None] * HEAD + d[None, :], mask=inside, other=0.0)

    slot = tl.load(slots + sequence).to(tl.int64)
    length = tl.load(lengths + sequence)
    after = 0
    if tails is not None:
        after = tl.load(tails + sequence)
    share = tl.cdiv(tl.cdiv(length + after, BLOCK_N), PARTS) * BLOCK_N
    low, high = part * share, (part + 1) * share
    top = tl.full((BLOCK_M,), -1e30, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    result = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    top, total, result = _over(
        query, k + slot * k_slot + kv_head * k_head, v + slot * v_slot + kv_head * v_head, k_token, v_token,
        low, tl.minimum(high, length), token, top, total, result, scale, alone,
        False, PRECISION, HEAD, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    if tails is not None:
        top, total, result = _over(
            query, k_tail + sequence.to(tl.int64) * kt_slot + kv_head * kt_head,
            v_tail + sequence.to(tl.int64) * vt_slot + kv_head * vt_head, kt_token, vt_token,
            tl.maximum(low - length, 0), tl.minimum(high - length, after),
            token, top, total, result, scale, alone,
            True, PRECISION, HEAD, BLOCK_N, BLOCK_D,
        )  # fmt: skip
    result = result / tl.maximum(total, 1e-30)[:, None]
    place = part.to(tl.int64) * rows * HEADS + here
    tl.store(partial + place[:, None] * HEAD + d[None, :], result.to(partial.dtype.element_ty), mask=inside)
    tl.store(lse + place, tl.where(total > 0, top + tl.log2(tl.maximum(total, 1e-30)), float("-inf")), row_ok)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    lengths: Tensor,
    partial: Tensor,
    lse: Tensor,
    k_tail: Tensor | None = None,
    v_tail: Tensor | None = None,
    tails: Tensor | None = None,
    alone: int = 0,
    *,
    config: Config,
    pdl: bool = False,
) -> None:
    """See kernels.attention.attend. The number of parts is that of partial."""
    (batch, tokens, heads, head), kv_heads, parts = q.shape, k.shape[1], partial.shape[0]
    groups = heads // kv_heads
    grid = (triton.cdiv(tokens * groups, config.block_m), parts, batch * kv_heads)
    none = (0, 0, 0)
    _attend[grid](
        q, k, v, slots, lengths, partial, lse, k_tail, v_tail, tails, tokens, batch * tokens,
        head**-0.5 * math.log2(math.e), alone, *k.stride()[:3], *v.stride()[:3],
        *(none if k_tail is None else k_tail.stride()[:3]),
        *(none if v_tail is None else v_tail.stride()[:3]),
        HEADS=heads, GROUPS=groups, HEAD=head, PARTS=parts, PRECISION=precision(q),
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_D=max(16, triton.next_power_of_2(head)),
        **options(config.warps, config.stages, pdl),
    )  # fmt: skip
