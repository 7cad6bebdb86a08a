"""An OpenVLA-OFT policy: the network, and the conversion between it and a robot's units.

One forward gives a chunk of normalised numbers; the statistics of its training make a robot's units of them.
Images go through what they went through in training (pictures.py), on the network's device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.network_policy import HostInputs, NetworkPolicy
from vla_accel_ros.models.openvla.policy import PixelNorm, prompt_ids
from vla_accel_ros.models.openvla_oft.config import FILM, OpenVLAOFTConfig
from vla_accel_ros.models.openvla_oft.model import OpenVLAOFT
from vla_accel_ros.models.openvla_oft.pictures import prepared
from vla_accel_ros.models.processing.checks import check_image
from vla_accel_ros.models.processing.pixels import PixelRule
from vla_accel_ros.models.processing.ranges import Range
from vla_accel_ros.models.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # models import nothing of the engine; they only speak of its boundary type
    from vla_accel_ros.types import Observation


EPS = 1e-8


def unit_range(low: np.ndarray, high: np.ndarray, mask: np.ndarray) -> Range:
    """Return the map of these statistics, as the authors compute it."""
    return Range(low, high, mask, clips=True, eps=EPS)


@cache
def _levels(pixels: PixelNorm, device: torch.device) -> Tensor:
    return pixels.rule.levels.to(device)


@dataclass(frozen=True)
class OpenVLAOFTPolicy(NetworkPolicy):
    """The network and its pre- and post-processing. actions_of, states_of: bounds of the data set whose robot
    is driven; states_of is None if the network takes no state. delta_mask: as in OpenVLAPolicy."""

    model: OpenVLAOFT
    tokenizer: Tokenizer
    actions_of: Range
    states_of: Range | None
    pixels: PixelNorm
    delta_mask: np.ndarray

    time_rule: ClassVar[str] = "openpi"  # unused: it has no flow
    trained_delay: ClassVar[int] = 0

    def __post_init__(self) -> None:
        sizes = self.actions_of.size, 0 if self.states_of is None else self.states_of.size
        if sizes != (self.config.action_dim, self.config.state_dim) or self.delta_mask.shape != sizes[:1]:
            raise ValueError(
                f"the statistics are of {sizes[0]} actions and {sizes[1]} states and delta_mask is "
                f"{list(self.delta_mask.shape)}, but the network has {self.config.action_dim} and "
                f"{self.config.state_dim}; give those of its training."
            )

    @property
    def config(self) -> OpenVLAOFTConfig:
        """The network's sizes."""
        return self.model.config

    @property
    def image_size(self) -> int:
        """S, side of the network's square input."""
        return self.config.dino.image_size

    @property
    def pixel_rule(self) -> PixelRule:
        """How levels become the network's pixels; the resize is another (pictures.py)."""
        return self.pixels.rule

    def host_inputs(self, observation: Observation) -> HostInputs:
        """Return an observation's checked inputs on the host. Raises ValueError as `inputs` does."""
        names = self.config.image_names
        if set(observation.images) != set(names):
            raise ValueError(
                f"observation.images has {sorted(observation.images)}; the policy takes {list(names)}, "
                "all of them, as in its training."
            )
        for name in names:
            check_image(name, observation.images[name])
        images = tuple(observation.images[name] for name in names)
        return HostInputs(images, names, self.prompt(observation.instruction))

    def resized(self, images: Sequence[Tensor]) -> Tensor:
        """Return the network's pixels float32 [V, 6, S, S] from images uint8 [H, W, 3] of any sizes on one
        device."""
        pictures = prepared(images, self.image_size).long()
        levels = _levels(self.pixels, pictures.device)
        channels = torch.arange(len(levels), device=pictures.device)[:, None, None]
        return levels[channels, pictures.repeat(1, len(levels) // 3, 1, 1)]

    def prompt(self, instruction: str, state: np.ndarray | None = None) -> list[int]:
        """Return the prompt's token ids; see openvla.policy.prompt_ids."""
        return prompt_ids(instruction, self.tokenizer, self.config)

    def normalized_state(self, state: np.ndarray) -> Tensor:
        """state [S] -> float32 [S] on the host, within [-1, 1]. Raises ValueError as `inputs` does."""
        if self.states_of is None:
            return torch.zeros(0)
        if state.shape != (self.states_of.size,) or not np.isfinite(state).all():
            raise ValueError(
                f"observation.state is {np.array2string(state, threshold=16)}; the policy takes "
                f"{self.states_of.size} finite numbers, those of its training."
            )
        return torch.from_numpy(self.states_of.normalize(np.asarray(state, np.float64)).astype(np.float32))

    def text_encode(self, words: Tensor) -> dict[str, Tensor]:
        """See OpenVLAOFTConfig.chain."""
        return dict(zip(FILM, self.model.film(words), strict=True))

    def encode(self, pixels: Tensor, **film: Tensor) -> dict[str, Tensor]:
        """See OpenVLAOFTConfig.chain."""
        return {"seen": self.model.encode(pixels, [film[name] for name in FILM if film]).flatten(0, 1)}

    def forward(self, seen: Tensor, words: Tensor, state: Tensor | None = None) -> dict[str, Tensor]:
        """See OpenVLAOFTConfig.chain."""
        return {"actions": self.model.chunk(seen, words, state)}

    def actions(self, raw: Tensor, state: np.ndarray) -> np.ndarray:
        """Normalised [H, D] -> float32 [H, D] in the robot's units. state: [D'], of the observation; added to
        relative dimensions."""
        values = self.actions_of.unnormalize(raw.detach().cpu().double().numpy())
        return (values + self._origin(state)).astype(np.float32)

    def raw_actions(self, actions: np.ndarray, state: np.ndarray) -> Tensor:
        """Inverse of actions -> float32 [h, D] on the host."""
        relative = np.asarray(actions, np.float64) - self._origin(state)
        return torch.from_numpy(self.actions_of.normalize(relative).astype(np.float32))
