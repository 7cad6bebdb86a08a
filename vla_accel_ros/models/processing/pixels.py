"""Each family's resize and normalisation as data: taps, rounding rule, and levels.

Every resize here is two passes, along rows and along columns, in which an output pixel is a weighted sum of
neighbouring input pixels. They differ in the weights, in where an image that keeps its aspect lies on the
square, in the arithmetic (integer sums rounded to bytes after each pass, as in Pillow, which openpi and
OpenVLA use, or floating point, as in torch without antialiasing, which lerobot uses), and in the mapping of
the 256 levels. So one kernel (kernels.reference.image) takes this data. The families' own code for the same
resize is in conventions and their policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.models.processing import resize

TORCH = "torch's bilinear"
"""A two-tap filter with the weights of F.interpolate without antialiasing."""

CENTRE, CORNER, SQUEEZED = "centre", "corner", "squeezed"
"""Placement: aspect kept, on black, in the centre or at the lower right corner; or squeezed to the whole
square."""


@dataclass(frozen=True)
class PixelRule:
    """filter: one of resize.KERNELS, or TORCH. fit: placement of an image that is not square, one of FITS.

    levels: float32 [C, 256], the value of each level in each of the network's channels; channel c reads the
        image's c % 3. With TORCH, levels are mapped before the resize, and its result r becomes 2 r - 1.
    border: with TORCH, the value beside an image that is not square; elsewhere that is black.
    """

    filter: str
    fit: str
    levels: Tensor = field(repr=False, compare=False)
    border: float = -1.0

    def described(self, size: int) -> dict[str, str | int | float]:
        """What a picture that is `size` wide needs to be shown as the network gets it: see `shown`."""
        return {"filter": self.filter, "fit": self.fit, "border": self.border, "size": size}

    @classmethod
    def shown(cls, filter: str, fit: str, border: float) -> PixelRule:
        """The rule of that description with levels of a picture: 0..255, or with TORCH -1..1."""
        levels = torch.arange(256, dtype=torch.float32).expand(3, 256)
        return cls(filter, fit, levels / 255.0 if filter == TORCH else levels, border)

    @property
    def channels(self) -> int:
        """C, channels of the network's input."""
        return len(self.levels)

    @property
    def rounds(self) -> bool:
        """Whether sums are integers, rounded to bytes after each pass."""
        return self.filter != TORCH

    def axes(self, height: int, width: int, size: int) -> tuple[Axis, Axis]:
        """Return the taps of rows and of columns for an image of that size."""
        placed = self.placed(height, width, size)
        rows, columns = (self._axis(*sizes, size) for sizes in zip((height, width), *placed, strict=True))
        return rows, columns

    def placed(self, height: int, width: int, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return height and width of an image of that size on the square, and its first row and column."""
        if self.fit == SQUEEZED:
            return (size, size), (0, 0)
        inner, start = fitted(height, width, size)
        return inner, (size - inner[0], size - inner[1]) if self.fit == CORNER else start

    def _axis(self, before: int, after: int, start: int, size: int) -> Axis:
        taps, weights = (_two if self.filter == TORCH else self._pillows)(before, after)
        first = np.zeros(size, np.int32)
        weight = np.zeros((len(weights), size), weights.dtype)
        first[start : start + after] = taps
        weight[:, start : start + after] = weights
        return Axis(torch.from_numpy(first), torch.from_numpy(weight))

    def _pillows(self, before: int, after: int) -> tuple[np.ndarray, np.ndarray]:
        rows, weights = resize.taps(before, after, self.filter)
        return rows[0], weights


@dataclass(frozen=True)
class Axis:
    """first int32 [S]: first input pixel of each output pixel. weight int32 (resize.FRACTION_BITS) or float32
    [n, S]: weights of it and the following ones, the last repeated; all 0 outside of the image."""

    first: Tensor
    weight: Tensor


def _two(before: int, after: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the two taps as torch computes them: in float32, but scale and half-pixel shift are rounded
    once, as compilers for CPU and GPU fuse them. Rounded twice, weights would be off by an ulp of the
    position, 1e-4."""
    scale = np.float32(before) / np.float32(after)
    centre = (np.float64(scale) * (np.arange(after) + 0.5) - 0.5).astype(np.float32)
    centre = np.maximum(centre, np.float32(0))
    first = centre.astype(np.int32)
    second = centre - first.astype(np.float32)
    return first, np.stack([np.float32(1) - second, second])


def centred(levels: Tensor) -> Tensor:
    """uint8 -> float32 from -1 to 1, rounded as the references do that take a half away first."""
    return (levels.float() / 255.0 - 0.5) * 2.0


CENTRED = centred(torch.arange(256, dtype=torch.uint8)).repeat(3, 1)
"""Its levels."""


def by_size(images: Sequence[Tensor], prepare: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what `prepare` makes of images uint8 [n, H, W, 3] of one size, of images [H, W, 3] of any sizes,
    in their order; those of equal size are prepared together."""
    done: dict[int, Tensor] = {}
    for shape in dict.fromkeys(image.shape for image in images):
        alike = [index for index, image in enumerate(images) if image.shape == shape]
        done |= zip(alike, prepare(torch.stack([images[index] for index in alike])), strict=True)
    return torch.stack([done[index] for index in range(len(images))])


def cornered(unit: Tensor, size: int) -> Tensor:
    """Pixels float32 [3, H, W] -> [3, size, size], on their device: resized as TORCH, aspect kept, in the
    lower right corner of zeros."""
    inner, _ = fitted(unit.shape[1], unit.shape[2], size)
    resized = F.interpolate(unit[None], size=inner, mode="bilinear", align_corners=False)[0]
    return F.pad(resized, (size - inner[1], 0, size - inner[0], 0))


def fitted(height: int, width: int, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return height and width of an image fitted into the square, and its first row and column there."""
    ratio = max(width / size, height / size)
    inner = max(1, int(height / ratio)), max(1, int(width / ratio))
    return inner, ((size - inner[0]) // 2, (size - inner[1]) // 2)
