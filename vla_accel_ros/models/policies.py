"""What every family of policies offers, so that whoever runs one need not know which it is.

A policy sees (`inputs`, `embed`, the network's `prefix`) and acts, in one of two ways: by flow steps that
denoise a chunk, or by tokens that are one action. `acts` says which, and the two protocols below what that
way needs; a new family offers one of them.
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
    """A network with everything between it and a robot's own units; see models.policy for what each is."""

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
    def speaks(self) -> bool: ...
    @property
    def feels(self) -> bool: ...

    def prompt(self, instruction: str, state: np.ndarray) -> list[int]:
        """The prompt's ids; state [D], not normalised. Raises ValueError, with their number, for too many."""
        ...

    def host_inputs(self, observation: Observation) -> HostInputs: ...
    def inputs(self, observation: Observation, upload: Upload | None = None) -> PolicyInputs: ...
    def embed(self, inputs: PolicyInputs) -> Tensor: ...
    def actions(self, raw: Tensor, state: np.ndarray) -> np.ndarray: ...
    def raw_actions(self, actions: np.ndarray, state: np.ndarray) -> Tensor: ...


class WordedPolicy(AnyPolicy, Protocol):
    """A policy that decodes: its prefix is what it sees and what it is told, each computed by itself.

    causal: whether no token of a prefix sees one after it. join: of image tokens and prompt, [1, T, W]; the
    images follow the prompt's first id, or precede it.
    """

    @property
    def causal(self) -> bool: ...

    def host_images(self, observation: Observation) -> tuple[np.ndarray, ...]:
        """The images, checked, as they came."""
        ...

    def see(self, inputs: PolicyInputs) -> Tensor:
        """Image tokens [n, W]."""
        ...

    def words(self, instruction: str, state: np.ndarray) -> Tensor:
        """The prompt's ids, int64 [t]; state [D], not normalised."""
        ...

    def join(self, images: Tensor, words: Tensor) -> Tensor: ...


class Denoises(Protocol):
    """The network of a policy that acts by flow steps."""

    def velocity(self, x: Tensor, t: Tensor, state: Tensor | None, kv: KV) -> Tensor: ...


class FlowPolicy(AnyPolicy, Protocol):
    """Acts by flow steps; raw actions are float32 [H, A], normalised."""

    @property
    def model(self) -> Denoises: ...

    def normalized_state(self, state: np.ndarray) -> Tensor: ...


class CapturablePolicy(FlowPolicy, Protocol):
    """Acts by flow steps, and its plain functions can be recorded into CUDA graphs as they are.

    capturable: that is so of `resized`, `embed` (of one that decodes: `see` and `join`) and the network's
    `prefix` and `velocity`. They make every tensor on the device, copy nothing from the host and wait for
    nothing. What they launch depends on shapes alone: not on numbers, nor on which cameras there are
    (inputs.image_names is empty then). A policy that does not say so is run as it is.
    """

    @property
    def capturable(self) -> bool: ...

    def resized(self, images: Sequence[Tensor]) -> Tensor:
        """The network's pixels float32 [V, C, S, S] of images uint8 [H, W, 3] of any sizes on its device."""
        ...


class TokenPolicy(AnyPolicy, Protocol):
    """Acts by the first D tokens that continue its prompt; raw actions are ids int64 [..., D]."""

    @property
    def model(self) -> Continues: ...
