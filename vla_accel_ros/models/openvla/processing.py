"""What OpenVLA does to an observation before the network sees it, and to its tokens after.

An image is squeezed to the network's square (no padding) by Pillow's bicubic resize and normalised once
for each tower. An action is a token: the last ids of the vocabulary are bins of [-1, 1], counted from the
end, and the quantiles of the training data stretch them to the robot's units where its mask says so.
Numbers are float64, as in the reference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.processing.pixels import SQUEEZED, PixelRule
from vla_accel_ros.models.processing.resize import resize_bicubic


@dataclass(frozen=True)
class PixelNorm:
    """(x / 255 - mean) / std for the six channels: three for DINOv2 (ImageNet's), three for SigLIP."""

    mean: tuple[float, ...] = (0.485, 0.456, 0.406, 0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.229, 0.224, 0.225, 0.5, 0.5, 0.5)

    def pixels(self, image: Tensor, size: int) -> Tensor:
        """uint8 [H, W, 3] -> float32 [6, size, size], on the image's device; Pillow's pixels to the bit."""
        return self._normalised(resize_bicubic(image, size))

    @property
    def rule(self) -> PixelRule:
        """The same as data."""
        levels = torch.arange(256, dtype=torch.uint8)[None, :, None].expand(1, 256, 3)
        return PixelRule("bicubic", SQUEEZED, self._normalised(levels)[:, 0])

    def _normalised(self, image: Tensor) -> Tensor:
        unit = image.permute(2, 0, 1).float() / 255.0
        mean, std = (torch.tensor(x, device=image.device)[:, None, None] for x in (self.mean, self.std))
        return (unit.repeat(2, 1, 1) - mean) / std


def openvla_prompt(instruction: str) -> str:
    """The whole prompt, word for word as in training; the instruction is written in lower case."""
    return f"In: What action should the robot take to {instruction.lower()}?\nOut:"


@dataclass(frozen=True)
class ActionTokens:
    """The last ids of a vocabulary as numbers in [-1, 1].

    vocab: ids without padding (32000); bins: edges over [-1, 1], so that a number is one of bins - 1 centres.
    """

    vocab: int
    bins: int = 256

    @property
    def edges(self) -> np.ndarray:
        """float64 [bins]"""
        return np.linspace(-1.0, 1.0, self.bins)

    @property
    def centers(self) -> np.ndarray:
        """float64 [bins - 1], the numbers a token can stand for."""
        return (self.edges[:-1] + self.edges[1:]) / 2.0

    def to_values(self, tokens: np.ndarray) -> np.ndarray:
        """ids [...] -> float64 [...]; an id that is no action is taken as the nearest that is."""
        return self.centers[np.clip(self.vocab - np.asarray(tokens) - 1, 0, self.bins - 2)]

    def from_values(self, values: np.ndarray) -> np.ndarray:
        """float [...] -> ids int64 [...], as the training data was written; 1 gets an id of its own."""
        return self.vocab - np.digitize(np.clip(values, -1.0, 1.0), self.edges)


@dataclass(frozen=True)
class ActionStats:
    """Quantiles of the training actions, float64 [D]; mask bool [D], False where an action is not normalised.

    The gripper is such a one: its token is its command.
    """

    low: np.ndarray
    high: np.ndarray
    mask: np.ndarray

    @property
    def size(self) -> int:
        """D, the numbers of an action."""
        return len(self.low)

    def range(self) -> np.ndarray:
        """float64 [2, D]: what the lowest and the highest token stand for."""
        return np.stack([self.unnormalize(np.full(self.size, edge)) for edge in (-1.0, 1.0)])

    def unnormalize(self, x: np.ndarray) -> np.ndarray:
        """[..., D] in [-1, 1] -> float64 [..., D] in the robot's units."""
        return np.where(self.mask, 0.5 * (x + 1) * (self.high - self.low) + self.low, x)

    def normalize(self, x: np.ndarray) -> np.ndarray:
        """The inverse; an action that never moved in training becomes 0."""
        span = self.high - self.low
        unit = (x - self.low) / np.where(span > 0, span, 1.0) * 2 - 1
        return np.where(self.mask, np.where(span > 0, unit, 0.0), x)
