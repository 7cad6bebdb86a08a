"""Passes that leave rows of activations in fp8 or nvfp4 between two products; cuBLASLt multiplies them.

A program takes a whole row at once, because its scale depends on its largest value. nvfp4 compiles for GPUs
that multiply it, and was tried on none.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.reference.linear import NORM_EPS
from vla_accel_ros.kernels.reference.quantized import Product, Rows
from vla_accel_ros.models.layers.quantized import E4M3_MAX, SHORT, Quantized


@triton.jit
def _leave_row(values, row, c, ok, out, scale, groups, width, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """Store a row as fp8 with the largest magnitude at TOP, and its scale; in nvfp4 if there are groups."""
    if groups is not None:
        _leave_fp4(values, row, ok, out, scale, groups, width, TOP, BLOCK)
    else:
        largest = tl.maximum(tl.max(tl.where(ok, tl.abs(values), 0.0), axis=0), 1e-12 * TOP)
        tl.store(scale + row, largest / TOP)
        tl.store(out + row * width + c, (values * (TOP / largest)).to(out.dtype.element_ty), mask=ok)


@triton.jit
def _leave_fp4(values, row, ok, out, scale, groups, width, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """See models.layers.fp4.rows_in_fp4."""
    values = tl.where(ok, values, 0.0)
    unit = tl.maximum(tl.max(tl.abs(values), axis=0), 1e-30) / (6.0 * TOP)
    tl.store(scale + row, unit)
    numbers = tl.reshape(values * (1.0 / unit), (BLOCK // 16, 16))
    small = (tl.max(tl.abs(numbers), axis=1) / 6.0).to(groups.dtype.element_ty)
    g = tl.arange(0, BLOCK // 16)
    tile = row // 128 * tl.cdiv(width, 64) + g // 4
    to = tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + g % 4
    tl.store(groups + to, small, mask=g < width // 16)
    by = small.to(tl.float32)
    numbers = numbers / tl.where(by == 0.0, 1.0, by)[:, None]
    size = tl.abs(numbers)
    code = (size > 0.25).to(tl.int32) + (size >= 0.75) + (size > 1.25) + (size >= 1.75)
    code += (size > 2.5).to(tl.int32) + (size >= 3.5) + (size > 5.0) + 8 * (numbers < 0.0)
    low, high = tl.split(tl.reshape(code, (BLOCK // 2, 2)))
    b = tl.arange(0, BLOCK // 2)
    tl.store(out + row * (width // 2) + b, (low | high << 4).to(tl.uint8), mask=b < width // 2)


@triton.jit
def _read(y, rows, columns, row, c, first, total, ok):
    """Load columns first + c of a row of y, of `total` columns, times its scales if it has any."""
    wide = tl.load(y + row * total + first + c, mask=ok, other=0.0).to(tl.float32)
    if rows is not None:
        wide = wide * tl.load(rows + row) * tl.load(columns + first + c, mask=ok, other=0.0)
    return wide


@triton.jit
def _rms_norm_rows(
    x,
    y,
    y_rows,
    y_columns,
    weight,
    out,
    scale,
    groups,
    width,
    EPS: tl.constexpr,
    TOP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    wide = tl.load(x + row * width + c, mask=ok, other=0.0).to(tl.float32)
    if y is not None:
        wide += _read(y, y_rows, y_columns, row, c, 0, width, ok)
        # The residual is what is stored: its rounding is in the norm too.
        rounded = wide.to(x.dtype.element_ty)
        tl.store(x + row * width + c, rounded, mask=ok)
        wide = rounded.to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + EPS)
    normed = wide * factor * (1.0 + tl.load(weight + c, mask=ok, other=0.0))
    _leave_row(normed, row, c, ok, out, scale, groups, width, TOP, BLOCK)


@triton.jit
def _layer_norm_rows(
    x, y, y_rows, y_columns, y_bias, weight, bias, out, scale, groups, width,
    EPS: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    wide = tl.load(x + row * width + c, mask=ok, other=0.0).to(tl.float32)
    if y is not None:
        wide += _read(y, y_rows, y_columns, row, c, 0, width, ok)
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
    _leave_row(normed, row, c, ok, out, scale, groups, width, TOP, BLOCK)


@triton.jit
def _gelu(z):
    # 0.5 (1 + tanh(u)) is the logistic function of 2 u.
    return z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))


@triton.jit
def _glu_rows(y, y_rows, y_columns, out, scale, groups, width, TOP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    gate = _read(y, y_rows, y_columns, row, c, 0, 2 * width, ok)
    up = _read(y, y_rows, y_columns, row, c, width, 2 * width, ok)
    _leave_row(_gelu(gate) * up, row, c, ok, out, scale, groups, width, TOP, BLOCK)


@triton.jit
def _gelu_rows(y, y_rows, y_columns, bias, out, scale, groups, width, TOP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    z = _read(y, y_rows, y_columns, row, c, 0, width, ok)
    z += tl.load(bias + c, mask=ok, other=0.0).to(tl.float32)
    _leave_row(_gelu(z), row, c, ok, out, scale, groups, width, TOP, BLOCK)


def rms_norm_rows(x: Tensor, y: Product | None, weight: Tensor, out: Rows) -> None:
    """See kernels.reference.quantized.rms_norm_rows; all tensors are contiguous."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _rms_norm_rows[(rows,)](
        x, *_parts(y), weight, *out, width, EPS=NORM_EPS, TOP=E4M3_MAX, BLOCK=block, num_warps=_warps(block)
    )


