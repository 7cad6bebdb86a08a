"""Chunks of several frames denoised in one batch, each at its own flow time.

Denoising one chunk reads the action expert's weights once per step for a few dozen rows. Here up to S chunks
are under way, begun one step apart: each forward advances all of them by one step, and once there are S of
them, each forward finishes one. A finished trajectory leaves at the rate of steps, not of chunks, for little
more than one chunk's cost. Every chunk's own steps are the ordinary ones, on its own prefix and state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from vla_accel_ros.models.packed import FlowStep, Part, velocities
from vla_accel_ros.models.pi import Pi
from vla_accel_ros.models.sampling import Flow, flow_times

Key = TypeVar("Key")
Advance = Callable[[Sequence[FlowStep]], list[Flow]]
"""One Euler step of each: the new x as `actions`, and what was added to it."""


def euler(model: Pi, dt: float, together: bool, steps: Sequence[FlowStep]) -> list[Flow]:
    """The plain Advance."""
    updates = [dt * velocity for velocity in velocities(model, steps, together)]
    return [Flow(step.x + update, update) for step, update in zip(steps, updates, strict=True)]


class Denoised(NamedTuple, Generic[Key]):
    """key: as it was given to begin; flow: what models.sampling.sample would have returned."""

    key: Key
    flow: Flow


@dataclass
class _Chunk(Generic[Key]):
    key: Key
    x: Tensor
    state: Tensor | None
    kv: Part
    times: list[Tensor]
    done: int = 0
    update: Tensor = field(init=False)

    @property
    def due(self) -> FlowStep:
        return FlowStep(self.x, self.times[self.done], self.state, self.kv, self.done)


class StaggeredDenoising(Generic[Key]):
    """The chunks under way of one model. Not for several threads at once.

    steps, time_rule: see models.sampling. limit: most chunks at once, by default one per step.
    together: False computes every chunk's step by itself, to the bit what it is alone (models.packed).
    advance: how steps of several chunks are computed, None = in plain torch.
    """

    def __init__(
        self,
        model: Pi,
        steps: int = 10,
        time_rule: str = "openpi",
        limit: int | None = None,
        together: bool = True,
        advance: Advance | None = None,
    ) -> None:
        plain = partial(euler, model, -1.0 / steps, together)
        self._advance: Advance = plain if advance is None else advance
        self._times = flow_times(steps, time_rule)
        self._on: dict[torch.device, list[Tensor]] = {}
        self.limit = steps if limit is None else limit
        if self.limit < 1:
            raise ValueError(f"limit is {limit}; at least 1 chunk must be allowed under way.")
        self._chunks: list[_Chunk[Key]] = []

    @property
    def under_way(self) -> tuple[Key, ...]:
        """Keys of the chunks that are not finished, oldest first."""
        return tuple(chunk.key for chunk in self._chunks)

    @property
    def full(self) -> bool:
        """Whether begin would refuse."""
        return len(self._chunks) >= self.limit

    def begin(self, key: Key, noise: Tensor, state: Tensor | None, kv: Part) -> None:
        """Take a chunk in; the next step is its first.

        noise float32 [1, H, A]; state float [1, S], normalised, for pi0, else None; kv: its prefix, which the
        caller holds until the chunk is finished or dropped. Raises ValueError if there is no room.
        """
        if self.full:
            raise ValueError(f"{len(self._chunks)} chunks are under way, and no more are allowed: step first")
        device = noise.device
        if device not in self._on:
            self._on[device] = [torch.full((1,), time, device=device) for time in self._times]
        self._chunks.append(_Chunk(key, noise.float(), state, kv, self._on[device]))

    @torch.inference_mode()
    def step(self) -> list[Denoised[Key]]:
        """Advance every chunk by one step; returns those that are finished, oldest first."""
        flows = self._advance([chunk.due for chunk in self._chunks]) if self._chunks else []
        for chunk, flow in zip(self._chunks, flows, strict=True):
            chunk.x, chunk.update = flow
            chunk.done += 1
        finished = [chunk for chunk in self._chunks if chunk.done == len(self._times)]
        self._chunks = [chunk for chunk in self._chunks if chunk.done < len(self._times)]
        return [Denoised(chunk.key, Flow(chunk.x, chunk.update)) for chunk in finished]

    def drop(self, key: Key) -> None:
        """Forget a chunk under way. Raises KeyError if it is not."""
        if key not in self.under_way:
            raise KeyError(f"chunk {key} is not under way: {list(self.under_way)} are")
        self._chunks = [chunk for chunk in self._chunks if chunk.key != key]
