"""Pillow's bicubic resize, to the bit, on any device.

OpenVLA was measured on what Pillow makes of an image, and torch's antialiased interpolation differs from it
by a level here and there. Pillow's way is integers: weights of 22 fractional bits, one pass along the rows
and then one along the columns, each rounded to 8 bits (ImagingResample; antialiased, because the kernel
widens with the scale). Integers add up alike in any order, so a GPU gives the same pixels. From version 13 on
Pillow takes the columns of a tall image first; here it is always the rows, as when OpenVLA was made.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

FRACTION_BITS = 22
SUPPORT = 2.0
A = -0.5


def resize_bicubic(image: Tensor, size: int) -> Tensor:
    """uint8 [H, W, C] -> uint8 [size, size, C]; the aspect is not kept. Equal to Pillow's BICUBIC."""
    return _along_columns(_along_columns(image.transpose(0, 1), size).transpose(0, 1), size)


def _along_columns(image: Tensor, size: int) -> Tensor:
    """Resize the first dimension of uint8 [N, M, C] to `size`."""
    if image.shape[0] == size:
        return image
    image = image.contiguous()
    rows, weights = (torch.from_numpy(a).to(image.device) for a in _taps(image.shape[0], size))
    total = torch.full(
        (size, *image.shape[1:]), 1 << (FRACTION_BITS - 1), dtype=torch.int32, device=image.device
    )
    for row, weight in zip(rows, weights, strict=True):
        total.addcmul_(image[row].int(), weight[:, None, None])
    return (total >> FRACTION_BITS).clamp(0, 255).to(torch.uint8)


@lru_cache(maxsize=16)
def _taps(before: int, after: int) -> tuple[np.ndarray, np.ndarray]:
    """Which input rows make an output row, and their weights: int64 and int32 [taps, after], zero-padded."""
    scale = before / after
    widen = max(1.0, scale)
    centre = (np.arange(after) + 0.5) * scale
    first = np.maximum((centre - SUPPORT * widen + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + SUPPORT * widen + 0.5).astype(np.int64), before)
    rows = first + np.arange((last - first).max())[:, None]
    weights = np.where(rows < last, _kernel((rows - centre + 0.5) / widen), 0.0)
    weights /= weights.sum(axis=0)
    fixed = np.trunc(weights * (1 << FRACTION_BITS) + np.where(weights < 0, -0.5, 0.5)).astype(np.int32)
    return np.minimum(rows, before - 1), fixed


def _kernel(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    near = ((A + 2.0) * x - (A + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * A
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
