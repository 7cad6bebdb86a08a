"""One forward pass for several requests: their rows are concatenated, and each request attends separately.

Weights are read once for all rows; that is the whole gain. All ways to share a forward are this one function
with different segments: answers of several frames decoded together, decodes that ride in a prefill, drafts
verified in one, chunks denoised at different times. Nothing is padded and no keys or values are gathered: a
segment reads its past where it lies. The rounding of a matrix product may depend on its number of rows, so
`together=False` computes each segment alone, bit for bit as outside of a pack; the tests compare the two.
This module is plain torch; engine/stages/packed_forward.py runs fused kernels in captured graphs over the
same segments, and either one can be passed as a `Forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from vla_accel_ros.models.layers.gemma import KV, Attend, Condition, PerToken, attention, one_sequence


class Span(NamedTuple):
    """Tokens `start` to `end` of sequence `place` of a pool: a KV that is sliced lazily.

    keys, values: of the pool, [sequences, layers, kv_heads, tokens, head_dim].
    """

    keys: Tensor
    values: Tensor
    place: int
    start: int
    end: int

    @property
    def k(self) -> Tensor:
        """[layers, 1, kv_heads, tokens, head_dim]"""
        return self.keys[self.place, :, None, :, self.start : self.end]

    @property
    def v(self) -> Tensor:
        """[layers, 1, kv_heads, tokens, head_dim]"""
        return self.values[self.place, :, None, :, self.start : self.end]


Part = KV | Span
"""A view of keys and values, each [layers, 1, kv_heads, tokens, head_dim]."""


def tokens_of(part: Part) -> int:
    """Return its number of tokens."""
    return part.end - part.start if isinstance(part, Span) else part.k.shape[3]


class Segment(NamedTuple):
    """One request's rows. Each row attends to all of the request's past, and to the rows that it may.

    x [1, T, width]. past: sequences before the rows, P tokens in all. causal: a row sees no row after it.
    alone: this many leading rows see only each other (the state token of pi0). start: position of the first
    row, None = P. out: where the keys and values of T tokens are written, None = nowhere. condition [1,
    width]: for modulated norms.
    """

    x: Tensor
    past: tuple[Part, ...] = ()
    causal: bool = False
    alone: int = 0
    start: int | None = None
    out: Part | None = None
    condition: Tensor | None = None

    @property
    def first(self) -> int:
        """Position of the first row."""
        return sum(map(tokens_of, self.past)) if self.start is None else self.start

    @property
    def positions(self) -> Tensor:
        """int64 [1, T]"""
        return torch.arange(self.first, self.first + self.x.shape[1], device=self.x.device)[None]

    @property
    def mask(self) -> Tensor | None:
        """bool [1, T, P + T], True = may attend; None: every row sees all."""
        new, old = self.x.shape[1], sum(map(tokens_of, self.past))
        if not self.alone and (new == 1 or not self.causal):
            return None
        visible = torch.tensor(sees(new, self.causal, self.alone), device=self.x.device)
        return torch.arange(old + new, device=self.x.device) < (old + visible)[None, :, None]


def sees(rows: int, causal: bool, alone: int) -> list[int]:
    """Return for each row of a segment how many of its own rows, from the first on, it attends to."""
    visible = [row + 1 if causal else rows for row in range(rows)]
    return [min(alone, count) for count in visible[:alone]] + visible[alone:]


class Stack(Protocol):
    """A decoder stack, such as Gemma or Llama."""

    def run(
        self,
        x: Tensor,
        positions: Tensor,
        attend: Callable[[int], Attend],
        condition: None = None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]: ...


Forward = Callable[[Sequence[Segment]], list[Tensor]]
"""Maps segments to the hidden states [1, T, W] of each after the final norm, valid until the next call."""


def forward(stack: Stack, segments: Sequence[Segment], together: bool = True) -> list[Tensor]:
    """Return the hidden states [1, T, width] of each segment after the final norm.

    Either all segments have a condition, or none; else it raises ValueError. Keys and values are written to
    `out` after all layers have run, so a segment cannot read what another one of the same forward writes.
    """
    if not segments:
        return []
    if not together:
        return [_alone(stack, segment) for segment in segments]
    sizes = [segment.x.shape[1] for segment in segments]
    hidden, keys, values = stack.run(
        torch.cat([segment.x for segment in segments], dim=1),
        torch.cat([segment.positions for segment in segments], dim=1),
        _Apart(segments, sizes),
        _conditions(segments, sizes),  # type: ignore[arg-type]  # only Gemma has modulated norms
    )
    for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
        _write(segments, layer, k.split(sizes, dim=2), v.split(sizes, dim=2))
    return list(hidden.split(sizes, dim=1))


class _Apart:
    """Attention in which every segment sees its own past and rows; called with a layer's index."""

    def __init__(self, segments: Sequence[Segment], sizes: list[int]) -> None:
        self._segments, self._sizes = segments, sizes
        masks = [segment.mask for segment in segments]
        self._masks = [None if mask is None else mask.unsqueeze(1) for mask in masks]

    def __call__(self, layer: int) -> Attend:
        return partial(self._attend, layer)

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        read = []
        queries, keys, values = (x.split(self._sizes, dim=2) for x in (q, k, v))
        for index, segment in enumerate(self._segments):
            past = [(part.k[layer], part.v[layer]) for part in segment.past]
            read.append(attention(queries[index], keys[index], values[index], self._masks[index], past))
        return torch.cat(read, dim=2)


