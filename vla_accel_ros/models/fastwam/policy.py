"""A Fast-WAM policy: the network, and the conversion between it and a robot's units.

It has Policy's methods. All cameras are resized and joined to one picture. The prompt is the instruction in a
sentence of the training, cut to a length and ended by `</s>`. A toggled number of an action is a gripper's
command, from the sign of what the network answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.models.fastwam.config import LEROBOT, LIBERO, ROBOTWIN, FastWAMConfig
from vla_accel_ros.models.fastwam.model import FastWAM
from vla_accel_ros.models.flow.sampling import SHIFTED
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.checks import check_words
from vla_accel_ros.models.processing.pixels import SQUEEZED, PixelRule
from vla_accel_ros.models.processing.resize import resize_bilinear
from vla_accel_ros.types import Observation

PIXELS = PixelRule("bilinear", SQUEEZED, (torch.arange(256).float() / 127.5 - 1.0).repeat(3, 1))
"""What a camera's part of the picture looks like; lerobot does not round to levels."""


def lerobot_picture(images: Sequence[Tensor], height: int, width: int) -> Tensor:
    """The picture float32 [3, height, width] of lerobot from images uint8 [H, W, 3]: side by side, each as
    wide; levels are not rounded."""
    unit = [image.permute(2, 0, 1).float() / 255.0 for image in images]
    picture = torch.cat([_antialiased(image, height, width // len(unit)) for image in unit], dim=2)
    return _antialiased(picture, height, width) * 2.0 - 1.0


def libero_picture(images: Sequence[Tensor], height: int, width: int) -> Tensor:
    """The same of the authors' LIBERO: each image fills its part, what is beside that is cut off."""
    across, parts = width // len(images), []
    for image in images:
        scale = max(across / image.shape[1], height / image.shape[0])
        image = resize_bilinear(image, *(round(side * scale) for side in image.shape[:2]))
        top, first = (image.shape[0] - height) // 2, (image.shape[1] - across) // 2
        parts.append(image[top : top + height, first : first + across])
    return _levels(torch.cat(parts, dim=1))


def robotwin_picture(images: Sequence[Tensor], height: int, width: int) -> Tensor:
    """The same of the authors' RoboTwin: the first on two thirds of the height, the others below it."""
    upper = height * 2 // 3
    lower = [resize_bilinear(image, height - upper, width // 2) for image in images[1:]]
    return _levels(torch.cat((resize_bilinear(images[0], upper, width), torch.cat(lower, dim=1))))


def _levels(picture: Tensor) -> Tensor:
    return picture.permute(2, 0, 1).float() * (2.0 / 255.0) - 1.0


def _antialiased(image: Tensor, *size: int) -> Tensor:
    if image.shape[1:] == size:
        return image
    return F.interpolate(image[None], size=size, mode="bilinear", align_corners=False, antialias=True)[0]


PICTURE = {LEROBOT: lerobot_picture, LIBERO: libero_picture, ROBOTWIN: robotwin_picture}


@dataclass(frozen=True)
class FastWAMPolicy(Policy):
    """The network and its pre- and post-processing; see Policy. prompt_state is not used.

    toggles: numbers of an action that are 1 below 1/2 and -1 above it. reach: to what normalised joints are
    cut.
    """

    model: FastWAM  # type: ignore[assignment]
    toggles: tuple[int, ...] = ()
    reach: float = math.inf
    pixel_rule: ClassVar[PixelRule] = PIXELS

    @property
    def config(self) -> FastWAMConfig:  # type: ignore[override]
        """The network's sizes."""
        return self.model.config

    @property
    def image_size(self) -> int:
        """Height of the network's picture."""
        return self.config.image_height

    @property
    def time_rule(self) -> str:
        """See Policy."""
        return f"{SHIFTED}{self.config.shift}"

    def resized(self, images: Sequence[Tensor]) -> Tensor:
        """Return the network's picture float32 [1, 3, H, W] in [-1, 1] from the images uint8 [H, W, 3] of all
        cameras on its device."""
        config = self.config
        return PICTURE[config.picture](images, config.image_height, config.image_width)[None]

    def text_encode(self, words: Tensor) -> dict[str, Tensor]:
        """See FastWAMConfig.chain."""
        return dict(zip(("video_text", "action_text"), self.model.texts(words)))

    def vae_encode(self, pixels: Tensor) -> dict[str, Tensor]:
        """See FastWAMConfig.chain."""
        return {"latents": self.model.vae(pixels)[0]}

    def prefill(self, latents: Tensor, video_text: Tensor, state: Tensor | None = None) -> dict[str, Any]:
        """See FastWAMConfig.chain."""
        return dict(zip(("video", "joints"), self.model.prefix(latents, video_text, state)))

    def denoise(  # type: ignore[override]
        self, x: Tensor, t: Tensor, action_text: Tensor, video: Tensor, joints: Tensor
    ) -> Tensor:
        """See FastWAMConfig.chain."""
        return self.model.velocity(x, t, action_text[None], video[None], joints[None])

    def prompt(self, instruction: str, state: np.ndarray) -> list[int]:
        """Return the prompt's token ids, of which more than max_prompt are cut, as in training."""
        check_words(instruction, self.config.max_prompt)
        ids = self.tokenizer.encode(self.config.template.replace("{task}", instruction))
        end = [] if self.tokenizer.eos is None else [self.tokenizer.eos]
        return ids[: self.config.max_prompt - len(end)] + end

    def normalized_state(self, state: np.ndarray) -> Tensor:
        """See Policy; empty if the network takes no joints."""
        if not self.config.state_dim:
            return torch.zeros(0)
        return super().normalized_state(state).clamp(-self.reach, self.reach)

    def actions(self, raw: Tensor, state: np.ndarray) -> np.ndarray:
        """See Policy; toggled numbers are -1, 0 or 1."""
        targets, toggles = super().actions(raw, state), list(self.toggles)
        targets[:, toggles] = np.sign(1.0 - 2.0 * targets[:, toggles])
        return targets

    def raw_actions(self, actions: np.ndarray, state: np.ndarray) -> Tensor:
        """See Policy; toggled numbers become 0 or 1."""
        switched, toggles = np.array(actions, np.float64), list(self.toggles)
        switched[:, toggles] = (1.0 - np.sign(switched[:, toggles])) / 2.0
        return super().raw_actions(switched, state)

    def _cameras(self, observation: Observation) -> tuple[str, ...]:
        names, needed = super()._cameras(observation), self.config.image_names
        if len(names) < len(needed):
            raise ValueError(
                f"observation.images has {list(names)}; the picture needs all of {list(needed)}."
            )
        return names

    def _check_shape(self, state: np.ndarray) -> None:
        size = self.config.state_dim
        if size:
            super()._check_shape(state)
        if size and len(state) != size:
            raise ValueError(f"observation.state has {len(state)} values; the policy takes {size}.")
