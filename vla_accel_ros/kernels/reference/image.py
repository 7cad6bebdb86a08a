"""From camera images to the encoder's patches in one pass, in plain torch: the reference of triton/image.py.

A family's image processing is data (models.processing.pixels): taps along both axes, rounding, and the
mapping of levels. Rounded sums are integers, whose order does not matter, so pixels equal the family's own
bit for bit on any device; floating-point sums have two terms in a fixed order. Addresses, sizes and steps of
the images are data too: a captured graph reads them from a table, so another camera needs another table, not
another graph, and a picture that is cropped or turned is read where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.processing.pixels import Axis, PixelRule
from vla_accel_ros.models.processing.resize import FRACTION_BITS

FIELDS = 11
"""Numbers of an image in the table: address, height, width; first, weight and taps of rows and of columns;
steps to the next row and column."""


class Place(NamedTuple):
    """Where the pixels of an image lie in bytes of memory that begin with the lowest of them: its size, and
    the bytes from a pixel to that below it and to that right of it, negative in a picture that is turned."""

    height: int
    width: int
    row: int
    column: int

    @classmethod
    def of(cls, image: np.ndarray) -> Place | None:
        """The place of uint8 [H, W, 3] in its memory; None if that has much besides."""
        (height, width, _), (row, column, colour) = image.shape, image.strides
        source = cls(height, width, row, column)
        return source if colour == 1 and source.size <= MOST_BESIDES * image.nbytes else None

    @property
    def size(self) -> int:
        """Bytes of its memory."""
        return abs(self.row) * (self.height - 1) + abs(self.column) * (self.width - 1) + 3

    @property
    def first(self) -> int:
        """The byte of its upper left pixel."""
        return -min(0, self.row * (self.height - 1)) - min(0, self.column * (self.width - 1))


MOST_BESIDES = 16
"""How often the bytes of an image its memory may be; a crop to a quarter of each side."""


class View(NamedTuple):
    """An image in memory uint8 [layout.size], contiguous, and its axes, all on one device."""

    memory: Tensor
    layout: Place
    rows: Axis
    columns: Axis

    @property
    def pixels(self) -> Tensor:
        """uint8 [H, W, 3], as it is looked at."""
        height, width, row, column = self.layout
        pixels = self.memory.as_strided((height, width, 3), (abs(row), abs(column), 1))
        turned = [axis for axis, step in enumerate((row, column)) if step < 0]
        return pixels.flip(turned) if turned else pixels


class Views:
    """The inputs of `patches`, at fixed addresses: `count` images that become squares of `size` by a rule.

    table int64 [count, FIELDS]; levels float32 [C, 256]. Not thread-safe.
    """

    def __init__(self, rule: PixelRule, size: int, count: int, device: torch.device) -> None:
        self.rule, self.size = rule, size
        self.levels = rule.levels.to(device)
        self.table = torch.zeros(count, FIELDS, dtype=torch.int64, device=device)
        self.now: tuple[View, ...] = ()

    def view(self, pixels: Tensor, source: Place | None = None) -> View:
        """Return an image with the axes for its size. Slow, so done ahead: the axes are computed on the host.

        pixels: uint8 [H, W, 3], contiguous; with a place its memory, uint8 [place.size].
        """
        source = source or Place(pixels.shape[0], pixels.shape[1], 3 * pixels.shape[1], 3)
        axes = self.rule.axes(source.height, source.width, self.size)
        rows, columns = (Axis(a.first.to(pixels.device), a.weight.to(pixels.device)) for a in axes)
        return View(pixels.flatten(), source, rows, columns)

    def point(self, views: Sequence[View]) -> None:
        """Select the images that the following work of the current stream reads, one for each entry."""
        self.now = tuple(views)
        descriptor = [
            [
                v.memory.data_ptr() + v.layout.first,
                *(v.layout.height, v.layout.width, *_told(v.rows), *_told(v.columns)),
                *(v.layout.row, v.layout.column),
            ]
            for v in self.now
        ]
        host = torch.tensor(descriptor, dtype=torch.int64, pin_memory=self.table.is_cuda)
        self.table.copy_(host, non_blocking=True)


def _told(axis: Axis) -> tuple[int, int, int]:
    return axis.first.data_ptr(), axis.weight.data_ptr(), len(axis.weight)


def patches(views: Views, patch: int, out: Tensor) -> None:
    """Compute the patches of all images.

    out float32 [count, (size / patch)^2, C * patch * patch] is written: patches by rows, channels first
    within a patch. With patch = size that is the image, channels first.
    """
    side, channels = views.size // patch, len(views.levels)
    for view, target in zip(views.now, out, strict=True):
        if views.rule.rounds:
            square = rounded(view).long().repeat(1, 1, channels // 3)
            resized = torch.stack([level[square[..., c]] for c, level in enumerate(views.levels)])
        else:
            pixels = view.pixels.long()
            unit = torch.stack([level[pixels[..., c]] for c, level in enumerate(views.levels)], dim=-1)
            resized = stretched(view, unit, views.rule.border)
        cut = resized.unflatten(1, (side, patch)).unflatten(3, (side, patch)).permute(1, 3, 0, 2, 4)
        target.copy_(cut.flatten(2).flatten(0, 1))


def rounded(view: View) -> Tensor:
    """Resize with integer sums, rounded after each pass: uint8 [S, S, 3]."""
    across = _rounded(view.pixels.transpose(0, 1), view.columns).transpose(0, 1)
    return _rounded(across, view.rows)


def stretched(view: View, unit: Tensor, border: float) -> Tensor:
    """Resize the view's pixels in floating point: unit float32 [H, W, C] of 0..1 -> [C, S, S] of -1..1."""
    rows, columns = view.rows, view.columns
    across = _summed(unit.transpose(0, 1), columns).transpose(0, 1)
    resized = _summed(across, rows).clamp(0.0, 1.0).permute(2, 0, 1) * 2.0 - 1.0
    return resized.where(rows.weight.any(0)[:, None] & columns.weight.any(0), border)


def _rounded(pixels: Tensor, axis: Axis) -> Tensor:
    """Resize the first dimension with integer sums: uint8 [N, M, 3] -> uint8 [S, M, 3]."""
    pixels, shape = pixels.contiguous(), (len(axis.first), *pixels.shape[1:])
    total = torch.full(shape, 1 << (FRACTION_BITS - 1), dtype=torch.int32, device=pixels.device)
    for tap, weight in enumerate(axis.weight):
        total.addcmul_(_tap(pixels, axis, tap).int(), weight[:, None, None])
    return (total >> FRACTION_BITS).clamp(0, 255).to(torch.uint8)


def _summed(pixels: Tensor, axis: Axis) -> Tensor:
    """Resize the first dimension in floating point: float32 [N, M, 3] -> float32 [S, M, 3]."""
    pixels, shape = pixels.contiguous(), (len(axis.first), *pixels.shape[1:])
    total = torch.zeros(shape, device=pixels.device)
    for tap, weight in enumerate(axis.weight):
        total += _tap(pixels, axis, tap) * weight[:, None, None]
    return total


def _tap(pixels: Tensor, axis: Axis, tap: int) -> Tensor:
    return pixels.index_select(0, (axis.first + tap).clamp(max=len(pixels) - 1))
