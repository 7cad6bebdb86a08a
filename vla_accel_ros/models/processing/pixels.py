"""How each family makes the network's pixels of a camera's, as data: taps, a rule of rounding, levels.

Every one of these resizes is two passes, along the rows and along the columns, in which an output pixel is a
weighted sum of neighbouring input pixels. They differ in the weights, in where a picture that keeps its
aspect lies on the square, in whether sums are integers that are rounded to bytes after each pass (Pillow's,
which openpi and OpenVLA use) or floating point (torch's without antialiasing, which lerobot uses), and in
what becomes of the 256 levels. So there is one kernel (kernels.reference.image) and this is what it is given.
What a rule stands for, written as the families write it, is beside it in conventions and the families'
processing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.processing import resize

TORCH = "torch's bilinear"
"""The filter of two taps, with weights as F.interpolate has them without antialias."""

CENTRE, CORNER, SQUEEZED = "centre", "corner", "squeezed"
"""On black, the aspect kept: in the middle, or at the lower right; or the whole square, the aspect lost."""


@dataclass(frozen=True)
class PixelRule:
    """filter: one of resize.KERNELS, or TORCH. fit: of a picture that is no square; one of FITS.

    levels: float32 [C, 256], what becomes of a level in each of the network's channels, of which channel c is
        of the image's c % 3; with TORCH what a level is before the resize, whose result r is 2 r - 1.
    """

    filter: str
    fit: str
    levels: Tensor = field(repr=False, compare=False)

    @property
    def channels(self) -> int:
        """C, those of the network."""
        return len(self.levels)

    @property
    def rounds(self) -> bool:
        """Whether sums are of integers, rounded to bytes after each pass."""
        return self.filter != TORCH

    def axes(self, height: int, width: int, size: int) -> tuple[Axis, Axis]:
        """The taps of rows and of columns for an image of that size."""
        inner, start = (size, size), (0, 0)
        if self.fit != SQUEEZED:
            inner, start = fitted(height, width, size)
        if self.fit == CORNER:
            start = size - inner[0], size - inner[1]
        rows, columns = (self._axis(*one, size) for one in zip((height, width), inner, start, strict=True))
        return rows, columns

    def _axis(self, before: int, after: int, start: int, size: int) -> Axis:
        found, weights = (_two if self.filter == TORCH else self._pillows)(before, after)
        first = np.zeros(size, np.int32)
        weight = np.zeros((len(weights), size), weights.dtype)
        first[start : start + after] = found
        weight[:, start : start + after] = weights
        return Axis(torch.from_numpy(first), torch.from_numpy(weight))

    def _pillows(self, before: int, after: int) -> tuple[np.ndarray, np.ndarray]:
        rows, weights = resize.taps(before, after, self.filter)
        return rows[0], weights


@dataclass(frozen=True)
class Axis:
    """first int32 [S]: the first input pixel of each output pixel; weight int32 (of resize.FRACTION_BITS) or
    float32 [n, S]: of it and of those after it, the last one repeated; all 0 where there is no picture."""

    first: Tensor
    weight: Tensor


def _two(before: int, after: int) -> tuple[np.ndarray, np.ndarray]:
    """As torch computes them: in float32, but multiplied and shifted by half a pixel with one rounding, which
    compilers make of it on CPU and GPU. Rounded twice, weights are off by an ulp of the place, 1e-4."""
    scale = np.float32(before) / np.float32(after)
    place = (np.float64(scale) * (np.arange(after) + 0.5) - 0.5).astype(np.float32)
    place = np.maximum(place, np.float32(0))
    first = place.astype(np.int32)
    second = place - first.astype(np.float32)
    return first, np.stack([np.float32(1) - second, second])


def fitted(height: int, width: int, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Height and width of a picture fitted into the square, and where its first row and column are."""
    ratio = max(width / size, height / size)
    inner = max(1, int(height / ratio)), max(1, int(width / ratio))
    return inner, ((size - inner[0]) // 2, (size - inner[1]) // 2)
