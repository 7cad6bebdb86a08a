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
def _rotate_heads(
    x, cos, sin, of_queries, of_keys, out, tokens, x_row, out_row, table_row, queries, keys,
    HALF: tl.constexpr, EPS: tl.constexpr, WHOLE: tl.constexpr, PAIRED: tl.constexpr,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, kind = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heads = tl.where(kind == 0, queries, keys)
    h, j = tl.arange(0, HEADS)[:, None], tl.arange(0, BLOCK)[None, :]
    ok = (h < heads) & (j < HALF)
    place = (kind * queries + h) * (2 * HALF)
    low = 2 * j if PAIRED else j
    high = low + 1 if PAIRED else j + HALF
    if PDL:
        after_previous()
    a = tl.load(x + row * x_row + place + low, mask=ok, other=0.0).to(tl.float32)
    b = tl.load(x + row * x_row + place + high, mask=ok, other=0.0).to(tl.float32)
    if of_queries is not None:
        squares = tl.sum(a * a + b * b, axis=1)[:, None]
        if WHOLE:
            factor = tl.rsqrt(tl.sum(squares) / (heads * 2 * HALF) + EPS)
            column = h * (2 * HALF)
        else:
            factor = tl.rsqrt(squares / (2 * HALF) + EPS)
            column = h * 0
        of_q, of_k = ok & (kind == 0), ok & (kind == 1)
        by = tl.load(of_queries + column + low, mask=of_q, other=0.0).to(tl.float32)
        by += tl.load(of_keys + column + low, mask=of_k, other=0.0).to(tl.float32)
        a *= factor * by
        by = tl.load(of_queries + column + high, mask=of_q, other=0.0).to(tl.float32)
        by += tl.load(of_keys + column + high, mask=of_k, other=0.0).to(tl.float32)
        b *= factor * by
    angle, inner = (row % tokens) * table_row + j, j < HALF
    c = tl.load(cos + angle, mask=inner, other=1.0).to(tl.float32)
    s = tl.load(sin + angle, mask=inner, other=0.0).to(tl.float32)
    to_out = out + row * out_row + place
    tl.store(to_out + low, (a * c - b * s).to(out.dtype.element_ty), mask=ok)
    tl.store(to_out + high, (b * c + a * s).to(out.dtype.element_ty), mask=ok)


@reads_early()
def rotate_heads(
    x: Tensor,
    queries: int,
    cos: Tensor,
    sin: Tensor,
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
    most = triton.next_power_of_2(max(queries, keys))
    block = triton.next_power_of_2(size // 2)
    _rotate_heads[(batch * tokens, 1 if keys == 0 else 2)](
        x, cos, sin, of_queries, of_keys, out, tokens, x.stride(1), heads * size, cos.stride(0),
        queries, keys,
        HALF=size // 2, EPS=eps, WHOLE=whole, PAIRED=paired, HEADS=most, BLOCK=block,
        **options(4 if most * block <= 2048 else 8, 1, pdl),
    )  # fmt: skip
