"""What lerobot does to an observation before a SmolVLA sees it.

An image is resized without antialiasing, in floating point, and padded with black on its left and its top
(openpi centres it and rounds to 8 bits); a smaller one is enlarged. The prompt is the instruction as it is,
ended by a line break.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.models.processing.pixels import CORNER, TORCH, PixelRule


def resize_to_corner(image: Tensor, size: int) -> Tensor:
    """uint8 [H, W, 3] -> float32 [3, size, size] in [-1, 1] on its device: aspect kept, lower right."""
    height, width = image.shape[:2]
    ratio = max(width / size, height / size)
    inner = max(1, int(height / ratio)), max(1, int(width / ratio))
    unit = image.permute(2, 0, 1)[None].float() / 255.0
    resized = F.interpolate(unit, size=inner, mode="bilinear", align_corners=False)[0]
    padded = torch.zeros(3, size, size, device=image.device)
    padded[:, size - inner[0] :, size - inner[1] :] = resized
    return padded * 2.0 - 1.0


_LEVELS = torch.arange(256, dtype=torch.uint8).float() / 255.0
PIXELS = PixelRule(TORCH, CORNER, _LEVELS.repeat(3, 1))
"""resize_to_corner as data."""


def smolvla_prompt(instruction: str) -> str:
    """The whole prompt."""
    return instruction if instruction.endswith("\n") else f"{instruction}\n"
