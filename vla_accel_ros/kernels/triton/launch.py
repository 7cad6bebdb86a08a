"""Shared prologue and launch options of the kernels.

With `PDL` (programmatic dependent launch, sm_90 and later) the blocks of a kernel start while the previous
one drains: they prefetch their weights, which no kernel writes, and only then wait for its results. Every
kernel of a chain waits before its first dependent access, so a chain is as ordered as without PDL.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from vla_accel_ros.kernels.shapes import Config

LINE = 128
"""Bytes of a cache line."""


class Scratch(NamedTuple):
    """Memory shared by the kernels of one chain: partial sums float32 [n], and counters int32 [m], all zero.

    The block that counts last resets the counter, so a chain leaves it at zero. Chains that may run at the
    same time need one Scratch each.
    """

    sums: Tensor
    counters: Tensor

    @classmethod
    def of(cls, device: torch.device, sums: int = 4 << 20, counters: int = 4096) -> Scratch:
        """Allocate it; by default 16 MiB of sums."""
        return cls(
            torch.empty(sums, dtype=torch.float32, device=device),
            torch.zeros(counters, dtype=torch.int32, device=device),
        )

    def place(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the sums' memory as a tensor that is valid from one launch to the next.

        Raises ValueError if it is too small.
        """
        elements, values = math.prod(shape), self.sums.view(dtype)
        if elements > values.numel():
            raise ValueError(
                f"{elements} values between two launches, but there is room for {values.numel()}"
            )
        return values[:elements].view(shape)


def options(warps: int, stages: int, pdl: bool) -> dict[str, Any]:
    """Return the launch options; Triton's interpreter does not know launch_pdl."""
    keywords: dict[str, Any] = {"num_warps": warps, "num_stages": stages, "PDL": pdl}
    return {**keywords, "launch_pdl": True} if pdl else keywords


def precision(x: Tensor) -> str:
    """Return tl.dot's input precision: float32 is multiplied exactly, not as TF32."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


@triton.jit
def prefetch(pointers):
    """Prefetch the cache lines of the pointers into L2."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def prefetch_rows(weight, rows, limit, width, low, high, LINES: tl.constexpr):
    """Prefetch columns low..high of the given rows of a row-major matrix; LINES cache lines cover them."""
    per_line: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
    columns = low + tl.arange(0, LINES) * per_line
    columns = tl.minimum(columns, high - 1)
    rows = tl.minimum(rows, limit - 1)
    prefetch(weight + rows[:, None].to(tl.int64) * width + columns[None, :])


@triton.jit
def after_previous():
    """Wait for the previous kernel, and let the next one start."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def table_row(at, sequence):
    """Return which row of the tables a sequence has: its own, or what `at` says."""
    return sequence if at is None else tl.load(at + sequence)


@triton.jit
def bias_of(bias, row, columns, ok, stride, PER_SEQUENCE: tl.constexpr):
    """Return columns of a table with one row, or of some rows of it, in a form that broadcasts to the
    rows."""
    if PER_SEQUENCE:
        values = tl.load(bias + row[:, None] * stride + columns[None, :], mask=ok[None, :], other=0.0)
    else:
        values = tl.load(bias + columns, mask=ok, other=0.0)[None, :]
    return values


@triton.jit
def rounded(products, ok):
    """Return products for tl.sum, zero where not ok, rounded before the sum.

    Without tl.where the compiler fuses one lane's product with the addition of another lane's, and the other
    lane does the same the other way round. Each then rounds a different product, so replicated copies of the
    sum differ in the last bit, and which copy is stored is arbitrary.
    """
    return tl.where(ok, products, 0.0)


@triton.jit
def leave_norm(
    values, row, row_ok, column, column_ok, of_table, room, columns, first, squares, scale, scaled, stride,
    PER_SEQUENCE: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute what the norm of these rows needs from one tile of them: see kernels.reference.linear.Norm.

    first: the tile's first column. of_table: the scale's row of each row; stride: between them. values: as
    stored, in float32, zero beyond the last column. room: row capacity of squares. The sum of the whole tile
    goes to the first of its groups.
    """
    sums = tl.sum(rounded(values * values, column_ok[None, :]), axis=1)
    group = tl.arange(0, BLOCK_N // GROUP)
    to = squares + (first // GROUP + group)[None, :] * room + row[:, None]
    ok = row_ok[:, None] & (first + group * GROUP < columns)[None, :]
    tl.store(to, tl.where(group[None, :] == 0, sums[:, None], 0.0), mask=ok)
    if scaled is not None:
        by = bias_of(scale, of_table, column, column_ok, stride, PER_SEQUENCE)
        to = scaled + row[:, None].to(tl.int64) * columns + column[None, :]
        normed = (values * (1.0 + by)).to(scaled.dtype.element_ty)
        tl.store(to, normed, mask=row_ok[:, None] & column_ok[None, :])


def per_sequence(*tables: Tensor | None) -> bool:
    """Return whether any table has a row for each sequence."""
    return any(table is not None and table.shape[0] > 1 for table in tables)


def stride_of(table: Tensor | None) -> int:
    """Return the elements from one row of a table to the next."""
    return 0 if table is None else table.stride(0)


def tiles(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor | None:
    """Return a TMA descriptor of a matrix [n, m] in tiles; out of bounds reads 0.

    None if the device has no TMA (before sm_90) or rows do not begin at multiples of 16 bytes: a kernel then
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
    """Return descriptors for x [B, T, K] and weight [N, K], both or neither."""
    of_x = tiles(x.flatten(0, 1), config.block_m, config.block_k)
    of_weight = tiles(weight, config.block_n, config.block_k)
    return (None, None) if of_x is None or of_weight is None else (of_x, of_weight)


def lines(weight: Tensor, columns: int) -> int:
    """Return the number of cache lines that `columns` columns of a row cover, rounded up to a power
    of two."""
    return triton.next_power_of_2(triton.cdiv(columns * weight.element_size(), LINE))
