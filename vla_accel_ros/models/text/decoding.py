"""How tokens are chosen, of actions and text alike, and what a model needs that continues a prefix by them.

The choice is greedy or sampled. Sampling adds Gumbel noise from NumPy, in float64 on the CPU: one seed gives
the same tokens on every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.layers.gemma import KV


class Continues(Protocol):
    """The model methods that decoding needs; Pi and OpenVLA have them."""

    def embed_tokens(self, tokens: Tensor) -> Tensor: ...

    def extend(
        self,
        embs: Tensor,
        past: KV,
        attend: Tensor | None = None,
        positions: Tensor | None = None,
        tail: KV | None = None,
        out: KV | None = None,
    ) -> tuple[Tensor, KV]: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. temperature 0: the likeliest. Otherwise a draw from softmax(logits /
    temperature), limited to the top_k likeliest (0 = all), and of those to the fewest that hold the share
    top_p of their probability (1 = all).

    Raises ValueError if a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}; use 0 for greedy or a positive number.")
        if not isinstance(self.top_k, int) or self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; use 0 for all tokens or how many to draw from.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; use 1 for all tokens or a share above 0.")

    def choose(self, logits: Tensor, rng: np.random.Generator | None = None) -> Tensor:
        """logits [B, vocab] -> ids int64 [B]. Raises ValueError if it must draw but has no rng."""
        if not self.temperature:
            return logits.argmax(dim=-1)
        if rng is None:
            raise ValueError(f"temperature is {self.temperature} but there is no rng; give one to draw from.")
        scores = self._likely(logits.double().cpu().numpy() / self.temperature)
        drawn = (scores + rng.gumbel(size=scores.shape)).argmax(axis=-1)
        return torch.from_numpy(drawn).to(logits.device)

    def _likely(self, scores: np.ndarray) -> np.ndarray:
        """Return the scores [B, vocab] with -inf for tokens that may not be drawn."""
        if self.top_p == 1 and not 0 < self.top_k < scores.shape[-1]:
            return scores
        order = np.argsort(-scores, axis=-1, kind="stable")
        ranked = np.take_along_axis(scores, order, axis=-1)
        if self.top_k:
            ranked[..., self.top_k :] = -np.inf
        share = np.exp(ranked - ranked[..., :1])
        share /= share.sum(axis=-1, keepdims=True)
        ranked[share.cumsum(axis=-1) - share >= self.top_p] = -np.inf
        likely = np.empty_like(scores)
        np.put_along_axis(likely, order, ranked, axis=-1)
        return likely


GREEDY = Sampling()
