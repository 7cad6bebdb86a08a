"""One pass over the rows between two large products: a program takes one whole row.

These run where cuBLAS does the products (encode, prefill, staggered steps). Their work is small against it
and mostly in L2, so they have no tuning: a row of a few thousand numbers takes 4 or 8 warps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.early import reads_early
from vla_accel_ros.kernels.reference.linear import GELU, NORM_EPS, SILU
from vla_accel_ros.kernels.triton.launch import after_previous, options


@triton.jit
def _rms_norm(x, weight, out, width, EPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    wide = tl.load(x + row * width + c, mask=ok, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + EPS)
    scaled = wide * factor * (1.0 + tl.load(weight + c, mask=ok, other=0.0))
    tl.store(out + row * width + c, scaled.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _add_norm(
    x, y, out, at, gate, scale, shift, tokens, width, part, gate_row, scale_row, shift_row,
    PARTS: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    table_row = tl.load(at + row // tokens).to(tl.int64)
    wide = tl.load(x + row * width + c, mask=ok, other=0.0).to(tl.float32)
    if y is not None:
        added = tl.load(y + row * width + c, mask=ok, other=0.0).to(tl.float32)
        for other in tl.static_range(1, PARTS):
            added += tl.load(y + other * part + row * width + c, mask=ok, other=0.0).to(tl.float32)
        if gate is not None:
            added *= tl.load(gate + table_row * gate_row + c, mask=ok, other=0.0)
        # The residual is what is stored: its rounding is in the norm too.
        rounded = (wide + added).to(x.dtype.element_ty)
        tl.store(x + row * width + c, rounded, mask=ok)
        wide = rounded.to(tl.float32)
    if out is not None:
        normed = wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / width + EPS)
        if scale is not None:
            normed *= 1.0 + tl.load(scale + table_row * scale_row + c, mask=ok, other=0.0)
        if shift is not None:
            normed += tl.load(shift + table_row * shift_row + c, mask=ok, other=0.0)
        tl.store(out + row * width + c, normed.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _vectors(weight, bias, weight_at, bias_at, c, ok):
    """Weights and biases of a row, 1 and 0 where there are none."""
    by, shift = 1.0, 0.0
    if weight is not None:
        by = tl.load(weight + weight_at + c, mask=ok, other=0.0).to(tl.float32)
    if bias is not None:
        shift = tl.load(bias + bias_at + c, mask=ok, other=0.0).to(tl.float32)
    return by, shift


@triton.jit
def _add_layer_norm(
    x, y, y_bias, weight, bias, out, gate, width, weight_rows, bias_rows, gate_rows,
    weight_row, bias_row, gate_row, COMPUTED: tl.constexpr,
    CENTRED: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    weight_at, bias_at = row // weight_rows * weight_row, row // bias_rows * bias_row
    if not COMPUTED:
        by, shift = _vectors(weight, bias, weight_at, bias_at, c, ok)
    if PDL:
        after_previous()
    if COMPUTED:
        by, shift = _vectors(weight, bias, weight_at, bias_at, c, ok)
    wide = tl.load(x + row * width + c, mask=ok, other=0.0).to(tl.float32)
    if y is not None:
        added = tl.load(y + row * width + c, mask=ok, other=0.0).to(tl.float32)
        if y_bias is not None:
            added += tl.load(y_bias + c, mask=ok, other=0.0).to(tl.float32)
        if gate is not None:
            added *= tl.load(gate + row // gate_rows * gate_row + c, mask=ok, other=0.0).to(tl.float32)
        # The residual is what is stored: its rounding is in the norm too.
        rounded = (wide + added).to(x.dtype.element_ty)
        tl.store(x + row * width + c, rounded, mask=ok)
        wide = rounded.to(tl.float32)
    if CENTRED:
        wide = tl.where(ok, wide - tl.sum(wide, axis=0) / width, 0.0)
    factor = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + EPS)
    tl.store(out + row * width + c, (wide * factor * by + shift).to(out.dtype.element_ty), mask=ok)


@triton.jit
def _gelu(z):
    # 0.5 (1 + tanh(u)) is the logistic function of 2 u.
    return z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))


@triton.jit
def _bias_gelu(y, bias, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = c < width
    to_y = y + row * width + c
    z = tl.load(to_y, mask=ok, other=0.0).to(tl.float32) + tl.load(bias + c, mask=ok, other=0.0).to(
        tl.float32
    )
    tl.store(to_y, _gelu(z).to(y.dtype.element_ty), mask=ok)


@triton.jit
def _glu(y, out, width, SILU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = c < width
    gate = tl.load(y + row * 2 * width + c, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(y + row * 2 * width + width + c, mask=ok, other=0.0).to(tl.float32)
    gate = gate * tl.sigmoid(gate) if SILU else _gelu(gate)
    tl.store(out + row * width + c, (gate * up).to(out.dtype.element_ty), mask=ok)


@triton.jit
def _place_qkv(
    y, cos, sin, positions, q, k, v, slots, starts, tokens,
    k_slot, k_head, k_token, v_slot, v_head, v_token,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):  # fmt: skip
    ALL: tl.constexpr = HEADS + 2 * KV_HEADS
    row = tl.program_id(0)
    sequence, token = row // tokens, row % tokens
    head, j = tl.arange(0, BLOCK_HEADS)[:, None], tl.arange(0, BLOCK)[None, :]
    half = j < HALF
    ok = (head < ALL) & half
    to_row = y + row.to(tl.int64) * (ALL * 2 * HALF) + head * (2 * HALF) + j
    first = tl.load(to_row, mask=ok, other=0.0).to(tl.float32)
    second = tl.load(to_row + HALF, mask=ok, other=0.0).to(tl.float32)
    angle = (tl.load(positions + sequence) + token) * HALF + j
    c, s = tl.load(cos + angle, mask=half, other=1.0), tl.load(sin + angle, mask=half, other=0.0)
    turns = head < HEADS + KV_HEADS
    c, s = tl.where(turns, c, 1.0), tl.where(turns, s, 0.0)
    low, high = first * c - second * s, second * c + first * s
    slot = tl.load(slots + sequence).to(tl.int64)
    target_token = tl.load(starts + sequence) + token
    to_q = q + row.to(tl.int64) * (HEADS * 2 * HALF) + head * (2 * HALF) + j
    to_k = k + slot * k_slot + target_token * k_token + (head - HEADS) * k_head + j
    to_v = v + slot * v_slot + target_token * v_token + (head - HEADS - KV_HEADS) * v_head + j
    is_q, is_k, is_v = ok & (head < HEADS), ok & (head >= HEADS) & turns, ok & (head >= HEADS + KV_HEADS)
    tl.store(to_q, low.to(q.dtype.element_ty), mask=is_q)
    tl.store(to_q + HALF, high.to(q.dtype.element_ty), mask=is_q)
    tl.store(to_k, low.to(k.dtype.element_ty), mask=is_k)
    tl.store(to_k + HALF, high.to(k.dtype.element_ty), mask=is_k)
    tl.store(to_v, low.to(v.dtype.element_ty), mask=is_v)
    tl.store(to_v + HALF, high.to(v.dtype.element_ty), mask=is_v)


def rms_norm(x: Tensor, weight: Tensor, out: Tensor, eps: float = NORM_EPS) -> None:
    """See kernels.reference.norm.rms_norm."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _rms_norm[(rows,)](x, weight, out, width, EPS=eps, BLOCK=block, num_warps=_warps(block))


