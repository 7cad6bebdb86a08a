"""One step of several chunks, each at its own flow time, as one captured stage.

Every seat is computed in every step, whether it is taken or not: there is one graph, a step always takes the
same time, and a chunk's numbers are bit for bit the same whatever else is denoised with it. What depends on
the flow time is a table row for each seat; the row and the place of each prefix are on the device.

From WIDE_ROWS rows on, a step is that of engine.stages.denoise.wide.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.stages.denoise.denoise import Denoise, Form, check_fits
from vla_accel_ros.engine.stages.denoise.seats import ChunkStart
from vla_accel_ros.engine.stages.denoise.wide import Wide
from vla_accel_ros.engine.stages.memory.host_buffers import Field, HostRing, Inputs
from vla_accel_ros.engine.stages.stages import Stages, powers_of_two
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.kernels.reference.flow import Guide
from vla_accel_ros.models.flow.sampling import Pending
from vla_accel_ros.models.layers.packed import Span

WIDE_ROWS = 96
"""Rows of a step from which cuBLAS is faster than the kernels for few rows: two chunks, on an H200."""


class StaggeredStep(Denoise):
    """Like Denoise, but one step of x in place; each seat keeps its x from step to step.

    where int32 [4, B]: slot, length, step, and joints that magnitudes count, of each seat. Arguments: see
    Denoise.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        # Each row begins at a multiple of 16 bytes.
        where = torch.int32, (4, -(-len(self.x) // 4) * 4)
        state = torch.float32, tuple(self.state.shape)
        self._seats = Inputs(self.device, {"where": where, "state": state})
        self.seats, self.state = len(self.x), self._seats.fields["state"]
        self._look_at(self._seats.fields["where"])
        self.lengths.fill_(1)
        self.magnitudes.dims.fill_(self.joints)

    def _look_at(self, where: Tensor) -> None:
        self.where = where
        self.slots, self.lengths, self.steps, counted = where[:, : self.seats].unbind(0)
        self.magnitudes = self.magnitudes._replace(dims=counted)
        self._sequences = self._sequences._replace(positions=self.lengths)

    def share(self, larger: StaggeredStep) -> None:
        """Compute the first seats of a larger stage, in its buffers."""
        seats = self.seats
        self.x, self.update, self.state = larger.x[:seats], larger.update[:seats], larger.state[:seats]
        self.magnitudes = larger.magnitudes._replace(values=larger.magnitudes.values[:seats])
        target, weights, gains, reach, committed = larger.guide
        if self.history is not None and larger.history is not None:
            self.history = self.history._replace(before=larger.history.before[:seats])
        self.guide = Guide(target[:seats], weights[:seats], gains[:seats], reach, committed[:seats])
        self._look_at(larger.where)

    def place(self, where: np.ndarray, state: np.ndarray) -> None:
        """Set `where`, int32 of its shape, and state float32 [B, S]. Does not block."""
        self._seats.put(where=where, state=state)

    @torch.inference_mode()
    def capture(self, stream: torch.cuda.Stream | None = None) -> None:
        """See Stage. Restores the chunks in seats afterwards, because capturing computes steps."""
        if self.device.type != "cuda" or self.captured:
            return
        parts = [*self.moving, self.update, self.magnitudes.values]
        copies = [part.clone() for part in parts]
        super().capture(stream)
        for part, values in zip(parts, copies, strict=True):
            part.copy_(values)

    @property
    def moving(self) -> list[Tensor]:
        """What a step reads and writes of each seat, [B, ...]."""
        return [self.x] if self.history is None else [self.x, self.history.before]

    def body(self) -> None:
        self._see()
        of_actions = self._times_of_actions(self.steps[None])
        self._step(self.steps, self.steps, self._state_token(), None if of_actions is None else of_actions[0])


class WideStep(Wide, StaggeredStep):
    """StaggeredStep for many rows."""


class CapturedSeats:
    """`Seats` of the captured stages of one engine. Not safe for several threads at once.

    Prefixes must be spans of the stages' pool. The stage is captured before the first chunk is taken, or
    ahead by `prepare`. wide: whether to use WideStep; None = by the number of rows. It computes with the
    exact weights, whatever the stages' precision, because many rows are compute-bound and fewer bits would
    save only reading.
    ops: see Stages. committed: whether `prepare` also captures committed actions; else the first chunk with
    some waits for the capture.
    by_load: a step computes the fewest of 1, 2, 4, 8, ... and all seats that hold its chunks, so that empty
    seats cost less. Products of different numbers of rows round differently, so only without by_load is a
    chunk bit for bit the same whatever it is batched with.
    """

    def __init__(
        self,
        stages: Stages,
        count: int,
        steps: int,
        wide: bool | None = None,
        ops: Ops | None = None,
        committed: bool = False,
        by_load: bool = False,
    ) -> None:
        self.count, self.steps = count, steps
        pool, config = stages.pool, stages.model.config
        expert, device = stages.denoise(1, steps).expert, pool.k.device
        small, ops = stages.small.expert(expert.layers), ops or stages.make_ops()
        self._pool, self._stages = pool, stages
        more = partial(stages.clean, steps), stages.time_rule, stages.joints, stages.solver

        def made(seats: int) -> StaggeredStep:
            arguments = config, expert, stages.kv, stages.tables, ops, seats
            rows = seats * (config.horizon + (config.kind == "pi0"))
            many = rows >= WIDE_ROWS if wide is None else wide
            return WideStep(*arguments, None, *more) if many else StaggeredStep(*arguments, small, *more)

        self.stage = made(count)
        self._sizes = [made(seats) for seats in powers_of_two(count)] if by_load else []
        for step in self._sizes:
            step.share(self.stage)
        self._sizes.append(self.stage)
        self._where = np.zeros(self.stage.where.shape, np.int32)
        self._where[1], self._where[3] = 1, self.stage.joints
        self._at = [0] * count  # the step that is next
        self._of: list[Form] = [Form.FREE] * count
        self._forms = tuple(Form) if committed else (Form.FREE, Form.GUIDED)
        self._captured: set[tuple[Hashable, Form]] = set()
        fields, self._x = _fields_of_chunk(self.stage, steps), self.stage.x.split(1)
        self._noise = HostRing(device, {"noise": fields["noise"]}, blocks=count + 1)
        self._guided = Inputs(device, fields, blocks=count + 1)
        self._came = [_as_float(part) for part in self._guided.fields.values()]
        self._places = [_places_of(self.stage, seat) for seat in range(count)]
        self._state = np.zeros(self.stage.state.shape, np.float32)  # the newest of each seat
        self._states = torch.from_numpy(self._state).split(1)
        self._begun: set[int] = set()  # seats of chunks with steps to come

    def prepare(self) -> None:
        """Capture the stage; does nothing if it is captured."""
        for form in self._forms:
            self._capture(form)

    @torch.inference_mode()
    def rehearse(self, slot: int, length: int) -> None:
        """Compute a step of all seats on one prefix, only to time it. Call it before the first chunk."""
        self.prepare()
        where = self._where.copy()
        where[0], where[1] = slot, length
        self.stage.use(Form.FREE)
        self.stage.place(where, self._state)
        self.stage.run()

    def _capture(self, form: Form) -> None:
        partition = self._enter()
        if (partition, form) in self._captured:
            return
        for step in self._sizes:
            step.use(form)
            step.capture(self._stages.partitions[partition])
        self._captured.add((partition, form))

    def _enter(self) -> Hashable:
        """Use the partition of the current stream from now on; returns it."""
        partition = self._stages.partition()
        for step in self._sizes:
            step.partition = partition
        return partition

    @torch.inference_mode()
    def take(self, seat: int, start: ChunkStart) -> None:
        """See Seats. Raises ValueError for a prefix outside the pool, and for a guide of another shape."""
        noise, state, kv, guide, joints = start
        if not isinstance(kv, Span) or kv.keys is not self._pool.k or kv.start:
            raise ValueError("a prefix is not a slot of the stages' pool from its first token on")
        stage, form = self.stage, Form.of(guide)
        if guide is not None:
            check_fits(guide, stage.x.shape[1:])
        if (self._enter(), form) not in self._captured:
            self.prepare()
            self._capture(form)
        if state is not None and stage.alone:
            self._states[seat].copy_(state)
        if guide is not None:
            self._guided.put(
                noise=noise,
                target=guide.target,
                weights=guide.weights,
                gains=stage.gains(guide),
                committed=[guide.committed],
            )
            # One launch: a copy of each takes the host longer.
            torch._foreach_copy_(self._places[seat], self._came)
            if count := guide.committed:
                stage.x[seat, :count].copy_(stage.guide.target[seat, :count])
        else:
            self._upload(seat, noise)
            if self._of[seat] is not Form.FREE:
                stage.guide.weights[seat].zero_()
                stage.guide.committed[seat].zero_()
        self._of[seat], self._at[seat] = form, 0
        self._where[:, seat] = kv.place, kv.end, 0, joints or stage.joints
        self._begun.add(seat)

    def restate(self, states: Mapping[int, Tensor]) -> None:
        """See Seats; states are on the host."""
        for seat, state in states.items():
            self._states[seat].copy_(state)

    def _upload(self, seat: int, noise: Tensor) -> None:
        """Copy the noise of a free chunk to its seat, from the host through page-locked memory."""
        host = self._noise.fill()
        if not noise.is_cuda:
            host.write("noise", noise)
            noise = host.fields["noise"]
        self._x[seat].copy_(noise, non_blocking=True)
        self._noise.sent()

    def leave(self, seat: int) -> None:
        """See Seats."""
        self._begun.discard(seat)

    def step(self, taken: Sequence[int]) -> None:
        """See Seats. Seats that are not in `taken` are computed too, and then restored."""
        self._enter()
        waiting = sorted(self._begun.difference(taken))
        copies = [(part[seat], part[seat].clone()) for part in self.stage.moving for seat in waiting]
        last_seat = max(taken)
        stage = next(step for step in self._sizes if step.seats > last_seat)
        stage.use(max([self._of[seat] for seat in taken]))
        self._where[2, : self.count] = self._at
        self.stage.place(self._where, self._state)
        stage.run()
        for part, values in copies:
            part.copy_(values)
        for seat in taken:
            self._at[seat] = (self._at[seat] + 1) % self.steps
            if not self._at[seat]:
                self._begun.discard(seat)

    def results(self, seats: Sequence[int]) -> Sequence[Pending]:
        """See Seats."""
        return self.stage.readback.some(seats)


def _fields_of_chunk(stage: StaggeredStep, steps: int) -> dict[str, Field]:
    """The inputs of a chunk: its noise and its guide."""
    horizon, dims = stage.x.shape[1:]
    return {
        "noise": (torch.float32, (1, horizon, dims)),
        "target": (torch.float32, (horizon, dims)),
        "weights": (torch.float32, (horizon,)),
        "gains": (torch.float32, (steps,)),
        "committed": (torch.int32, (1,)),
    }


def _places_of(stage: StaggeredStep, seat: int) -> list[Tensor]:
    """Where these are, in that order, for a chunk in a seat."""
    guide, row = stage.guide, slice(seat, seat + 1)
    parts = guide.target[seat], guide.weights[seat], guide.gains[seat]
    return [stage.x[row], *parts, _as_float(guide.committed[row])]


def _as_float(values: Tensor) -> Tensor:
    """The same bits as float32, so that several copies are one launch."""
    return values.view(torch.float32)