def layer_norm_rows(
    x: Tensor, y: Tensor | Product | None, y_bias: Tensor | None, weight: Tensor, bias: Tensor, out: Rows
) -> None:
    """See kernels.reference.quantized.layer_norm_rows; all tensors are contiguous."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _layer_norm_rows[(rows,)](
        x, *_parts(y), y_bias, weight, bias, *out, width, EPS=NORM_EPS, TOP=E4M3_MAX, BLOCK=block,
        num_warps=_warps(block),
    )  # fmt: skip


def glu_rows(y: Product, out: Rows) -> None:
    """See kernels.reference.quantized.glu_rows; all tensors are contiguous."""
    rows, width = out.values.shape[0], y.values.shape[1] // 2
    block = triton.next_power_of_2(width)
    _glu_rows[(rows,)](*y, *out, width, TOP=E4M3_MAX, BLOCK=block, num_warps=_warps(block))


def gelu_rows(y: Product, bias: Tensor, out: Rows) -> None:
    """See kernels.reference.quantized.gelu_rows; all tensors are contiguous."""
    rows, width = y.values.shape
    block = triton.next_power_of_2(width)
    _gelu_rows[(rows,)](*y, bias, *out, width, TOP=E4M3_MAX, BLOCK=block, num_warps=_warps(block))


def multiply_rows(a: Rows, weight: Quantized, out: Tensor, bias: Tensor | None = None) -> None:
    """See kernels.reference.quantized.multiply_rows. Uses cuBLASLt: N and K must be multiples of 16, out and
    bias bfloat16."""
    if a.groups is not None:
        multiply_unscaled(a, weight, out)
        out.mul_(a.scale).mul_(weight.scale)
        if bias is not None:
            out.add_(bias)
        return
    torch._scaled_mm(
        a.values, weight.values.t(), scale_a=a.scale, scale_b=weight.scale[None], bias=bias,
        out_dtype=out.dtype, use_fast_accum=weight.columns <= SHORT, out=out,
    )  # fmt: skip


def multiply_unscaled(a: Rows, weight: Quantized, out: Tensor) -> None:
    """See kernels.reference.quantized.multiply_unscaled. Uses cuBLASLt: N and K must be multiples of 16, in
    nvfp4 K of 32; out bfloat16."""
    values, other, unit = a.values, weight.values, _one(out.device)
    scales, fast = (unit, unit), weight.columns <= SHORT
    if a.groups is not None and weight.groups is not None:
        values, other = values.view(torch.float4_e2m1fn_x2), other.view(torch.float4_e2m1fn_x2)
        scales, fast = (a.groups.flatten(), weight.groups.flatten()), False
    torch._scaled_mm(
        values, other.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=out.dtype, use_fast_accum=fast,
        out=out,
    )  # fmt: skip


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)


def _parts(y: Tensor | Product | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    return (y, None, None) if y is None or isinstance(y, Tensor) else (y.values, y.rows, y.columns)


def _warps(block: int) -> int:
    """Return the warps of a row: one for each 512 values, so that enough rows are loaded at once."""
    return max(1, min(16, block // 512))
