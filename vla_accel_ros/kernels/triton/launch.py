"""What every kernel starts with, and how it is launched.

With `PDL` (programmatic dependent launch, sm_90 and later) the blocks of a kernel start while the one before
drains: they ask for their weights, which no kernel writes, and only then wait for what it computed. Every
kernel of a chain waits before its first dependent access, so a chain is as ordered as without.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from vla_accel_ros.kernels.tuning import Config

LINE = 128
"""Bytes of a cache line."""


class Scratch(NamedTuple):
    """Memory that kernels of one chain share: partial sums float32 [n], and counters int32 [m], all zero.

    Whoever counts the last sets the counter back, so a chain leaves it as it found it. Chains that may run at
    the same time need one each.
    """

    sums: Tensor
    counters: Tensor

    @classmethod
    def of(cls, device: torch.device, sums: int = 4 << 20, counters: int = 4096) -> Scratch:
        """16 MiB of sums unless told otherwise."""
        return cls(
            torch.empty(sums, dtype=torch.float32, device=device),
            torch.zeros(counters, dtype=torch.int32, device=device),
        )

    def place(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The sums' memory as a tensor that lives from one launch to the next.

        Raises ValueError if it is too small.
        """
        wanted, held = math.prod(shape), self.sums.view(dtype)
        if wanted > held.numel():
            raise ValueError(f"{wanted} values between two launches, but there is room for {held.numel()}")
        return held[:wanted].view(shape)


def options(warps: int, stages: int, pdl: bool) -> dict[str, Any]:
    """Launch options; the interpreter knows no PDL."""
    chosen: dict[str, Any] = {"num_warps": warps, "num_stages": stages, "PDL": pdl}
    return {**chosen, "launch_pdl": True} if pdl else chosen


def precision(x: Tensor) -> str:
    """How tl.dot multiplies: half precisions as they are, float32 exactly and not as TF32."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


@triton.jit
def prefetch(pointers):
    """Ask for the cache lines of pointers to be in L2."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def prefetch_rows(weight, rows, limit, width, low, high, LINES: tl.constexpr):
    """Ask for columns low..high of the given rows of a row-major matrix; LINES lines cover them."""
    per_line: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
    columns = low + tl.arange(0, LINES) * per_line
    columns = tl.minimum(columns, high - 1)
    rows = tl.minimum(rows, limit - 1)
    prefetch(weight + rows[:, None].to(tl.int64) * width + columns[None, :])


@triton.jit
def after_previous():
    """Wait for the kernel before, and let the next one start."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def bias_of(bias, sequence, columns, ok, total, PER_SEQUENCE: tl.constexpr):
    """Columns of a table of one row, or of one for each sequence, as it is added to rows of them."""
    if PER_SEQUENCE:
        found = tl.load(bias + sequence[:, None] * total + columns[None, :], mask=ok[None, :], other=0.0)
    else:
        found = tl.load(bias + columns, mask=ok, other=0.0)[None, :]
    return found


@triton.jit
def rounded(products, ok):
    """Products for tl.sum, zero where not ok, as they are rounded.

    Without the choice a lane that has one product fuses it with the addition of another lane's, and the other
    lane does likewise: each rounds another of the two, so copies of the sum differ in the last bit, and which
    of them a store leaves is chance.
    """
    return tl.where(ok, products, 0.0)


@triton.jit
def leave_norm(
    values, row, row_ok, column, column_ok, sequence, room, columns, first, squares, scale, scaled,
    PER_SEQUENCE: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """What the norm of these rows needs of a tile of them: see kernels.reference.linear.Norm.

    first: the tile's first column; values: as they were stored, in float32; those of no column are zero.
    room: rows that squares has place for. The sum of the whole tile goes to the first of its groups.
    """
    sums = tl.sum(rounded(values * values, column_ok[None, :]), axis=1)
    group = tl.arange(0, BLOCK_N // GROUP)
    to = squares + (first // GROUP + group)[None, :] * room + row[:, None]
    ok = row_ok[:, None] & (first + group * GROUP < columns)[None, :]
    tl.store(to, tl.where(group[None, :] == 0, sums[:, None], 0.0), mask=ok)
    if scaled is not None:
        by = bias_of(scale, sequence, column, column_ok, columns, PER_SEQUENCE)
        to = scaled + row[:, None].to(tl.int64) * columns + column[None, :]
        made = (values * (1.0 + by)).to(scaled.dtype.element_ty)
        tl.store(to, made, mask=row_ok[:, None] & column_ok[None, :])


def per_sequence(*tables: Tensor | None) -> bool:
    """Whether any has a row for each sequence."""
    return any(table is not None and table.shape[0] > 1 for table in tables)


def tiles(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor | None:
    """A matrix [n, m] as tiles that one instruction brings to shared memory, zero where they reach beyond it.

    None where the device cannot (before sm_90) or rows do not begin at multiples of 16 bytes: a kernel then
    loads by pointers.
    """
    if matrix.stride(0) * matrix.element_size() % 16 or matrix.data_ptr() % 16 or matrix.stride(1) != 1:
        return None
    if matrix.is_cuda and torch.cuda.get_device_capability(matrix.device)[0] < 9:
        return None
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


def tiles_of_product(
    x: Tensor, weight: Tensor, config: Config
) -> tuple[TensorDescriptor | None, TensorDescriptor | None]:
    """Tiles of x [B, T, K] and weight [N, K], both or neither."""
    of_x = tiles(x.flatten(0, 1), config.block_m, config.block_k)
    of_weight = tiles(weight, config.block_n, config.block_k)
    return (None, None) if of_x is None or of_weight is None else (of_x, of_weight)


def lines(weight: Tensor, columns: int) -> int:
    """Cache lines of so many columns of a row, rounded up to a power of two."""
    return triton.next_power_of_2(triton.cdiv(columns * weight.element_size(), LINE))
