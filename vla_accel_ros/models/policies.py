"""The interface of every policy, so that the engine need not know its family.

A policy computes a prefix (`inputs`, `embed`, the network's `prefix`) and then acts, in one of two ways: by
flow steps that denoise a chunk, or by tokens that form one action. `acts` says which. The protocols below
list what each way needs; a new family implements one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.policy import HostInputs, PolicyInputs, Upload
from vla_accel_ros.models.processing.pixels import PixelRule
from vla_accel_ros.models.text.decoding import Continues
from vla_accel_ros.models.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # models import nothing of the engine; they only speak of its boundary type
    from vla_accel_ros.types import Observation

FLOW, TOKENS = "flow", "tokens"


class AnyPolicy(Protocol):
    """A network with the conversion to and from a robot's units; see models.policy for each member."""

    @property
    def model(self) -> Any: ...
    @property
    def config(self) -> Any: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def kv_dtype(self) -> torch.dtype: ...
    @property
    def image_size(self) -> int: ...
    @property
    def pixel_rule(self) -> PixelRule: ...
    @property
    def joints(self) -> int: ...
    @property
    def delta_mask(self) -> np.ndarray: ...
    @property
    def trained_delay(self) -> int: ...
    @property
    def time_rule(self) -> str: ...
    @property
    def acts(self) -> str: ...
    @property
    def decodes(self) -> bool: ...
    @property
    def answers(self) -> bool: ...
    @property
    def takes_state(self) -> bool: ...

    def prompt(self, instruction: str, state: np.ndarray) -> list[int]:
        """Return the prompt's ids; state [D], not normalised. Raises ValueError if there are too many."""
        ...

    def host_inputs(self, observation: Observation) -> HostInputs: ...
    def inputs(self, observation: Observation, upload: Upload | None = None) -> PolicyInputs: ...
    def embed(self, inputs: PolicyInputs) -> Tensor: ...
    def actions(self, raw: Tensor, state: np.ndarray) -> np.ndarray: ...
    def raw_actions(self, actions: np.ndarray, state: np.ndarray) -> Tensor: ...


class WordedPolicy(AnyPolicy, Protocol):
    """A policy that decodes tokens. Its prefix has two parts, images and prompt, each computed by itself.

    causal: whether no token of a prefix sees a later one. join: returns the prefix [1, T, W] from image
    tokens and prompt; the images come after the prompt's first id, or before it.
    """

    @property
    def causal(self) -> bool: ...

    def host_images(self, observation: Observation) -> tuple[np.ndarray, ...]:
        """Return the images as received, after checks."""
        ...

    def host_words(self, observation: Observation) -> list[int]:
        """Return the prompt's ids, after checks of the state."""
        ...

    def see(self, inputs: PolicyInputs) -> Tensor:
        """Return the image tokens [n, W]."""
        ...

    def words(self, instruction: str, state: np.ndarray) -> Tensor:
        """Return the prompt's ids, int64 [t]; state [D], not normalised."""
        ...

    def join(self, images: Tensor, words: Tensor) -> Tensor: ...


class Denoises(Protocol):
    """The network of a policy that acts by flow steps."""

    def velocity(self, x: Tensor, t: Tensor, state: Tensor | None, kv: KV) -> Tensor: ...


class FlowPolicy(AnyPolicy, Protocol):
    """A policy that acts by flow steps; raw actions are float32 [H, A], normalised."""

    @property
    def model(self) -> Denoises: ...

    def normalized_state(self, state: np.ndarray) -> Tensor: ...


class CapturablePolicy(FlowPolicy, Protocol):
    """A flow policy whose plain functions can be captured in CUDA graphs as they are.

    capturable: True if `resized`, `embed` (for a policy that decodes: `see` and `join`) and the network's
    `prefix` and `velocity` create every tensor on the device, copy nothing from the host and never
    synchronise. What they launch must depend on shapes alone, not on values and not on which cameras there
    are (inputs.image_names is empty then). A policy without this flag runs eagerly.
    """

    @property
    def capturable(self) -> bool: ...

    def resized(self, images: Sequence[Tensor]) -> Tensor:
        """Return the network's pixels float32 [V, C, S, S] from images uint8 [H, W, 3] of any sizes on its
        device."""
        ...


class TokenPolicy(AnyPolicy, Protocol):
    """Acts by the first D tokens that continue its prompt; raw actions are ids int64 [..., D]."""

    @property
    def model(self) -> Continues: ...
