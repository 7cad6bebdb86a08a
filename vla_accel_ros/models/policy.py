"""A policy: the network, and the conversion between it and a robot's units.

It turns an Observation into the network's inputs, and raw network actions into joint targets; the engine
decides when the network runs. Images are uploaded as they are, 8 bits a channel, and resized and normalised
on the device. Absent cameras stay absent. Only the state and action vectors are padded, to the network's
sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.network_policy import HostInputs, NetworkPolicy, PolicyInputs
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.processing.checks import check_image, check_prompt, check_words
from vla_accel_ros.models.processing.conventions import OPENPI, Conventions, Normalizer, pi05_prompt
from vla_accel_ros.models.processing.pixels import PixelRule, by_size
from vla_accel_ros.models.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # models import nothing of the engine; they only speak of its boundary type
    from vla_accel_ros.types import Observation

PROMPT_STATES = ("own", "padded", "none")


@dataclass(frozen=True)
class Policy(NetworkPolicy):
    """The network and its pre- and post-processing.

    delta_mask: bool [D], True where an action is relative to the observation's state; D joints.
    prompt_state: how pi0.5 writes the state into the prompt: its "own" dimensions (openpi), "padded" to
        state_dim (lerobot before 0.4.5) or "none" (trained without discrete state, such as pi05_libero).
    trained_delay: most committed actions that it was trained with, see models.flow.committed; 0 = none.
    conventions: openpi's or lerobot's.
    """

    model: Pi
    tokenizer: Tokenizer
    state_normalizer: Normalizer
    action_normalizer: Normalizer
    delta_mask: np.ndarray
    prompt_state: str = "own"
    trained_delay: int = 0
    conventions: Conventions = OPENPI

    def __post_init__(self) -> None:
        if self.prompt_state not in PROMPT_STATES:
            raise ValueError(f"prompt_state is '{self.prompt_state}'; use one of {PROMPT_STATES}.")
        if self.delta_mask.ndim != 1 or self.delta_mask.dtype != np.bool_:
            mask = f"{self.delta_mask.dtype} {list(self.delta_mask.shape)}"
            raise ValueError(f"delta_mask is {mask}; give bool [D], one for each joint.")
        if not 1 <= len(self.delta_mask) <= self.config.action_dim:
            raise ValueError(
                f"delta_mask has {len(self.delta_mask)} joints; the network has {self.config.action_dim}."
            )
        if not 0 <= self.trained_delay < self.config.horizon:
            raise ValueError(
                f"trained_delay is {self.trained_delay}; give 0 to below the chunk's {self.config.horizon}."
            )

    @property
    def config(self) -> PiConfig:
        """The network's sizes."""
        return self.model.config

    @property
    def image_size(self) -> int:
        """S, side of the network's square input."""
        return self.config.vision.image_size

    @property
    def pixel_rule(self) -> PixelRule:
        """How a camera image becomes the network's pixels."""
        return self.conventions.pixels

    @property
    def time_rule(self) -> str:
        """The trainer's rule for the time of a flow step, see models.flow.sampling."""
        return self.conventions.time_rule

    def host_images(self, observation: Observation) -> tuple[np.ndarray, ...]:
        """Return the images uint8 [H, W, 3] of the cameras present, in prefix order. Raises ValueError as
        `inputs` does."""
        return tuple(observation.images[name] for name in self._cameras(observation))

    def host_words(self, observation: Observation) -> list[int]:
        """Return the prompt's token ids, after checking the state. Raises ValueError as `inputs` does."""
        self._check_state(observation.state)
        return self.prompt(observation.instruction, observation.state)

    def host_inputs(self, observation: Observation) -> HostInputs:
        """Return an observation's checked inputs on the host. Raises ValueError as `inputs` does."""
        names, words = self._cameras(observation), self.host_words(observation)
        return HostInputs(tuple(observation.images[name] for name in names), names, words)

    def resized(self, images: Sequence[Tensor]) -> Tensor:
        """See NetworkPolicy; float32 [V, 3, S, S] in [-1, 1]."""
        return by_size(images, lambda alike: self.conventions.resize(alike, self.image_size))

    def embed(self, inputs: PolicyInputs) -> Tensor:
        """Return the prefix of one observation, [1, T, W]: images, prompt."""
        return self.join(self.encode(inputs.images)["seen"], inputs.tokens)

    def encode(self, pixels: Tensor) -> dict[str, Tensor]:
        """See PiConfig.chain."""
        return {"seen": self.model.encode(pixels).flatten(0, 1)}

    def prefill(self, seen: Tensor, words: Tensor) -> dict[str, Any]:
        """See PiConfig.chain."""
        hidden, kv = self.model.prefix(self.join(seen, words))
        return {"kv": kv, "hidden": hidden[0, -1]}

    def denoise(self, x: Tensor, t: Tensor, kv: KV, state: Tensor | None = None) -> Tensor:
        """See PiConfig.chain."""
        return self.model.velocity(x, t, state, kv)

    def join(self, images: Tensor, words: Tensor) -> Tensor:
        """Return the prefix [1, T, W] from image tokens [n, W] and ids int64 [t]."""
        return torch.cat((images, self.model.embed_tokens(words)))[None]

    def prompt(self, instruction: str, state: np.ndarray) -> list[int]:
        """Return the prompt's token ids. state [D], not normalised; pi0's prompt has no state. Raises
        ValueError if the prompt is longer than max_prompt."""
        check_words(instruction, self.config.max_prompt)
        if self.config.kind == "pi0" or self.prompt_state == "none":
            first, *others = self.conventions.words(instruction)
            tokens = self.tokenizer.encode(first, bos=True)
            for text in others:
                tokens += self.tokenizer.encode(text)
        else:
            normal = self.state_normalizer.normalize(self.state_normalizer.padded(np.asarray(state)))
            if self.prompt_state == "padded":
                normal = np.pad(normal, (0, self.config.state_dim - len(normal)))
            text = pi05_prompt(instruction, normal)
            tokens = self.tokenizer.encode(text, bos=True)
        check_prompt(instruction, tokens, self.config.max_prompt)
        return tokens

    def normalized_state(self, state: np.ndarray) -> Tensor:
        """state [D], not normalised -> float32 [state_dim] on the host, zero-padded. Raises ValueError as
        `inputs` does."""
        self._check_shape(state)
        whole = self.state_normalizer.padded(state)
        normal = self.state_normalizer.normalize(whole, np.float32)[: self.config.state_dim]
        padded = np.zeros(self.config.state_dim, np.float32)
        padded[: len(normal)] = normal
        if not np.isfinite(padded).all():
            self._check_state(state)
            joint = int(np.flatnonzero(~np.isfinite(padded))[0])
            raise ValueError(
                f"observation.state[{joint}] is {state[joint]}, which cannot be a joint position: it "
                "exceeds float32 once normalised."
            )
        return torch.from_numpy(padded)

    def actions(self, raw: Tensor, state: np.ndarray) -> np.ndarray:
        """Convert raw network actions to joint targets.

        raw: float [H, A], normalised. state: [D'], of the observation; added to relative dimensions.
        Returns float32 [H, D], absolute.
        """
        host = raw.detach().cpu() if raw.is_cuda or raw.requires_grad else raw
        joints = (host.double() if host.dtype == torch.bfloat16 else host).numpy()[:, : self.joints]
        targets = self.action_normalizer.unnormalize(joints)
        targets += self._origin(state)
        return targets.astype(np.float32)

    def raw_actions(self, actions: np.ndarray, state: np.ndarray) -> Tensor:
        """Inverse of actions: absolute targets [h, D] -> float32 [h, A] on the host, zero-padded. Joints that
        did not move in training are where they were then."""
        raw = np.zeros((len(actions), self.config.action_dim), np.float32)
        relative = np.asarray(actions, np.float64) - self._origin(state)
        raw[:, : self.joints] = self.action_normalizer.normalize(self.action_normalizer.as_trained(relative))
        return torch.from_numpy(raw)

    def _cameras(self, observation: Observation) -> tuple[str, ...]:
        image_names, images = self.config.image_names, observation.images
        names = tuple(name for name in image_names if name in images)
        if len(names) < len(images):
            unknown = sorted(set(images) - set(image_names))
            raise ValueError(
                f"observation.images has {unknown}; the policy knows {list(image_names)}, so rename them."
            )
        if not names:
            raise ValueError(f"observation.images is empty; give at least one of {list(image_names)}.")
        for name in names:
            check_image(name, images[name])
        return names

    def _check_state(self, state: np.ndarray) -> None:
        self._check_shape(state)
        if not np.isfinite(state).all():
            joint = int(np.flatnonzero(~np.isfinite(state))[0])
            raise ValueError(f"observation.state[{joint}] is {state[joint]}; the joint state must be finite.")

    @property
    def most_states(self) -> int:
        """Largest size of a robot's state."""
        return min(self.state_normalizer.size or self.config.state_dim, self.config.state_dim)

    def _check_shape(self, state: np.ndarray) -> None:
        state_dim = self.most_states
        if not isinstance(state, np.ndarray) or state.dtype.kind not in "fiu":
            shape = (
                f"an array of {state.dtype}"
                if isinstance(state, np.ndarray)
                else f"of type {type(state).__name__}"
            )
            raise ValueError(f"observation.state is {shape}; give float32 [D].")
        if state.ndim != 1 or not 1 <= len(state) <= state_dim:
            raise ValueError(
                f"observation.state has shape {list(state.shape)}; the policy takes 1 to {state_dim} values."
            )
