"""Norm, product and what follows it in one launch, for the few dozen rows of a denoising or decoding step.

Weights are read once and from far away, activations often and from near: a block takes a tile of 16-64 rows
and few columns, so that there are more blocks than processors, all of them reading weights. Where columns are
few the inner dimension is cut too; the block that comes last adds the parts up in their order, so the result
is the same every time. Columns that belong together (both halves of a rotated head, a gate and its value) are
two products of one block. Rows, columns and inner dimension may be any number.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.gpu.launch import LINE, Scratch, after_previous, options, precision, prefetch_rows
from vla_accel_ros.kernels.linear import NORM_EPS
from vla_accel_ros.kernels.tuning import Config


@triton.jit
def _two_products(
    x, weight, scale, row, row_ok, sequence, one, other, limit, width,
    PER_SEQUENCE: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, ONCE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Columns `one` and `other` of (x * (1 + scale)) @ weight.T, and the rows' 1 / rms(x)."""
    first = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    second = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    squares = tl.zeros((BLOCK_M,), tl.float32)
    policy: tl.constexpr = "evict_first" if ONCE else ""
    one_ok, other_ok = one < limit, other < limit
    for start in range(0, width, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        if EVEN:
            a = tl.load(x + row[:, None] * width + k[None, :], mask=row_ok[:, None], other=0.0)
            w = tl.load(
                weight + one[None, :].to(tl.int64) * width + k[:, None],
                mask=one_ok[None, :], other=0.0, eviction_policy=policy,
            )  # fmt: skip
            u = tl.load(
                weight + other[None, :].to(tl.int64) * width + k[:, None],
                mask=other_ok[None, :], other=0.0, eviction_policy=policy,
            )  # fmt: skip
        else:
            k_ok = k < width
            a = tl.load(
                x + row[:, None] * width + k[None, :], mask=row_ok[:, None] & k_ok[None, :], other=0.0
            )
            w = tl.load(
                weight + one[None, :].to(tl.int64) * width + k[:, None],
                mask=one_ok[None, :] & k_ok[:, None], other=0.0, eviction_policy=policy,
            )  # fmt: skip
            u = tl.load(
                weight + other[None, :].to(tl.int64) * width + k[:, None],
                mask=other_ok[None, :] & k_ok[:, None], other=0.0, eviction_policy=policy,
            )  # fmt: skip
        wide = a.to(tl.float32)
        squares += tl.sum(wide * wide, axis=1)
        if scale is not None:
            if PER_SEQUENCE:
                by = tl.load(
                    scale + sequence[:, None] * width + k[None, :], mask=(k < width)[None, :], other=0.0
                )
                a = (wide * (1.0 + by)).to(a.dtype)
            else:
                by = tl.load(scale + k, mask=k < width, other=0.0)
                a = (wide * (1.0 + by[None, :])).to(a.dtype)
        first = tl.dot(a, w, first, input_precision=PRECISION)
        second = tl.dot(a, u, second, input_precision=PRECISION)
    return first, second, tl.rsqrt(squares / width + EPS)


@triton.jit
def _bias_of(bias, sequence, columns, ok, total, PER_SEQUENCE: tl.constexpr):
    if PER_SEQUENCE:
        return tl.load(bias + sequence[:, None] * total + columns[None, :], mask=ok[None, :], other=0.0)
    return tl.load(bias + columns, mask=ok, other=0.0)[None, :]


@triton.jit
def _rotary_qkv(
    x, weight, scale, bias, cos, sin, positions, q, k, v, slots, starts,
    rows, tokens, width, k_slot, k_head, k_token, v_slot, v_head, v_token,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, PER_SEQUENCE: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr, ONCE: tl.constexpr, EPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, LINES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    # A pair is (j, j + HALF) of a head; pairs are numbered through all heads of q, k and v.
    pair = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    pairs: tl.constexpr = (HEADS + 2 * KV_HEADS) * HALF
    pair_ok = pair < pairs
    head, j = pair // HALF, pair % HALF
    one = tl.where(pair_ok, head * (2 * HALF) + j, 2 * pairs)
    other = one + HALF
    if PDL:
        prefetch_rows(weight, one, 2 * pairs, width, 0, width, LINES)
        prefetch_rows(weight, other, 2 * pairs, width, 0, width, LINES)
        after_previous()
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = row < rows
    row = tl.minimum(row, rows - 1)
    sequence, token = row // tokens, row % tokens
    first, second, factor = _two_products(
        x, weight, scale, row, row_ok, sequence, one, other, 2 * pairs, width,
        PER_SEQUENCE, EVEN, PRECISION, ONCE, BLOCK_M, BLOCK_N, BLOCK_K, EPS,
    )  # fmt: skip
    first, second = first * factor[:, None], second * factor[:, None]
    if bias is not None:
        first += _bias_of(bias, sequence, one, pair_ok, 2 * pairs, PER_SEQUENCE)
        second += _bias_of(bias, sequence, other, pair_ok, 2 * pairs, PER_SEQUENCE)
    at = tl.load(positions + sequence) + token
    turns = pair_ok & (head < HEADS + KV_HEADS)
    ok = row_ok[:, None] & pair_ok[None, :]
    angle = at[:, None] * HALF + j[None, :]
    c = tl.load(cos + angle, mask=row_ok[:, None] & turns[None, :], other=1.0)
    s = tl.load(sin + angle, mask=row_ok[:, None] & turns[None, :], other=0.0)
    low, high = first * c - second * s, second * c + first * s

    q_ok = ok & (head < HEADS)[None, :]
    to = q + row[:, None].to(tl.int64) * (HEADS * 2 * HALF) + one[None, :]
    tl.store(to, low.to(q.dtype.element_ty), mask=q_ok)
    tl.store(to + HALF, high.to(q.dtype.element_ty), mask=q_ok)

    slot = tl.load(slots + sequence).to(tl.int64)
    place = tl.load(starts + sequence) + token
    k_ok = ok & ((head >= HEADS) & (head < HEADS + KV_HEADS))[None, :]
    to = k + (slot * k_slot + place * k_token)[:, None] + ((head - HEADS) * k_head + j)[None, :]
    tl.store(to, low.to(k.dtype.element_ty), mask=k_ok)
    tl.store(to + HALF, high.to(k.dtype.element_ty), mask=k_ok)
    v_ok = ok & (head >= HEADS + KV_HEADS)[None, :]
    to = v + (slot * v_slot + place * v_token)[:, None] + ((head - HEADS - KV_HEADS) * v_head + j)[None, :]
    tl.store(to, low.to(v.dtype.element_ty), mask=v_ok)
    tl.store(to + HALF, high.to(v.dtype.element_ty), mask=v_ok)


@triton.jit
def _gated_up(
    x, weight, scale, bias, out, rows, tokens, width, columns,
    PER_SEQUENCE: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, ONCE: tl.constexpr,
    EPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    LINES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    one = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ok = one < columns
    one = tl.where(ok, one, 2 * columns)
    other = one + columns
    if PDL:
        prefetch_rows(weight, one, 2 * columns, width, 0, width, LINES)
        prefetch_rows(weight, other, 2 * columns, width, 0, width, LINES)
        after_previous()
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = row < rows
    row = tl.minimum(row, rows - 1)
    sequence = row // tokens
    gate, up, factor = _two_products(
        x, weight, scale, row, row_ok, sequence, one, other, 2 * columns, width,
        PER_SEQUENCE, EVEN, PRECISION, ONCE, BLOCK_M, BLOCK_N, BLOCK_K, EPS,
    )  # fmt: skip
    gate, up = gate * factor[:, None], up * factor[:, None]
    if bias is not None:
        gate += _bias_of(bias, sequence, one, ok, 2 * columns, PER_SEQUENCE)
        up += _bias_of(bias, sequence, other, ok, 2 * columns, PER_SEQUENCE)
    # 0.5 (1 + tanh(z)) is the logistic function of 2 z.
    z = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    fed = gate * tl.sigmoid(2.0 * z) * up
    to = out + row[:, None].to(tl.int64) * columns + one[None, :]
    tl.store(to, fed.to(out.dtype.element_ty), mask=row_ok[:, None] & ok[None, :])


@triton.jit
def _project(
    a, lse, weight, gate, x, sums, counters, rows, tokens, width, columns,
    PARTS: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, PER_SEQUENCE: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr, ONCE: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, LINES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    column_ok = column < columns
    split = tl.program_id(2)
    chunk = tl.cdiv(tl.cdiv(width, BLOCK_K), SPLIT) * BLOCK_K
    begin = split * chunk
    end = tl.minimum(begin + chunk, width)
    if PDL:
        prefetch_rows(weight, column, columns, width, begin, tl.maximum(end, 1), LINES)
        after_previous()
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = row < rows
    row = tl.minimum(row, rows - 1)
    policy: tl.constexpr = "evict_first" if ONCE else ""
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(begin, end, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        a_ok, w_ok = row_ok[:, None], column_ok[None, :]
        if not EVEN:
            a_ok, w_ok = a_ok & (k < end)[None, :], w_ok & (k < end)[:, None]
        w = tl.load(
            weight + column[None, :].to(tl.int64) * width + k[:, None],
            mask=w_ok, other=0.0, eviction_policy=policy,
        )  # fmt: skip
        if PARTS == 0:
            rows_of_a = tl.load(a + row[:, None] * width + k[None, :], mask=a_ok, other=0.0)
        else:
            if HEAD % BLOCK_K == 0:
                head = tl.zeros((1,), tl.int32) + start // HEAD
            else:
                head = tl.minimum(k // HEAD, HEADS - 1)
            near = lse + row[:, None] * HEADS + head[None, :]
            top = tl.full((BLOCK_M, head.shape[0]), -1e30, tl.float32)
            for part in tl.static_range(PARTS):
                top = tl.maximum(top, tl.load(near + part * rows * HEADS))
            mixed = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
            weights = tl.zeros((BLOCK_M, head.shape[0]), tl.float32)
            for part in tl.static_range(PARTS):
                share = tl.exp2(tl.load(near + part * rows * HEADS) - top)
                here = a + part * rows * width
                mixed += share * tl.load(here + row[:, None] * width + k[None, :], mask=a_ok, other=0.0)
                weights += share
            rows_of_a = (mixed / tl.maximum(weights, 1e-30)).to(w.dtype)
        total = tl.dot(rows_of_a, w, total, input_precision=PRECISION)
    is_last = True
    if SPLIT > 1:
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        local = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        mine = sums + tile.to(tl.int64) * (SPLIT * BLOCK_M * BLOCK_N) + local
        tl.store(mine + split * (BLOCK_M * BLOCK_N), total)
        tl.debug_barrier()
        is_last = tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu") == SPLIT - 1
        if is_last:
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for part in range(SPLIT):
                total += tl.load(mine + part * (BLOCK_M * BLOCK_N), cache_modifier=".cg")
            tl.store(counters + tile, 0)
    if is_last:
        ok = row_ok[:, None] & column_ok[None, :]
        to = x + row[:, None].to(tl.int64) * columns + column[None, :]
        if gate is not None:
            total *= _bias_of(gate, row // tokens, column, column_ok, columns, PER_SEQUENCE)
        before = tl.load(to, mask=ok, other=0.0).to(tl.float32)
        tl.store(to, (before + total).to(x.dtype.element_ty), mask=ok)


def rotary_qkv(
    x: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    starts: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    config: Config,
    pdl: bool = False,
) -> None:
    """See kernels.linear.rotary_qkv."""
    (batch, tokens, width), (heads, head) = x.shape, q.shape[2:]
    rows, half = batch * tokens, head // 2
    grid = (triton.cdiv(rows, config.block_m), triton.cdiv((heads + 2 * k.shape[1]) * half, config.block_n))
    _rotary_qkv[grid](
        x, weight, scale, bias, cos, sin, positions, q, k, v, slots, starts,
        rows, tokens, width, *k.stride()[:3], *v.stride()[:3],
        HEADS=heads, KV_HEADS=k.shape[1], HALF=half, PER_SEQUENCE=_per_sequence(scale, bias),
        EVEN=width % config.block_k == 0, PRECISION=precision(x), ONCE=grid[0] == 1, EPS=NORM_EPS,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        LINES=_lines(weight, width), **options(config.warps, config.stages, pdl),
    )  # fmt: skip


def gated_up(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    config: Config,
    pdl: bool = False,
) -> None:
    """See kernels.linear.gated_up."""
    (batch, tokens, width), columns = x.shape, out.shape[2]
    rows = batch * tokens
    grid = (triton.cdiv(rows, config.block_m), triton.cdiv(columns, config.block_n))
    _gated_up[grid](
        x, weight, scale, bias, out, rows, tokens, width, columns,
        PER_SEQUENCE=_per_sequence(scale, bias), EVEN=width % config.block_k == 0, PRECISION=precision(x),
        ONCE=grid[0] == 1, EPS=NORM_EPS, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        BLOCK_K=config.block_k, LINES=_lines(weight, width), **options(config.warps, config.stages, pdl),
    )  # fmt: skip


def project(
    a: Tensor,
    weight: Tensor,
    x: Tensor,
    gate: Tensor | None = None,
    *,
    config: Config,
    scratch: Scratch,
    pdl: bool = False,
) -> None:
    """See kernels.linear.project."""
    _launch_project(a, None, weight, x, gate, config, scratch, pdl)


def project_attended(
    partial: Tensor,
    lse: Tensor,
    weight: Tensor,
    x: Tensor,
    gate: Tensor | None = None,
    *,
    config: Config,
    scratch: Scratch,
    pdl: bool = False,
) -> None:
    """See kernels.linear.project_attended."""
    _launch_project(partial, lse, weight, x, gate, config, scratch, pdl)


def _launch_project(
    a: Tensor,
    lse: Tensor | None,
    weight: Tensor,
    x: Tensor,
    gate: Tensor | None,
    config: Config,
    scratch: Scratch,
    pdl: bool,
) -> None:
    (batch, tokens, columns), width = x.shape, weight.shape[1]
    rows, heads = batch * tokens, 1 if lse is None else lse.shape[3]
    tiles = triton.cdiv(rows, config.block_m), triton.cdiv(columns, config.block_n)
    split = min(config.split, triton.cdiv(width, config.block_k))
    needed = tiles[0] * tiles[1] * split * config.block_m * config.block_n
    if split > 1 and (needed > scratch.sums.numel() or tiles[0] * tiles[1] > scratch.counters.numel()):
        split = 1
    chunk = triton.cdiv(triton.cdiv(width, config.block_k), split) * config.block_k
    _project[(*tiles, split)](
        a, lse, weight, gate, x, scratch.sums, scratch.counters, rows, tokens, width, columns,
        PARTS=0 if lse is None else lse.shape[0], HEADS=heads, HEAD=width // heads,
        PER_SEQUENCE=_per_sequence(gate, None), EVEN=width % config.block_k == 0,
        PRECISION=precision(weight), ONCE=tiles[0] == 1, SPLIT=split, BLOCK_M=config.block_m,
        BLOCK_N=config.block_n, BLOCK_K=config.block_k, LINES=_lines(weight, chunk),
        **options(config.warps, config.stages, pdl),
    )  # fmt: skip


def _per_sequence(*tables: Tensor | None) -> bool:
    return any(table is not None and table.shape[0] > 1 for table in tables)


def _lines(weight: Tensor, columns: int) -> int:
    return triton.next_power_of_2(triton.cdiv(columns * weight.element_size(), LINE))
