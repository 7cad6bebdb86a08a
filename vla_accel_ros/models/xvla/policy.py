"""An X-VLA policy: the network, and the conversion between it and a robot's units.

It has Policy's methods. Images are normalised by ImageNet's statistics, resized without antialiasing, and
padded with the mean colour on their left and top. The prompt is the unchanged instruction, filled up with
padding, which the network reads as it reads words. Grippers are logits in the network, see grippers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.network_policy import HostInputs
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.checks import check_prompt, check_words
from vla_accel_ros.models.processing.pixels import CORNER, TORCH, PixelRule, cornered
from vla_accel_ros.models.xvla.config import XVLAConfig
from vla_accel_ros.models.xvla.grippers import GRIPPERS
from vla_accel_ros.models.xvla.model import XVLA

if TYPE_CHECKING:  # models import nothing of the engine; they only speak of its boundary type
    from vla_accel_ros.types import Observation

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BEGIN, PADDING, END = 0, 1, 2
"""BART's ids around a prompt."""
SURE = 1e-6
"""Closest that a gripper's probability comes to 0 and 1 where a logit is made of it."""


def _levels() -> Tensor:
    """float32 [3, 256], normalised values of the 256 levels."""
    levels = torch.arange(256, dtype=torch.uint8).float()[None] / 255.0
    return (levels - torch.tensor(MEAN)[:, None]) / torch.tensor(STD)[:, None]


PIXELS = PixelRule(TORCH, CORNER, (_levels() + 1.0) / 2.0, border=0.0)
"""resize_normalised as data."""


def resize_normalised(image: Tensor, size: int) -> Tensor:
    """uint8 [H, W, 3] -> float32 [3, size, size], normalised, on its device: aspect kept, lower right."""
    unit = image.permute(2, 0, 1).float() / 255.0
    channels = zip(unit, MEAN, STD, strict=True)
    return cornered(torch.stack([(channel - mean) / std for channel, mean, std in channels]), size)


@dataclass(frozen=True)
class XVLAPolicy(Policy):
    """The network and its pre- and post-processing; see Policy. prompt_state is not used.

    domain: the kind of robot that it acts for, a row of the network's tables.
    """

    model: XVLA  # type: ignore[assignment]
    domain: int = 0
    pixel_rule: ClassVar[PixelRule] = PIXELS

    @property
    def config(self) -> XVLAConfig:  # type: ignore[override]
        """The network's sizes."""
        return self.model.config

    @property
    def image_size(self) -> int:
        """S, side of the network's square input."""
        return self.config.image_size

    @property
    def most_states(self) -> int:
        """See Policy. The network gets as many as it takes, the first."""
        return self.state_normalizer.size or self.config.state_dim

    def host_inputs(self, observation: Observation) -> HostInputs:
        """See Policy. Raises ValueError, too, if the main camera is absent: its tokens are read with the
        prompt."""
        given = super().host_inputs(observation)
        main = self.config.image_names[0]
        if main not in given.image_names:
            raise ValueError(
                f"observation.images has {list(given.image_names)}; the policy needs its main camera, {main}."
            )
        return replace(given, more={"domain": torch.tensor([self.domain])})

    def resized(self, images: Sequence[Tensor]) -> Tensor:
        """Return the network's pixels float32 [V, 3, S, S] from images uint8 [H, W, 3] of any sizes on its
        device."""
        return torch.stack([resize_normalised(image, self.image_size) for image in images])

    def prefill(  # type: ignore[override]
        self, seen: Tensor, words: Tensor, domain: Tensor
    ) -> dict[str, Any]:
        """See XVLAConfig.chain."""
        images = seen.unflatten(0, (-1, self.config.image_tokens))[None]
        return {"rows": self.model.transformer.rows(*self.model.prefix(images, words[None]), domain)}

    def denoise(  # type: ignore[override]
        self, x: Tensor, t: Tensor, dt: Tensor, noise: Tensor, state: Tensor, rows: Tensor, domain: Tensor
    ) -> Tensor:
        """See XVLAConfig.chain: the velocity that leads from x to where the clean actions and the noise are
        mixed as at the next time."""
        grippers = list(GRIPPERS[self.config.action_mode])
        open_x, open_state = self._without(x, grippers), self._without(state, grippers)
        clean = self.model.denoise(open_x, t, open_state, rows, domain)
        later = (t + dt).to(x.dtype)[:, None, None]
        return (later * noise + (1.0 - later) * clean - x) / dt.to(x.dtype)[:, None, None]

    @staticmethod
    def _without(x: Tensor, grippers: list[int]) -> Tensor:
        """x with zeros for grippers."""
        keep = x.new_ones(x.shape[-1])
        for channel in grippers:
            if channel < len(keep):
                keep[channel : channel + 1].zero_()
        return x * keep

    def prompt(self, instruction: str, state: np.ndarray) -> list[int]:
        """Return the prompt's token ids with their padding. Raises ValueError if they are more than
        max_prompt."""
        check_words(instruction, self.config.max_prompt)
        tokens = [BEGIN, *self.tokenizer.encode(instruction), END]
        check_prompt(instruction, tokens, self.config.max_prompt)
        return tokens + [PADDING] * (self.config.max_prompt - len(tokens))

    def actions(self, raw: Tensor, state: np.ndarray) -> np.ndarray:
        """See Policy; grippers are probabilities."""
        grippers = list(GRIPPERS[self.config.action_mode])
        host = raw.detach().cpu().clone()
        host[:, grippers] = host[:, grippers].sigmoid()
        return super().actions(host, state)

    def raw_actions(self, actions: np.ndarray, state: np.ndarray) -> Tensor:
        """See Policy; probabilities of grippers become logits."""
        raw = super().raw_actions(actions, state)
        grippers = list(GRIPPERS[self.config.action_mode])
        raw[:, grippers] = raw[:, grippers].clamp(SURE, 1.0 - SURE).logit()
        return raw
