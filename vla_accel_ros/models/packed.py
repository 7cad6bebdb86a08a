"""One forward for several requests: their rows are concatenated, each attends by itself.

Weights are read once for all rows: that is the whole gain, and all five ways to share a forward are this one
function with other segments (answers of several frames decoded together, decodes riding in a prefill, drafts
verified in one, chunks denoised at different times). Nothing is padded, and no keys or values are gathered:
a segment reads its own past where it lies. A matrix product's rows may round differently with their number,
so `together=False` computes every segment alone, to the bit what it is outside of a pack; the tests compare
the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from vla_accel_ros.models.gemma import KV, Attend, Condition, PerToken, attention, one_sequence
from vla_accel_ros.models.pi import Pi


class Segment(NamedTuple):
    """One request's rows.

    x [1, T, width]; past: sequences that come before them, P tokens; mask bool [1, T, P + T], True = may
    look, None = all may; start: position of the first row, None = P; out: where the keys and values go, each
    [layers, 1, kv_heads, T, head_dim], None = nowhere; condition [1, width]: for modulated norms.
    """

    x: Tensor
    past: tuple[KV, ...] = ()
    mask: Tensor | None = None
    start: int | None = None
    out: KV | None = None
    condition: Tensor | None = None

    @property
    def positions(self) -> Tensor:
        """int64 [1, T]"""
        start = sum(kv.k.shape[3] for kv in self.past) if self.start is None else self.start
        return torch.arange(start, start + self.x.shape[1], device=self.x.device)[None]


class Stack(Protocol):
    """A decoder stack: Gemma and Llama are one."""

    def run(
        self,
        x: Tensor,
        positions: Tensor,
        attend: Callable[[int], Attend],
        condition: None = None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]: ...


def causal(new: int, old: int, device: torch.device) -> Tensor | None:
    """The mask of `new` rows that see all `old` tokens and, of themselves, what came before."""
    if new == 1:
        return None
    return torch.ones(1, new, old + new, dtype=torch.bool, device=device).tril(old)


def forward(stack: Stack, segments: Sequence[Segment], together: bool = True) -> list[Tensor]:
    """The hidden states [1, T, width] of each segment after the final norm.

    Every segment must have a condition, or none. Keys and values are written to `out` when all layers have
    run, so a segment cannot read what another one of the same forward writes.
    """
    if not segments:
        return []
    if not together:
        return [_alone(stack, segment) for segment in segments]
    sizes = [segment.x.shape[1] for segment in segments]
    hidden, keys, values = stack.run(
        torch.cat([segment.x for segment in segments], dim=1),
        torch.cat([segment.positions for segment in segments], dim=1),
        partial(_Apart, segments, sizes),
        _conditions(segments, sizes),  # type: ignore[arg-type]  # only Gemma has modulated norms
    )
    for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
        _write(segments, layer, k.split(sizes, dim=2), v.split(sizes, dim=2))
    return list(hidden.split(sizes, dim=1))


class _Apart:
    """The attention of one layer in which every segment sees its own past and its own rows."""

    def __init__(self, segments: Sequence[Segment], sizes: list[int], layer: int) -> None:
        self._segments, self._sizes, self._layer = segments, sizes, layer

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = zip(self._segments, *(x.split(self._sizes, dim=2) for x in (q, k, v)), strict=True)
        return torch.cat([_attend(segment, self._layer)(*own) for segment, *own in rows], dim=2)


def _attend(segment: Segment, layer: int) -> Attend:
    mask = None if segment.mask is None else segment.mask.unsqueeze(1)
    return partial(attention, mask=mask, past=[(kv.k[layer], kv.v[layer]) for kv in segment.past])


def _alone(stack: Stack, segment: Segment) -> Tensor:
    hidden, keys, values = stack.run(
        segment.x,
        segment.positions,
        one_sequence(segment.mask, segment.past),
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
    place = torch.repeat_interleave(torch.arange(len(sizes), device=device), counts, output_size=sum(sizes))
    return PerToken(tuple(conditions), place)


class FlowStep(NamedTuple):
    """One flow step of one chunk: x float32 [1, H, A]; t float32 [1]; state float [1, S], None for pi0.5;
    kv: the prefix it looks at."""

    x: Tensor
    t: Tensor
    state: Tensor | None
    kv: KV


def velocities(model: Pi, steps: Sequence[FlowStep], together: bool = True) -> list[Tensor]:
    """Pi.velocity of several chunks, each at its own time and on its own prefix: float32 [1, H, A] each."""
    if not together:
        return [model.velocity(step.x, step.t, step.state, step.kv) for step in steps]
    segments = []
    for step in steps:
        tokens, condition = model.suffix(step.x, step.t, step.state)
        assert not isinstance(condition, PerToken), "a step has one time"
        mask = model.suffix_mask(tokens.shape[1], step.kv.k.shape[3], step.x.device)
        segments.append(Segment(tokens, (step.kv,), mask, condition=condition))
    hidden = forward(model.expert, segments)
    return [model.read_out(rows, step.x) for rows, step in zip(hidden, steps, strict=True)]
