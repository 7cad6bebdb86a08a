"""Weights in eight or four bits: a lossy copy of a matrix that somebody asked for, beside the exact one.

A copy is made once, from the folded weights, when stages are built; the plain model is never touched, because
what is rare (guidance, committed actions) is still computed with it. So a copy costs memory instead of saving
it: half of a bfloat16 matrix in fp8 and int8, 28 % in int4. What it saves is traffic and arithmetic.

fp8 and int8 have a scale for each row (output channel), int4 one for each 64 columns of a row, chosen among
a few to leave the smallest error. All are symmetric: value times scale, no zero point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

FP8, INT8, INT4 = "fp8", "int8", "int4"

GROUP = 64
"""Columns of a row that share a scale in int4. Byte j of a group's 32 has column j low and j + 32 high."""

E4M3_MAX = 448.0

BLOCK = 1 << 20
"""Numbers of a matrix that are quantised at once; what is computed of them in float32 is for a moment."""

SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
"""Parts of the range that an int4 group may keep: cutting off its largest values makes all others finer."""


@dataclass(frozen=True)
class Quantized:
    """A matrix [N, K] = values times scale.

    kind fp8, int8: values float8_e4m3fn or int8 [N, K], scale float32 [N]; int4: values uint8
    [N, groups * 32], each half plus 8, zero weights beyond column K, scale float32 [N, groups].
    """

    kind: str
    values: Tensor
    scale: Tensor
    columns: int

    @property
    def shape(self) -> torch.Size:
        """[N, K]"""
        return torch.Size((self.values.shape[0], self.columns))

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Of values and scales."""
        return self.values.nbytes + self.scale.nbytes

    def dequantized(self) -> Tensor:
        """float32 [N, K]"""
        if self.kind != INT4:
            return self.values.float() * self.scale[:, None]
        packed = self.values.unflatten(1, (-1, GROUP // 2))
        halves = torch.cat((packed & 15, packed >> 4), dim=2).float() - 8.0
        return (halves * self.scale[:, :, None]).flatten(1)[:, : self.columns]

    def rows(self, start: int) -> Quantized:
        """Those from `start` on, of the same memory."""
        return Quantized(self.kind, self.values[start:], self.scale[start:], self.columns)


Weight = Tensor | Quantized
"""A matrix [N, K] of a layer, exact or not."""


def quantized(weight: Tensor, kind: str) -> Quantized:
    """A copy of a matrix [N, K] of finite numbers in a kind, made of a block of rows at a time. Raises
    ValueError for a kind there is not."""
    at_once = max(1, BLOCK // max(1, weight.shape[1]))
    rows, first = len(weight), _rows(weight[:at_once].detach().float(), kind)
    if rows <= at_once:
        return first
    values, scale = (part.new_empty(rows, *part.shape[1:]) for part in (first.values, first.scale))
    for start in range(0, rows, at_once):
        some = slice(start, start + at_once)
        made = _rows(weight[some].detach().float(), kind) if start else first
        values[some], scale[some] = made.values, made.scale
    return Quantized(kind, values, scale, weight.shape[1])


def _rows(wide: Tensor, kind: str) -> Quantized:
    if kind == FP8:
        values, scale = rows_in_fp8(wide)
        return Quantized(kind, values, scale, wide.shape[1])
    if kind == INT8:
        scale = wide.abs().amax(1).clamp_min(1e-30) / 127
        return Quantized(kind, (wide / scale[:, None]).round().to(torch.int8), scale, wide.shape[1])
    if kind == INT4:
        return _in_groups(wide)
    raise ValueError(f"there are no weights of kind {kind!r}; use {FP8}, {INT8} or {INT4}.")


def rows_in_fp8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Values float8_e4m3fn and scale float32 [M] of rows float32 [M, K]; the largest of a row is 448."""
    scale = rows.abs().amax(1).clamp_min(1e-30) / E4M3_MAX
    return (rows / scale[:, None]).to(torch.float8_e4m3fn), scale


def _in_groups(weight: Tensor) -> Quantized:
    groups = F.pad(weight, (0, -weight.shape[1] % GROUP)).unflatten(1, (-1, GROUP))
    full = groups.abs().amax(2).clamp_min(1e-30) / 7
    best, scale = torch.full_like(full, float("inf")), full
    for shrink in SHRINKS:
        tried = full * shrink
        made = (groups / tried[:, :, None]).round_().clamp_(-8, 7)
        error = made.mul_(tried[:, :, None]).sub_(groups).square_().sum(2)
        better = error < best
        best, scale = torch.where(better, error, best), torch.where(better, tried, scale)
    halves = ((groups / scale[:, :, None]).round_().clamp_(-8, 7) + 8).to(torch.uint8)
    low, high = halves.chunk(2, dim=2)
    packed = (low | (high << 4)).flatten(1).contiguous()
    return Quantized(INT4, packed, scale.contiguous(), weight.shape[1])


def product(a: Tensor, weight: Weight) -> Tensor:
    """a @ weight.T, in the dtype of a for an exact weight, else in float32."""
    if isinstance(weight, Quantized):
        return F.linear(a.float(), weight.dequantized())
    return F.linear(a, weight)


def total_bytes(weights: Sequence[Weight]) -> int:
    """Memory of matrices."""
    return sum(weight.nbytes for weight in weights)