def add_norm(
    x: Tensor,
    y: Tensor | None,
    out: Tensor | None,
    at: Tensor,
    gate: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    eps: float = NORM_EPS,
) -> None:
    """See kernels.reference.norm.add_norm; rows of tables and parts of y need not be contiguous."""
    batch, tokens, width = x.shape
    block = triton.next_power_of_2(width)
    rows = [0 if table is None else table.stride(0) for table in (gate, scale, shift)]
    _add_norm[(batch * tokens,)](
        x, y, out, at, gate, scale, shift, tokens, width, 0 if y is None else y.stride(0), *rows,
        PARTS=0 if y is None else y.shape[0], EPS=eps, BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip


@reads_early("weight bias")
def add_layer_norm(
    x: Tensor,
    y: Tensor | None,
    y_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    gate: Tensor | None = None,
    eps: float = NORM_EPS,
    *,
    computed: bool = False,
    centred: bool = True,
    pdl: bool = False,
) -> None:
    """See kernels.reference.norm.add_layer_norm."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    shares, strides = zip(*(_rows_of(table, rows) for table in (weight, bias, gate)), strict=True)
    _add_layer_norm[(rows,)](
        x, y, y_bias, weight, bias, out, gate, width, *shares, *strides,
        COMPUTED=computed, CENTRED=centred, EPS=eps, BLOCK=block,
        **options(max(1, _warps(block) // 2), 1, pdl),
    )  # fmt: skip


def _rows_of(table: Tensor | None, rows: int) -> tuple[int, int]:
    """Of how many rows a row of the table is, and how far apart its rows are."""
    if table is None or table.ndim == 1:
        return rows, 0
    return rows // len(table), table.stride(0)


def add_product(
    a: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, y: Tensor, gate: Tensor | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """See kernels.reference.norm.add_product. cuBLAS multiplies, and the following norm, which reads x
    anyway, adds."""
    torch.mm(a, weight.t(), out=y)
    return y, bias


def gelu_product(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    """See kernels.reference.norm.gelu_product. On a GPU cuBLAS applies bias and gelu in its epilogue."""
    if x.is_cuda:
        torch._addmm_activation(bias, x, weight.t(), use_gelu=True, out=out)
    else:
        torch.mm(x, weight.t(), out=out)
        bias_gelu(out, bias)


def bias_gelu(y: Tensor, bias: Tensor) -> None:
    """See kernels.reference.norm.bias_gelu."""
    rows, width = y.shape
    block = min(1024, triton.next_power_of_2(width))
    _bias_gelu[(rows, triton.cdiv(width, block))](y, bias, width, BLOCK=block, num_warps=_warps(block))


def glu(y: Tensor, out: Tensor, activation: str = GELU) -> None:
    """See kernels.reference.linear.glu; y and out are contiguous."""
    width = out.shape[-1]
    rows = out.numel() // width
    block = min(2048, triton.next_power_of_2(width))
    grid = rows, triton.cdiv(width, block)
    _glu[grid](y, out, width, SILU=activation == SILU, BLOCK=block, num_warps=_warps(block))


def place_qkv(
    y: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    starts: Tensor,
) -> None:
    """See kernels.reference.linear.place_qkv."""
    (batch, tokens, heads, width), kv_heads = q.shape, k.shape[1]
    _place_qkv[(batch * tokens,)](
        y, cos, sin, positions, q, k, v, slots, starts, tokens, *k.stride()[:3], *v.stride()[:3],
        HEADS=heads, KV_HEADS=kv_heads, HALF=width // 2, BLOCK=triton.next_power_of_2(width // 2),
        BLOCK_HEADS=triton.next_power_of_2(heads + 2 * kv_heads), num_warps=4,
    )  # fmt: skip


def _warps(block: int) -> int:
    return max(1, min(8, block // 256))
