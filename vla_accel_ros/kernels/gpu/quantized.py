"""Rows of activations in fp8, left by the passes between two products, and their product, which is cuBLAS's.

A program takes a row at once, because its scale follows from its largest value.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.linear import NORM_EPS
from vla_accel_ros.kernels.quantized import Rows
from vla_accel_ros.models.quantized import E4M3_MAX, Quantized

FAST_ACCUMULATION = True
"""Whether fp8 products are summed in the matrix units for longer than their 14 bits are exact."""


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


def _warps(block: int) -> int:
    """Some 1024 values are a warp's work: more rows are under way at once."""
    return max(1, min(16, block // 512))
