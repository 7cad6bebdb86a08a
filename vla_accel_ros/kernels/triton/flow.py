"""The first and the last operation of a flow step.

An action has few numbers, so its embedding is one tile deep; pi0's second layer is a launch of its own. The
last operation has one block per action: a row of the output matrix's few columns is cheaper in exact float32
than in tensor cores.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.early import reads_early
from vla_accel_ros.kernels.reference.flow import Guide, History, Magnitudes
from vla_accel_ros.kernels.reference.linear import GROUP, NORM_EPS, Norm
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.triton.launch import (
    Scratch,
    after_previous,
    bias_of,
    leave_norm,
    lines,
    options,
    per_sequence,
    precision,
    prefetch_rows,
    rounded,
    stride_of,
    table_row,
    tiles_of_product,
)


@triton.jit
def _embed(
    x, in_weight, in_bias, out, squares, scale, scaled, table_at, rows, horizon, tokens, A, width,
    bias_stride, scale_stride, room,
    PER_SEQUENCE: tl.constexpr, SCALE_PER_SEQUENCE: tl.constexpr, PER_ACTION: tl.constexpr,
    SILU: tl.constexpr, GROUP: tl.constexpr, EXACT: tl.constexpr, BLOCK_A: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = row < rows
    row = tl.minimum(row, rows - 1)
    sequence = row // tokens
    token = row % tokens - (tokens - horizon)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    column_ok = column < width
    c = tl.arange(0, BLOCK_A)
    w_ok = column_ok[None, :] & (c < A)[:, None]
    w = tl.load(in_weight + column[None, :] * A + c[:, None], mask=w_ok, other=0.0)
    if PDL:
        after_previous()
    table = table_row(table_at, sequence * horizon + tl.maximum(token, 0) if PER_ACTION else sequence)
    to_x = x + (sequence * horizon + token)[:, None] * A + c[None, :]
    actions = tl.load(to_x, mask=(row_ok & (token >= 0))[:, None] & (c < A)[None, :], other=0.0)
    embedded = tl.dot(actions, w, input_precision=EXACT)
    embedded += bias_of(in_bias, table, column, column_ok, bias_stride, PER_SEQUENCE)
    if SILU:
        embedded = embedded * tl.sigmoid(embedded)
    embedded = tl.where(column_ok[None, :], embedded, 0.0).to(out.dtype.element_ty)
    tl.store(
        out + row[:, None] * width + column[None, :], embedded, mask=row_ok[:, None] & column_ok[None, :]
    )
    if squares is not None:
        leave_norm(
            embedded.to(tl.float32), row, row_ok, column, column_ok, table, room, width,
            tl.program_id(1) * BLOCK_N, squares, scale, scaled, scale_stride, SCALE_PER_SEQUENCE, BLOCK_N,
            GROUP,
        )  # fmt: skip


@triton.jit
def _mix(
    hidden, weight, hidden_tiles, weight_tiles, bias, state, out, squares, rows, horizon, tokens, width, room,
    GROUP: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, LINES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    column_ok = column < width
    if PDL:
        prefetch_rows(weight, column, width, width, 0, width, LINES)
        after_previous()
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = row < rows
    row = tl.minimum(row, rows - 1)
    mixed = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if weight_tiles is not None:
        for start in range(0, width, BLOCK_K):
            w = weight_tiles.load([tl.program_id(1) * BLOCK_N, start])
            a = hidden_tiles.load([tl.program_id(0) * BLOCK_M, start])
            mixed = tl.dot(a, w.T, mixed, input_precision=PRECISION)
    else:
        k = tl.arange(0, BLOCK_K)
        to_hidden = hidden + row[:, None] * width + k[None, :]
        to_weight = weight + tl.minimum(column, width - 1)[None, :] * width + k[:, None]
        for start in range(0, width, BLOCK_K):
            if EVEN:
                w = tl.load(to_weight + start)
                a = tl.load(to_hidden + start)
            else:
                k_ok = k < width - start
                w = tl.load(to_weight + start, mask=k_ok[:, None], other=0.0)
                a = tl.load(to_hidden + start, mask=k_ok[None, :], other=0.0)
            mixed = tl.dot(a, w, mixed, input_precision=PRECISION)
    mixed += tl.load(bias + column, mask=column_ok, other=0.0)[None, :]
    ok = row_ok[:, None] & column_ok[None, :]
    if state is not None:
        is_state = (row % tokens < tokens - horizon)[:, None]
        first = state + (row // tokens)[:, None] * width + column[None, :]
        mixed = tl.where(is_state, tl.load(first, mask=ok & is_state, other=0.0).to(tl.float32), mixed)
    mixed = tl.where(column_ok[None, :], mixed, 0.0).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * width + column[None, :], mixed, mask=ok)
    if squares is not None:
        leave_norm(
            mixed.to(tl.float32), row, row_ok, column, column_ok, row, room, width,
            tl.program_id(1) * BLOCK_N, squares, None, None, 0, False, BLOCK_N, GROUP,
        )  # fmt: skip


@triton.jit
def _read_out(
    hidden, weight, bias, x, update, scale, step, magnitudes, dims, target, weights, gains, reach, committed,
    last, rates, tokens, horizon, A, width, steps, PER_SEQUENCE: tl.constexpr, BLOCK_A: tl.constexpr,
    BLOCK_K: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr,
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
        squares += tl.sum(rounded(h * h, k_ok), axis=0)
        if scale is not None:
            h *= 1.0 + tl.load(scale + table * width + k, mask=k_ok, other=0.0)
        w = tl.load(
            weight + a[:, None] * width + k[None, :], mask=(a < A)[:, None] & k_ok[None, :], other=0.0
        )
        total += tl.sum(rounded(w * h[None, :], k_ok[None, :]), axis=1)
    a_ok = a < A
    moved = total * tl.rsqrt(squares / width + EPS) + tl.load(bias + table * A + a, mask=a_ok, other=0.0)
    element = action * A + a
    x_before = tl.load(x + element, mask=a_ok, other=0.0)
    index = tl.load(step + sequence) if step is not None else 0
    rate = moved
    if target is not None:
        clean = x_before + tl.load(reach + index) * moved
        pull = tl.load(gains + sequence * steps + index) * tl.load(weights + action)
        pulled = moved + pull * (tl.load(target + element, mask=a_ok, other=0.0) - clean)
        moved = tl.where(pull != 0.0, pulled, moved)
    if last is not None:
        carry = tl.load(rates + index * 2 + 1)
        carried = tl.where(carry != 0.0, carry * tl.load(last + element, mask=a_ok, other=0.0), 0.0)
        moved += rounded(tl.load(rates + index * 2) * rate, a_ok) - carried
        tl.store(last + element, rate, mask=a_ok)
    if target is not None:
        moved = tl.where(action % horizon < tl.load(committed + sequence), 0.0, moved)
    tl.store(update + element, moved, mask=a_ok)
    tl.store(x + element, x_before + moved, mask=a_ok)
    if magnitudes is not None:
        count = tl.load(dims + sequence)
        counted = tl.where(a < count, moved, 0.0)
        magnitude = (sequence * steps + index) * horizon + action % horizon
        tl.store(magnitudes + magnitude, tl.sqrt(tl.sum(counted * counted, axis=0) / count))


@reads_early("in_weight")
def embed_actions(
    x: Tensor,
    in_weight: Tensor,
    in_bias: Tensor,
    out: Tensor,
    mlp_weight: Tensor | None = None,
    mlp_bias: Tensor | None = None,
    state: Tensor | None = None,
    norm: Norm | None = None,
    at: Tensor | None = None,
    *,
    config: Config,
    scratch: Scratch,
    pdl: bool = False,
) -> None:
    """See kernels.reference.flow.embed_actions. config: of the product with mlp_weight, if it is given."""
    (batch, horizon, size), (tokens, width) = x.shape, out.shape[1:]
    rows, further = batch * tokens, mlp_weight is not None
    embedded = scratch.place(out.shape, out.dtype) if further else out
    squares, scale, scaled, _ = norm or (None,) * 4
    marks = (None, None, None) if further else (squares, scale, scaled)
    room = 0 if squares is None else squares.shape[1]
    columns = min(32, config.block_n)
    _embed[(triton.cdiv(rows, config.block_m), triton.cdiv(width, columns))](
        x, in_weight, in_bias, embedded, *marks, at, rows, horizon, tokens, size, width, in_bias.stride(0),
        stride_of(marks[1]), room,
        PER_SEQUENCE=per_sequence(in_bias), SCALE_PER_SEQUENCE=per_sequence(scale),
        PER_ACTION=(in_bias if at is None else at).shape[0] > batch, SILU=further, GROUP=GROUP,
        EXACT="ieee" if out.dtype == x.dtype else "tf32x3",
        BLOCK_A=max(16, triton.next_power_of_2(size)), BLOCK_M=config.block_m, BLOCK_N=columns,
        **options(config.warps, config.stages, pdl),
    )  # fmt: skip
    if mlp_weight is not None:
        made_tiles, weight_tiles = tiles_of_product(embedded, mlp_weight, config)
        _mix[(triton.cdiv(rows, config.block_m), triton.cdiv(width, config.block_n))](
            embedded, mlp_weight, made_tiles, weight_tiles, mlp_bias, state,
            out, squares, rows, horizon, tokens, width, room, GROUP=GROUP, EVEN=width % config.block_k == 0,
            PRECISION=precision(mlp_weight), BLOCK_M=config.block_m, BLOCK_N=config.block_n,
            BLOCK_K=config.block_k, LINES=lines(mlp_weight, width),
            **options(config.warps, config.stages, pdl),
        )  # fmt: skip


@reads_early()
def read_out(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    update: Tensor,
    scale: Tensor | None = None,
    step: Tensor | None = None,
    magnitudes: Magnitudes | None = None,
    guide: Guide | None = None,
    history: History | None = None,
    eps: float = NORM_EPS,
    *,
    config: Config,
    pdl: bool = False,
) -> None:
    """See kernels.reference.flow.read_out."""
    (batch, horizon, size), (tokens, width) = x.shape, hidden.shape[1:]
    values, dims = magnitudes or (None, None)
    tables = [table for table in (values, None if guide is None else guide.gains) if table is not None]
    _read_out[(batch * horizon,)](
        hidden, weight, bias, x, update, scale, step, values, dims, *(guide or (None,) * 5),
        *(history or (None,) * 2), tokens, horizon, size, width, tables[0].shape[1] if tables else 1,
        PER_SEQUENCE=per_sequence(bias, scale),
        BLOCK_A=triton.next_power_of_2(size), BLOCK_K=config.block_k, EPS=eps,
        **options(config.warps, config.stages, pdl),
    )  # fmt: skip
