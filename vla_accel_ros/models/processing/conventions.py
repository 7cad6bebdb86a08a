"""What openpi and lerobot do differently around one and the same network.

Both train pi0 and pi0.5; a policy must be given what its own trainer gave it. openpi resizes with
antialiasing, as Pillow does, rounds to 8 bits, and reads the time of a flow step off a float32 sum; lerobot
resizes without antialiasing in floating point and multiplies. lerobot's pi0 also keeps the instruction as it
is written. Numbers differ too, but they come with their statistics (lerobot_processors, norm_stats).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.models.processing import openpi as processing
from vla_accel_ros.models.processing.pixels import CENTRE, TORCH, PixelRule
from vla_accel_ros.models.processing.resize import resize_bilinear

Resize = Callable[[Tensor, int], Tensor]
"""uint8 [V, H, W, 3] and S -> float32 [V, 3, S, S] in [-1, 1], on the images' device."""


@dataclass(frozen=True)
class Conventions:
    """time_rule: see models.flow.sampling. resize: of images of one size; pixels: the same as data. words:
    the prompt of a pi0 after its beginning, as the texts that are encoded one by one."""

    name: str
    time_rule: str
    resize: Resize
    pixels: PixelRule
    words: Callable[[str], tuple[str, ...]]


def openpi_resize(images: Tensor, size: int) -> Tensor:
    """Antialiased bilinear resize, centred on black: Pillow's to the bit on a GPU, and within one level of it
    on a CPU, where torch's own is ten times as fast."""
    return padded(images, size, resize_bilinear if images.is_cuda else processing.resize_antialiased)


def padded(images: Tensor, size: int, resize: Callable[[Tensor, int, int], Tensor]) -> Tensor:
    """As openpi_resize. resize: uint8 [V, H, W, 3] to a height and a width."""
    height, width = images.shape[1:3]
    if (height, width) != (size, size):
        inner, (top, left) = processing.fitted(height, width, size)
        resized = resize(images, *inner)
        images = images.new_zeros(len(images), size, size, 3)
        images[:, top : top + inner[0], left : left + inner[1]] = resized
    return processing.to_unit(images)


def lerobot_resize(images: Tensor, size: int) -> Tensor:
    """Bilinear resize of floating-point pixels without antialiasing, centred on black."""
    unit = images.permute(0, 3, 1, 2).float() / 255.0
    height, width = images.shape[1:3]
    if (height, width) != (size, size):
        inner, (top, left) = processing.fitted(height, width, size)
        resized = F.interpolate(unit, size=inner, mode="bilinear", align_corners=False).clamp(0.0, 1.0)
        unit = unit.new_zeros(len(unit), 3, size, size)
        unit[:, :, top : top + inner[0], left : left + inner[1]] = resized
    return unit * 2.0 - 1.0


def _openpi_words(instruction: str) -> tuple[str, ...]:
    return processing.clean(instruction), "\n"


def _lerobot_words(instruction: str) -> tuple[str, ...]:
    return (instruction if instruction.endswith("\n") else f"{instruction}\n",)


_LEVELS = torch.arange(256, dtype=torch.uint8)[None, None, :, None].expand(1, 1, 256, 3)
_OPENPI_PIXELS = PixelRule("bilinear", CENTRE, processing.to_unit(_LEVELS)[0, :, 0])
_LEROBOT_PIXELS = PixelRule(TORCH, CENTRE, (_LEVELS[0, 0].float() / 255.0).t().contiguous())
OPENPI = Conventions("openpi", "openpi", openpi_resize, _OPENPI_PIXELS, _openpi_words)
LEROBOT = Conventions("lerobot", "lerobot", lerobot_resize, _LEROBOT_PIXELS, _lerobot_words)
