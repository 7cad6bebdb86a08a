"""What a JPEG of TensorFlow's default quality makes of pictures, on their device and without writing one.

All of it is integers, which float64 holds exactly, so every device gives the same: colours in fixed point,
chroma at half size, libjpeg's accurate cosine transform of 8 x 8 levels, rounding to the steps of quality 95,
and back by libjpeg's fast transform, with which TensorFlow decodes. What a file holds loses nothing more.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 8
LUMA = """
2 1 1 2 2 4 5 6  1 1 1 2 3 6 6 6  1 1 2 2 4 6 7 6  1 2 2 3 5 9 8 6
2 2 4 6 7 11 10 8  2 4 6 6 8 10 11 9  5 6 8 9 10 12 12 10  7 9 10 10 11 10 10 10
"""
CHROMA = "2 2 2 5 10 10 10 10  2 2 3 7 10 10 10 10  2 3 6 10 10 10 10 10  5 7 " + "10 " * 38
"""Steps of quality 95, from the lowest frequency on."""
COSINES = """
8192 8192 8192 8192  11363 9633 6437 2260  10703 4433 -4433 -10703  9633 -2259 -11362 -6436
8192 -8192 -8192 8192  6437 -11362 2261 9633  4433 -10704 10704 -4433  2260 -6436 9633 -11363
"""
"""Frequencies by the first four levels; by the others they are mirrored, every second one negative."""
FACTORS = "1 1.387039845 1.306562965 1.175875602 1 0.785694958 0.541196100 0.275899379"
"""Of frequencies in the fast transform (Arai, Agui and Nakajima, 1988)."""
PRODUCTS = """
0 0 362 0 0 0 -362 0  0 362 0 -362 0 -362 0 362  0 473 0 -473 0 473 0 -473
0 277 0 0 0 0 0 -277  0 0 0 669 0 -669 0 0
"""
"""Of frequencies, in 256ths: what it cuts to whole numbers."""
EVEN = """
1 0 1 0 1 0 1 0  0 0 0 0 0   1 0 -1 0 -1 0 -1 0  1 0 0 0 0
1 0 1 0 -1 0 1 0  -1 0 0 0 0   1 0 -1 0 1 0 -1 0  0 0 0 0 0
"""
ODD = """
0 1 0 1 0 1 0 1  0 0 0 0 0   0 -1 0 -1 0 -1 0 -1  0 0 1 0 1
0 1 0 1 0 1 0 1  0 1 -1 0 -1   0 -1 0 -1 0 -1 0 -1  0 -1 2 -1 1
"""
"""Of frequencies and those products: the sum of both is the first four levels, the difference the last."""


def _table(text: str, columns: int) -> np.ndarray:
    return np.array(text.split(), np.float64).reshape(-1, columns)


def _constants() -> dict[str, np.ndarray]:
    half, even, odd = _table(COSINES, 4), _table(EVEN, 13), _table(ODD, 13)
    cosines = np.concatenate((half, half[:, ::-1] * np.array([[1.0], [-1.0]] * 4)), axis=1)
    factors = np.rint(_table(FACTORS, 1) * _table(FACTORS, BLOCK) * 2.0**14)
    constants = {
        "to_ycc": np.array([[19595, 38470, 7471], [-11059, -21709, 32768], [32768, -27439, -5329]]) / 2**16,
        "ycc_shift": np.array([[0.5], [128.5 - 2.0**-16], [128.5 - 2.0**-16]]),
        "to_rgb": np.array([[0, 91881], [-22554, -46802], [116130, 0]]) / 2**16,
        "halved_shift": np.array([0.25, 0.5]),
        "doubled_shift": np.array([0.5, 0.4375]),
        "across": cosines.T / 2**11,
        "down": cosines / 2**15,
        "products": _table(PRODUCTS, BLOCK) / 2**8,
        "levels": np.concatenate((even + odd, (even - odd)[::-1])),
    }
    for name, steps in {"luma": _table(LUMA, BLOCK), "chroma": _table(CHROMA, BLOCK)}.items():
        constants |= {name: steps, f"{name}_back": np.floor(steps * factors / 2**12 + 0.5)}
    return constants


@cache  # a graph may read them at any time
def _on(device: torch.device) -> dict[str, Tensor]:
    return {name: torch.tensor(values, device=device) for name, values in _constants().items()}


def through_jpeg(pictures: Tensor) -> Tensor:
    """Levels float64 [V, 3, H, W] as they come back."""
    by, (height, width) = _on(pictures.device), pictures.shape[2:]
    ycc = (by["to_ycc"] @ pictures.flatten(2) + by["ycc_shift"]).floor().view_as(pictures)
    luma = _coded(_extended(ycc[:, :1], BLOCK, BLOCK), "luma")[..., :height, :width]
    halved = _floor(F.avg_pool2d(_extended(ycc[:, 1:], 2, 2 * BLOCK), 2), by["halved_shift"])
    chroma = _coded(_extended(halved, BLOCK, BLOCK), "chroma") - 128.0
    chroma = chroma[..., : -(-height // 2), : -(-width // 2)]
    doubled = F.interpolate(chroma, scale_factor=2.0, mode="bilinear")
    chroma = _floor(doubled, by["doubled_shift"])[..., :height, :width].flatten(2)
    added = (by["to_rgb"] @ chroma + 0.5).floor().view_as(pictures)
    return (luma + added).clamp(0.0, 255.0)


def _coded(planes: Tensor, kind: str) -> Tensor:
    """Levels [..., H, W] of whole blocks as they come back. kind: "luma" or "chroma"."""
    by = _on(planes.device)
    blocks = planes.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK)).transpose(-3, -2) - 128.0
    waves = (by["down"] @ (blocks @ by["across"] + 0.5).floor() + 0.5).floor()
    steps = BLOCK * by[kind]
    waves = ((waves + (steps / 2.0).copysign(waves)) / steps).trunc() * by[f"{kind}_back"]
    levels = _back(_back(waves).mT).mT / 32.0
    blocks = (levels.floor() + 128.0).clamp(0.0, 255.0)
    return blocks.transpose(-3, -2).flatten(-4, -3).flatten(-2)


def _back(waves: Tensor) -> Tensor:
    """The fast transform along the columns of blocks [..., 8, 8]."""
    by = _on(waves.device)
    return by["levels"] @ torch.cat((waves, (by["products"] @ waves).floor()), dim=-2)


def _extended(planes: Tensor, rows: int, columns: int) -> Tensor:
    """Planes with the last row and column repeated until their numbers are multiples of these."""
    height, width = planes.shape[2:]
    return F.pad(planes, (0, -width % columns, 0, -height % rows), mode="replicate")


def _floor(planes: Tensor, shifts: Tensor) -> Tensor:
    """Whole numbers below; shifts [2]: added before, to even and to odd columns."""
    return (planes.unflatten(-1, (-1, 2)) + shifts).floor().flatten(-2)
