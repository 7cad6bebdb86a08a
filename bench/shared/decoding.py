"""Tokens one after another by the plain model, which engines are compared with: each step is one `extend`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.text.decoding import Continues, Sampling


class Step(NamedTuple):
    """tokens int64 [B]: the chosen ids. logits [B, vocab]: what they were chosen from."""

    tokens: Tensor
    logits: Tensor


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

    past: P tokens of a batch B. hidden [B, W]: of each prefix's last valid token. valid bool [B, P]: which
    tokens belong to a prefix, None = all. stop: id that finishes a row; it is repeated until all rows are
    finished.
    """
    layers, batch, heads, _, head_dim = past.k.shape
    how = Sampling(temperature)
    room = KV(*(past.k.new_empty(layers, batch, heads, max(0, count - 1), head_dim) for _ in range(2)))
    finished = torch.zeros(batch, dtype=torch.bool, device=hidden.device)
    for step in range(count):
        logits = model.logits(hidden)
        tokens = how.choose(logits, rng)
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
