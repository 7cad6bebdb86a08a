"""Tokens, one after another, from a model that continues a prefix: action tokens and text alike.

Greedy or sampled, for a batch whose prefixes may differ in length. Each step is one `extend`, and is taken
when the caller asks for it, so that it can be streamed, stopped, or compared with what a scheduler does.
Sampling adds Gumbel noise drawn by NumPy, in float64 on the CPU: the same seed gives the same tokens on
every device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.gemma import KV


class Continues(Protocol):
    """What decoding needs of a model; Pi and OpenVLA have it."""

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


class Step(NamedTuple):
    """tokens int64 [B] that were chosen; logits [B, vocab] they were chosen from."""

    tokens: Tensor
    logits: Tensor


def choose(logits: Tensor, temperature: float = 0.0, rng: np.random.Generator | None = None) -> Tensor:
    """logits [B, vocab] -> ids int64 [B]: the likeliest, or a draw from softmax(logits / temperature).

    Raises ValueError for a temperature that cannot be, or one without rng.
    """
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}; use 0 for greedy or a positive number.")
    if not temperature:
        return logits.argmax(dim=-1)
    if rng is None:
        raise ValueError(f"temperature is {temperature} but there is no rng; give one to draw from.")
    scores = logits.double().cpu().numpy() / temperature
    drawn = (scores + rng.gumbel(size=scores.shape)).argmax(axis=-1)
    return torch.from_numpy(drawn).to(logits.device)


def decode(
    model: Continues,
    past: KV,
    hidden: Tensor,
    count: int,
    *,
    temperature: float = 0.0,
    rng: np.random.Generator | None = None,
    stop: int | None = None,
    valid: Tensor | None = None,
) -> Iterator[Step]:
    """Continue prefixes by up to `count` tokens.

    past: P tokens of a batch B; hidden [B, W]: of each one's last valid token; valid bool [B, P], which
    tokens belong to a prefix, None = all. stop: an id after which a row is finished; it is repeated until all
    rows are.
    """
    layers, batch, heads, _, head_dim = past.k.shape
    room = [past.k.new_empty(layers, batch, heads, max(0, count - 1), head_dim) for _ in range(2)]
    finished = torch.zeros(batch, dtype=torch.bool, device=hidden.device)
    for step in range(count):
        logits = model.logits(hidden)
        tokens = choose(logits, temperature, rng)
        if stop is not None:
            tokens = tokens.masked_fill(finished, stop)
            finished |= tokens == stop
        yield Step(tokens, logits)
        if step + 1 == count or (stop is not None and bool(finished.all())):
            return
        attend = positions = None
        if valid is not None:
            attend = torch.cat((valid, valid.new_ones(batch, step + 1)), dim=1)[:, None]
            positions = valid.sum(dim=1, keepdim=True) + step
        out = KV(*(x[:, :, :, step : step + 1] for x in room))
        tail = KV(*(x[:, :, :, :step] for x in room)) if step else None
        hidden = model.extend(model.embed_tokens(tokens[:, None]), past, attend, positions, tail, out)[0][
            :, 0
        ]
