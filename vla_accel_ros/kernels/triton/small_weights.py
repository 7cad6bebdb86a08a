"""Products with quantised weights for few rows: weights are dequantised in the tile that multiplies them.

Each weight is dequantised once: weight tiles are the left operand, so that warps divide their rows, and the
product is transposed at the end. The low halves of int4 bytes belong to 32 neighbouring columns of the
activations and their high halves to the next 32, so both are products of plain tiles without interleaving. A
group's sum is of whole numbers times activations; its scale is applied when the sum is added.
"""

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.block_shapes import chosen
from vla_accel_ros.kernels.gpu import gpu_of
from vla_accel_ros.kernels.shapes import Config, Shape, round_up
from vla_accel_ros.kernels.triton.launch import precision
from vla_accel_ros.models.layers.quantized import GROUP, INT4, Quantized, Weight


def parts(weight: Weight) -> tuple[Tensor, Tensor | None, int]:
    """Return values, scale, and columns in a group of packed values; (weight, None, 0) for an exact
    weight."""
    if isinstance(weight, Tensor):
        return weight, None, 0
    return weight.values, weight.scale, GROUP if weight.kind == INT4 else 0


def cut(weight: Weight, config: Config, x: Tensor) -> Config:
    """Return the config adapted to the weight, for rows x [..., K].

    Packed values are read one group at a time, and there are few row tiles, because each dequantises the
    weights again.
    """
    if isinstance(weight, Tensor):
        return config
    rows = min(round_up(x.shape[:-1].numel()), 64 if x.itemsize <= 2 else 32)
    return replace(
        config,
        block_m=max(config.block_m, rows),
        block_k=GROUP if weight.kind == INT4 else min(config.block_k, 128 if x.itemsize <= 2 else 64),
    )


@triton.jit
def _whole(halves, DTYPE: tl.constexpr):
    """Convert numbers 0 to 15 to themselves minus 8. For half precisions the bits are put into the mantissa
    of 128 or 1024: integer conversion is a slow instruction, and there would be one for each weight."""
    if tl.bfloat16 == DTYPE:
        whole = (halves.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True) - 136.0
    elif tl.float16 == DTYPE:
        whole = (halves.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True) - 1032.0
    else:
        whole = (halves.to(tl.int8) - 8).to(DTYPE)
    return whole


