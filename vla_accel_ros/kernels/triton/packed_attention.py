"""Rotary positions with the write of keys and values, and attention of many segments, in one launch each.

A block takes a tile of one segment's rows, all query heads of one key head, and one range of the keys
(split-K): the parts of the past by their addresses, one after another, then the segment's own rows. Ranges
follow from the lengths in the table, so that one captured launch serves every length. With several ranges,
each stores its result and log-sum-exp (base 2) and a second kernel combines them (flash-decoding), for
forwards with too few rows to fill the GPU.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.triton.launch import precision
from vla_accel_ros.kernels.work import OF_PART, OF_SEGMENT, Work

EMPTY = -1e30


@triton.jit(do_not_specialize=["layer"])
def _rotary_write(
    qkv, cos, sin, segments, owner, within, layer, OF_SEGMENT: tl.constexpr, HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    j = tl.arange(0, BLOCK_D)
    ok = (head < HEADS + 2 * KV_HEADS)[:, None] & (j < HALF)[None, :]
    token = tl.load(within + row)
    entry = segments + tl.load(owner + row) * OF_SEGMENT
    to_row = (
        qkv + row.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * 2 * HALF) + head[:, None] * 2 * HALF + j[None, :]
    )
    first = tl.load(to_row, mask=ok, other=0.0).to(tl.float32)
    second = tl.load(to_row + HALF, mask=ok, other=0.0).to(tl.float32)
    angle = (tl.load(entry + 1) + token) * HALF + j
    c = tl.load(cos + angle, mask=j < HALF, other=0.0)[None, :]
    s = tl.load(sin + angle, mask=j < HALF, other=0.0)[None, :]
    turns = (head < HEADS + KV_HEADS)[:, None]
    low = tl.where(turns, first * c - second * s, first).to(qkv.dtype.element_ty)
    high = tl.where(turns, second * c + first * s, second).to(qkv.dtype.element_ty)
    tl.store(to_row, low, mask=ok & turns)
    tl.store(to_row + HALF, high, mask=ok & turns)

    writes = token < tl.load(entry + 2)
    # Addresses and strides are aligned (kernels.work.aligned); the compiler cannot see that.
    k = tl.multiple_of(tl.load(entry + 3).to(tl.pointer_type(qkv.dtype.element_ty)), 16)
    v = tl.multiple_of(tl.load(entry + 4).to(tl.pointer_type(qkv.dtype.element_ty)), 16)
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = head >= HEADS + KV_HEADS
    kv_head = tl.where(is_key, head - HEADS, head - HEADS - KV_HEADS)
    of_token = tl.multiple_of(layer * tl.load(entry + 5) + token * tl.load(entry + 7), 8)
    to = of_token + kv_head[:, None] * tl.multiple_of(tl.load(entry + 6), 8) + j[None, :]
    tl.store(k + to, low, mask=ok & is_key[:, None] & writes)
    tl.store(k + to + HALF, high, mask=ok & is_key[:, None] & writes)
    tl.store(v + to, low, mask=ok & is_value[:, None] & writes)
    tl.store(v + to + HALF, high, mask=ok & is_value[:, None] & writes)


@triton.jit
def _over(
    query, k, v, of_token, low, high, seen, top, total, result, scale, OWN: tl.constexpr,
    PRECISION: tl.constexpr, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Add keys low..high of one place to the running maximum, sum of weights and weighted sum of values."""
    d = tl.arange(0, BLOCK_D)
    for start in range(low, high, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        ok = n < high
        inside = ok[:, None] & (d < WIDTH)[None, :] if BLOCK_D > WIDTH else ok[:, None]
        offset = n[:, None].to(tl.int64) * of_token + d[None, :]
        keys = tl.load(k + offset, mask=inside, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision=PRECISION) * scale
        look = ok[None, :] & (n[None, :] < seen[:, None]) if OWN else ok[None, :]
        scores = tl.where(look, scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp2(scores - highest[:, None])
        shrink = tl.exp2(top - highest)
        values = tl.load(v + offset, mask=inside, other=0.0)
        total = total * shrink + tl.sum(weights, axis=1)
        result = result * shrink[:, None]
        result = tl.dot(weights.to(values.dtype), values, result, input_precision=PRECISION)
        top = highest
    return top, total, result


@triton.jit(do_not_specialize=["layer", "rows"])
def _attend(
    qkv, out, partial, lse, segments, begin, parts, first, seen, tiles, layer, rows, scale,
    OF_SEGMENT: tl.constexpr, OF_PART: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr, SPLITS: tl.constexpr, EMPTY: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    GROUPS: tl.constexpr = HEADS // KV_HEADS
    ROW: tl.constexpr = (HEADS + 2 * KV_HEADS) * WIDTH
    kv_head, split = tl.program_id(1), tl.program_id(2)
    segment = tl.load(tiles + 2 * tl.program_id(0))
    start = tl.load(first + segment)
    count = tl.load(first + segment + 1) - start
    m = tl.load(tiles + 2 * tl.program_id(0) + 1) + tl.arange(0, BLOCK_M)
    row_ok = m < count * GROUPS
    m = tl.minimum(m, count * GROUPS - 1)
    row = (start + m // GROUPS).to(tl.int64)
    head = kv_head * GROUPS + m % GROUPS
    d = tl.arange(0, BLOCK_D)
    inside = row_ok[:, None] & (d < WIDTH)[None, :]
    query = tl.load(qkv + row[:, None] * ROW + head[:, None] * WIDTH + d[None, :], mask=inside, other=0.0)
    sees = tl.load(seen + row)

    old = tl.load(segments + segment * OF_SEGMENT).to(tl.int32)
    share = tl.cdiv(tl.cdiv(old + count, BLOCK_N), SPLITS) * BLOCK_N
    low, high = split * share, tl.minimum((split + 1) * share, old + tl.max(sees, axis=0))
    top = tl.full((BLOCK_M,), EMPTY, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    result = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    offset = 0
    for part in range(tl.load(begin + segment).to(tl.int32), tl.load(begin + segment + 1).to(tl.int32)):
        entry = parts + part * OF_PART
        tokens = tl.load(entry + 5).to(tl.int32)
        if (offset < high) & (offset + tokens > low):
            shift = layer * tl.load(entry + 2) + kv_head * tl.load(entry + 3)
            k = tl.load(entry).to(tl.pointer_type(qkv.dtype.element_ty)) + shift
            v = tl.load(entry + 1).to(tl.pointer_type(qkv.dtype.element_ty)) + shift
            top, total, result = _over(
                query, tl.multiple_of(k, 16), tl.multiple_of(v, 16), tl.multiple_of(tl.load(entry + 4), 8),
                tl.maximum(low - offset, 0), tl.minimum(high - offset, tokens), sees, top, total, result,
                scale, False, PRECISION, WIDTH, BLOCK_N, BLOCK_D,
            )  # fmt: skip
        offset += tokens
    to_own = qkv + start.to(tl.int64) * ROW + (HEADS + kv_head) * WIDTH
    top, total, result = _over(
        query, to_own, to_own + KV_HEADS * WIDTH, ROW, tl.maximum(low - old, 0), high - old, sees,
        top, total, result, scale, True, PRECISION, WIDTH, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    result = result / tl.maximum(total, 1e-30)[:, None]
    query_row = row * HEADS + head
    if SPLITS == 1:
        to = out + query_row[:, None] * WIDTH + d[None, :]
        tl.store(to, result.to(out.dtype.element_ty), mask=inside)
    else:
        query_row += split.to(tl.int64) * rows * HEADS
        tl.store(partial + query_row[:, None] * WIDTH + d[None, :], result, mask=inside)
        log_sum = tl.where(total > 0, top + tl.log2(tl.maximum(total, 1e-30)), EMPTY)
        tl.store(lse + query_row, log_sum, mask=row_ok)


@triton.jit
def _combine(
    partial, lse, out, places, EMPTY: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    query_row = tl.program_id(0).to(tl.int64)
    s, d = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    log_sums = tl.load(lse + s * places + query_row, mask=s < SPLITS, other=EMPTY)
    weights = tl.exp2(log_sums - tl.max(log_sums, axis=0))
    weights = tl.where(s < SPLITS, weights, 0.0) / tl.sum(tl.where(s < SPLITS, weights, 0.0), axis=0)
    inside = (s < SPLITS)[:, None] & (d < WIDTH)[None, :]
    read = tl.load(partial + (s[:, None] * places + query_row) * WIDTH + d[None, :], mask=inside, other=0.0)
    read = tl.sum(read * weights[:, None], axis=0)
    tl.store(out + query_row * WIDTH + d, read.to(out.dtype.element_ty), mask=d < WIDTH)


def rotary_write(qkv: Tensor, cos: Tensor, sin: Tensor, work: Work, layer: int, heads: int) -> None:
    """See kernels.reference.packed_attention.rotary_write; qkv is contiguous."""
    half = cos.shape[1]
    all_heads = qkv.shape[1] // (2 * half)
    kv_heads = (all_heads - heads) // 2
    block = min(16, triton.next_power_of_2(all_heads))
    _rotary_write[(work.rows, triton.cdiv(all_heads, block))](
        qkv, cos, sin, work.segments, work.owner, work.within, layer, OF_SEGMENT=OF_SEGMENT, HEADS=heads,
        KV_HEADS=kv_heads, HALF=half, BLOCK_H=block, BLOCK_D=triton.next_power_of_2(half), num_warps=4,
    )  # fmt: skip


def attend(qkv: Tensor, work: Work, layer: int, heads: int, width: int, out: Tensor) -> None:
    """See kernels.reference.packed_attention.attend; qkv and out are contiguous."""
    kv_heads = (qkv.shape[1] // width - heads) // 2
    splits, rows = work.splits, work.rows
    partial = lse = out
    if splits > 1:
        partial = torch.empty(splits, rows, heads * width, dtype=torch.float32, device=out.device)
        lse = torch.empty(splits, rows, heads, dtype=torch.float32, device=out.device)
    block_d = max(16, triton.next_power_of_2(width))
    _attend[(work.tiles.shape[0], kv_heads, splits)](
        qkv, out, partial, lse, work.segments, work.begin, work.parts, work.first, work.seen, work.tiles,
        layer, rows, width**-0.5 * math.log2(math.e), OF_SEGMENT=OF_SEGMENT, OF_PART=OF_PART, HEADS=heads,
        KV_HEADS=kv_heads, WIDTH=width, SPLITS=splits, EMPTY=EMPTY, PRECISION=precision(qkv),
        BLOCK_M=work.block_m, BLOCK_N=32 if block_d > 128 else 64, BLOCK_D=block_d,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    if splits > 1:
        _combine[(rows * heads,)](
            partial, lse, out, rows * heads, EMPTY=EMPTY, WIDTH=width, SPLITS=splits,
            BLOCK_S=triton.next_power_of_2(splits), BLOCK_D=block_d, num_warps=1,
        )  # fmt: skip
