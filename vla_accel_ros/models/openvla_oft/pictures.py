"""What a camera image went through in training: a JPEG, a resize by Lanczos, and a crop of nine tenths.

A picture that has the network's size already skips the first two, in the authors' code as here, so give the
network what the camera gives. Their JPEG decoder takes the fast integer DCT, Pillow's the accurate one: a
level differs by up to 7, by 1.4 in the mean. The rest is theirs to the bit, but for the crop (a level at
most).
"""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np

QUALITY, TAPS, AREA = 95, 3.0, 0.9


def prepare(image: np.ndarray, size: int) -> np.ndarray:
    """uint8 [H, W, 3] -> uint8 [size, size, 3]; the aspect is not kept."""
    if image.shape[:2] != (size, size):
        image = resize_lanczos(through_jpeg(image), size)
    return crop(image)


def through_jpeg(image: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] as it comes back from a JPEG of TensorFlow's default quality."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(file, "JPEG", quality=QUALITY, subsampling=2)
    return np.asarray(Image.open(file))


def resize_lanczos(image: np.ndarray, size: int) -> np.ndarray:
    """uint8 [H, W, 3] -> uint8 [size, size, 3], as TensorFlow's lanczos3 with antialiasing."""
    rows, columns = _lanczos(image.shape[0], size), _lanczos(image.shape[1], size)
    return _rounded(rows, columns, image, np.rint)


def crop(image: np.ndarray) -> np.ndarray:
    """uint8 [S, S, 3]: the middle AREA of it, enlarged to its size again; bilinear, corners aligned."""
    weights = _crop(len(image))
    return _rounded(weights, weights, image, lambda x: np.floor(x + 0.5))


def _rounded(rows: np.ndarray, columns: np.ndarray, image: np.ndarray, rounding: object) -> np.ndarray:
    wide = np.einsum("oh,hwc->owc", rows, image.astype(np.float64), optimize=True)
    both = np.einsum("ow,hwc->hoc", columns, wide, optimize=True)
    assert callable(rounding)
    return np.clip(rounding(both), 0, 255).astype(np.uint8)


@lru_cache(maxsize=16)
def _lanczos(before: int, after: int) -> np.ndarray:
    """Weights float64 [after, before]."""
    scale = before / after
    widen = max(scale, 1.0)
    centres = (np.arange(after)[:, None] + 0.5) * scale
    x = np.abs((np.arange(before) + 0.5 - centres) / widen)
    weights = np.where(x < TAPS, np.sinc(x) * np.sinc(x / TAPS), 0.0)
    return weights / weights.sum(axis=1, keepdims=True)


@lru_cache(maxsize=4)
def _crop(size: int) -> np.ndarray:
    """Weights float64 [size, size] of points that begin at (1 - sqrt(AREA)) / 2 of the side."""
    share = np.sqrt(AREA)
    at = (1.0 - share) / 2.0 * (size - 1) + np.arange(size) * share
    first = np.minimum(at.astype(np.int64), size - 2)
    weights = np.zeros((size, size))
    weights[np.arange(size), first] = 1.0 - (at - first)
    weights[np.arange(size), first + 1] = at - first
    return weights
