"""Attention of fresh queries, keys and values over a prefix and themselves, with rotary positions applied on
the way.

For many sequences of a few dozen tokens. Query heads that share a key head are rows of one product, as in
triton/attention.py. Blocks take equal numbers of key tiles, of the prefix or of the tail (split-K), and
rotate the few tail keys themselves. The last block of a row tile combines the parts, in order, by their
maxima (base 2). So no launch is needed before or after.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.early import reads_early
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.triton.launch import Scratch, after_previous, options, precision

MOST_PARTS = 3
"""Most parts: one block combines all parts of a tile, so more parts cost more than they save."""


@triton.jit
def _rotated(rows, d, at, cos, sin, inside, HALF: tl.constexpr):
    """Load whole rows and rotate each at its position; the dtype is kept."""
    first = (d < HALF)[None, :]
    other = tl.where(d < HALF, d + HALF, d - HALF)
    angle = at[:, None] * HALF + tl.where(d < HALF, d, d - HALF)[None, :]
    one = tl.load(rows[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
    two = tl.load(rows[:, None] + other[None, :], mask=inside, other=0.0).to(tl.float32)
    c, s = tl.load(cos + angle, mask=inside, other=1.0), tl.load(sin + angle, mask=inside, other=0.0)
    return (one * c + tl.where(first, -two, two) * s).to(rows.dtype.element_ty)


@triton.jit
def _soften(scores, seen, value, top, total, result, PRECISION: tl.constexpr):
    """Add one tile of keys by online softmax: see _over of triton/attention.py."""
    scores = tl.where(seen, scores, float("-inf"))
    highest = tl.maximum(top, tl.max(scores, axis=1))
    weights = tl.exp2(scores - highest[:, None])
    shrink = tl.exp2(top - highest)
    total = total * shrink + tl.sum(weights, axis=1)
    result = tl.dot(weights.to(value.dtype), value, result * shrink[:, None], input_precision=PRECISION)
    return highest, total, result


@triton.jit
def _attend_rotary(
    y, cos, sin, q, k_tail, k, v, slots, lengths, out, seen, sums, counters, tokens, scale, alone,
    k_slot, k_head, k_token, v_slot, v_head, v_token,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, PARTS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    GROUPS: tl.constexpr = HEADS // KV_HEADS
    HEAD: tl.constexpr = 2 * HALF
    COLUMNS: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD
    part = tl.program_id(1)
    sequence, kv_head = tl.program_id(2) // KV_HEADS, tl.program_id(2) % KV_HEADS
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = row < tokens * GROUPS
    row = tl.minimum(row, tokens * GROUPS - 1)
    token, head = row // GROUPS, kv_head * GROUPS + row % GROUPS
    n, d = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    d_ok = (d < HEAD)[None, :]
    slot = tl.load(slots + sequence).to(tl.int64)
    length = tl.load(lengths + sequence)
    to_keys = k + slot * k_slot + kv_head * k_head + n[:, None] * k_token + d[None, :]
    to_values = v + slot * v_slot + kv_head * v_head + n[:, None] * v_token + d[None, :]
    if PDL:
        after_previous()
    to_sequence = y + sequence.to(tl.int64) * tokens * COLUMNS
    query_row = ((sequence * tokens + token) * HEADS + head).to(tl.int64) * HEAD
    to_query = q + query_row[:, None] + d[None, :]
    # Key tiles of the prefix, then those of the tail; every part has the same number.
    of_prefix = tl.cdiv(length, BLOCK_N)
    share = tl.cdiv(of_prefix + tl.cdiv(tokens, BLOCK_N), PARTS)
    begin, end = part * share, (part + 1) * share
    first, last = tl.maximum(begin - of_prefix, 0) * BLOCK_N, tl.minimum((end - of_prefix) * BLOCK_N, tokens)
    # Store the rotated rows and load them again: tensor cores take loaded operands from shared memory, but
    # computed ones from registers, of which there are too few. Blocks that rotate the same rows write the
    # same values.
    turned = _rotated(to_sequence + token * COLUMNS + head * HEAD, d, length + token, cos, sin, d_ok, HALF)
    tl.store(to_query, turned, mask=d_ok)
    to_tail = k_tail + (sequence * KV_HEADS + kv_head).to(tl.int64) * tokens * HEAD
    to_tail = to_tail + n[:, None] * HEAD + d[None, :]
    for start in tl.range(first, last, BLOCK_N, num_stages=1):
        inside = (n < tokens - start)[:, None] & d_ok
        key_token = tl.minimum(start + n, tokens - 1)
        rows = to_sequence + key_token * COLUMNS + (HEADS + kv_head) * HEAD
        tl.store(
            to_tail + start * HEAD, _rotated(rows, d, length + key_token, cos, sin, inside, HALF), mask=inside
        )
    tl.debug_barrier()
    query = tl.load(to_query, mask=d_ok, other=0.0)
    seen_before, seen_after = tl.where(token < 0, 0, length), tl.where(token < alone, alone, tokens)
    if seen is not None:
        seen_before = tl.load(seen + sequence * tokens + token)
        seen_after = tl.minimum(seen_after, seen_before - length)
    top = tl.full((BLOCK_M,), -1e30, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    result = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)

    for start in range(begin * BLOCK_N, tl.minimum(end * BLOCK_N, length), BLOCK_N):
        ok = n < length - start
        inside = ok[:, None] & d_ok if BLOCK_D > HEAD else ok[:, None]
        key = tl.load(to_keys + start * k_token, mask=inside, other=0.0)
        value = tl.load(to_values + start * v_token, mask=inside, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        visible = ok[None, :] & (n[None, :] < (seen_before - start)[:, None])
        top, total, result = _soften(scores, visible, value, top, total, result, PRECISION)
    to_last = to_sequence + n[:, None] * COLUMNS + (HEADS + KV_HEADS + kv_head) * HEAD + d[None, :]
    for start in tl.range(first, last, BLOCK_N, num_stages=1):
        ok = n < tokens - start
        inside = ok[:, None] & d_ok
        key = tl.load(to_tail + start * HEAD, mask=inside, other=0.0)
        value = tl.load(to_last + start * COLUMNS, mask=inside, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        visible = ok[None, :] & (n[None, :] < (seen_after - start)[:, None])
        top, total, result = _soften(scores, visible, value, top, total, result, PRECISION)

    is_last = True
    if PARTS > 1:
        tile = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        local = tl.arange(0, BLOCK_M)[:, None] * BLOCK_D + d[None, :]
        of_row = PARTS * BLOCK_M * BLOCK_D + tl.arange(0, BLOCK_M)
        to_sums = sums + tile.to(tl.int64) * (PARTS * BLOCK_M * (BLOCK_D + 2))
        tl.store(to_sums + part * (BLOCK_M * BLOCK_D) + local, result)
        tl.store(to_sums + of_row + part * (2 * BLOCK_M), top)
        tl.store(to_sums + of_row + part * (2 * BLOCK_M) + BLOCK_M, total)
        tl.debug_barrier()
        is_last = tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu") == PARTS - 1
        if is_last:
            highest = tl.full((BLOCK_M,), -1e30, tl.float32)
            for other_part in tl.static_range(PARTS):
                to_part = to_sums + of_row + other_part * (2 * BLOCK_M)
                highest = tl.maximum(highest, tl.load(to_part, cache_modifier=".cg"))
            total = tl.zeros((BLOCK_M,), tl.float32)
            result = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
            for other_part in tl.static_range(PARTS):
                to_part = to_sums + of_row + other_part * (2 * BLOCK_M)
                by = tl.exp2(tl.load(to_part, cache_modifier=".cg") - highest)
                total += by * tl.load(to_part + BLOCK_M, cache_modifier=".cg")
                rows = tl.load(to_sums + other_part * (BLOCK_M * BLOCK_D) + local, cache_modifier=".cg")
                result += by[:, None] * rows
            tl.store(counters + tile, 0)
    if is_last:
        result = result / tl.maximum(total, 1e-30)[:, None]
        to = out + query_row[:, None] + d[None, :]
        tl.store(to, result.to(out.dtype.element_ty), mask=row_ok[:, None] & d_ok)


@reads_early("slots lengths")
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
    *,
    config: Config,
    scratch: Scratch,
    pdl: bool = False,
) -> None:
    """See kernels.reference.attention.attend_rotary. config.split: parts of the keys of all sequences
    together."""
    (batch, tokens, columns), (_, kv_heads, _, head) = y.shape, k.shape
    heads, half = columns // head - 2 * kv_heads, head // 2
    block_d = max(16, triton.next_power_of_2(head))
    tiles = triton.cdiv(tokens * (heads // kv_heads), config.block_m)
    parts = max(1, min(MOST_PARTS, config.split // batch))
    needed = tiles * batch * kv_heads * parts * config.block_m * (block_d + 2)
    if needed > scratch.sums.numel() or tiles * batch * kv_heads > scratch.counters.numel():
        parts = 1
    _attend_rotary[(tiles, parts, batch * kv_heads)](
        y, cos, sin, q, k_tail, k, v, slots, lengths, out, seen, scratch.sums, scratch.counters, tokens,
        head**-0.5 * math.log2(math.e), alone, *k.stride()[:3], *v.stride()[:3],
        HEADS=heads, KV_HEADS=kv_heads, HALF=half, PARTS=parts, PRECISION=precision(y),
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_D=block_d,
        **options(config.warps, config.stages, pdl),
    )  # fmt: skip
