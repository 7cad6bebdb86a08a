"""What a camera image went through in training: a JPEG, a resize by Lanczos, and a crop of nine tenths.

A picture that has the network's size already skips the first two, in the authors' code as here, so give the
network what the camera gives. All of it is computed on the pictures' device, in float64, and theirs to the
bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.openvla_oft.jpeg import through_jpeg
from vla_accel_ros.models.processing.pixels import by_size

TAPS, AREA = 3.0, 0.9
SCALE = 255.5 / 255.0
"""TensorFlow makes levels of numbers from 0 to 1 by 255.5, and cuts."""


def prepared(images: Sequence[Tensor], size: int) -> Tensor:
    """uint8 [H, W, 3] of any sizes -> levels float64 [V, 3, size, size]; the aspect is not kept."""

    def prepare(alike: Tensor) -> Tensor:
        planes = alike.permute(0, 3, 1, 2).double()
        if planes.shape[2:] != (size, size):
            planes = resize_lanczos(through_jpeg(planes), size)
        return crop(planes)

    return by_size(images, prepare)


def resize_lanczos(planes: Tensor, size: int) -> Tensor:
    """Levels float64 [V, 3, H, W] -> [V, 3, size, size], as TensorFlow's lanczos3 with antialiasing."""
    rows, columns = (_on(planes.device, _lanczos, side, size) for side in planes.shape[2:])
    return (rows @ planes @ columns.T).round().clamp(0.0, 255.0)


def crop(planes: Tensor) -> Tensor:
    """Levels float64 [V, 3, S, S]: the middle AREA of them, enlarged to their size again; bilinear, corners
    aligned."""
    weights = _on(planes.device, _crop, planes.shape[2])
    return (weights @ planes @ weights.T * SCALE).floor().clamp(0.0, 255.0)


@cache  # a graph may read them at any time
def _on(device: torch.device, weigh: Callable[..., np.ndarray], *sizes: int) -> Tensor:
    return torch.from_numpy(weigh(*sizes)).to(device)


def _lanczos(before: int, after: int) -> np.ndarray:
    """Weights float64 [after, before]."""
    scale = before / after
    widen = max(scale, 1.0)
    centres = (np.arange(after)[:, None] + 0.5) * scale
    x = np.abs((np.arange(before) + 0.5 - centres) / widen)
    weights = np.where(x < TAPS, np.sinc(x) * np.sinc(x / TAPS), 0.0)
    return weights / weights.sum(axis=1, keepdims=True)


def _crop(size: int) -> np.ndarray:
    """Weights float64 [size, size] of points that begin at (1 - sqrt(AREA)) / 2 of the side."""
    share = np.sqrt(AREA)
    at = (1.0 - share) / 2.0 * (size - 1) + np.arange(size) * share
    first = np.minimum(at.astype(np.int64), size - 2)
    weights = np.zeros((size, size))
    weights[np.arange(size), first] = 1.0 - (at - first)
    weights[np.arange(size), first + 1] = at - first
    return weights
