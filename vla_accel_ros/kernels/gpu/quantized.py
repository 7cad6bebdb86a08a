"""Weights of few bits on a GPU: widened in the tile that multiplies them, or multiplied in fp8 by cuBLAS.

Bytes of int4 are in such an order that their low halves belong to 64 neighbouring columns of the activations
and their high ones to the next 64: two products of plain tiles, nothing interleaved. A group's sum is exact
in whole numbers times activations and is scaled when it is added. The passes that leave rows in fp8 take a
row at once, because its scale follows from its largest value.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.gpu.launch import precision
from vla_accel_ros.kernels.linear import NORM_EPS
from vla_accel_ros.kernels.quantized import Rows
from vla_accel_ros.kernels.tuning import Config, Shape, safe
from vla_accel_ros.models.quantized import E4M3_MAX, GROUP, INT4, Quantized, Weight

FAST_ACCUMULATION = True
"""Whether fp8 products are summed in the matrix units for longer than their 14 bits are exact."""


def parts(weight: Weight) -> tuple[Tensor, Tensor | None, int]:
    """Values, scale, and columns in a group of packed values: (weight, None, 0) of an exact one."""
    if isinstance(weight, Tensor):
        return weight, None, 0
    return weight.values, weight.scale, GROUP if weight.kind == INT4 else 0


def cut(weight: Weight, config: Config) -> Config:
    """The config with an inner dimension as the weight has it: packed values are read a group at a time."""
    return replace(config, block_k=GROUP) if parts(weight)[2] else config


@triton.jit
def low_half(packed, DTYPE: tl.constexpr):
    """The first 64 columns of a tile of packed bytes, as whole numbers from -8 to 7."""
    return ((packed & 15).to(tl.int8) - 8).to(DTYPE)


@triton.jit
def high_half(packed, DTYPE: tl.constexpr):
    """The other 64."""
    return ((packed >> 4).to(tl.int8) - 8).to(DTYPE)


@triton.jit
def packed_product(
    a, weight, scales, row, column, low, high, width, groups, total,
    GROUP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """total + rows of a @ columns of weight.T, groups low..high of the inner dimension."""
    HALF: tl.constexpr = GROUP // 2
    j = tl.arange(0, HALF)
    to_a = a + row[:, None].to(tl.int64) * width + j[None, :]
    to_weight = weight + column[None, :].to(tl.int64) * (groups * HALF) + j[:, None]
    for group in range(low, high):
        k = group * GROUP + j
        packed = tl.load(to_weight + group * HALF)
        first = tl.load(to_a + group * GROUP, mask=(k < width)[None, :], other=0.0)
        second = tl.load(to_a + group * GROUP + HALF, mask=(k + HALF < width)[None, :], other=0.0)
        made = tl.dot(first, low_half(packed, first.dtype), input_precision=PRECISION)
        made = tl.dot(second, high_half(packed, first.dtype), made, input_precision=PRECISION)
        total += made * tl.load(scales + column * groups + group)[None, :]
    return total


@triton.jit
def two_packed_products(
    a, weight, scales, row, one, other, width, groups, first, second,
    GROUP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As packed_product of all groups, for two sets of columns that share what is read of a."""
    HALF: tl.constexpr = GROUP // 2
    j = tl.arange(0, HALF)
    to_a = a + row[:, None].to(tl.int64) * width + j[None, :]
    to_one = weight + one[None, :].to(tl.int64) * (groups * HALF) + j[:, None]
    to_other = weight + other[None, :].to(tl.int64) * (groups * HALF) + j[:, None]
    for group in range(groups):
        k = group * GROUP + j
        w, u = tl.load(to_one + group * HALF), tl.load(to_other + group * HALF)
        low = tl.load(to_a + group * GROUP, mask=(k < width)[None, :], other=0.0)
        high = tl.load(to_a + group * GROUP + HALF, mask=(k + HALF < width)[None, :], other=0.0)
        made = tl.dot(low, low_half(w, low.dtype), input_precision=PRECISION)
        made = tl.dot(high, high_half(w, low.dtype), made, input_precision=PRECISION)
        first += made * tl.load(scales + one * groups + group)[None, :]
        made = tl.dot(low, low_half(u, low.dtype), input_precision=PRECISION)
        made = tl.dot(high, high_half(u, low.dtype), made, input_precision=PRECISION)
        second += made * tl.load(scales + other * groups + group)[None, :]
    return first, second


@triton.jit
def _leave_row(values, row, c, ok, out, scale, width, TOP: tl.constexpr):
    """values times its scale is what was given; out holds them with the largest at TOP."""
    largest = tl.maximum(tl.max(tl.where(ok, tl.abs(values), 0.0), axis=0), 1e-12 * TOP)
    tl.store(scale + row, largest / TOP)
    tl.store(out + row * width + c, (values * (TOP / largest)).to(out.dtype.element_ty), mask=ok)


@triton.jit
def _rms_norm_rows(
    x, y, weight, out, scale, width, EPS: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    wide = tl.load(x + row * width + c, mask=ok, other=0.0).to(tl.float32)
    if y is not None:
        wide += tl.load(y + row * width + c, mask=ok, other=0.0).to(tl.float32)
        # The residual is what is stored: its rounding is in the norm too.
        rounded = wide.to(x.dtype.element_ty)
        tl.store(x + row * width + c, rounded, mask=ok)
        wide = rounded.to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + EPS)
    normed = wide * factor * (1.0 + tl.load(weight + c, mask=ok, other=0.0))
    _leave_row(normed, row, c, ok, out, scale, width, TOP)


