"""What every policy does alike: its network's sizes and place, and the way from an observation to inputs.

Images are uploaded as they are, 8 bits a channel, and resized and normalised on the device. A family says
how, by `host_inputs`, `resized`, `prompt` and `normalized_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.micro_requests import PIXELS, STATE, WORDS, Chain
from vla_accel_ros.models.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # models import nothing of the engine; they only speak of its boundary type
    from vla_accel_ros.types import Observation

Upload = Callable[[np.ndarray], Tensor]


@dataclass(frozen=True)
class HostInputs:
    """The checked inputs of one observation on the host.

    images: uint8 [H, W, 3] each, of any sizes, for the cameras present, in prefix order. image_names: their
    names. tokens: ids of the prompt without padding. more: see PolicyInputs.
    """

    images: tuple[np.ndarray, ...]
    image_names: tuple[str, ...]
    tokens: list[int]
    more: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class PolicyInputs:
    """The network's inputs for one observation, on the policy's device.

    images: float32 [V, 3, S, S] in [-1, 1], for the cameras present, in prefix order. image_names: their V
    names. tokens: int64 [T], the prompt without padding. state: float32 [S], normalised and zero-padded.
    more: what else the policy's chain declares as inputs, by name.
    """

    images: Tensor
    image_names: tuple[str, ...]
    tokens: Tensor
    state: Tensor
    more: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def named(self) -> dict[str, Any]:
        """The inputs by the names of models.micro_requests."""
        return {PIXELS: self.images, WORDS: self.tokens, STATE: self.state, **self.more}


class NetworkPolicy:
    """A network and its pre- and post-processing, of any family.

    delta_mask: bool [D], True where an action is relative to the observation's state.
    """

    model: Any
    tokenizer: Tokenizer
    delta_mask: np.ndarray

    @property
    def config(self) -> Any:
        """The network's sizes."""
        return self.model.config

    @property
    def chain(self) -> Chain:
        """Its micro-requests."""
        return self.config.chain

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.model.device

    @property
    def kv_dtype(self) -> torch.dtype:
        """Dtype of what a prefix leaves."""
        return self.model.dtype

    @property
    def joints(self) -> int:
        """D, the numbers of an action."""
        return len(self.delta_mask)

    def inputs(self, observation: Observation, upload: Upload | None = None) -> PolicyInputs:
        """Return the network's inputs for an observation.

        upload: copies an image, uint8 [H, W, 3], to the device, where it is resized; None uses a plain copy.
        Raises ValueError naming the field if a camera is unknown or misshapen, no camera is there, the state
        has the wrong size or is not finite, or the prompt is longer than max_prompt.
        """
        host = self.host_inputs(observation)
        return PolicyInputs(
            images=self.resized(list(map(upload or self._copied, host.images))),
            image_names=host.image_names,
            tokens=torch.tensor(host.tokens, device=self.device),
            state=self.normalized_state(observation.state).to(self.device),
            more={name: value.to(self.device) for name, value in host.more.items()},
        )

    def host_inputs(self, observation: Observation) -> HostInputs:
        """Return an observation's checked inputs on the host. Raises ValueError as `inputs` does."""
        raise NotImplementedError

    def resized(self, images: Sequence[Tensor]) -> Tensor:
        """Return the network's pixels float32 [V, C, S, S] from images uint8 [H, W, 3] of any sizes on its
        device."""
        raise NotImplementedError

    def prompt(self, instruction: str, state: np.ndarray) -> list[int]:
        """Return the prompt's token ids. state [D], not normalised. Raises ValueError if the prompt is longer
        than max_prompt."""
        raise NotImplementedError

    def normalized_state(self, state: np.ndarray) -> Tensor:
        """state [D], not normalised -> float32 on the host. Raises ValueError as `inputs` does."""
        raise NotImplementedError

    def words(self, instruction: str, state: np.ndarray) -> Tensor:
        """Return `prompt` as int64 [t] on the device."""
        return torch.tensor(self.prompt(instruction, state), device=self.device)

    def _copied(self, image: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(image)).to(self.device)

    def _origin(self, state: np.ndarray) -> np.ndarray:
        return state_origin(self.delta_mask, state)


def state_origin(delta_mask: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Return float64 [D]: the state where an action is relative to it, 0 elsewhere. Raises ValueError if the
    state has too few values."""
    joints = len(delta_mask)
    if len(state) < joints:
        relative = np.flatnonzero(delta_mask)
        if len(relative) and relative[-1] >= len(state):
            raise ValueError(
                f"delta_mask makes action {relative[-1]} relative, but the state has {len(state)} values."
            )
        state = np.pad(state, (0, joints - len(state)))
    origin = np.zeros(joints)
    np.copyto(origin, state[:joints], where=delta_mask)
    return origin
