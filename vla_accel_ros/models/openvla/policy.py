"""An OpenVLA policy: the network, and the conversion between it and a robot's units.

It has Policy's methods, so the same scheduler can run both, but a request produces tokens: `actions` turns
the first D generated ids into one action. Actions are what the statistics' data set recorded (mostly
displacements of the end effector, and the gripper). The network takes no state. The engine decides when it
runs.

An image is squeezed to the network's square (no padding) by Pillow's bicubic resize and normalised once for
each tower. An action is a token: the last ids of the vocabulary are bins of [-1, 1], counted from the end,
and the training quantiles scale them to the robot's units where the mask says so. Numbers are float64, as in
the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.network_policy import HostInputs, NetworkPolicy, PolicyInputs
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.processing.checks import check_image, check_prompt, check_words
from vla_accel_ros.models.processing.pixels import SQUEEZED, PixelRule
from vla_accel_ros.models.processing.ranges import Range, trained_range
from vla_accel_ros.models.processing.resize import resize_bicubic
from vla_accel_ros.models.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # models import nothing of the engine; they only speak of its boundary type
    from vla_accel_ros.types import Observation


@dataclass(frozen=True)
class PixelNorm:
    """(x / 255 - mean) / std for six channels: three for DINOv2 (ImageNet's), three for SigLIP."""

    mean: tuple[float, ...] = (0.485, 0.456, 0.406, 0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.229, 0.224, 0.225, 0.5, 0.5, 0.5)

    def pixels(self, image: Tensor, size: int) -> Tensor:
        """uint8 [H, W, 3] -> float32 [6, size, size], on the image's device; equal to Pillow's pixels bit for
        bit."""
        return self._normalised(resize_bicubic(image, size))

    @property
    def rule(self) -> PixelRule:
        """The same as data for the kernel."""
        levels = torch.arange(256, dtype=torch.uint8)[None, :, None].expand(1, 256, 3)
        return PixelRule("bicubic", SQUEEZED, self._normalised(levels)[:, 0])

    def _normalised(self, image: Tensor) -> Tensor:
        unit = image.permute(2, 0, 1).float() / 255.0
        mean, std = (torch.tensor(x, device=image.device)[:, None, None] for x in (self.mean, self.std))
        return (unit.repeat(2, 1, 1) - mean) / std


def openvla_prompt(instruction: str) -> str:
    """Return the whole prompt, word for word as in training, with the instruction in lower case."""
    return f"In: What action should the robot take to {instruction.lower()}?\nOut:"


class WordSizes(Protocol):
    """What a prompt needs of a network's sizes."""

    @property
    def max_prompt(self) -> int: ...
    @property
    def space_token(self) -> int | None: ...


def prompt_ids(instruction: str, tokenizer: Tokenizer, sizes: WordSizes) -> list[int]:
    """Return the token ids of openvla_prompt, ending with the single space of training. Raises ValueError if
    there are more than max_prompt."""
    check_words(instruction, sizes.max_prompt)
    text, space = openvla_prompt(instruction), sizes.space_token
    tokens = tokenizer.encode(text, bos=True)
    if space is not None and tokens[-1] != space:
        tokens = [*tokens, space]
    check_prompt(text, tokens, sizes.max_prompt)
    return tokens


@dataclass(frozen=True)
class ActionTokens:
    """The last ids of a vocabulary as numbers in [-1, 1].

    vocab: ids without padding (32000). bins: edges over [-1, 1]; a number is one of bins - 1 centres.
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
        """ids [...] -> float64 [...]; an id that is no action becomes the nearest one."""
        return self.centers[np.clip(self.vocab - np.asarray(tokens) - 1, 0, self.bins - 2)]

    def from_values(self, values: np.ndarray) -> np.ndarray:
        """float [...] -> ids int64 [...], as the training data was written; the value 1 has an id of
        its own."""
        return self.vocab - np.digitize(np.clip(values, -1.0, 1.0), self.edges)


@dataclass(frozen=True)
class ActionStats(Range):
    """Quantiles of the training actions, float64 [D]; mask bool [D], False where an action is not normalised.

    The gripper is usually not: its token is its command. ends: float64 [2, D], least and greatest action in
    training; None stands for the quantiles.
    """

    ends: np.ndarray | None = None

    def range(self) -> np.ndarray:
        """Return float64 [2, D]: the values of the lowest and the highest token; of an action that is not
        normalised, the least and the greatest in training."""
        ends = np.stack([self.low, self.high]) if self.ends is None else self.ends
        return np.where(self.mask, trained_range(self), ends)


@dataclass(frozen=True)
class OpenVLAPolicy(NetworkPolicy):
    """The network and its pre- and post-processing. stats: of the data set whose robot is driven.

    delta_mask: bool [D], True where an action is relative to the observation's state, as in Policy: for a
        network fine-tuned on joints. Displacements of an end effector are not such actions.
    trained_delay: see Policy.
    """

    model: OpenVLA
    tokenizer: Tokenizer
    stats: ActionStats
    pixels: PixelNorm
    delta_mask: np.ndarray

    time_rule: ClassVar[str] = "openpi"  # unused: it has no flow
    trained_delay: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.delta_mask.shape != (self.stats.size,) or self.delta_mask.dtype != np.bool_:
            shape = f"{self.delta_mask.dtype} {list(self.delta_mask.shape)}"
            raise ValueError(
                f"delta_mask is {shape}; these statistics are of {self.stats.size} numbers, so give "
                f"bool [{self.stats.size}]."
            )

    @property
    def config(self) -> OpenVLAConfig:
        """The network's sizes."""
        return self.model.config

    @property
    def image_size(self) -> int:
        """S, side of the network's square input."""
        return self.config.dino.image_size

    @property
    def pixel_rule(self) -> PixelRule:
        """How a camera image becomes the network's pixels."""
        return self.pixels.rule

    @property
    def most_tokens(self) -> int:
        """Tokens of an action."""
        return self.joints

    @property
    def end_token(self) -> None:
        """Nothing ends an action before its last token."""
        return None

    @property
    def action_tokens(self) -> ActionTokens:
        """The mapping from ids to numbers in [-1, 1]."""
        return ActionTokens(self.config.action_vocab, self.config.bins)

    def resized(self, images: Sequence[Tensor]) -> Tensor:
        """See NetworkPolicy; float32 [1, 6, S, S]."""
        return torch.stack([self.pixels.pixels(image, self.image_size) for image in images])

    def normalized_state(self, state: np.ndarray) -> Tensor:
        """Return nothing: the network takes no state."""
        return torch.zeros(0)

    def host_images(self, observation: Observation) -> tuple[np.ndarray, ...]:
        """Return the image uint8 [H, W, 3] after checks. Raises ValueError as `inputs` does."""
        if len(observation.images) != 1:
            raise ValueError(
                f"observation.images has {sorted(observation.images)}; the policy takes one image, so keep "
                "the one it was trained with."
            )
        ((name, image),) = observation.images.items()
        check_image(name, image)
        return (image,)

    def host_words(self, observation: Observation) -> list[int]:
        """Return the prompt's token ids. Raises ValueError as `inputs` does."""
        return self.prompt(observation.instruction)

    def host_inputs(self, observation: Observation) -> HostInputs:
        """Return an observation's checked inputs on the host. Raises ValueError as `inputs` does."""
        images = self.host_images(observation)
        return HostInputs(images, tuple(observation.images), self.host_words(observation))

    def prompt(self, instruction: str, state: np.ndarray | None = None) -> list[int]:
        """Return the prompt's token ids; see prompt_ids. The network takes no state."""
        return prompt_ids(instruction, self.tokenizer, self.config)

    def embed(self, inputs: PolicyInputs) -> Tensor:
        """Return the prefix of one observation, [1, T, W]: the image after the prompt's first token."""
        return self.join(self.encode(inputs.images)["seen"], inputs.tokens)

    def encode(self, pixels: Tensor) -> dict[str, Tensor]:
        """See OpenVLAConfig.chain."""
        return {"seen": self.model.encode(pixels)[0]}

    def prefill(self, seen: Tensor, words: Tensor) -> dict[str, Any]:
        """See OpenVLAConfig.chain."""
        hidden, kv = self.model.prefix(self.join(seen, words))
        return {"kv": kv, "hidden": hidden[0, -1]}

    def join(self, images: Tensor, words: Tensor) -> Tensor:
        """Return the prefix [1, T, W] from image tokens [n, W] and ids int64 [t]."""
        return self.model.embed(images[None], words[None])

    def actions(self, raw: Tensor, state: np.ndarray) -> np.ndarray:
        """Generated ids int64 [..., D] -> actions float32 [..., D] in the robot's units.

        state: [D'], of the observation; added to relative dimensions.
        """
        values = self.action_tokens.to_values(raw.cpu().numpy())
        return (self.stats.unnormalize(values) + self._origin(state)).astype(np.float32)

    def raw_actions(self, actions: np.ndarray, state: np.ndarray) -> Tensor:
        """Inverse of actions: float [..., D] -> the nearest ids int64 [..., D], on the device."""
        relative = np.asarray(actions, np.float64) - self._origin(state)
        return torch.from_numpy(self.action_tokens.from_values(self.stats.normalize(relative))).to(
            self.device
        )
