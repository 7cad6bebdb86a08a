"""An OpenVLA policy: the network with everything that stands between it and a robot's own units.

It has Policy's methods, so that what schedules one can schedule the other, but what a request makes is
tokens: `actions` turns a prompt's first D generated ids into one action. Actions are what the data set of
the statistics recorded (for most: displacements of the hand, and the gripper); the network takes no state.
When and how often it runs is the engine's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.openvla import OpenVLA
from vla_accel_ros.models.openvla_config import OpenVLAConfig
from vla_accel_ros.models.openvla_processing import ActionStats, ActionTokens, PixelNorm, openvla_prompt
from vla_accel_ros.models.policy import PolicyInputs
from vla_accel_ros.models.tokenizer import Tokenizer

if TYPE_CHECKING:  # models import nothing of the engine; they only speak of its boundary type
    from vla_accel_ros.engine.types import Observation


@dataclass(frozen=True)
class OpenVLAPolicy:
    """model, and what it was trained with. stats: of the data set whose robot is driven."""

    model: OpenVLA
    tokenizer: Tokenizer
    stats: ActionStats
    pixels: PixelNorm

    @property
    def config(self) -> OpenVLAConfig:
        """The network's sizes."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.model.device

    @property
    def joints(self) -> int:
        """D, the numbers of an action, and the tokens to generate for one."""
        return self.stats.size

    @property
    def action_tokens(self) -> ActionTokens:
        """Ids as numbers in [-1, 1]."""
        return ActionTokens(self.config.action_vocab, self.config.bins)

    def inputs(self, observation: Observation) -> PolicyInputs:
        """Everything the network needs of an observation: images float32 [1, 6, S, S]; state is empty.

        Raises ValueError naming the field if the camera is unknown, absent or misshapen, or the prompt is
        longer than max_prompt.
        """
        image = torch.from_numpy(np.ascontiguousarray(self._image(observation)))
        pixels = self.pixels.pixels(image.to(self.device), self.config.dino.image_size)
        return PolicyInputs(
            images=pixels[None],
            image_names=self.config.image_names,
            tokens=torch.tensor(self.prompt(observation.instruction), device=self.device),
            state=torch.zeros(0, device=self.device),
        )

    def prompt(self, instruction: str) -> list[int]:
        """Token ids of the prompt, which ends with the lone space the network was trained to see there."""
        text, space = openvla_prompt(instruction), self.config.space_token
        tokens = self.tokenizer.encode(text, bos=True)
        if space is not None and tokens[-1] != space:
            tokens = [*tokens, space]
        if len(tokens) > self.config.max_prompt:
            raise ValueError(
                f"the prompt {text!r} has {len(tokens)} tokens; the policy takes {self.config.max_prompt}, "
                "so shorten the instruction."
            )
        return tokens

    def actions(self, tokens: Tensor) -> np.ndarray:
        """Generated ids int64 [..., D] -> actions float32 [..., D] in the robot's units."""
        values = self.action_tokens.to_values(tokens.cpu().numpy())
        return self.stats.unnormalize(values).astype(np.float32)

    def raw_actions(self, actions: np.ndarray) -> Tensor:
        """The inverse of actions: float [..., D] -> the nearest ids int64 [..., D], on the device."""
        ids = self.action_tokens.from_values(self.stats.normalize(np.asarray(actions, np.float64)))
        return torch.from_numpy(ids).to(self.device)

    def _image(self, observation: Observation) -> np.ndarray:
        name = self.config.image_names[0]
        if set(observation.images) != {name}:
            raise ValueError(
                f"observation.images has {sorted(observation.images)}; the policy takes exactly '{name}', so "
                "name one camera so."
            )
        image = observation.images[name]
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            given = f"{image.dtype} {list(image.shape)}"
            raise ValueError(f"observation.images['{name}'] is {given}; give uint8 [H, W, 3].")
        return image
