"""Products of int8 rows and int8 weights, scaled in the epilogue, and the passes that make the rows.

Both operands are contiguous along the inner dimension, as the tensor cores of sm_80 and later read int8. Sums
are int32, so any tile shape gives the same result. The epilogue applies scales, bias, residual, gelu or gate.
A pass takes a whole row at once, because its scale depends on its largest value. Exact activations and
weights are multiplied by cuBLAS.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.block_shapes import chosen
from vla_accel_ros.kernels.gpu import gpu_of
from vla_accel_ros.kernels.reference.int8 import Activations
from vla_accel_ros.kernels.reference.linear import NORM_EPS
from vla_accel_ros.kernels.reference.quantized import Rows
from vla_accel_ros.kernels.shapes import INT8_GATED, INT8_PRODUCT, Config, Shape
from vla_accel_ros.kernels.triton import norm
from vla_accel_ros.kernels.triton.norm import _gelu
from vla_accel_ros.models.layers.quantized import INT8_MAX, Quantized, Weight


@triton.jit
def _leave_int8(values, row, c, ok, out, scale, width, TOP: tl.constexpr):
    """Store a row's values as int8 with a scale, or unchanged if `scale` is None."""
    if scale is not None:
        unit = tl.maximum(tl.max(tl.where(ok, tl.abs(values), 0.0), axis=0), 1e-30) / TOP
        tl.store(scale + row, unit)
        values = values * (1.0 / unit)
        # Round to nearest, ties to even: from 2^23 on float32 has no fractions.
        values = (values + 12582912.0) - 12582912.0
    tl.store(out + row * width + c, values.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _quantize(x, by, out, scale, width, TOP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    wide = tl.load(x + row * width + c, mask=ok, other=0.0).to(tl.float32)
    if by is not None:
        wide *= tl.load(by + c, mask=ok, other=0.0)
    _leave_int8(wide, row, c, ok, out, scale, width, TOP)


@triton.jit
def _rms_norm_int8(x, factor, out, scale, width, eps, TOP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    wide = tl.load(x + row * width + c, mask=ok, other=0.0).to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps) * tl.load(factor + c, mask=ok, other=0.0)
    _leave_int8(wide, row, c, ok, out, scale, width, TOP)


@triton.jit
def _layer_norm_int8(
    x, weight, bias, out, scale, width, EPS: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    by, shift = tl.load(weight + c, mask=ok, other=0.0), tl.load(bias + c, mask=ok, other=0.0)
    wide = tl.load(x + row * width + c, mask=ok, other=0.0).to(tl.float32)
    mean = tl.sum(wide, axis=0) / width
    centred = tl.where(ok, wide - mean, 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, axis=0) / width + EPS)
    _leave_int8(centred * factor * by + shift, row, c, ok, out, scale, width, TOP)


@triton.jit
def _add_norm_int8(
    x, y, by, out, out_scale, at, gate, scale, shift, tokens, width, gate_row, scale_row, shift_row,
    EPS: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    table_row = tl.load(at + row // tokens).to(tl.int64)
    wide = tl.load(x + row * width + c, mask=ok, other=0.0).to(tl.float32)
    if y is not None:
        added = tl.load(y + row * width + c, mask=ok, other=0.0).to(tl.float32)
        if gate is not None:
            added *= tl.load(gate + table_row * gate_row + c, mask=ok, other=0.0)
        # The norm uses the stored, rounded residual.
        rounded = (wide + added).to(x.dtype.element_ty)
        tl.store(x + row * width + c, rounded, mask=ok)
        wide = rounded.to(tl.float32)
    if out is not None:
        normed = wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / width + EPS)
        if scale is not None:
            normed *= 1.0 + tl.load(scale + table_row * scale_row + c, mask=ok, other=0.0)
        if shift is not None:
            normed += tl.load(shift + table_row * shift_row + c, mask=ok, other=0.0)
        if by is not None:
            normed *= tl.load(by + c, mask=ok, other=0.0)
        _leave_int8(normed, row, c, ok, out, out_scale, width, TOP)


@triton.jit
def _int8_product(
    a, a_scale, weight, weight_scale, bias, out, rows, columns, width, GATED: tl.constexpr,
    FINISH: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    # A tile's base address is 64 bits, and offsets within it are 32 bits; 64-bit offsets would exhaust the
    # registers.
    m, n, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    first_row, first_column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    ok = (m < rows - first_row)[:, None] & (n < columns - first_column)[None, :]
    m, n = tl.minimum(m, rows - 1 - first_row), tl.minimum(n, columns - 1 - first_column)
    row, near = first_row + m, first_column + n
    to_a = a + first_row.to(tl.int64) * width + (m[:, None] * width + k[None, :])
    of_weight = n[None, :] * width + k[:, None]
    to_one = weight + first_column.to(tl.int64) * width + of_weight
    to_other = weight + (columns + first_column).to(tl.int64) * width + of_weight
    first = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    second = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    for start in range(0, width, BLOCK_K):
        if EVEN:
            tile, w = tl.load(to_a + start), tl.load(to_one + start)
            first = tl.dot(tile, w, first, out_dtype=tl.int32)
            if GATED:
                u = tl.load(to_other + start)
                second = tl.dot(tile, u, second, out_dtype=tl.int32)
        else:
            k_ok = k < width - start
            tile = tl.load(to_a + start, mask=k_ok[None, :], other=0.0)
            w = tl.load(to_one + start, mask=k_ok[:, None], other=0.0)
            first = tl.dot(tile, w, first, out_dtype=tl.int32)
            if GATED:
                u = tl.load(to_other + start, mask=k_ok[:, None], other=0.0)
                second = tl.dot(tile, u, second, out_dtype=tl.int32)
    of_rows = tl.load(a_scale + row)[:, None]
    product = first.to(tl.float32) * of_rows * tl.load(weight_scale + near)[None, :]
    if bias is not None:
        product += tl.load(bias + near).to(tl.float32)[None, :]
    # Unclamped columns: the compiler cannot see that the clamped ones are adjacent and would store single
    # elements.
    m, n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    to = out + first_row.to(tl.int64) * columns + first_column + (m[:, None] * columns + n[None, :])
    if GATED:
        up = second.to(tl.float32) * of_rows * tl.load(weight_scale + columns + near)[None, :]
        product = (_gelu(product) if FINISH == "gelu" else product * tl.sigmoid(product)) * up
    elif FINISH == "add":
        product += tl.load(to, mask=ok, other=0.0).to(tl.float32)
    elif FINISH == "gelu":
        product = _gelu(product)
    tl.store(to, product.to(out.dtype.element_ty), mask=ok)


def quantize(x: Tensor, by: Tensor | None, out: Rows) -> None:
    """See kernels.reference.int8.quantize; all tensors are contiguous."""
    width, block, warps = _row_of(x)
    _quantize[(x.numel() // width,)](x, by, *out[:2], width, TOP=INT8_MAX, BLOCK=block, num_warps=warps)


def rms_norm(x: Tensor, factor: Tensor, out: Activations, eps: float = NORM_EPS) -> None:
    """See kernels.reference.int8.rms_norm."""
    width, block, warps = _row_of(x)
    _rms_norm_int8[(x.shape[0],)](
        x, factor, *_parts(out), width, eps, TOP=INT8_MAX, BLOCK=block, num_warps=warps
    )


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, out: Activations) -> None:
    """See kernels.reference.int8.layer_norm."""
    width, block, warps = _row_of(x)
    _layer_norm_int8[(x.shape[0],)](
        x, weight, bias, *_parts(out), width, EPS=NORM_EPS, TOP=INT8_MAX, BLOCK=block, num_warps=warps
    )


def add_norm(
    x: Tensor,
    y: Tensor | None,
    by: Tensor | None,
    out: Activations | None,
    at: Tensor,
    gate: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
) -> None:
    """See kernels.reference.int8.add_norm; rows of tables need not be contiguous."""
    (batch, tokens, _), (width, block, warps) = x.shape, _row_of(x)
    tables = [0 if table is None else table.stride(0) for table in (gate, scale, shift)]
    _add_norm_int8[(batch * tokens,)](
        x, y, by, *_parts(out), at, gate, scale, shift, tokens, width, *tables, EPS=NORM_EPS, TOP=INT8_MAX,
        BLOCK=block, num_warps=warps,
    )  # fmt: skip


def multiply(
    a: Activations,
    weight: Weight,
    out: Tensor,
    bias: Tensor | None = None,
    finish: str = "none",
    *,
    config: Config | None = None,
) -> None:
    """See kernels.reference.int8.multiply. config: None = what kernels.block_shapes chooses."""
    if isinstance(a, Rows):
        return _launch(a, weight, out, bias, finish, False, config)
    assert isinstance(weight, Tensor), "exact activations need exact weights"
    if finish == "add":
        out.addmm_(a, weight.t())
        if bias is not None:
            out.add_(bias)
    elif finish == "gelu" and bias is not None:
        torch.mm(a, weight.t(), out=out)
        norm.bias_gelu(out, bias)
    elif bias is None:
        torch.mm(a, weight.t(), out=out)
    else:
        torch.addmm(bias, a, weight.t(), out=out)
    return None


def gated(
    a: Activations, weight: Weight, out: Tensor, activation: str = "gelu", *, config: Config | None = None
) -> None:
    """See kernels.reference.int8.gated. config: None = what kernels.block_shapes chooses."""
    if isinstance(a, Rows):
        return _launch(a, weight, out, None, activation, True, config)
    assert isinstance(weight, Tensor), "exact activations need exact weights"
    norm.glu(torch.mm(a, weight.t()), out, activation)
    return None


def _launch(
    a: Rows, weight: Weight, out: Tensor, bias: Tensor | None, finish: str, is_gated: bool,
    config: Config | None,
) -> None:  # fmt: skip
    assert isinstance(weight, Quantized), "8-bit activations need 8-bit weights"
    (count, width), columns = a.values.shape, out.shape[1]
    if config is None:
        kernel = INT8_GATED if is_gated else INT8_PRODUCT
        config = chosen(Shape(kernel, count, columns, width, "int8"), gpu_of(out.device))
    grid = triton.cdiv(count, config.block_m), triton.cdiv(columns, config.block_n)
    _int8_product[grid](
        *a[:2], weight.values, weight.scale, bias, out, count, columns, width, GATED=is_gated, FINISH=finish,
        EVEN=width % config.block_k == 0, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        BLOCK_K=config.block_k, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


def _parts(out: Activations | None) -> tuple[Tensor | None, Tensor | None]:
    return (out, None) if out is None or isinstance(out, Tensor) else (out.values, out.scale)


def _row_of(x: Tensor) -> tuple[int, int, int]:
    """Return the width of a row, its block size and warps: about one warp for 512 values."""
    width = x.shape[-1]
    block = triton.next_power_of_2(width)
    return width, block, max(1, min(16, block // 512))