@triton.jit
def small_product(
    a, weight, scales, row, column, low, high, width, PACKED: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return rows of a @ columns of weight.T over low..high of the inner dimension: float32 [BLOCK_M,
    BLOCK_N]."""
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    if PACKED:
        groups = tl.cdiv(width, PACKED)
        j = tl.arange(0, PACKED // 2)
        to_a = a + row[None, :].to(tl.int64) * width + j[:, None]
        to_weight = weight + column[:, None].to(tl.int64) * (groups * (PACKED // 2)) + j[None, :]
        for group in range(low // PACKED, tl.cdiv(high, PACKED)):
            product = _group(
                to_a, tl.load(to_weight + group * (PACKED // 2)), group, width, PACKED, EVEN, PRECISION
            )
            total += product * tl.load(scales + column * groups + group)[:, None]
    else:
        k = tl.arange(0, BLOCK_K)
        to_a = a + row[None, :].to(tl.int64) * width + k[:, None]
        to_weight = weight + column[:, None].to(tl.int64) * width + k[None, :]
        for start in range(low, high, BLOCK_K):
            if EVEN:
                w, tile = tl.load(to_weight + start), tl.load(to_a + start)
            else:
                ok = k < high - start
                w = tl.load(to_weight + start, mask=ok[None, :], other=0.0)
                tile = tl.load(to_a + start, mask=ok[:, None], other=0.0)
            total = tl.dot(w.to(tile.dtype), tile, total, input_precision=PRECISION)
        total *= tl.load(scales + column)[:, None]
    return tl.trans(total)


@triton.jit
def two_small_products(
    a, weight, scales, row, one, other, width, PACKED: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """As small_product over the whole inner dimension, for two sets of columns that share the loads
    of `a`."""
    first = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    second = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    if PACKED:
        groups = tl.cdiv(width, PACKED)
        j = tl.arange(0, PACKED // 2)
        to_a = a + row[None, :].to(tl.int64) * width + j[:, None]
        to_one = weight + one[:, None].to(tl.int64) * (groups * (PACKED // 2)) + j[None, :]
        to_other = weight + other[:, None].to(tl.int64) * (groups * (PACKED // 2)) + j[None, :]
        for group in range(groups):
            w, u = tl.load(to_one + group * (PACKED // 2)), tl.load(to_other + group * (PACKED // 2))
            product = _group(to_a, w, group, width, PACKED, EVEN, PRECISION)
            first += product * tl.load(scales + one * groups + group)[:, None]
            product = _group(to_a, u, group, width, PACKED, EVEN, PRECISION)
            second += product * tl.load(scales + other * groups + group)[:, None]
    else:
        k = tl.arange(0, BLOCK_K)
        to_a = a + row[None, :].to(tl.int64) * width + k[:, None]
        to_one = weight + one[:, None].to(tl.int64) * width + k[None, :]
        to_other = weight + other[:, None].to(tl.int64) * width + k[None, :]
        for start in range(0, width, BLOCK_K):
            if EVEN:
                w, u, tile = tl.load(to_one + start), tl.load(to_other + start), tl.load(to_a + start)
            else:
                ok = k < width - start
                w = tl.load(to_one + start, mask=ok[None, :], other=0.0)
                u = tl.load(to_other + start, mask=ok[None, :], other=0.0)
                tile = tl.load(to_a + start, mask=ok[:, None], other=0.0)
            first = tl.dot(w.to(tile.dtype), tile, first, input_precision=PRECISION)
            second = tl.dot(u.to(tile.dtype), tile, second, input_precision=PRECISION)
        first *= tl.load(scales + one)[:, None]
        second *= tl.load(scales + other)[:, None]
    return tl.trans(first), tl.trans(second)


@triton.jit
def _group(to_a, packed, group, width, PACKED: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr):
    """Return the unscaled product of one group of packed weight columns and the same columns of the
    activations."""
    HALF: tl.constexpr = PACKED // 2
    if EVEN:
        first, second = tl.load(to_a + group * PACKED), tl.load(to_a + group * PACKED + HALF)
    else:
        k = group * PACKED + tl.arange(0, HALF)
        first = tl.load(to_a + group * PACKED, mask=(k < width)[:, None], other=0.0)
        second = tl.load(to_a + group * PACKED + HALF, mask=(k + HALF < width)[:, None], other=0.0)
    low_half = tl.dot(_whole(packed & 15, first.dtype), first, input_precision=PRECISION)
    return tl.dot(_whole(packed >> 4, first.dtype), second, low_half, input_precision=PRECISION)


@triton.jit
def _multiply(
    a, weight, scales, out, rows, columns, width, PACKED: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ok = (row < rows)[:, None] & (column < columns)[None, :]
    row, near = tl.minimum(row, rows - 1), tl.minimum(column, columns - 1)
    total = small_product(
        a, weight, scales, row, near, 0, width, width, PACKED, EVEN, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K
    )  # fmt: skip
    to = out + row[:, None].to(tl.int64) * columns + column[None, :]
    if ADD:
        total += tl.load(to, mask=ok, other=0.0).to(tl.float32)
    tl.store(to, total.to(out.dtype.element_ty), mask=ok)


def multiply(a: Tensor, weight: Quantized, out: Tensor, add: bool = False) -> None:
    """See kernels.reference.quantized.multiply; all tensors are contiguous."""
    (rows, width), columns = a.shape, weight.shape[0]
    values, scales, packed = parts(weight)
    dtype = str(weight.dtype).removeprefix("torch.")
    config = cut(weight, chosen(Shape("multiply", rows, columns, width, dtype), gpu_of(a.device)), a)
    _multiply[(triton.cdiv(rows, config.block_m), triton.cdiv(columns, config.block_n))](
        a, values, scales, out, rows, columns, width, PACKED=packed, EVEN=width % config.block_k == 0,
        ADD=add, PRECISION=precision(a),
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
