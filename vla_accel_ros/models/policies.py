"""The interface of every policy, so that the engine need not know its family.

A policy makes a network's inputs of an observation, computes the micro-requests that its `chain` declares
(models.micro_requests), each by the method of the stage's name, and makes joint targets of raw actions. It
acts by flow steps that denoise a chunk, by tokens that form one action, or in one forward. The protocols
below list what each way needs besides; a new family implements one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.micro_requests import DENOISE, Chain, MicroRequest
from vla_accel_ros.models.network_policy import HostInputs, PolicyInputs, Upload
from vla_accel_ros.models.processing.pixels import PixelRule
from vla_accel_ros.models.text.decoding import Continues
from vla_accel_ros.models.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # models import nothing of the engine; they only speak of its boundary type
    from vla_accel_ros.types import Observation


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
    def chain(self) -> Chain: ...

    def prompt(self, instruction: str, state: np.ndarray) -> list[int]:
        """Return the prompt's ids; state [D], not normalised. Raises ValueError if there are too many."""
        ...

    def host_inputs(self, observation: Observation) -> HostInputs: ...
    def inputs(self, observation: Observation, upload: Upload | None = None) -> PolicyInputs: ...
    def actions(self, raw: Tensor, state: np.ndarray) -> np.ndarray: ...
    def raw_actions(self, actions: np.ndarray, state: np.ndarray) -> Tensor: ...


class WordedPolicy(AnyPolicy, Protocol):
    """A policy that decodes tokens.

    Its `encode` leaves "seen": the image tokens [n, W]; `prefill` leaves "kv" and "hidden": the hidden state
    [W] of the last token. embed: returns the prefix [1, T, W]; join: the same from image tokens and prompt;
    the images come after the prompt's first id, or before it.
    """

    def host_images(self, observation: Observation) -> tuple[np.ndarray, ...]:
        """Return the images as received, after checks."""
        ...

    def host_words(self, observation: Observation) -> list[int]:
        """Return the prompt's ids, after checks of the state."""
        ...

    def embed(self, inputs: PolicyInputs) -> Tensor: ...

    def words(self, instruction: str, state: np.ndarray) -> Tensor:
        """Return the prompt's ids, int64 [t]; state [D], not normalised."""
        ...

    def join(self, images: Tensor, words: Tensor) -> Tensor: ...


class FlowPolicy(AnyPolicy, Protocol):
    """A policy that acts by flow steps; raw actions are float32 [H, A], normalised. The same for one that
    acts in one forward, whose method returns them under "actions"."""

    def normalized_state(self, state: np.ndarray) -> Tensor: ...


class CapturablePolicy(FlowPolicy, Protocol):
    """A policy whose plain functions can be captured in CUDA graphs as they are.

    Its chain says `capturable`: `resized` and the methods of its micro-requests create every tensor on the
    device, copy nothing from the host after their first call and never synchronise, unless their result is
    kept for an instruction. What they launch must depend on shapes alone, not on values. Other policies run
    eagerly.
    """

    def resized(self, images: Sequence[Tensor]) -> Tensor:
        """Return the network's pixels float32 from images of `host_inputs`, uint8 [H, W, 3], on its device.
        Their shape follows from the number of images."""
        ...


class TokenPolicy(AnyPolicy, Protocol):
    """Acts by the tokens that continue its prompt; raw actions are ids int64 [..., n].

    most_tokens: n at most. end_token: the id that ends an action before that, None if nothing does.
    """

    @property
    def model(self) -> Continues: ...
    @property
    def most_tokens(self) -> int: ...
    @property
    def end_token(self) -> int | None: ...


def computed(policy: AnyPolicy, micro: MicroRequest, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Compute a micro-request with the policy's method of that name; returns what it leaves. Of its own
    results, one that is not there the first time is None. Raises RuntimeError if it leaves something that it
    does not declare."""
    left = {leaf.name for leaf in micro.leaves}
    arguments = {name: given.get(name) if name in left else given[name] for name in micro.reads}
    made: Mapping[str, Any] = getattr(policy, micro.stage)(**arguments)
    if not made.keys() <= left:
        raise RuntimeError(
            f"{micro.stage} of a {policy.config.kind} policy left {sorted(made.keys() - left)}, but declares "
            f"{sorted(left)}."
        )
    return made


class FlowField:
    """The flow field of a policy with the signature of a network's `velocity`, for times and states on any
    device. kv: what the chunk's steps read, by name."""

    def __init__(self, policy: AnyPolicy) -> None:
        self._policy, self._reads = policy, policy.chain.acting.reads

    def velocity(self, x: Tensor, t: Tensor, state: Tensor | None, kv: Mapping[str, Any]) -> Tensor:
        state = state if state is None else state.to(x.device)
        given = {**kv, "x": x, "t": t.to(x.device), "state": state}
        velocity: Tensor = getattr(self._policy, DENOISE)(**{name: given[name] for name in self._reads})
        return velocity
