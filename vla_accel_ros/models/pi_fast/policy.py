"""A pi0-FAST policy: the network, and the conversion between it and a robot's units.

It has Policy's methods, but a request produces tokens until one ends them, and `actions` turns all of them
into a chunk: "Action: ", the tokens of FAST, "|". The prompt has the state, and ends with the id that begins
sequences. PiFastConfig.openpi says what openpi does otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.network_policy import HostInputs
from vla_accel_ros.models.pi_fast.config import PiFastConfig
from vla_accel_ros.models.pi_fast.fast import FastTokenizer
from vla_accel_ros.models.pi_fast.model import PiFast
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.checks import check_prompt, check_words
from vla_accel_ros.models.processing.conventions import state_bins

if TYPE_CHECKING:  # models import nothing of the engine; they only speak of its boundary type
    from vla_accel_ros.types import Observation

BEFORE, END = "Action: ", "|"
"""What the model writes before and after a chunk."""
SKIPPED = 128
"""Last ids of PaliGemma's vocabulary, before which those of FAST stand, backwards."""


BLACK = np.zeros((1, 1, 3), np.uint8)
"""The picture of an absent camera."""


def fast_prompt(instruction: str, state: np.ndarray, openpi: bool = False) -> str:
    """Return the whole prompt. state: normalised, [D]."""
    words = instruction.strip().replace("_", " ")
    words = words.lower() if openpi else words.replace("\n", " ")
    return f"Task: {words}, State: {' '.join(str(number) for number in state_bins(state))};\n"


@dataclass(frozen=True)
class PiFastPolicy(Policy):
    """The network and its pre- and post-processing; see Policy. prompt_state is not used. fast: the tokenizer
    of actions."""

    model: PiFast  # type: ignore[assignment]
    fast: FastTokenizer | None = None

    @property
    def config(self) -> PiFastConfig:  # type: ignore[override]
        """The network's sizes."""
        return self.model.config

    @property
    def most_tokens(self) -> int:
        """Most tokens of a chunk."""
        return self.config.max_action_tokens

    @property
    def end_token(self) -> int:
        """The id that ends a chunk."""
        return self.tokenizer.encode(END)[-1]

    def prompt(self, instruction: str, state: np.ndarray) -> list[int]:
        """Return the prompt's token ids. Raises ValueError if there are more than max_prompt."""
        check_words(instruction, self.config.max_prompt)
        normal = self.state_normalizer.normalize(self.state_normalizer.padded(np.asarray(state)))
        openpi = self.config.openpi
        tokens = self.tokenizer.encode(fast_prompt(instruction, normal, openpi), bos=True)
        inner = tokens if openpi or self.tokenizer.begins else tokens[1:]
        check_prompt(instruction, inner, self.config.max_prompt)
        return inner if openpi else [*inner, tokens[0]]

    def host_images(self, observation: Observation) -> tuple[np.ndarray, ...]:
        """See Policy."""
        images = super().host_images(observation)
        if not self.config.openpi:
            return images
        return tuple(observation.images.get(name, BLACK) for name in self.config.image_names)

    def host_inputs(self, observation: Observation) -> HostInputs:
        """See Policy."""
        host = super().host_inputs(observation)
        if not self.config.openpi:
            return host
        return HostInputs(self.host_images(observation), self.config.image_names, host.tokens)

    def prefill(self, seen: Tensor, words: Tensor) -> dict[str, Any]:
        """See PiFastConfig.chain. The position that openpi leaves out is one before the prefix here, since
        positions count by their distance alone."""
        prefix = self.join(seen, words)
        positions = torch.arange(prefix.shape[1], device=prefix.device)[None] + self.model.first
        hidden, kv = self.model.prefix(prefix, positions=positions)
        return {"kv": kv, "hidden": hidden[0, -1]}

    def actions(self, raw: Tensor, state: np.ndarray) -> np.ndarray:
        """Generated ids int64 [1, n] -> actions float32 [H, D]. Raises ValueError for tokens that are no
        chunk."""
        assert self.fast is not None
        (tokens,) = raw.tolist()
        codes = self.tokenizer.words - 1 - SKIPPED - np.array(self._between(tokens), np.int64)
        chunk = self.fast.decode(codes.tolist(), self.config.horizon, self.joints, self.config.openpi)
        return super().actions(torch.from_numpy(chunk), state)

    def _between(self, tokens: list[int]) -> list[int]:
        """The tokens of a chunk without those before it, up to the one that ends it."""
        before, end = self.tokenizer.encode(BEFORE), self.end_token
        if tokens[: len(before)] != before:
            wrote = self.tokenizer.decode(tokens[: len(before)])
            raise ValueError(f"the model wrote {wrote!r} where {BEFORE!r} begins a chunk of actions.")
        tokens = tokens[: tokens.index(end)] if end in tokens else tokens
        rest, kept = tokens, list[int]()
        while rest:
            step = len(before) if rest[: len(before)] == before else 1
            kept += rest[:1] if step == 1 else []
            rest = rest[step:]
        return kept

    def raw_actions(self, actions: np.ndarray, state: np.ndarray) -> Tensor:
        """Inverse of actions, but for rounding: absolute targets [H, D] -> ids int64 [n]."""
        assert self.fast is not None
        relative = np.asarray(actions, np.float64) - self._origin(state)
        normal = self.action_normalizer.normalize(self.action_normalizer.as_trained(relative))
        codes = self.tokenizer.words - 1 - SKIPPED - np.array(self.fast.encode(normal), np.int64)
        before, end = self.tokenizer.encode(BEFORE), self.end_token
        return torch.tensor([*before, *codes.tolist(), end])
