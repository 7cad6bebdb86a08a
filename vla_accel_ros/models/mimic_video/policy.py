"""A mimic-video policy: the network, and the conversion between it and a robot's units.

One camera is seen at several times; the number in an image's name is how many frames of the training ago it
was taken. If older ones are missing, the newest stands for all, as in the authors' evaluation. The prompt is
the unchanged instruction. A state and an action are a hand's position, the first two rows of its rotation,
and a gripper; what an action is relative to, the contract says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.flow.sampling import SUMMED
from vla_accel_ros.models.mimic_video.blocks import KeysValues
from vla_accel_ros.models.mimic_video.config import CAMERA, MimicVideoConfig
from vla_accel_ros.models.mimic_video.model import MimicVideo
from vla_accel_ros.models.mimic_video.video import network_time, noise_levels
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.checks import check_words
from vla_accel_ros.models.processing.pixels import CENTRED, SQUEEZED, PixelRule, centred
from vla_accel_ros.models.processing.resize import resize_bilinear
from vla_accel_ros.models.text.t5 import END

if TYPE_CHECKING:  # models import nothing of the engine; they only speak of its boundary type
    from vla_accel_ros.types import Observation


PIXELS = PixelRule("bilinear", SQUEEZED, CENTRED)


@dataclass(frozen=True)
class MimicVideoPolicy(Policy):
    """The network and its pre- and post-processing; see Policy. prompt_state is not used.

    clamp: float32 [2, S], the lowest and the highest state that the network gets.
    """

    model: MimicVideo  # type: ignore[assignment]
    clamp: np.ndarray = field(kw_only=True)
    time_rule: ClassVar[str] = SUMMED
    pixel_rule: ClassVar[PixelRule] = PIXELS

    @property
    def config(self) -> MimicVideoConfig:  # type: ignore[override]
        """The network's sizes."""
        return self.model.config

    @property
    def image_size(self) -> int:
        """Height of the network's images."""
        return self.config.settings.height

    def _cameras(self, observation: Observation) -> tuple[str, ...]:
        names = super()._cameras(observation)
        if CAMERA not in names:
            raise ValueError(f"observation.images has {list(names)}; the policy needs the newest, {CAMERA}.")
        return names

    def resized(self, images: Sequence[Tensor]) -> Tensor:
        """Return the network's pixels float32 [V, 3, H, W] from images uint8 [h, w, 3] of any sizes on its
        device; the aspect is not kept."""
        size = self.config.settings.height, self.config.settings.width
        return torch.stack([centred(resize_bilinear(image, *size)).permute(2, 0, 1) for image in images])

    def text_encode(self, words: Tensor) -> dict[str, Tensor]:
        """See MimicVideoConfig.chain."""
        return {"text": self.model.text_encoder(words)}

    def vae_encode(self, pixels: Tensor) -> dict[str, Tensor]:
        """See MimicVideoConfig.chain."""
        frames = self.config.settings.img_horizon
        if len(pixels) < frames:
            pixels = pixels[-1:].expand(frames, -1, -1, -1)
        return {"latents": self.model.vae(pixels)}

    def video_denoise(
        self, latents: Tensor, text: Tensor, index: int = 0, **before: Tensor | None
    ) -> dict[str, Tensor]:
        """See MimicVideoConfig.chain."""
        return self.model.video.step(latents, text, index, before.get("noisy"), before.get("clean"))

    def prefill(self, features: Tensor) -> dict[str, Any]:  # type: ignore[override]
        """See MimicVideoConfig.chain."""
        return {"context": self.model.decoder.context(features)}

    def denoise(  # type: ignore[override]
        self, x: Tensor, t: Tensor, state: Tensor, context: list[KeysValues]
    ) -> Tensor:
        """See MimicVideoConfig.chain."""
        s = self.config.settings
        level = noise_levels(s.num_sampling_step)[s.stop_after_step]
        video = torch.full((1,), network_time(level), device=x.device)
        return self.model.decoder(x, t, video, state, context)

    def prompt(self, instruction: str, state: np.ndarray) -> list[int]:
        """Return the instruction's token ids; as in the reference, what is beyond max_prompt is left out."""
        check_words(instruction, self.config.max_prompt)
        return [*self.tokenizer.encode(instruction)[: self.config.max_prompt - 1], END]

    def normalized_state(self, state: np.ndarray) -> Tensor:
        """See Policy; cut to what training had."""
        low, high = torch.from_numpy(self.clamp)
        return torch.minimum(torch.maximum(super().normalized_state(state), low), high)
