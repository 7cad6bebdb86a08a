"""Weights in eight or four bits: a lossy copy of a matrix that somebody asked for, beside the exact one.

A copy is made once, from the folded weights, when stages are built; the plain model is never touched, because
what is rare (guidance, committed actions) is still computed with it. So a copy costs memory instead of saving
it: half of a bfloat16 matrix in fp8 and int8, 28 % in int4. What it saves is traffic and arithmetic.

fp8, int8 and w8a8 have a scale for each row (output channel), int4 one for each 64 columns of a row, chosen
among a few to leave the smallest error. All are symmetric: value times scale, no zero point. w8a8 is int8 for
products with int8 activations. Their columns may be smoothed, and those of products with fp8 activations
(SmoothQuant, arXiv 2211.10438): a column of activations is multiplied by `by` before it is rounded, and the
same column of the weight divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

FP8, INT8, INT4, W8A8 = "fp8", "int8", "int4", "w8a8"

GROUP = 64
"""Columns of a row that share a scale in int4. Byte j of a group's 32 has column j low and j + 32 high."""

E4M3_MAX, INT8_MAX = 448.0, 127.0

SHORT = 4096
"""Up to so many columns a product of fp8 is summed within the matrix units, which keep 14 bits; longer sums
are no slower if they are added up outside of them now and then."""

BLOCK = 1 << 20
"""Numbers of a matrix that are quantised at once; what is computed of them in float32 is for a moment."""

SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
"""Parts of the range that an int4 group may keep: cutting off its largest values makes all others finer."""


@dataclass(frozen=True)
class Quantized:
    """A matrix [N, K] = values times scale.

    kind fp8, int8, w8a8: values float8_e4m3fn or int8 [N, K], scale float32 [N]; int4: values uint8
    [N, groups * 32], each half plus 8, zero weights beyond column K, scale float32 [N, groups].
    by float32 [K], of w8a8 and fp8: what columns of activations are multiplied by before they are rounded;
    None = 1.
    """

    kind: str
    values: Tensor
    scale: Tensor
    columns: int
    by: Tensor | None = None

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
        return self.values.nbytes + self.scale.nbytes + (0 if self.by is None else self.by.nbytes)

    def dequantized(self) -> Tensor:
        """float32 [N, K], for activations that are multiplied by nothing."""
        if self.kind != INT4:
            made = self.values.float() * self.scale[:, None]
            return made if self.by is None else made * self.by
        packed = self.values.unflatten(1, (-1, GROUP // 2))
        halves = torch.cat((packed & 15, packed >> 4), dim=2).float() - 8.0
        return (halves * self.scale[:, :, None]).flatten(1)[:, : self.columns]

    def rows(self, start: int) -> Quantized:
        """Those from `start` on, of the same memory."""
        return Quantized(self.kind, self.values[start:], self.scale[start:], self.columns, self.by)


Weight = Tensor | Quantized
"""A matrix [N, K] of a layer, exact or not."""


def quantized(weight: Tensor, kind: str, by: Tensor | None = None) -> Quantized:
    """A copy of a matrix [N, K] of finite numbers in a kind, made of a block of rows at a time. by: see
    Quantized, for w8a8 and fp8. Raises ValueError for a kind there is not."""
    at_once = max(1, BLOCK // max(1, weight.shape[1]))
    rows, first = len(weight), _rows(weight[:at_once].detach().float(), kind, by)
    if rows <= at_once:
        return first
    values, scale = (part.new_empty(rows, *part.shape[1:]) for part in (first.values, first.scale))
    for start in range(0, rows, at_once):
        some = slice(start, start + at_once)
        made = _rows(weight[some].detach().float(), kind, by) if start else first
        values[some], scale[some] = made.values, made.scale
    return Quantized(kind, values, scale, weight.shape[1], first.by)


def _rows(wide: Tensor, kind: str, by: Tensor | None) -> Quantized:
    if kind == FP8:
        values, scale = rows_in_fp8(wide if by is None else wide / by)
        return Quantized(kind, values, scale, wide.shape[1], by)
    if kind == INT8:
        scale = wide.abs().amax(1).clamp_min(1e-30) / 127
        return Quantized(kind, (wide / scale[:, None]).round().to(torch.int8), scale, wide.shape[1])
    if kind == W8A8:
        values, scale = rows_in_int8(wide if by is None else wide / by)
        return Quantized(kind, values, scale, wide.shape[1], by)
    if kind == INT4:
        return _in_groups(wide)
    raise ValueError(f"there are no weights of kind {kind!r}; use {FP8}, {INT8}, {INT4} or {W8A8}.")


def rows_in_fp8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Values float8_e4m3fn and scale float32 [M] of rows float32 [M, K]; the largest of a row is 448."""
    scale = rows.abs().amax(1).clamp_min(1e-30) / E4M3_MAX
    return (rows / scale[:, None]).to(torch.float8_e4m3fn), scale


def rows_in_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Values int8 and scale float32 [M] of rows float32 [M, K], rounded to the nearest, ties to even; the
    largest of a row is 127."""
    scale = rows.abs().amax(1).clamp_min(1e-30) / INT8_MAX
    return (rows * (1.0 / scale)[:, None]).round().to(torch.int8), scale


def top_of(dtype: torch.dtype) -> float:
    """What the largest of a row becomes, in int8 or fp8."""
    return INT8_MAX if dtype == torch.int8 else E4M3_MAX


def smoothing(activations: Tensor, weight: Tensor, alpha: float) -> Tensor:
    """float32 [K]: 1 / s of SmoothQuant's equation 4, s = activations^alpha / weights^(1 - alpha) by columns.

    activations float [K]: the largest magnitude of each column; weight [N, K]. A column that was never other
    than zero, or has no weights, is left as it is. The factors' geometric mean is 1, so that float16 and
    bfloat16 hold what they make.
    """
    largest = torch.maximum(weight.detach().amax(0), -weight.detach().amin(0)).float()
    used = (activations > 0) & (largest > 0)
    log = (1 - alpha) * largest.clamp_min(1e-30).log() - alpha * activations.float().clamp_min(1e-30).log()
    log = log - log[used].mean() if bool(used.any()) else log
    return torch.where(used, log.exp(), torch.ones_like(log))


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
