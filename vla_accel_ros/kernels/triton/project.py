"""x += gate * (a @ weight.T) in one launch, for the few dozen rows of a denoise or decode step.

Columns are few and the inner dimension is long, so it is split too (split-K). The last block of each tile
adds the parts in order, so the result is deterministic. It also computes what the following norm needs.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.early import reads_early
from vla_accel_ros.kernels.reference.linear import GROUP, Norm
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.triton.launch import (
    Scratch,
    after_previous,
    bias_of,
    leave_norm,
    lines,
    options,
    per_sequence,
    precision,
    prefetch_rows,
    stride_of,
    table_row,
    tiles_of_product,
)
from vla_accel_ros.kernels.triton.small_weights import cut, parts, small_product
from vla_accel_ros.models.layers.quantized import Weight


@triton.jit
def _project(
    a, weight, scales, a_tiles, weight_tiles, gate, x, squares, scale, scaled, table_at, sums, counters, rows,
    tokens, width, columns, gate_stride, scale_stride, room, PER_SEQUENCE: tl.constexpr,
    SCALE_PER_SEQUENCE: tl.constexpr, GROUP: tl.constexpr, PACKED: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, ONCE: tl.constexpr, SPLIT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, LINES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    column_ok = column < columns
    split = tl.program_id(2)
    chunk = tl.cdiv(tl.cdiv(width, BLOCK_K), SPLIT) * BLOCK_K
    begin = split * chunk
    end = tl.minimum(begin + chunk, width)
    if PDL:
        if not PACKED:
            prefetch_rows(weight, column, columns, width, begin, tl.maximum(end, 1), LINES)
        after_previous()
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = row < rows
    row = tl.minimum(row, rows - 1)
    policy: tl.constexpr = "evict_first" if ONCE else ""
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if scales is not None:
        total = small_product(
            a, weight, scales, row, tl.minimum(column, columns - 1), begin, end, width, PACKED, EVEN,
            PRECISION, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    elif weight_tiles is not None:
        for start in range(begin, end, BLOCK_K):
            w = weight_tiles.load([tl.program_id(1) * BLOCK_N, start])
            tile = a_tiles.load([tl.program_id(0) * BLOCK_M, start])
            total = tl.dot(tile, w.T, total, input_precision=PRECISION)
    else:
        k = tl.arange(0, BLOCK_K)
        to_a = a + row[:, None].to(tl.int64) * width + k[None, :]
        to_weight = weight + tl.minimum(column, columns - 1)[None, :].to(tl.int64) * width + k[:, None]
        for start in range(begin, end, BLOCK_K):
            if EVEN:
                w = tl.load(to_weight + start, eviction_policy=policy)
                tile = tl.load(to_a + start)
            else:
                k_ok = k < end - start
                w = tl.load(to_weight + start, mask=k_ok[:, None], other=0.0, eviction_policy=policy)
                tile = tl.load(to_a + start, mask=k_ok[None, :], other=0.0)
            total = tl.dot(tile, w, total, input_precision=PRECISION)
    is_last = True
    if SPLIT > 1:
        tile_index = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        local = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        to_sums = sums + tile_index.to(tl.int64) * (SPLIT * BLOCK_M * BLOCK_N) + local
        tl.store(to_sums + split * (BLOCK_M * BLOCK_N), total)
        tl.debug_barrier()
        is_last = tl.atomic_add(counters + tile_index, 1, sem="acq_rel", scope="gpu") == SPLIT - 1
        if is_last:
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for part in tl.static_range(SPLIT):
                total += tl.load(to_sums + part * (BLOCK_M * BLOCK_N), cache_modifier=".cg")
            tl.store(counters + tile_index, 0)
    if is_last:
        ok = row_ok[:, None] & column_ok[None, :]
        to = x + row[:, None].to(tl.int64) * columns + column[None, :]
        entry = table_row(table_at, row // tokens)
        if gate is not None:
            total *= bias_of(gate, entry, column, column_ok, gate_stride, PER_SEQUENCE)
        residual = tl.load(to, mask=ok, other=0.0).to(tl.float32)
        values = tl.where(column_ok[None, :], residual + total, 0.0).to(x.dtype.element_ty)
        tl.store(to, values, mask=ok)
        if squares is not None:
            leave_norm(
                values.to(tl.float32), row, row_ok, column, column_ok, entry, room, columns,
                tl.program_id(1) * BLOCK_N, squares, scale, scaled, scale_stride, SCALE_PER_SEQUENCE, BLOCK_N,
                GROUP,
            )  # fmt: skip


@reads_early()
def project(
    a: Tensor,
    weight: Weight,
    x: Tensor,
    gate: Tensor | None = None,
    norm: Norm | None = None,
    at: Tensor | None = None,
    *,
    config: Config,
    scratch: Scratch,
    pdl: bool = False,
) -> None:
    """See kernels.reference.linear.project."""
    (batch, tokens, columns), width = x.shape, weight.shape[1]
    rows = batch * tokens
    (values, scales, packed), config = parts(weight), cut(weight, config, a)
    blocks = triton.cdiv(rows, config.block_m), triton.cdiv(columns, config.block_n)
    split = min(config.split, triton.cdiv(width, config.block_k))
    needed = blocks[0] * blocks[1] * split * config.block_m * config.block_n
    if split > 1 and (needed > scratch.sums.numel() or blocks[0] * blocks[1] > scratch.counters.numel()):
        split = 1
    chunk = triton.cdiv(triton.cdiv(width, config.block_k), split) * config.block_k
    squares, scale, scaled, _ = norm or (None,) * 4
    room = 0 if squares is None else squares.shape[1]
    a_tiles, weight_tiles = (
        tiles_of_product(a, weight, config) if isinstance(weight, Tensor) else (None, None)
    )
    _project[(*blocks, split)](
        a, values, scales, a_tiles, weight_tiles, gate, x, squares, scale, scaled, at,
        scratch.sums, scratch.counters, rows, tokens, width, columns, stride_of(gate), stride_of(scale), room,
        PER_SEQUENCE=per_sequence(gate), SCALE_PER_SEQUENCE=per_sequence(scale), GROUP=GROUP, PACKED=packed,
        EVEN=width % config.block_k == 0, PRECISION=precision(a), ONCE=blocks[0] == 1, SPLIT=split,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, LINES=lines(values, chunk),
        **options(config.warps, config.stages, pdl),
    )  # fmt: skip
