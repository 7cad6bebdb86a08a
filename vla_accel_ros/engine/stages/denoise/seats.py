"""Chunks of several frames denoised in one batch, each at its own flow time.

Denoising one chunk reads the action expert's weights once per step for a few dozen rows. Here up to S chunks
are in progress, begun one step apart: each forward advances all of them by one step, and with as many chunks
as steps, each forward finishes one. So chunks finish at the rate of steps, for little more than the cost of
one chunk. Each chunk's steps are the ordinary ones, on its own prefix and state. A chunk keeps one seat from
its first step to its last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from vla_accel_ros.models.flow.rtc import Inpainting
from vla_accel_ros.models.flow.sampling import Flow, Pending, Samples, flow_steps, flow_times
from vla_accel_ros.models.flow.solver import EULER, extrapolated, rates
from vla_accel_ros.models.layers.packed import FlowStep, velocities


class ChunkStart(NamedTuple):
    """A chunk before its first step.

    noise float32 [1, H, A]; state float [1, S], normalised, for pi0, else None; kv: the Part of its prefix,
    or what plain steps read of it by name, which the caller holds until the chunk is finished or dropped;
    guide: what it must agree with; joints: numbers of an action that its magnitudes count, None = the seats'
    default.
    """

    noise: Tensor
    state: Tensor | None
    kv: Any
    guide: Inpainting | None = None
    joints: int | None = None


class Seats(Protocol):
    """Room for `count` chunks in progress, of `steps` steps each."""

    count: int
    steps: int

    def prepare(self) -> None:
        """Do ahead what would delay the first chunk."""

    def take(self, seat: int, start: ChunkStart) -> None:
        """Put a chunk into a seat, before its first step."""

    def restate(self, states: Mapping[int, Tensor]) -> None:
        """Replace the states of chunks in seats for their next steps: float [1, S] as in `take`, by seat."""

    def leave(self, seat: int) -> None:
        """Free a seat, whether its chunk is finished or not; a result that was requested before stays
        valid."""

    def step(self, taken: Sequence[int]) -> None:
        """Compute the next step of the chunks in these seats."""

    def results(self, seats: Sequence[int]) -> Sequence[Pending]:
        """Chunks on their way to the host, with how far every step moved them; does not block."""


class PlainSeats:
    """Seats in plain torch. model: Pi, or a models.policies.FlowField. together: False computes every chunk's
    step by itself, bit for bit as if it were alone (models.layers.packed); chunks with committed actions are
    always computed so. steps, time_rule, solver: see models.flow.sampling. joints: numbers of an action that
    magnitudes count if a chunk does not say, None = all."""

    def __init__(
        self,
        model: Any,
        count: int,
        steps: int = 10,
        time_rule: str = "openpi",
        together: bool = True,
        joints: int | None = None,
        solver: str = EULER,
    ) -> None:
        self.count, self.steps = count, steps
        self._rates = None if solver == EULER else rates(solver, steps)
        self._before: dict[int, Tensor] = {}
        self._model, self._together, self._dt = model, together, flow_steps(steps, time_rule)
        self._times, self._joints = flow_times(steps, time_rule), joints
        self._on: dict[torch.device, list[Tensor]] = {}
        self._due: dict[int, FlowStep] = {}
        self._flows: dict[int, Flow] = {}
        self._guides: dict[int, Inpainting | None] = {}
        self._moved: dict[int, list[Tensor]] = {}
        self._counted: dict[int, int | None] = {}

    def prepare(self) -> None:
        pass

    def take(self, seat: int, start: ChunkStart) -> None:
        device, x, guide = start.noise.device, start.noise.float(), start.guide
        if device not in self._on:
            self._on[device] = [torch.full((1,), time, device=device) for time in self._times]
        if guide is not None:
            target = guide.target.to(x)[None]
            guide = replace(guide, target=target[0], weights=guide.weights.to(x))
            x = torch.cat((target[:, : guide.committed], x[:, guide.committed :]), dim=1)
        self._guides[seat], self._moved[seat], self._counted[seat] = guide, [], start.joints or self._joints
        self._due[seat] = FlowStep(x, self._time(0, device, guide), start.state, start.kv)
        self._before[seat] = torch.zeros_like(x)

    def restate(self, states: Mapping[int, Tensor]) -> None:
        for seat, state in states.items():
            self._due[seat] = self._due[seat]._replace(state=state)

    def leave(self, seat: int) -> None:
        for by_seat in (self._due, self._flows, self._guides, self._moved, self._counted, self._before):
            by_seat.pop(seat, None)

    def _time(self, step: int, device: torch.device, guide: Inpainting | None) -> Tensor:
        """The flow time as in models.flow.sampling.Velocity, or with committed actions as in
        models.flow.committed."""
        if guide is None or not guide.committed:
            return self._on[device][step]
        times = torch.full((1, len(guide.target)), self._times[step])
        times[:, : guide.committed] = 0.0
        return times

    def step(self, taken: Sequence[int]) -> None:
        single = [seat for seat in taken if self._due[seat].t.ndim == 2]
        for seats, together in ((single, False), ([s for s in taken if s not in single], self._together)):
            results = velocities(self._model, [self._due[seat] for seat in seats], together)
            for seat, velocity in zip(seats, results, strict=True):
                self._move(seat, velocity)

    def _move(self, seat: int, velocity: Tensor) -> None:
        due, guide, guided = self._due.pop(seat), self._guides[seat], velocity
        if guide is not None:
            velocity = guide.held(velocity)
            guided = guide.guided(velocity, due.x, self._times[due.step])
        if self._rates is not None:
            guided = extrapolated(guided, velocity, self._before[seat], *self._rates[due.step])
            self._before[seat] = velocity
        update = self._dt[due.step] * guided
        self._flows[seat] = Flow(due.x + update, update)
        self._moved[seat].append(update[..., : self._counted[seat]].square().mean(-1).sqrt())
        next_step = due.step + 1
        if next_step < self.steps:
            x = self._flows[seat].actions
            self._due[seat] = due._replace(x=x, t=self._time(next_step, x.device, guide), step=next_step)

    def results(self, seats: Sequence[int]) -> Sequence[Pending]:
        return [Pending(Samples.of(self._flows[seat], self._moved[seat])) for seat in seats]
