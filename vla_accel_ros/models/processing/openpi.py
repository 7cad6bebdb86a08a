"""What openpi does to an observation before the network sees it, and to actions after.

Images: antialiased bilinear resize with centred black padding (uint8 in, uint8 out, within one level of
Pillow), then [-1, 1]. Words: one cleaned line, and for pi0.5 the state written as bins. Numbers:
normalisation by the statistics of the training data, computed in float64 because a state on the edge of a bin
would otherwise fall on either side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-6
BIN_EDGES = np.linspace(-1.0, 1.0, 257)[:-1]


def resize_with_pad(image: np.ndarray, size: int) -> np.ndarray:
    """uint8 [H, W, 3] -> uint8 [size, size, 3], aspect kept, the rest black. The image itself if it fits."""
    height, width = image.shape[:2]
    if height == width == size:
        return image
    inner, (top, left) = fitted(height, width, size)
    resized = resize_antialiased(torch.from_numpy(np.array(image, order="C"))[None], *inner)[0].numpy()
    padded = np.zeros((size, size, 3), dtype=np.uint8)
    padded[top : top + inner[0], left : left + inner[1]] = resized
    return padded


def resize_antialiased(images: Tensor, height: int, width: int) -> Tensor:
    """uint8 [V, H, W, 3] -> uint8 [V, height, width, 3], bilinear with antialiasing, by torch's own kernels.

    The layout is stated: without AVX2 and AVX-512 the kernel of PyTorch for planes of colour is wrong for
    pictures that become one pixel wide.
    """
    pixels = images.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    return F.interpolate(pixels, size=(height, width), mode="bilinear", antialias=True).permute(0, 2, 3, 1)


def fitted(height: int, width: int, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Height and width of a picture fitted into the square, and where its first row and column are."""
    ratio = max(width / size, height / size)
    inner = max(1, int(height / ratio)), max(1, int(width / ratio))
    return inner, ((size - inner[0]) // 2, (size - inner[1]) // 2)


def to_unit(images: Tensor) -> Tensor:
    """uint8 [V, S, S, 3] -> float32 [V, 3, S, S] in [-1, 1]."""
    return images.permute(0, 3, 1, 2).float() / 255.0 * 2.0 - 1.0


def clean(instruction: str) -> str:
    """The instruction on one line, words separated by spaces."""
    return instruction.strip().replace("_", " ").replace("\n", " ")


def state_bins(state: np.ndarray) -> np.ndarray:
    """Normalised state [D] -> bins int [D], 0..255, and -1 for a value below -1 (openpi writes it so)."""
    return np.digitize(state, BIN_EDGES) - 1


def pi05_prompt(instruction: str, state: np.ndarray) -> str:
    """The whole prompt of pi0.5. state: normalised, [D]."""
    bins = " ".join(str(bin_) for bin_ in state_bins(state))
    return f"Task: {clean(instruction)}, State: {bins};\nAction: "


@dataclass(frozen=True)
class Normalizer:
    """An affine map per dimension: normalize(x) = (x - shift) / scale * gain + offset, and its exact inverse.

    shift, scale: float64 [D]. Dimensions beyond D pass through unchanged, as in openpi; both ways include its
    epsilon, so that the inverse is one. The order of operations is openpi's too: a joint that rests on its
    lowest value must be exactly -1, not a rounding below it, to be in bin 0.
    """

    shift: np.ndarray
    scale: np.ndarray
    gain: float = 1.0
    offset: float = 0.0

    @classmethod
    def mean_std(cls, mean: np.ndarray, std: np.ndarray) -> Normalizer:
        """(x - mean) / (std + eps): pi0."""
        return cls(np.asarray(mean, np.float64), np.asarray(std, np.float64) + EPS)

    @classmethod
    def quantile(cls, q01: np.ndarray, q99: np.ndarray) -> Normalizer:
        """(x - q01) / (q99 - q01 + eps) * 2 - 1: everything after pi0."""
        low, high = np.asarray(q01, np.float64), np.asarray(q99, np.float64)
        return cls(low, high - low + EPS, gain=2.0, offset=-1.0)

    @classmethod
    def identity(cls) -> Normalizer:
        """Nothing is normalised."""
        return cls(np.zeros(0), np.ones(0))

    @property
    def size(self) -> int:
        """Dimensions that have statistics."""
        return len(self.shift)

    def normalize(self, x: np.ndarray) -> np.ndarray:
        """[..., D'] -> float64 [..., D']."""
        out, known = np.array(x, np.float64), min(x.shape[-1], self.size)
        part = out[..., :known]
        part[...] = (part - self.shift[:known]) / self.scale[:known] * self.gain + self.offset
        return out

    def unnormalize(self, x: np.ndarray) -> np.ndarray:
        """[..., D'] -> float64 [..., D']."""
        out, known = np.array(x, np.float64), min(x.shape[-1], self.size)
        part = out[..., :known]
        part[...] = (part - self.offset) / self.gain * self.scale[:known] + self.shift[:known]
        return out