@triton.jit
def _layer_norm_rows(
    x, y, y_bias, weight, bias, out, scale, width,
    EPS: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    wide = tl.load(x + row * width + c, mask=ok, other=0.0).to(tl.float32)
    if y is not None:
        wide += tl.load(y + row * width + c, mask=ok, other=0.0).to(tl.float32)
        if y_bias is not None:
            wide += tl.load(y_bias + c, mask=ok, other=0.0).to(tl.float32)
        rounded = wide.to(x.dtype.element_ty)
        tl.store(x + row * width + c, rounded, mask=ok)
        wide = rounded.to(tl.float32)
    mean = tl.sum(wide, axis=0) / width
    centred = tl.where(ok, wide - mean, 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, axis=0) / width + EPS)
    normed = centred * factor * tl.load(weight + c, mask=ok, other=0.0).to(tl.float32)
    normed += tl.load(bias + c, mask=ok, other=0.0).to(tl.float32)
    _leave_row(normed, row, c, ok, out, scale, width, TOP)


@triton.jit
def _gelu(z):
    # 0.5 (1 + tanh(u)) is the logistic function of 2 u.
    return z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))


@triton.jit
def _glu_rows(y, out, scale, width, TOP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    gate = tl.load(y + row * 2 * width + c, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(y + row * 2 * width + width + c, mask=ok, other=0.0).to(tl.float32)
    _leave_row(_gelu(gate) * up, row, c, ok, out, scale, width, TOP)


@triton.jit
def _gelu_rows(y, bias, out, scale, width, TOP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    z = tl.load(y + row * width + c, mask=ok, other=0.0).to(tl.float32)
    z += tl.load(bias + c, mask=ok, other=0.0).to(tl.float32)
    _leave_row(_gelu(z), row, c, ok, out, scale, width, TOP)


@triton.jit
def _multiply(
    a, weight, scales, out, rows, columns, width, PACKED: tl.constexpr, ADD: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ok = (row < rows)[:, None] & (column < columns)[None, :]
    row, near = tl.minimum(row, rows - 1), tl.minimum(column, columns - 1)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if PACKED:
        groups = tl.cdiv(width, PACKED)
        total = packed_product(
            a, weight, scales, row, near, 0, groups, width, groups, total, PACKED, PRECISION
        )  # fmt: skip
    else:
        k = tl.arange(0, BLOCK_K)
        to_a = a + row[:, None].to(tl.int64) * width + k[None, :]
        to_weight = weight + near[None, :].to(tl.int64) * width + k[:, None]
        for start in range(0, width, BLOCK_K):
            k_ok = k < width - start
            w = tl.load(to_weight + start, mask=k_ok[:, None], other=0.0)
            tile = tl.load(to_a + start, mask=k_ok[None, :], other=0.0)
            total = tl.dot(tile, w.to(tile.dtype), total, input_precision=PRECISION)
        total *= tl.load(scales + near)[None, :]
    to = out + row[:, None].to(tl.int64) * columns + column[None, :]
    if ADD:
        total += tl.load(to, mask=ok, other=0.0).to(tl.float32)
    tl.store(to, total.to(out.dtype.element_ty), mask=ok)


def rms_norm_rows(x: Tensor, y: Tensor | None, weight: Tensor, out: Rows) -> None:
    """See kernels.quantized.rms_norm_rows; all are contiguous."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _rms_norm_rows[(rows,)](
        x, y, weight, *out, width, EPS=NORM_EPS, TOP=E4M3_MAX, BLOCK=block, num_warps=_warps(block)
    )


def layer_norm_rows(
    x: Tensor, y: Tensor | None, y_bias: Tensor | None, weight: Tensor, bias: Tensor, out: Rows
) -> None:
    """See kernels.quantized.layer_norm_rows; all are contiguous."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _layer_norm_rows[(rows,)](
        x, y, y_bias, weight, bias, *out, width, EPS=NORM_EPS, TOP=E4M3_MAX, BLOCK=block,
        num_warps=_warps(block),
    )  # fmt: skip


def glu_rows(y: Tensor, out: Rows) -> None:
    """See kernels.quantized.glu_rows; all are contiguous."""
    rows, width = out.values.shape
    block = triton.next_power_of_2(width)
    _glu_rows[(rows,)](y, *out, width, TOP=E4M3_MAX, BLOCK=block, num_warps=_warps(block))


def gelu_rows(y: Tensor, bias: Tensor, out: Rows) -> None:
    """See kernels.quantized.gelu_rows; all are contiguous."""
    rows, width = y.shape
    block = triton.next_power_of_2(width)
    _gelu_rows[(rows,)](y, bias, *out, width, TOP=E4M3_MAX, BLOCK=block, num_warps=_warps(block))


def multiply_rows(a: Rows, weight: Quantized, out: Tensor, bias: Tensor | None = None) -> None:
    """See kernels.quantized.multiply_rows: cuBLASLt, with N and K multiples of 16; out and bias bfloat16."""
    torch._scaled_mm(
        a.values, weight.values.t(), scale_a=a.scale, scale_b=weight.scale[None], bias=bias,
        out_dtype=out.dtype, use_fast_accum=FAST_ACCUMULATION, out=out,
    )  # fmt: skip


def multiply(a: Tensor, weight: Quantized, out: Tensor, add: bool = False) -> None:
    """See kernels.quantized.multiply; all are contiguous."""
    (rows, width), columns = a.shape, weight.shape[0]
    values, scales, packed = parts(weight)
    config = cut(weight, safe(Shape("multiply", rows, columns, width, "float16"), _processors(a.device)))
    _multiply[(triton.cdiv(rows, config.block_m), triton.cdiv(columns, config.block_n))](
        a, values, scales, out, rows, columns, width, PACKED=packed, ADD=add, PRECISION=precision(a),
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 16


def _warps(block: int) -> int:
    """Some 1024 values are a warp's work: more rows are under way at once."""
    return max(1, min(16, block // 512))
