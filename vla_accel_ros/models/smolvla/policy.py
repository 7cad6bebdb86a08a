"""A SmolVLA policy: the network, and the conversion between it and a robot's units.

It has Policy's methods and normalisation. Image resizing and the prompt are lerobot's, and the state is part
of the prefix. It writes no text: the layers that did were cut off.

An image is resized without antialiasing, in floating point, and padded with black on its left and top (openpi
centres it and rounds to 8 bits); a smaller one is enlarged. The prompt is the unchanged instruction, ended by
a line break.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.network_policy import PolicyInputs
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.checks import check_prompt, check_words
from vla_accel_ros.models.processing.pixels import CORNER, TORCH, PixelRule, cornered
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.models.smolvla.model import SmolVLA


def resize_to_corner(image: Tensor, size: int) -> Tensor:
    """uint8 [H, W, 3] -> float32 [3, size, size] in [-1, 1] on its device: aspect kept, lower right."""
    return cornered(image.permute(2, 0, 1).float() / 255.0, size) * 2.0 - 1.0


_LEVELS = torch.arange(256, dtype=torch.uint8).float() / 255.0
PIXELS = PixelRule(TORCH, CORNER, _LEVELS.repeat(3, 1))
"""resize_to_corner as data."""


def smolvla_prompt(instruction: str) -> str:
    """Return the whole prompt."""
    return instruction if instruction.endswith("\n") else f"{instruction}\n"


@dataclass(frozen=True)
class SmolVLAPolicy(Policy):
    """The network and its pre- and post-processing; see Policy. prompt_state is not used."""

    model: SmolVLA  # type: ignore[assignment]
    pixel_rule: ClassVar[PixelRule] = PIXELS

    @property
    def config(self) -> SmolVLAConfig:  # type: ignore[override]
        """The network's sizes."""
        return self.model.config

    def resized(self, images: Sequence[Tensor]) -> Tensor:
        """Return the network's pixels float32 [V, 3, S, S] in [-1, 1] from images uint8 [H, W, 3] of any
        sizes on its device."""
        return torch.stack([resize_to_corner(image, self.image_size) for image in images])

    def embed(self, inputs: PolicyInputs) -> Tensor:
        """Return the prefix of one observation, [1, T, W]: images, prompt, state."""
        seen = self.encode(inputs.images)["seen"]
        return self.model.embed(seen[None], inputs.tokens[None], inputs.state[None])

    def prefill(self, seen: Tensor, words: Tensor, state: Tensor) -> dict[str, Any]:  # type: ignore[override]
        """See SmolVLAConfig.chain."""
        _, kv = self.model.prefix(self.model.embed(seen[None], words[None], state[None]))
        return {"kv": kv}

    def prompt(self, instruction: str, state: np.ndarray) -> list[int]:
        """Return the prompt's token ids, without the state. Raises ValueError if the prompt is longer than
        max_prompt."""
        check_words(instruction, self.config.max_prompt)
        text = smolvla_prompt(instruction)
        tokens = self.tokenizer.encode(text)
        check_prompt(text, tokens, self.config.max_prompt)
        return tokens
