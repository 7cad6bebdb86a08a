"""Norms and rotary positions of queries and keys in one pass, for any number and size of heads.

A program takes all queries or all keys of one row.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.early import reads_early
from vla_accel_ros.kernels.reference.heads import EPS
from vla_accel_ros.kernels.triton.launch import after_previous, options


@triton.jit
def _pairs(
    at, low, high, ok, row, inner, PAIRED: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The numbers that turn together, two tiles; of neighbours, both are one load."""
    if PAIRED:
        pairs = tl.load(at + row, mask=inner, other=0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(pairs, [HEADS, BLOCK, 2]))
    else:
        a = tl.load(at + low, mask=ok, other=0.0).to(tl.float32)
        b = tl.load(at + high, mask=ok, other=0.0).to(tl.float32)
    return a, b


@triton.jit
def _rotate_heads(
    x, cos, sin, of_queries, of_keys, out, tokens, x_row, out_row, table_row, queries, keys,
    HALF: tl.constexpr, EPS: tl.constexpr, WHOLE: tl.constexpr, PAIRED: tl.constexpr,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, kind = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heads = tl.where(kind == 0, queries, keys)
    h, j = tl.arange(0, HEADS)[:, None], tl.arange(0, BLOCK)[None, :]
    wide = tl.arange(0, 2 * BLOCK)[None, :]
    ok, inner = (h < heads) & (j < HALF), (h < heads) & (wide < 2 * HALF)
    start, first = h * (2 * HALF), kind * queries * (2 * HALF)
    low, high, pair = start + j, start + j + HALF, start + wide
    if PDL:
        after_previous()
    a, b = _pairs(x + row * x_row + first, low, high, ok, pair, inner, PAIRED, HEADS, BLOCK)
    if of_queries is not None:
        column = start if WHOLE else start * 0
        at_low, at_high, at_pair = column + j, column + j + HALF, column + wide
        q, k = kind == 0, kind == 1
        a_q, b_q = _pairs(of_queries, at_low, at_high, ok & q, at_pair, inner & q, PAIRED, HEADS, BLOCK)
        a_k, b_k = _pairs(of_keys, at_low, at_high, ok & k, at_pair, inner & k, PAIRED, HEADS, BLOCK)
        squares = tl.sum(a * a + b * b, axis=1)[:, None]
        if WHOLE:
            factor = tl.rsqrt(tl.sum(squares) / (heads * 2 * HALF) + EPS)
        else:
            factor = tl.rsqrt(squares / (2 * HALF) + EPS)
        a *= factor * (a_q + a_k)
        b *= factor * (b_q + b_k)
    if cos is not None:
        angle = (row % tokens) * table_row + j
        c = tl.load(cos + angle, mask=j < HALF, other=1.0).to(tl.float32)
        s = tl.load(sin + angle, mask=j < HALF, other=0.0).to(tl.float32)
        a, b = a * c - b * s, b * c + a * s
    to_out = out + row * out_row + first
    if PAIRED:
        turned = tl.reshape(tl.join(a, b), [HEADS, 2 * BLOCK])
        tl.store(to_out + pair, turned.to(out.dtype.element_ty), mask=inner)
    else:
        tl.store(to_out + low, a.to(out.dtype.element_ty), mask=ok)
        tl.store(to_out + high, b.to(out.dtype.element_ty), mask=ok)


@reads_early()
def rotate_heads(
    x: Tensor,
    queries: int,
    cos: Tensor | None,
    sin: Tensor | None,
    out: Tensor,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = EPS,
    whole: bool = False,
    paired: bool = False,
    *,
    pdl: bool = False,
) -> None:
    """See kernels.reference.heads.rotate_heads; rows of x are equally far apart, and those of cos as of
    sin."""
    (batch, tokens, heads, size), keys = x.shape, x.shape[2] - queries
    of_queries, of_keys = norms or (None, None)
    count = triton.next_power_of_2(max(queries, keys))
    block = triton.next_power_of_2(size // 2)
    table_row = 0 if cos is None else cos.stride(0)
    _rotate_heads[(batch * tokens, 1 if keys == 0 else 2)](
        x, cos, sin, of_queries, of_keys, out, tokens, x.stride(1), heads * size, table_row, queries, keys,
        HALF=size // 2, EPS=eps, WHOLE=whole, PAIRED=paired, HEADS=count, BLOCK=block,
        **options(4 if count * block <= 2048 else 8, 1, pdl),
    )  # fmt: skip
