"""One step of several chunks, each at its own flow time, as one captured stage.

Every seat is computed in every step, whether a chunk sits in it or not: there is one graph, a step always
takes the same time, and a chunk's numbers are the same to the bit whatever else is under way. What depends on
the flow time is a row of a table for each seat; which row, and where each prefix lies, is on the device.

A few dozen rows are bound by the reading of weights, and go through the launches of engine.denoising. From
WIDE_ROWS on arithmetic counts: there, as in prefill, the products are cuBLAS with one pass between two.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.denoising import Denoise
from vla_accel_ros.engine.graphs import put
from vla_accel_ros.engine.kv_pool import KVPool
from vla_accel_ros.engine.precision import SmallLayer
from vla_accel_ros.engine.stages import Stages
from vla_accel_ros.engine.staggered import StaggeredDenoising
from vla_accel_ros.kernels.linear import product_in_parts
from vla_accel_ros.kernels.ops import Ops, ops_for
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.folded import Expert, Modulation
from vla_accel_ros.models.packed import Part, Span
from vla_accel_ros.models.sampling import Flow

WIDE_ROWS = 96
"""Rows of a step from which on cuBLAS is faster than the kernels for few rows: two chunks, on an H200."""
PARTS = 2
"""Parts of the inner dimension of products with few columns, whose tiles are too few for the processors; the
pass that adds them to the residual adds them up."""


class StaggeredStep(Denoise):
    """As Denoise, but one step of x in place, which is a seat's own from step to step.

    where int32 [3, B]: slots, lengths and steps, of each seat. small: as of Denoise. Because x is read and
    written, capture is for the time before anybody sits.
    """

    def __init__(
        self,
        config: PiConfig,
        expert: Expert,
        pool: KVPool,
        tables: tuple[Tensor, Tensor],
        ops: Ops,
        batch: int,
        small: Sequence[SmallLayer] | None = None,
    ) -> None:
        super().__init__(config, expert, pool, tables, ops, batch, small)
        # Each row begins at a multiple of 16 bytes.
        self.where = torch.zeros(3, -(-batch // 4) * 4, dtype=torch.int32, device=pool.k.device)
        self.slots, self.lengths, self.steps = self.where[:, :batch].unbind(0)
        self.lengths.fill_(1)

    def body(self) -> None:
        self._step(self.steps, self._state_token())


class WideStep(StaggeredStep):
    """The same for many rows."""

    def __init__(
        self,
        config: PiConfig,
        expert: Expert,
        pool: KVPool,
        tables: tuple[Tensor, Tensor],
        ops: Ops,
        batch: int,
    ) -> None:
        super().__init__(config, expert, pool, tables, ops, batch)
        sizes = config.expert
        columns = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
        self._rows_in = torch.zeros_like(self._hidden)
        self._made = self._hidden.new_zeros(PARTS, *self._hidden.shape)
        self._qkv = self._hidden.new_zeros(*self._hidden.shape[:2], columns)
        self._gate_up = self._hidden.new_zeros(*self._hidden.shape[:2], 2 * sizes.mlp)

    def _step(self, now: slice | Tensor, token: Tensor | None) -> None:
        expert, ops, table, x = self.expert, self.ops, self.expert.modulation, self._hidden
        ops.embed_actions(
            self.x, expert.in_weight, expert.in_bias[now], x, expert.mlp_weight, expert.mlp_bias, token
        )
        self._onward(None, None, _attention_norm(table, 0))
        for index, layer in enumerate(expert.layers):
            torch.mm(self._rows_in.flatten(0, 1), layer.qkv.t(), out=self._qkv.flatten(0, 1))
            ops.attend_rotary(
                self._qkv, self.cos, self.sin, self._q, self._k, self.pool.k[:, index],
                self.pool.v[:, index], self.slots, self.lengths, self._attended, self.alone,
            )  # fmt: skip
            product_in_parts(self._attended.flatten(0, 1), layer.o, self._made.flatten(1, 2))
            gate = None if table is None else table.attention_gate[:, index]
            self._onward(self._made, gate, _mlp_norm(table, index))
            torch.mm(self._rows_in.flatten(0, 1), layer.gate_up.t(), out=self._gate_up.flatten(0, 1))
            ops.glu(self._gate_up, self._fed)
            product_in_parts(self._fed.flatten(0, 1), layer.down, self._made.flatten(1, 2))
            gate = None if table is None else table.mlp_gate[:, index]
            if index + 1 < len(expert.layers):
                self._onward(self._made, gate, _attention_norm(table, index + 1))
            else:
                ops.add_norm(x, self._made, None, self.steps, gate)
        final = None if table is None else table.final[now]
        ops.read_out(x, expert.out_weight, expert.out_bias[now], self.x, self.update, final)

    def _onward(
        self, made: Tensor | None, gate: Tensor | None, norm: tuple[Tensor | None, Tensor | None]
    ) -> None:
        """Add what was made to the rows, and norm them for the next product."""
        self.ops.add_norm(self._hidden, made, self._rows_in, self.steps, gate, *norm)


def _attention_norm(table: Modulation | None, layer: int) -> tuple[Tensor | None, Tensor | None]:
    """Scale and shift [S, W] of every step."""
    return (
        (None, None) if table is None else (table.attention_scale[:, layer], table.attention_shift[:, layer])
    )


def _mlp_norm(table: Modulation | None, layer: int) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if table is None else (table.mlp_scale[:, layer], table.mlp_shift[:, layer])


class CapturedSeats:
    """The `engine.staggered.Seats` of the stages of one engine. Not for several threads at once.

    Prefixes must be spans of the stages' pool. The stage is captured before the first chunk sits, or ahead by
    `prepare`. wide: whether for many rows; None = as there are. Many are computed with the exact weights,
    whatever the stages' precision: reading fewer bits makes less of the reading, not of the arithmetic.
    ops: as of Stages.
    """

    def __init__(
        self, stages: Stages, count: int, steps: int, wide: bool | None = None, ops: Ops | None = None
    ) -> None:
        self.count, self.steps = count, steps
        pool, config = stages.pool, stages.model.config
        expert, device = stages.denoise(1, steps).expert, pool.k.device
        rows = count * (config.horizon + (config.kind == "pi0"))
        small, ops = stages.small.expert(expert.layers), ops or ops_for(device)
        self._pool = pool
        self.stage = (
            WideStep(config, expert, pool, stages.tables, ops, count)
            if (rows >= WIDE_ROWS if wide is None else wide)
            else StaggeredStep(config, expert, pool, stages.tables, ops, count, small)
        )
        self._where = np.zeros(self.stage.where.shape, np.int32)
        self._where[1] = 1
        self._begun: set[int] = set()  # seats of chunks with steps to come, or that were given up

    def prepare(self) -> None:
        """Capture the stage, while nobody sits; the second time it does nothing."""
        self.stage.capture()

    @torch.inference_mode()
    def take(self, seat: int, noise: Tensor, state: Tensor | None, kv: Part) -> None:
        """See Seats. Raises ValueError for a prefix that is not in the pool."""
        if not isinstance(kv, Span) or kv.keys is not self._pool.k or kv.start:
            raise ValueError("a prefix is not a slot of the stages' pool from its first token on")
        self.prepare()
        self.stage.x[seat].copy_(noise[0])
        if state is not None and self.stage.alone:
            self.stage.state[seat].copy_(state[0])
        self._where[:, seat] = kv.place, kv.end, 0
        self._begun.add(seat)

    @torch.inference_mode()
    def step(self, taken: Sequence[int]) -> None:
        """See Seats. Seats that are not among these are computed too, and put back."""
        x, waiting = self.stage.x, sorted(self._begun.difference(taken))
        kept = x[waiting] if waiting else None
        put(self.stage.where, torch.from_numpy(self._where))
        self.stage.run()
        if kept is not None:
            x[waiting] = kept
        self._where[2, list(taken)] += 1
        self._where[2] %= self.steps
        self._begun.difference_update(seat for seat in taken if not self._where[2, seat])

    @torch.inference_mode()
    def flow(self, seat: int) -> Flow:
        stage = self.stage
        return Flow(stage.x[seat : seat + 1].clone(), stage.update[seat : seat + 1].clone())


class OneByOne:
    """An engine.acting.Fast that makes chunks by themselves, in seats of their own: to the bit what they
    become in company. Those of another number of steps are the stages'.
    """

    def __init__(self, stages: Stages, seats: CapturedSeats) -> None:
        self._stages, self._seats, self._lock = stages, seats, threading.Lock()

    def act(
        self, noise: Tensor, state: Tensor | None, slots: Sequence[int], lengths: Sequence[int], steps: int
    ) -> Flow:
        """One chunk: as Stages.act with a batch of 1."""
        if steps != self._seats.steps:
            return self._stages.act(noise, state, slots, lengths, steps)
        (slot,), (length,) = slots, lengths
        with self._lock:
            one = StaggeredDenoising[None](self._seats)
            one.begin(None, noise, state, self._stages.pool.span(slot, 0, length))
            (done,) = [done for _ in range(steps) for done in one.step()]
            return done.flow
