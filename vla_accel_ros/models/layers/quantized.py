"""Weights in eight or four bits: lossy copies of matrices, made on request beside the exact ones.

A copy is made once, from the folded weights, when stages are built. The plain model is unchanged, because
rare requests (guidance, committed actions) still use it. So a copy saves traffic and arithmetic but costs
memory: half of a bfloat16 matrix in fp8 and int8, 28 % in int4 and nvfp4 (layers.fp4).

fp8, int8 and w8a8 have one scale for each row (output channel); int4 has one for each 64 columns of a row,
chosen among a few for the smallest error. All are symmetric: value times scale, no zero point. w8a8 is int8
for products with int8 activations, which may be smoothed (SmoothQuant, arXiv 2211.10438): a column of the
activations is multiplied by `by` before rounding, and the weight's column divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.models.layers import fp4

FP8, INT8, INT4, W8A8, NVFP4 = "fp8", "int8", "int4", "w8a8", "nvfp4"

GROUP = 64
"""Columns of a row that share one int4 scale. Byte j of a group's 32 holds column j (low half) and j + 32
(high)."""

E4M3_MAX, INT8_MAX = 448.0, 127.0

SHORT = 4096
"""Up to so many columns, fp8 products accumulate in the tensor cores, which keep 14 bits. Longer sums are
added up outside of them at intervals, which costs no time."""

BLOCK = 1 << 20
"""Numbers of a matrix that are quantised at once; bounds the float32 temporaries."""

SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
"""Shares of its range that an int4 group may keep: clipping its largest values makes all others finer."""


@dataclass(frozen=True)
class Quantized:
    """A matrix [N, K] = values times scale.

    Kinds fp8, int8, w8a8: values float8_e4m3fn or int8 [N, K], scale float32 [N]. Kind int4: values uint8 [N,
    groups * 32], each half holds a value plus 8, zero weights beyond column K, scale float32 [N, groups]. by:
    float32 [K], for w8a8: factor of the activation columns before rounding; None = 1. Kind nvfp4: as
    fp4.rows_in_fp4 returns them, `groups` are the tiled scales.
    """

    kind: str
    values: Tensor
    scale: Tensor
    columns: int
    by: Tensor | None = None
    groups: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """[N, K]"""
        return torch.Size((self.values.shape[0], self.columns))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of values and scales."""
        parts = (self.values, self.scale, self.by, self.groups)
        return sum(part.nbytes for part in parts if part is not None)

    def dequantized(self) -> Tensor:
        """Return float32 [N, K], for activations that are not multiplied by `by`."""
        if self.groups is not None:
            return fp4.from_fp4(self.values, self.groups, self.scale)
        if self.kind != INT4:
            wide = self.values.float() * self.scale[:, None]
            return wide if self.by is None else wide * self.by
        packed = self.values.unflatten(1, (-1, GROUP // 2))
        halves = torch.cat((packed & 15, packed >> 4), dim=2).float() - 8.0
        return (halves * self.scale[:, :, None]).flatten(1)[:, : self.columns]

    def rows(self, start: int) -> Quantized:
        """Return the rows from `start` on: views, but for the scales of nvfp4's groups."""
        groups = self.groups
        if groups is not None:
            scales = fp4.untiled(groups, len(self.values), self.columns // fp4.GROUP)
            groups = fp4.tiled(scales[start:])
        return Quantized(self.kind, self.values[start:], self.scale[start:], self.columns, self.by, groups)


Weight = Tensor | Quantized
"""A matrix [N, K] of a layer, exact or not."""


def quantized(weight: Tensor, kind: str, by: Tensor | None = None) -> Quantized:
    """Return a copy of a matrix [N, K] of finite numbers, made in blocks of rows. by: see Quantized,
    for w8a8. Raises ValueError if the kind is unknown."""
    at_once = max(1, BLOCK // max(1, weight.shape[1]))
    if kind == NVFP4:
        at_once += -at_once % fp4.TILE_ROWS
    rows, first = len(weight), _rows(weight[:at_once].detach().float(), kind, by)
    if rows <= at_once:
        return first
    values, scale = (part.new_empty(rows, *part.shape[1:]) for part in (first.values, first.scale))
    groups: list[Tensor] = []
    for start in range(0, rows, at_once):
        some = slice(start, start + at_once)
        block = _rows(weight[some].detach().float(), kind, by) if start else first
        values[some], scale[some] = block.values, block.scale
        groups += [] if block.groups is None else [block.groups]
    tiles = torch.cat(groups) if groups else None
    return Quantized(kind, values, scale, weight.shape[1], first.by, tiles)


def _rows(wide: Tensor, kind: str, by: Tensor | None) -> Quantized:
    if kind == FP8:
        values, scale = rows_in_fp8(wide)
        return Quantized(kind, values, scale, wide.shape[1])
    if kind == INT8:
        scale = wide.abs().amax(1).clamp_min(1e-30) / 127
        return Quantized(kind, (wide / scale[:, None]).round().to(torch.int8), scale, wide.shape[1])
    if kind == W8A8:
        values, scale = rows_in_int8(wide if by is None else wide / by)
        return Quantized(kind, values, scale, wide.shape[1], by)
    if kind == INT4:
        return _in_groups(wide)
    if kind == NVFP4:
        values, groups, scale = fp4.rows_in_fp4(wide)
        return Quantized(kind, values, scale, wide.shape[1], groups=groups)
    raise ValueError(f"there are no weights of kind {kind!r}; use {FP8}, {INT8}, {INT4}, {W8A8} or {NVFP4}.")


def rows_in_fp8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise rows float32 [M, K] to float8_e4m3fn and scale float32 [M]; the largest magnitude of a row
    becomes 448."""
    scale = rows.abs().amax(1).clamp_min(1e-30) / E4M3_MAX
    return (rows / scale[:, None]).to(torch.float8_e4m3fn), scale


def rows_in_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise rows float32 [M, K] to int8 and scale float32 [M], to nearest with ties to even; the largest
    magnitude of a row becomes 127."""
    scale = rows.abs().amax(1).clamp_min(1e-30) / INT8_MAX
    return (rows * (1.0 / scale)[:, None]).round().to(torch.int8), scale


def smoothing(activations: Tensor, weight: Tensor, alpha: float) -> Tensor:
    """Return float32 [K]: 1 / s of SmoothQuant's equation 4, s = activations^alpha / weights^(1 - alpha) by
    columns.

    activations float [K]: largest magnitude of each column; weight [N, K]. A column of only zeros in either
    is left unscaled. The factors have a geometric mean of 1, so that float16 and bfloat16 can hold the
    products.
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
        rounded = (groups / tried[:, :, None]).round_().clamp_(-8, 7)
        error = rounded.mul_(tried[:, :, None]).sub_(groups).square_().sum(2)
        better = error < best
        best, scale = torch.where(better, error, best), torch.where(better, tried, scale)
    halves = ((groups / scale[:, :, None]).round_().clamp_(-8, 7) + 8).to(torch.uint8)
    low, high = halves.chunk(2, dim=2)
    packed = (low | (high << 4)).flatten(1).contiguous()
    return Quantized(INT4, packed, scale.contiguous(), weight.shape[1])


def product(a: Tensor, weight: Weight) -> Tensor:
    """Return a @ weight.T, in the dtype of `a` for an exact weight, else in float32."""
    if isinstance(weight, Quantized):
        return F.linear(a.float(), weight.dequantized())
    return F.linear(a, weight)


def total_bytes(weights: Sequence[Weight]) -> int:
    """Return the bytes of all matrices."""
    return sum(weight.nbytes for weight in weights)
