"""a @ weight.T of fp8 rows as cuBLAS does it, but cut along the inner dimension, too.

A product of a few hundred rows and few columns has fewer tiles than a GPU has processors, and cuBLAS does not
cut those with a scale for each row. Parts are added in their order by the block that comes last, which scales
them by row and column and writes once.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.gpu.launch import Scratch, tiles
from vla_accel_ros.kernels.quantized import Rows
from vla_accel_ros.kernels.tuning import Config
from vla_accel_ros.models.quantized import Quantized


@triton.jit
def _rows_product(
    a_tiles, weight_tiles, scale, weight_scale, bias, out, sums, counters, rows, columns, width, row_tiles,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # Blocks of the same columns are neighbours, so that weights come from memory once.
    first_row = tl.program_id(0) % row_tiles * BLOCK_M
    first_column = tl.program_id(0) // row_tiles * BLOCK_N
    split = tl.program_id(1)
    chunk = tl.cdiv(tl.cdiv(width, BLOCK_K), SPLIT) * BLOCK_K
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(split * chunk, tl.minimum((split + 1) * chunk, width), BLOCK_K):
        tile = a_tiles.load([first_row, start])
        w = weight_tiles.load([first_column, start])
        total = tl.dot(tile, w.T, total)
    is_last = True
    if SPLIT > 1:
        local = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        mine = sums + tl.program_id(0).to(tl.int64) * (SPLIT * BLOCK_M * BLOCK_N) + local
        tl.store(mine + split * (BLOCK_M * BLOCK_N), total)
        tl.debug_barrier()
        counter = counters + tl.program_id(0)
        is_last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == SPLIT - 1
        if is_last:
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for part in tl.static_range(SPLIT):
                total += tl.load(mine + part * (BLOCK_M * BLOCK_N), cache_modifier=".cg")
            tl.store(counter, 0)
    if is_last:
        row, column = first_row + tl.arange(0, BLOCK_M), first_column + tl.arange(0, BLOCK_N)
        row_ok, column_ok = row < rows, column < columns
        total *= tl.load(scale + row, mask=row_ok, other=0.0)[:, None]
        total *= tl.load(weight_scale + column, mask=column_ok, other=0.0)[None, :]
        if bias is not None:
            total += tl.load(bias + column, mask=column_ok, other=0.0).to(tl.float32)[None, :]
        to = out + row[:, None].to(tl.int64) * columns + column[None, :]
        ok = row_ok[:, None] & column_ok[None, :]
        tl.store(to, total.to(out.dtype.element_ty), mask=ok)


def multiply_rows(
    a: Rows,
    weight: Quantized,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    config: Config,
    scratch: Scratch,
) -> None:
    """See kernels.quantized.multiply_rows; rows of a and weight begin at multiples of 16 bytes."""
    (rows, width), columns = a.values.shape, weight.shape[0]
    row_tiles = triton.cdiv(rows, config.block_m)
    blocks = row_tiles * triton.cdiv(columns, config.block_n)
    split = min(config.split, triton.cdiv(width, config.block_k))
    room = scratch.sums.numel() // (blocks * config.block_m * config.block_n)
    split = min(split, room) if room and blocks <= scratch.counters.numel() else 1
    _rows_product[(blocks, split)](
        tiles(a.values, config.block_m, config.block_k), tiles(weight.values, config.block_n, config.block_k),
        a.scale, weight.scale, bias, out, scratch.sums, scratch.counters, rows, columns, width, row_tiles,
        SPLIT=split, BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
