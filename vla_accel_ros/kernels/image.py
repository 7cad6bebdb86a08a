"""From a camera's pixels to the encoder's patches in one pass, in plain torch: the twin of gpu/image.py.

Antialiased bilinear resize with centred black padding, rounded to bytes along the rows and again along the
columns, then [-1, 1] and the layout of patches: what processing.resize_with_pad and to_unit do, within one
level. Which pixels make a pixel, and with what weights, depends on the image's size alone and is made once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Taps(NamedTuple):
    """For one axis of an image that is fitted into `size` pixels.

    first int32 [size]: the first source pixel of each; weight float32 [size, n]: of it and those after it,
    all 0 where there is padding.
    """

    first: Tensor
    weight: Tensor


@lru_cache(maxsize=32)
def taps(height: int, width: int, size: int, device: torch.device) -> tuple[Taps, Taps]:
    """Those of the rows and of the columns."""
    ratio = max(width / size, height / size)
    inner = max(1, int(height / ratio)), max(1, int(width / ratio))
    rows, columns = (
        _axis(before, after, size, device) for before, after in zip((height, width), inner, strict=True)
    )
    return rows, columns


def _axis(before: int, after: int, size: int, device: torch.device) -> Taps:
    scale = before / after
    widen = max(scale, 1.0)
    centre = (torch.arange(after, dtype=torch.float64) + 0.5) * scale
    first = (centre - widen + 0.5).long().clamp(min=0)
    last = (centre + widen + 0.5).long().clamp(max=before)
    offset = torch.arange(int((last - first).max()))
    place = first[:, None] + offset
    weight = (1.0 - ((place - centre[:, None] + 0.5) / widen).abs()).clamp(min=0.0)
    weight = torch.where(place < last[:, None], weight, 0.0)
    weight = weight / weight.sum(dim=1, keepdim=True)
    left = (size - after) // 2
    all_first = torch.zeros(size, dtype=torch.int32)
    all_weight = torch.zeros(size, len(offset))
    all_first[left : left + after] = first.int()
    all_weight[left : left + after] = weight.float()
    return Taps(all_first.to(device), all_weight.to(device))


def patches(image: Tensor, size: int, patch: int, out: Tensor) -> None:
    """The patches of one image.

    image uint8 [H, W, 3], of any size and contiguous; out float32 [(size / patch)^2, 3 * patch * patch] is
    written: patches by rows, channels first within a patch, in [-1, 1].
    """
    rows, columns = taps(image.shape[0], image.shape[1], size, image.device)
    pixels = image.float()
    across = _weighted(pixels.transpose(0, 1), columns).transpose(0, 1)
    square = _weighted(across, rows)
    side = size // patch
    unit = square * (2.0 / 255.0) - 1.0
    cut = unit.unflatten(0, (side, patch)).unflatten(2, (side, patch)).permute(0, 2, 4, 1, 3)
    out.copy_(cut.flatten(2).flatten(0, 1))


def _weighted(pixels: Tensor, axis: Taps) -> Tensor:
    """Along the first dimension, rounded to what a byte holds. pixels float32 [N, M, 3]."""
    total = torch.zeros(len(axis.first), *pixels.shape[1:], device=pixels.device)
    for tap in range(axis.weight.shape[1]):
        place = (axis.first.long() + tap).clamp(max=pixels.shape[0] - 1)
        total += pixels[place] * axis.weight[:, tap, None, None]
    return (total + 0.5).floor().clamp(0.0, 255.0)
