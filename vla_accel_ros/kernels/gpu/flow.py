"""Both ends of a flow step in one launch each.

An action has few numbers and a token many, so the first product is made anew by every block that needs it,
inside the loop of the second. The end is one block per action: a row of the last matrix's few columns is
cheaper in exact float32 than on the matrix units.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.gpu.launch import after_previous, options, precision
from vla_accel_ros.kernels.linear import NORM_EPS
from vla_accel_ros.kernels.tuning import Config


@triton.jit
def _first(
    actions, in_weight, in_bias, columns, column_ok, sequence, A, width,
    PER_SEQUENCE: tl.constexpr, BLOCK_A: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Columns of actions @ in_weight.T + in_bias."""
    c = tl.arange(0, BLOCK_A)
    w = tl.load(
        in_weight + columns[None, :] * A + c[:, None], mask=column_ok[None, :] & (c < A)[:, None], other=0.0
    )
    made = tl.dot(actions, w, input_precision=EXACT)
    if PER_SEQUENCE:
        at = in_bias + sequence[:, None] * width + columns[None, :]
        return made + tl.load(at, mask=column_ok[None, :], other=0.0)
    return made + tl.load(in_bias + columns, mask=column_ok, other=0.0)[None, :]


@triton.jit
def _embed_actions(
    x, in_weight, in_bias, out, mlp_weight, mlp_bias, state, rows, horizon, tokens, A, width,
    PER_SEQUENCE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr, BLOCK_A: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        after_previous()
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = row < rows
    row = tl.minimum(row, rows - 1)
    sequence = row // tokens
    token = row % tokens - (tokens - horizon)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    column_ok = column < width
    c = tl.arange(0, BLOCK_A)
    is_action = row_ok & (token >= 0)
    at = x + (sequence * horizon + token)[:, None] * A + c[None, :]
    actions = tl.load(at, mask=is_action[:, None] & (c < A)[None, :], other=0.0)
    if mlp_weight is None:
        made = _first(
            actions, in_weight, in_bias, column, column_ok, sequence, A, width, PER_SEQUENCE, BLOCK_A, EXACT
        )
    else:
        made = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, width, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            k_ok = k < width
            hidden = _first(
                actions, in_weight, in_bias, k, k_ok, sequence, A, width, PER_SEQUENCE, BLOCK_A, EXACT
            )
            hidden = hidden * tl.sigmoid(hidden)
            w = tl.load(
                mlp_weight + column[None, :] * width + k[:, None],
                mask=column_ok[None, :] & k_ok[:, None], other=0.0,
            )  # fmt: skip
            made = tl.dot(hidden.to(w.dtype), w, made, input_precision=PRECISION)
        made += tl.load(mlp_bias + column, mask=column_ok, other=0.0)[None, :]
    ok = row_ok[:, None] & column_ok[None, :]
    if state is not None:
        first = state + sequence[:, None] * width + column[None, :]
        held = tl.load(first, mask=ok & (token < 0)[:, None], other=0.0).to(tl.float32)
        made = tl.where((token < 0)[:, None], held, made)
    tl.store(out + row[:, None] * width + column[None, :], made.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _read_out(
    hidden, weight, bias, x, update, scale, tokens, horizon, A, width, PER_SEQUENCE: tl.constexpr,
    BLOCK_A: tl.constexpr, BLOCK_K: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        after_previous()
    action = tl.program_id(0)
    sequence = action // horizon
    row = sequence * tokens + tokens - horizon + action % horizon
    table = sequence if PER_SEQUENCE else 0
    a = tl.arange(0, BLOCK_A)
    total = tl.zeros((BLOCK_A,), tl.float32)
    squares = 0.0
    for start in range(0, width, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        k_ok = k < width
        h = tl.load(hidden + row * width + k, mask=k_ok, other=0.0).to(tl.float32)
        squares += tl.sum(h * h, axis=0)
        if scale is not None:
            h *= 1.0 + tl.load(scale + table * width + k, mask=k_ok, other=0.0)
        w = tl.load(
            weight + a[:, None] * width + k[None, :], mask=(a < A)[:, None] & k_ok[None, :], other=0.0
        )
        total += tl.sum(w * h[None, :], axis=1)
    a_ok = a < A
    moved = total * tl.rsqrt(squares / width + EPS) + tl.load(bias + table * A + a, mask=a_ok, other=0.0)
    at = action * A + a
    tl.store(update + at, moved, mask=a_ok)
    tl.store(x + at, tl.load(x + at, mask=a_ok, other=0.0) + moved, mask=a_ok)


def embed_actions(
    x: Tensor,
    in_weight: Tensor,
    in_bias: Tensor,
    out: Tensor,
    mlp_weight: Tensor | None = None,
    mlp_bias: Tensor | None = None,
    state: Tensor | None = None,
    *,
    config: Config,
    pdl: bool = False,
) -> None:
    """See kernels.flow.embed_actions."""
    (batch, horizon, size), (tokens, width) = x.shape, out.shape[1:]
    rows = batch * tokens
    _embed_actions[(triton.cdiv(rows, config.block_m), triton.cdiv(width, config.block_n))](
        x, in_weight, in_bias, out, mlp_weight, mlp_bias, state, rows, horizon, tokens, size, width,
        PER_SEQUENCE=in_bias.shape[0] > 1, PRECISION=precision(x if mlp_weight is None else mlp_weight),
        EXACT="ieee" if out.dtype == x.dtype else "tf32x3",
        BLOCK_A=max(16, triton.next_power_of_2(size)), BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        BLOCK_K=config.block_k, **options(config.warps, config.stages, pdl),
    )  # fmt: skip


def read_out(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    update: Tensor,
    scale: Tensor | None = None,
    *,
    config: Config,
    pdl: bool = False,
) -> None:
    """See kernels.flow.read_out."""
    (batch, horizon, size), (tokens, width) = x.shape, hidden.shape[1:]
    _read_out[(batch * horizon,)](
        hidden, weight, bias, x, update, scale, tokens, horizon, size, width,
        PER_SEQUENCE=bias.shape[0] > 1 or (scale is not None and scale.shape[0] > 1),
        BLOCK_A=triton.next_power_of_2(size), BLOCK_K=config.block_k, EPS=NORM_EPS,
        **options(config.warps, config.stages, pdl),
    )  # fmt: skip
