"""From camera images to the encoder's patches in one pass, in plain torch: the reference of triton/image.py.

A family's image processing is data (models.processing.pixels): taps along both axes, rounding, and the
mapping of levels. Rounded sums are integers, whose order does not matter, so pixels equal the family's own
bit for bit on any device; floating-point sums have two terms in a fixed order. Addresses and sizes of the
images are data too: a captured graph reads them from a table, so another camera needs another table, not
another graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vla_accel_ros.models.processing.pixels import Axis, PixelRule
from vla_accel_ros.models.processing.resize import FRACTION_BITS

FIELDS = 9
"""Numbers of an image in the table: address, height, width; first, weight and taps of rows and of columns."""


class View(NamedTuple):
    """An image uint8 [H, W, 3], contiguous, and its axes, all on one device."""

    pixels: Tensor
    rows: Axis
    columns: Axis


class Views:
    """The inputs of `patches`, at fixed addresses: `count` images that become squares of `size` by a rule.

    table int64 [count, FIELDS]; levels float32 [C, 256]. Not thread-safe.
    """

    def __init__(self, rule: PixelRule, size: int, count: int, device: torch.device) -> None:
        self.rule, self.size = rule, size
        self.levels = rule.levels.to(device)
        self.table = torch.zeros(count, FIELDS, dtype=torch.int64, device=device)
        self.now: tuple[View, ...] = ()

    def view(self, pixels: Tensor) -> View:
        """Return an image with the axes for its size. Slow, so done ahead: the axes are computed on
        the host."""
        axes = self.rule.axes(pixels.shape[0], pixels.shape[1], self.size)
        rows, columns = (Axis(a.first.to(pixels.device), a.weight.to(pixels.device)) for a in axes)
        return View(pixels, rows, columns)

    def point(self, views: Sequence[View]) -> None:
        """Select the images that the following work of the current stream reads, one for each entry."""
        self.now = tuple(views)
        told = [
            [v.pixels.data_ptr(), *v.pixels.shape[:2], *_told(v.rows), *_told(v.columns)] for v in self.now
        ]
        host = torch.tensor(told, dtype=torch.int64, pin_memory=self.table.is_cuda)
        self.table.copy_(host, non_blocking=True)


def _told(axis: Axis) -> tuple[int, int, int]:
    return axis.first.data_ptr(), axis.weight.data_ptr(), len(axis.weight)


def patches(views: Views, patch: int, out: Tensor) -> None:
    """Compute the patches of all images.

    out float32 [count, (size / patch)^2, C * patch * patch] is written: patches by rows, channels first
    within a patch. With patch = size that is the image, channels first.
    """
    side, channels = views.size // patch, len(views.levels)
    for (pixels, rows, columns), place in zip(views.now, out, strict=True):
        if views.rule.rounds:
            across = _rounded(pixels.transpose(0, 1), columns).transpose(0, 1)
            square = _rounded(across, rows).long().repeat(1, 1, channels // 3)
            made = torch.stack([level[square[..., c]] for c, level in enumerate(views.levels)])
        else:
            unit = torch.stack([level[pixels[..., c].long()] for c, level in enumerate(views.levels)], dim=-1)
            across = _summed(unit.transpose(0, 1), columns).transpose(0, 1)
            made = _summed(across, rows).clamp(0.0, 1.0).permute(2, 0, 1) * 2.0 - 1.0
            inside = rows.weight.any(0)[:, None] & columns.weight.any(0)
            made = made.where(inside, views.rule.border)
        cut = made.unflatten(1, (side, patch)).unflatten(3, (side, patch)).permute(1, 3, 0, 2, 4)
        place.copy_(cut.flatten(2).flatten(0, 1))


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
