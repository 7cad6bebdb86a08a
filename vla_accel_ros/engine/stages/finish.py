"""One token of text for each of several sequences, and the hidden state that the first is read from.

The same five launches a layer as a denoising step, on the prefix stack's weights and one row for each
sequence: weights are read once for all of them. Prefixes lie in their pool slots, what was written since in
this stage's own memory, a row for each sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.host_buffers import Inputs
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.kernels.reference.linear import Norm
from vla_accel_ros.models.pi.folded import Prefix
from vla_accel_ros.models.pi.model import Pi


class _Rows(Stage):
    """A row for each of `batch` sequences, through layers of the prefix stack."""

    def __init__(
        self,
        model: Pi,
        prefix: Prefix,
        pool: KVPool,
        tables: tuple[Tensor, Tensor],
        ops: Ops,
        batch: int,
        room: int,
    ) -> None:
        device, dtype, sizes = pool.k.device, pool.k.dtype, model.config.prefix
        super().__init__(device)
        self.prefix, self.pool, self.ops = prefix, pool, ops
        self.cos, self.sin = tables

        def place(*shape: int) -> Tensor:
            return torch.zeros(*shape, device=device, dtype=dtype)

        counts = torch.int32, (batch,)
        fields = {"tokens": (torch.int64, (batch,)), "slots": counts, "lengths": counts, "written": counts}
        self._inputs = Inputs(device, fields)
        self.tokens, self.slots, self.lengths, self.written = self._inputs.fields.values()
        self.lengths.fill_(1)
        self._zeros = torch.zeros_like(self.slots)
        self._rows = torch.arange(batch, dtype=torch.int32, device=device)
        shape = (batch, len(prefix.layers), sizes.kv_heads, room, sizes.head_dim)
        self._k, self._v = place(*shape), place(*shape)
        self._x, self._normed = place(batch, 1, sizes.width), place(batch, 1, sizes.width)
        self._fed, self._q = place(batch, 1, sizes.mlp), place(batch, 1, sizes.heads, sizes.head_dim)
        self._attended = place(batch, 1, sizes.heads * sizes.head_dim)
        self._scaled = Norm.of(self._x, scaled=True)

    def _layer(self, index: int, positions: Tensor, starts: Tensor, tails: Tensor | None) -> None:
        layer, ops = self.prefix.layers[index], self.ops
        k, v = self._k[:, index], self._v[:, index]
        norm, mlp_norm = (self._norm(x[index]) for x in (self.prefix.attention_norm, self.prefix.mlp_norm))
        ops.rotary_qkv(
            self._x, layer.qkv, self.cos, self.sin, positions, self._q, k, v, self._rows, starts, norm
        )
        k_tail, v_tail = (None, None) if tails is None else (k, v)
        ops.attend(
            self._q, self.pool.k[:, index], self.pool.v[:, index], self.slots, self.lengths, self._attended,
            k_tail, v_tail, tails,
        )  # fmt: skip
        ops.project(self._attended, layer.o, self._x, None, mlp_norm)
        ops.gated_up(self._x, layer.gate_up, self._fed, mlp_norm)
        last = index + 1 == len(self.prefix.layers)
        onward = None if last else self._norm(self.prefix.attention_norm[index + 1])
        ops.project(self._fed, layer.down, self._x, None, onward)

    def _norm(self, weight: Tensor) -> Norm:
        return self._scaled._replace(scale=weight[None])

    def _final(self) -> None:
        self.ops.rms_norm(self._x.flatten(0, 1), self.prefix.final_norm, self._normed.flatten(0, 1))


class Finish(_Rows):
    """The last layer for the last tokens of prefixes, whose input Prefill kept.

    slots, lengths int32 [B]; hidden [B, 1, W]: the hidden states after the final norm.
    """

    def __init__(
        self, model: Pi, prefix: Prefix, pool: KVPool, tables: tuple[Tensor, Tensor], carry: Tensor, ops: Ops
    ) -> None:
        super().__init__(model, prefix, pool, tables, ops, batch=1, room=1)
        self.carry, self.hidden = carry, self._normed

    def set(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Where the prefixes are and how long."""
        self._inputs.put(slots=slots, lengths=lengths)

    def body(self) -> None:
        self._x.copy_(self.carry[self.slots.long()][:, None])
        self._norm(self.prefix.attention_norm[-1]).leave(self._x)
        # Its own key is in the pool already: it is written beside and not read.
        self._layer(len(self.prefix.layers) - 1, self.lengths - 1, self._zeros, None)
        self._final()


class Decode(_Rows):
    """The next token of `batch` texts of up to `room` tokens.

    tokens int64 [B]: the last token of each; slots, lengths int32 [B]: its prefix; written int32 [B]: how
    many tokens of it came before this one. logits [B, vocab].
    """

    def __init__(
        self,
        model: Pi,
        prefix: Prefix,
        pool: KVPool,
        tables: tuple[Tensor, Tensor],
        ops: Ops,
        batch: int,
        room: int,
    ) -> None:
        super().__init__(model, prefix, pool, tables, ops, batch, room)
        self._table, self._scale = model.embed_table, math.sqrt(model.config.prefix.width)
        self.logits = torch.zeros(batch, model.config.vocab, device=self.device, dtype=pool.k.dtype)

    def set(
        self, tokens: Tensor, slots: Sequence[int], lengths: Sequence[int], written: Sequence[int]
    ) -> None:
        """B of each; tokens int64."""
        self._inputs.put(tokens=tokens, slots=slots, lengths=lengths, written=written)

    def body(self) -> None:
        self._x.copy_(self._table[self.tokens][:, None] * self._scale)
        self._norm(self.prefix.attention_norm[0]).leave(self._x)
        positions, tails = self.lengths + self.written, self.written + 1
        for index in range(len(self.prefix.layers)):
            self._layer(index, positions, self.written, tails)
        self._final()
        self.logits.copy_(F.linear(self._normed[:, 0], self._table))
