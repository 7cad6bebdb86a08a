"""Flash-decoding attention over keys in two places, without copying them and without storing logits.

All query heads that share a key head are rows of one product, so a block reads each key once for them. A
block takes a tile of rows and one range of the keys (split-K). The tail is a range of its own; the ranges of
the prefix follow from the lengths on the device, so nothing depends on the number of keys. A second launch
combines the ranges, in order, by their log-sum-exp (base 2).
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.early import reads_early
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.triton.launch import Scratch, after_previous, options, precision

COMBINED_ROWS = 4
"""Rows that a block of the second launch combines, one for each warp."""


@triton.jit
def _over(
    query, keys, values, k_token, v_token, low, high, seen, top, total, result, scale,
    PRECISION: tl.constexpr, HEAD: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Add keys low..high of one place to the running maximum, sum of weights and weighted sum of values.

    seen: how many keys of the place each row sees.
    """
    n, d = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    to_keys = keys + n[:, None] * k_token + d[None, :]
    to_values = values + n[:, None] * v_token + d[None, :]
    for start in range(low, high, BLOCK_N):
        ok = n < high - start
        inside = ok[:, None] & (d < HEAD)[None, :] if BLOCK_D > HEAD else ok[:, None]
        key = tl.load(to_keys + start * k_token, mask=inside, other=0.0)
        value = tl.load(to_values + start * v_token, mask=inside, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        scores = tl.where(ok[None, :] & (n[None, :] < (seen - start)[:, None]), scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp2(scores - highest[:, None])
        shrink = tl.exp2(top - highest)
        total = total * shrink + tl.sum(weights, axis=1)
        result = result * shrink[:, None]
        result = tl.dot(weights.to(value.dtype), value, result, input_precision=PRECISION)
        top = highest
    return top, total, result


@triton.jit
def _attend(
    q, k, v, slots, lengths, out, k_tail, v_tail, tails, seen, sums, tokens, rows, scale, alone,
    k_slot, k_head, k_token, v_slot, v_head, v_token,
    kt_slot, kt_head, kt_token, vt_slot, vt_head, vt_token,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, HEAD: tl.constexpr, PARTS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    sequence = tl.program_id(2) // (HEADS // GROUPS)
    kv_head = tl.program_id(2) % (HEADS // GROUPS)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = row < tokens * GROUPS
    row = tl.minimum(row, tokens * GROUPS - 1)
    token, head = row // GROUPS, kv_head * GROUPS + row % GROUPS
    d = tl.arange(0, BLOCK_D)
    d_ok = (d < HEAD)[None, :]
    query_row = (sequence * tokens + token) * HEADS + head
    slot = tl.load(slots + sequence).to(tl.int64)
    length = tl.load(lengths + sequence)
    keys, values = k + slot * k_slot + kv_head * k_head, v + slot * v_slot + kv_head * v_head
    tail = 0
    keys_after, values_after = keys, values
    if tails is not None:
        tail = tl.load(tails + sequence)
        keys_after = k_tail + sequence.to(tl.int64) * kt_slot + kv_head * kt_head
        values_after = v_tail + sequence.to(tl.int64) * vt_slot + kv_head * vt_head
    if PDL:
        after_previous()
    query = tl.load(q + query_row[:, None] * HEAD + d[None, :], mask=d_ok, other=0.0)
    seen_before, seen_after = tl.where(token < 0, 0, length), tl.where(token < alone, alone, tail)
    if seen is not None:
        seen_before = tl.load(seen + sequence * tokens + token)
        seen_after = tl.minimum(seen_after, seen_before - length)
    top = tl.full((BLOCK_M,), -1e30, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    result = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    if PARTS == 1:
        top, total, result = _over(
            query, keys, values, k_token, v_token, 0, length, seen_before, top, total, result, scale,
            PRECISION, HEAD, BLOCK_N, BLOCK_D,
        )  # fmt: skip
        if tails is not None:
            top, total, result = _over(
                query, keys_after, values_after, kt_token, vt_token, 0, tail, seen_after, top, total, result,
                scale, PRECISION, HEAD, BLOCK_N, BLOCK_D,
            )  # fmt: skip
    else:
        OF_PREFIX: tl.constexpr = PARTS if tails is None else PARTS - 1
        share = tl.cdiv(tl.cdiv(length, BLOCK_N), OF_PREFIX) * BLOCK_N
        low, high = part * share, tl.minimum((part + 1) * share, length)
        step_k, step_v, seen_here = k_token, v_token, seen_before
        if tails is not None:  # noqa: SIM102 - known when it is compiled, the next is not
            if part == OF_PREFIX:
                low, high = 0, tail
                keys, values, step_k, step_v = keys_after, values_after, kt_token, vt_token
                seen_here = seen_after
        top, total, result = _over(
            query, keys, values, step_k, step_v, low, high, seen_here, top, total, result, scale,
            PRECISION, HEAD, BLOCK_N, BLOCK_D,
        )  # fmt: skip
    result = result / tl.maximum(total, 1e-30)[:, None]
    if PARTS == 1:
        to = out + query_row[:, None].to(tl.int64) * HEAD + d[None, :]
        tl.store(to, result.to(out.dtype.element_ty), mask=row_ok[:, None] & d_ok)
    else:
        # sums: the parts' results [PARTS, rows, HEAD], then their log-sum-exps [PARTS, rows].
        part_row = part * rows + query_row
        tl.store(sums + part_row[:, None] * HEAD + d[None, :], result, mask=row_ok[:, None] & d_ok)
        lse = tl.where(total > 0, top + tl.log2(tl.maximum(total, 1e-30)), float("-inf"))
        tl.store(sums + PARTS * rows * HEAD + part_row, lse, mask=row_ok)


@triton.jit
def combine(
    sums, out, rows, HEAD: tl.constexpr, PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        after_previous()
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok, d = row < rows, tl.arange(0, BLOCK_D)
    ok = row_ok[:, None] & (d < HEAD)[None, :]
    lse = sums + PARTS * rows * HEAD + row
    highest = tl.full((BLOCK_M,), -1e30, tl.float32)
    for part in tl.static_range(PARTS):
        highest = tl.maximum(highest, tl.load(lse + part * rows, mask=row_ok, other=0.0))
    total = tl.zeros((BLOCK_M,), tl.float32)
    result = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for part in tl.static_range(PARTS):
        by = tl.exp2(tl.load(lse + part * rows, mask=row_ok, other=0.0) - highest)
        total += by
        to_sums = sums + (part * rows + row)[:, None] * HEAD + d[None, :]
        result += by[:, None] * tl.load(to_sums, mask=ok, other=0.0)
    result = result / tl.maximum(total, 1e-30)[:, None]
    tl.store(out + row[:, None].to(tl.int64) * HEAD + d[None, :], result.to(out.dtype.element_ty), mask=ok)


@reads_early("slots lengths tails")
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
    *,
    config: Config,
    scratch: Scratch,
    pdl: bool = False,
) -> None:
    """See kernels.reference.attention.attend. With more sequences, each is split into fewer parts."""
    (batch, tokens, heads, head), kv_heads = q.shape, k.shape[1]
    groups, block_d = heads // kv_heads, max(16, triton.next_power_of_2(head))
    rows, parts = batch * tokens * heads, max(1, config.split // batch)
    if parts * rows * (head + 1) > scratch.sums.numel():
        parts = 1
    none = (0, 0, 0)
    _attend[(triton.cdiv(tokens * groups, config.block_m), parts, batch * kv_heads)](
        q, k, v, slots, lengths, out, k_tail, v_tail, tails, seen, scratch.sums, tokens, rows,
        head**-0.5 * math.log2(math.e), alone, *k.stride()[:3], *v.stride()[:3],
        *(none if k_tail is None else k_tail.stride()[:3]),
        *(none if v_tail is None else v_tail.stride()[:3]),
        HEADS=heads, GROUPS=groups, HEAD=head, PARTS=parts, PRECISION=precision(q),
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_D=block_d,
        **options(config.warps, config.stages, pdl),
    )  # fmt: skip
    if parts > 1:
        combine[(triton.cdiv(rows, COMBINED_ROWS),)](
            scratch.sums, out, rows, HEAD=head, PARTS=parts, BLOCK_M=COMBINED_ROWS, BLOCK_D=block_d,
            **options(4, 1, pdl),
        )  # fmt: skip
