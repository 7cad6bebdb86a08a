"""A normed product of two sets of columns with its epilogue, in one launch, for a few dozen rows.

Weights are read once from memory, activations often and from cache. So a block takes a tile of 16-64 rows and
few columns, and there are as many blocks as SMs, all reading weights. Columns that belong together (both
halves of a rotated head, or a gate and its value) are two products of one block. The kernel that made the
rows has computed what the norm needs (kernels.reference.linear.Norm), so tiles go from memory to the tensor
cores without passing through registers. Rows, columns and inner dimension may be any number.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.early import reads_early
from vla_accel_ros.kernels.reference.linear import GELU, SILU, Norm
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.triton.launch import (
    after_previous,
    bias_of,
    lines,
    options,
    per_sequence,
    precision,
    prefetch_rows,
    stride_of,
    table_row,
    tiles_of_product,
)
from vla_accel_ros.kernels.triton.small_weights import cut, parts, two_small_products
from vla_accel_ros.models.layers.quantized import Weight


@triton.jit
def _two_products(
    x, weight, scales, x_tiles, weight_tiles, row, one, other, first_row, first_one, first_other, limit,
    width, PACKED: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, ONCE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return columns `one` and `other` of x @ weight.T; columns from `limit` on are undefined.

    scales: of a quantised weight, else None. PACKED: columns in a group of int4, or 0.
    """
    first = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    second = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if scales is not None:
        first, second = two_small_products(
            x, weight, scales, row, tl.minimum(one, limit - 1), tl.minimum(other, limit - 1), width, PACKED,
            EVEN, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    elif weight_tiles is not None:
        for start in range(0, width, BLOCK_K):
            w = weight_tiles.load([first_one, start])
            u = weight_tiles.load([first_other, start])
            a = x_tiles.load([first_row, start])
            first = tl.dot(a, w.T, first, input_precision=PRECISION)
            second = tl.dot(a, u.T, second, input_precision=PRECISION)
    else:
        policy: tl.constexpr = "evict_first" if ONCE else ""
        one, other = tl.minimum(one, limit - 1), tl.minimum(other, limit - 1)
        k = tl.arange(0, BLOCK_K)
        to_x = x + row[:, None] * width + k[None, :]
        to_one = weight + one[None, :].to(tl.int64) * width + k[:, None]
        to_other = weight + other[None, :].to(tl.int64) * width + k[:, None]
        for start in range(0, width, BLOCK_K):
            if EVEN:
                w = tl.load(to_one + start, eviction_policy=policy)
                u = tl.load(to_other + start, eviction_policy=policy)
                a = tl.load(to_x + start)
            else:
                k_ok = k < width - start
                w = tl.load(to_one + start, mask=k_ok[:, None], other=0.0, eviction_policy=policy)
                u = tl.load(to_other + start, mask=k_ok[:, None], other=0.0, eviction_policy=policy)
                a = tl.load(to_x + start, mask=k_ok[None, :], other=0.0)
            first = tl.dot(a, w, first, input_precision=PRECISION)
            second = tl.dot(a, u, second, input_precision=PRECISION)
    return first, second


@triton.jit
def _squares(squares, room, groups, GROUPS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Load the partial sums of squares of this block's rows, [GROUPS, BLOCK_M]."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    group = tl.arange(0, GROUPS)
    return tl.load(squares + group[:, None] * room + row[None, :], mask=(group < groups)[:, None], other=0.0)


@triton.jit
def _rotary_qkv(
    x, weight, scales, x_tiles, weight_tiles, squares, bias, table_at, cos, sin, positions, q, k, v, slots,
    starts, rows, tokens, width, bias_stride, room, groups, k_slot, k_head, k_token, v_slot, v_head, v_token,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, PER_SEQUENCE: tl.constexpr,
    PACKED: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, ONCE: tl.constexpr, EPS: tl.constexpr,
    GROUPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    LINES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # A pair is (j, j + HALF) of a head; pairs are numbered through all heads of q, k and v.
    pair = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    pairs: tl.constexpr = (HEADS + 2 * KV_HEADS) * HALF
    pair_ok = pair < pairs
    head, j = pair // HALF, pair % HALF
    one = tl.where(pair_ok, head * (2 * HALF) + j, 2 * pairs)
    other = one + HALF
    if PDL:
        if not PACKED:
            prefetch_rows(weight, one, 2 * pairs, width, 0, width, LINES)
            prefetch_rows(weight, other, 2 * pairs, width, 0, width, LINES)
        after_previous()
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = row < rows
    row = tl.minimum(row, rows - 1)
    sequence, token = row // tokens, row % tokens
    position = tl.load(positions + sequence) + token
    turns = pair_ok & (head < HEADS + KV_HEADS)
    angle = position[:, None] * HALF + j[None, :]
    c = tl.load(cos + angle, mask=turns[None, :], other=1.0)
    s = tl.load(sin + angle, mask=turns[None, :], other=0.0)
    sums = _squares(squares, room, groups, GROUPS, BLOCK_M)
    pair_first = tl.program_id(1) * BLOCK_N
    first_one = pair_first // HALF * (2 * HALF) + pair_first % HALF
    first, second = _two_products(
        x, weight, scales, x_tiles, weight_tiles, row, one, other, tl.program_id(0) * BLOCK_M, first_one,
        first_one + HALF, 2 * pairs, width, PACKED, EVEN, PRECISION, ONCE, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    factor = tl.rsqrt(tl.sum(sums, axis=0) / width + EPS)
    first, second = first * factor[:, None], second * factor[:, None]
    if bias is not None:
        entry = table_row(table_at, sequence)
        first += bias_of(bias, entry, one, pair_ok, bias_stride, PER_SEQUENCE)
        second += bias_of(bias, entry, other, pair_ok, bias_stride, PER_SEQUENCE)
    ok = row_ok[:, None] & pair_ok[None, :]
    low, high = first * c - second * s, second * c + first * s

    q_ok = ok & (head < HEADS)[None, :]
    to = q + row[:, None].to(tl.int64) * (HEADS * 2 * HALF) + one[None, :]
    tl.store(to, low.to(q.dtype.element_ty), mask=q_ok)
    tl.store(to + HALF, high.to(q.dtype.element_ty), mask=q_ok)

    slot = tl.load(slots + sequence).to(tl.int64)
    target_token = tl.load(starts + sequence) + token
    k_ok = ok & ((head >= HEADS) & (head < HEADS + KV_HEADS))[None, :]
    to = k + (slot * k_slot + target_token * k_token)[:, None] + ((head - HEADS) * k_head + j)[None, :]
    tl.store(to, low.to(k.dtype.element_ty), mask=k_ok)
    tl.store(to + HALF, high.to(k.dtype.element_ty), mask=k_ok)
    v_ok = ok & (head >= HEADS + KV_HEADS)[None, :]
    to = (
        v
        + (slot * v_slot + target_token * v_token)[:, None]
        + ((head - HEADS - KV_HEADS) * v_head + j)[None, :]
    )
    tl.store(to, low.to(v.dtype.element_ty), mask=v_ok)
    tl.store(to + HALF, high.to(v.dtype.element_ty), mask=v_ok)


@triton.jit
def _gated_up(
    x, weight, scales, x_tiles, weight_tiles, squares, bias, table_at, out, rows, tokens, width, columns,
    bias_stride, room, groups, PER_SEQUENCE: tl.constexpr, PACKED: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, ONCE: tl.constexpr, EPS: tl.constexpr, GROUPS: tl.constexpr,
    SILU: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    LINES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    one = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ok = one < columns
    one = tl.where(ok, one, 2 * columns)
    other = one + columns
    if PDL:
        if not PACKED:
            prefetch_rows(weight, one, 2 * columns, width, 0, width, LINES)
            prefetch_rows(weight, other, 2 * columns, width, 0, width, LINES)
        after_previous()
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = row < rows
    row = tl.minimum(row, rows - 1)
    sequence = row // tokens
    sums = _squares(squares, room, groups, GROUPS, BLOCK_M)
    first_one = tl.program_id(1) * BLOCK_N
    gate, up = _two_products(
        x, weight, scales, x_tiles, weight_tiles, row, one, other, tl.program_id(0) * BLOCK_M, first_one,
        first_one + columns, 2 * columns, width, PACKED, EVEN, PRECISION, ONCE, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    factor = tl.rsqrt(tl.sum(sums, axis=0) / width + EPS)
    gate, up = gate * factor[:, None], up * factor[:, None]
    if bias is not None:
        entry = table_row(table_at, sequence)
        gate += bias_of(bias, entry, one, ok, bias_stride, PER_SEQUENCE)
        up += bias_of(bias, entry, other, ok, bias_stride, PER_SEQUENCE)
    # 0.5 (1 + tanh(z)) is the logistic function of 2 z.
    inner = gate if SILU else 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    fed = gate * tl.sigmoid(inner) * up
    to = out + row[:, None].to(tl.int64) * columns + one[None, :]
    tl.store(to, fed.to(out.dtype.element_ty), mask=row_ok[:, None] & ok[None, :])


@reads_early()
def rotary_qkv(
    x: Tensor,
    weight: Weight,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    starts: Tensor,
    norm: Norm,
    bias: Tensor | None = None,
    at: Tensor | None = None,
    *,
    config: Config,
    pdl: bool = False,
) -> None:
    """See kernels.reference.linear.rotary_qkv."""
    (batch, tokens, width), (heads, head) = x.shape, q.shape[2:]
    rows, half, (groups, room) = batch * tokens, head // 2, norm.squares.shape
    x = x if norm.scaled is None else norm.scaled
    (values, scales, packed), config = parts(weight), cut(weight, config, x)
    x_tiles, weight_tiles = (
        tiles_of_product(x, weight, config) if isinstance(weight, Tensor) else (None, None)
    )
    if half % config.block_n:  # a block's columns are not adjacent
        x_tiles = weight_tiles = None
    grid = (triton.cdiv(rows, config.block_m), triton.cdiv((heads + 2 * k.shape[1]) * half, config.block_n))
    _rotary_qkv[grid](
        x, values, scales, x_tiles, weight_tiles, norm.squares, bias, at, cos, sin, positions, q, k, v,
        slots, starts, rows, tokens, width, stride_of(bias), room, groups, *k.stride()[:3], *v.stride()[:3],
        HEADS=heads, KV_HEADS=k.shape[1], HALF=half, PER_SEQUENCE=per_sequence(bias), PACKED=packed,
        EVEN=width % config.block_k == 0, PRECISION=precision(x), ONCE=grid[0] == 1, EPS=norm.eps,
        GROUPS=triton.next_power_of_2(groups), BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        BLOCK_K=config.block_k, LINES=lines(values, width), **options(config.warps, config.stages, pdl),
    )  # fmt: skip


@reads_early()
def gated_up(
    x: Tensor,
    weight: Weight,
    out: Tensor,
    norm: Norm,
    bias: Tensor | None = None,
    at: Tensor | None = None,
    activation: str = GELU,
    *,
    config: Config,
    pdl: bool = False,
) -> None:
    """See kernels.reference.linear.gated_up."""
    (batch, tokens, width), columns = x.shape, out.shape[2]
    rows, (groups, room) = batch * tokens, norm.squares.shape
    x = x if norm.scaled is None else norm.scaled
    (values, scales, packed), config = parts(weight), cut(weight, config, x)
    x_tiles, weight_tiles = (
        tiles_of_product(x, weight, config) if isinstance(weight, Tensor) else (None, None)
    )
    if columns % config.block_n:  # the last block's columns are not adjacent
        x_tiles = weight_tiles = None
    grid = (triton.cdiv(rows, config.block_m), triton.cdiv(columns, config.block_n))
    _gated_up[grid](
        x, values, scales, x_tiles, weight_tiles, norm.squares, bias, at, out, rows, tokens, width, columns,
        stride_of(bias), room, groups, PER_SEQUENCE=per_sequence(bias), PACKED=packed,
        EVEN=width % config.block_k == 0, PRECISION=precision(x), ONCE=grid[0] == 1, EPS=norm.eps,
        GROUPS=triton.next_power_of_2(groups), SILU=activation == SILU,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, LINES=lines(values, width),
        **options(config.warps, config.stages, pdl),
    )  # fmt: skip
