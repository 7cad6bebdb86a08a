"""Attention of a few hundred rows over the same or more keys, with heads of any size, in one pass.

A program takes one head, some of its queries, and all keys. There is no tuning: the queries of a program are
fewer where programs would not fill the GPU, and if they still do not, programs share many keys, whose results
are combined in a second launch. Results are written as the next product reads them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.early import reads_early
from vla_accel_ros.kernels.triton.attention import COMBINED_ROWS, combine
from vla_accel_ros.kernels.triton.launch import Scratch, after_previous, options, precision

WARPS = 4
PROGRAMS = 96
"""Enough of them to fill a large GPU."""
MANY_KEYS, MOST_PARTS = 512, 32
"""Of a program that shares keys at least; programs that share them at most."""


class Launch(NamedTuple):
    """queries, keys: of a tile. parts: programs that share the keys. stages: loads in flight."""

    queries: int
    keys: int
    parts: int = 1
    stages: int = 2


@triton.jit
def _over(
    queries, k, v, mask, low, high, k_t, v_t, scale, total, top, weight,
    HEAD: tl.constexpr, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add keys and values to the weighted sum, the greatest score and the sum of weights."""
    d = tl.arange(0, BLOCK)
    inner = d < HEAD
    for start in range(low, high, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        visible = n < high
        key = tl.load(k + n[None, :] * k_t + d[:, None], mask=visible[None, :] & inner[:, None], other=0.0)
        value = tl.load(v + n[:, None] * v_t + d[None, :], mask=visible[:, None] & inner[None, :], other=0.0)
        if mask is not None:
            visible = visible & (tl.load(mask + n, mask=visible, other=0) != 0)
        scores = tl.dot(queries, key, input_precision=PRECISION) * scale
        scores = tl.where(visible[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        above = tl.where(higher == float("-inf"), 0.0, higher)  # nothing was visible yet
        weights = tl.exp2(scores - above[:, None])
        decay = tl.exp2(top - above)
        weight = weight * decay + tl.sum(weights, axis=1)
        added = tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
        total, top = total * decay[:, None] + added, higher
    return total, top, weight


@triton.jit
def _attend_full(
    q, k, v, out, mask, k_tail, v_tail, sums, tokens, keys, tail, heads, rows, scale,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, mask_b,
    k_tail_b, k_tail_t, k_tail_h, v_tail_b, v_tail_t, v_tail_h,
    HEAD: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TAIL: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        after_previous()
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = tl.program_id(1) % heads
    query = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK)
    inside = (query < tokens)[:, None] & (d < HEAD)[None, :]
    to_q = q + batch * q_b + query[:, None] * q_t + head * q_h + d[None, :]
    queries = tl.load(to_q, mask=inside, other=0.0)
    total = tl.zeros((BLOCK_M, BLOCK), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    to_mask = mask
    if mask is not None:
        to_mask = mask + batch * mask_b
    part = tl.program_id(2)
    share = tl.cdiv(tl.cdiv(keys, BLOCK_N), PARTS) * BLOCK_N
    total, top, weight = _over(
        queries, k + batch * k_b + head * k_h, v + batch * v_b + head * v_h, to_mask,
        part * share, tl.minimum((part + 1) * share, keys), k_t, v_t, scale, total, top, weight,
        HEAD, BLOCK, BLOCK_N, PRECISION,
    )  # fmt: skip
    if k_tail is not None:
        total, top, weight = _over(
            queries, k_tail + batch * k_tail_b + head * k_tail_h, v_tail + batch * v_tail_b + head * v_tail_h,
            None, 0, tl.where(part == PARTS - 1, tail, 0), k_tail_t, v_tail_t, scale, total, top, weight,
            HEAD, BLOCK, TAIL, PRECISION,
        )  # fmt: skip
    result = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
    row = (batch * tokens + query) * heads + head
    if PARTS == 1:
        tl.store(out + row[:, None] * HEAD + d[None, :], result.to(out.dtype.element_ty), mask=inside)
    else:
        to_sums = sums + (part * rows + row) * HEAD
        tl.store(to_sums[:, None] + d[None, :], result, mask=inside)
        lse = tl.where(weight > 0.0, top + tl.log2(tl.maximum(weight, 1e-30)), float("-inf"))
        tl.store(sums + PARTS * rows * HEAD + part * rows + row, lse, mask=query < tokens)


@reads_early()
def attend_full(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    mask: Tensor | None = None,
    tail: tuple[Tensor, Tensor] | None = None,
    *,
    scratch: Scratch | None = None,
    launch: Launch | None = None,
    pdl: bool = False,
) -> None:
    """See kernels.reference.attention.attend_full; out is contiguous. launch: None = as suits the sizes."""
    batch, tokens, heads, head = q.shape
    visible = None if mask is None else mask.view(torch.uint8)
    k_tail, v_tail = tail or (None, None)
    tails = [part.stride()[:3] if part is not None else (0, 0, 0) for part in (k_tail, v_tail)]
    keys, more, rows = k.shape[1], 0 if k_tail is None else k_tail.shape[1], batch * tokens * heads
    block = max(16, triton.next_power_of_2(head))
    way = launch or launch_of(tokens, batch * heads, keys, head, _room(q, block))
    sums = None if scratch is None else scratch.sums
    parts = 1 if sums is None or way.parts * rows * (head + 1) > sums.numel() else way.parts
    _attend_full[(triton.cdiv(tokens, way.queries), batch * heads, parts)](
        q, k, v, out, visible, k_tail, v_tail, None if parts == 1 else sums,
        tokens, keys, more, heads, rows, head**-0.5 * math.log2(math.e),
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], 0 if visible is None else visible.stride(0),
        *tails[0], *tails[1],
        HEAD=head, BLOCK=block, BLOCK_M=way.queries, BLOCK_N=way.keys,
        TAIL=min(way.keys, max(16, triton.next_power_of_2(max(1, more)))), PARTS=parts,
        PRECISION=precision(q), **options(WARPS, way.stages, pdl),
    )  # fmt: skip
    if parts > 1:
        combine[(triton.cdiv(rows, COMBINED_ROWS),)](
            sums, out, rows, HEAD=head, PARTS=parts, BLOCK_M=COMBINED_ROWS, BLOCK_D=block,
            **options(WARPS, 1, pdl),
        )  # fmt: skip


def launch_of(tokens: int, heads: int, keys: int, head: int, room: int) -> Launch:
    """How so many queries of all heads are attended. room: keys and their values that fit into a block's
    shared memory."""
    queries = 64
    while queries > 16 and triton.cdiv(tokens, queries) * heads < PROGRAMS:
        queries //= 2
    programs = triton.cdiv(tokens, queries) * heads
    parts = max(1, min(MOST_PARTS, keys // MANY_KEYS, 2 * PROGRAMS // programs))
    tile, stages = 64, 3
    if parts == 1 and queries * head <= 64 * 64:
        tile, stages = 128, 2 if head > 64 else 3
    return Launch(queries, tile, parts, stages) if stages * tile <= room else Launch(queries, 64, parts)


def _room(q: Tensor, block: int) -> int:
    if not q.is_cuda:
        return 0
    properties = torch.cuda.get_device_properties(q.device)
    most_bytes: int = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
    return most_bytes // (2 * block * q.element_size())
