"""Pillow's resizes, bit for bit, on any device.

OpenVLA was evaluated with Pillow's bicubic and openpi with its bilinear resize, and torch's antialiased
interpolation differs from both by a level here and there. Pillow computes in integers: weights of 22
fractional bits, one pass along the rows and then one along the columns, each rounded to 8 bits
(ImagingResample; antialiased, because the kernel widens with the scale). Integer sums do not depend on order,
so a GPU gives the same pixels. From version 13 on Pillow resizes the columns of a tall image first; here it
is always the rows, as when these models were made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

FRACTION_BITS = 22
A = -0.5


def resize_bicubic(images: Tensor, height: int, width: int | None = None) -> Tensor:
    """uint8 [..., H, W, C] -> uint8 [..., height, width, C], a square by default; the aspect is not kept."""
    return _resize(images, height, width or height, "bicubic")


def resize_bilinear(images: Tensor, height: int, width: int | None = None) -> Tensor:
    """As resize_bicubic, with Pillow's BILINEAR."""
    return _resize(images, height, width or height, "bilinear")


def _resize(images: Tensor, height: int, width: int, kernel: str) -> Tensor:
    rows = _along_first(images.movedim(-2, 0), width, kernel).movedim(0, -2)
    return _along_first(rows.movedim(-3, 0), height, kernel).movedim(0, -3)


def _along_first(image: Tensor, size: int, kernel: str) -> Tensor:
    """Resize the first dimension of uint8 [N, ...] to `size`."""
    if image.shape[0] == size:
        return image
    image = image.contiguous()
    rows, weights = _taps_on(image.device, image.shape[0], size, kernel)
    total = torch.full(
        (size, *image.shape[1:]), 1 << (FRACTION_BITS - 1), dtype=torch.int32, device=image.device
    )
    for row, weight in zip(rows, weights, strict=True):
        total.addcmul_(image.index_select(0, row).int(), weight.view(-1, *[1] * (image.ndim - 1)))
    return (total >> FRACTION_BITS).clamp(0, 255).to(torch.uint8)


@cache  # a graph may read them at any time
def _taps_on(device: torch.device, *resize: Any) -> list[Tensor]:
    return [torch.from_numpy(array).to(device) for array in taps(*resize)]


@lru_cache(maxsize=32)
def taps(before: int, after: int, kernel: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the input rows of each output row and their weights: int64 and int32 [taps, after], zero-padded.

    Rows are consecutive from the first one up to the image's last row, which is then repeated.
    """
    weigh, support = KERNELS[kernel]
    scale = before / after
    widen = max(1.0, scale)
    centre = (np.arange(after) + 0.5) * scale
    first = np.maximum((centre - support * widen + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + support * widen + 0.5).astype(np.int64), before)
    rows = first + np.arange((last - first).max())[:, None]
    weights = np.where(rows < last, weigh((rows - centre + 0.5) / widen), 0.0)
    weights /= weights.sum(axis=0)
    fixed = np.trunc(weights * (1 << FRACTION_BITS) + np.where(weights < 0, -0.5, 0.5)).astype(np.int32)
    return np.minimum(rows, before - 1), fixed


def _bicubic(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    near = ((A + 2.0) * x - (A + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * A
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _bilinear(x: np.ndarray) -> np.ndarray:
    return np.maximum(1.0 - np.abs(x), 0.0)


KERNELS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "bicubic": (_bicubic, 2.0),
    "bilinear": (_bilinear, 1.0),
}