def _alone(stack: Stack, segment: Segment) -> Tensor:
    hidden, keys, values = stack.run(
        segment.x,
        segment.positions,
        one_sequence(segment.mask, [KV(part.k, part.v) for part in segment.past]),
        segment.condition,  # type: ignore[arg-type]  # only Gemma has modulated norms
    )
    for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
        _write([segment], layer, [k], [v])
    return hidden


def _write(segments: Sequence[Segment], layer: int, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for segment, k, v in zip(segments, keys, values, strict=True):
        if segment.out is not None:
            segment.out.k[layer].copy_(k)
            segment.out.v[layer].copy_(v)


def _conditions(segments: Sequence[Segment], sizes: list[int]) -> Condition | None:
    conditions = [segment.condition for segment in segments if segment.condition is not None]
    if not conditions:
        return None
    if len(conditions) != len(segments):
        raise ValueError(f"{len(conditions)} of {len(segments)} segments have a condition: give all or none.")
    device = segments[0].x.device
    counts = torch.tensor(sizes, device=device)
    condition_rows = torch.repeat_interleave(
        torch.arange(len(sizes), device=device), counts, output_size=sum(sizes)
    )
    return PerToken(tuple(conditions), condition_rows)


def _sliced(kv: Any) -> Any:
    return KV(kv.k, kv.v) if isinstance(kv, Span) else kv


class FlowStep(NamedTuple):
    """One flow step of one chunk: x float32 [1, H, A]; t float32 [1]; state float [1, S], None for pi0.5; kv:
    the Part of its prefix, or what a FlowField reads; step: index of the flow step, 0 first."""

    x: Tensor
    t: Tensor
    state: Tensor | None
    kv: Any
    step: int = 0


def velocities(model: Any, steps: Sequence[FlowStep], together: bool = True) -> list[Tensor]:
    """Return Pi.velocity of several chunks, each at its own time and on its own prefix: float32 [1, H, A]
    each."""
    if not together:
        return [model.velocity(step.x, step.t, step.state, _sliced(step.kv)) for step in steps]
    segments = []
    for step in steps:
        tokens, condition = model.suffix(step.x, step.t, step.state)
        assert not isinstance(condition, PerToken), "a step has one time"
        alone = tokens.shape[1] - step.x.shape[1]
        segments.append(Segment(tokens, (step.kv,), alone=alone, condition=condition))
    hidden = forward(model.expert, segments)
    return [model.read_out(rows, step.x) for rows, step in zip(hidden, steps, strict=True)]
