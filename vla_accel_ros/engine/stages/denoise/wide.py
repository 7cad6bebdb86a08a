"""Denoising steps of many rows: several chunks at once.

A step of a few dozen rows is bound by reading weights and uses the launches of `Denoise`. A step of many rows
is compute-bound: as in prefill, the products use cuBLAS with one pass between two.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from vla_accel_ros.engine.stages.denoise.denoise import Denoise, single
from vla_accel_ros.kernels.reference.linear import product_in_parts
from vla_accel_ros.models.pi.folded import Modulation

PARTS = 2
"""Parts of a split-K product with few columns, which has too few tiles for the processors; the pass that adds
it to the residual sums the parts."""
MOST_NARROW = 128
"""Most rows for the launches for few rows; whole chunks with more rows are computed here."""

NormTables = tuple[Tensor | None, Tensor | None]
"""Scale and shift [S, W] of every step, None where norms are not modulated."""


class Wide(Denoise):
    """Denoise with the expert's own weights: `small` is None."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        sizes = self.config.expert
        columns = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
        self._rows_in = torch.zeros_like(self._hidden)
        self._made = self._hidden.new_zeros(PARTS, *self._hidden.shape)
        self._qkv = self._hidden.new_zeros(*self._hidden.shape[:2], columns)
        self._gate_up = self._hidden.new_zeros(*self._hidden.shape[:2], 2 * sizes.mlp)

    def _step(
        self, now: slice | Tensor, at: Tensor, token: Tensor | None, of_actions: Tensor | None = None
    ) -> None:
        expert, ops, rows, own_now, own_at = self.expert, self.ops, self._sequences, now, at
        x, rows_in, projected = self._hidden, self._rows_in, self._made
        if of_actions is not None:
            expert, own_now = self._timed, of_actions
            if expert.modulation is not None:  # every token is a sequence with its own time
                x, rows_in, projected = single(x), single(rows_in), projected.flatten(1, 2).unsqueeze(2)
                own_at = own_now
        table = expert.modulation
        ops.embed_actions(
            self.x, expert.in_weight, expert.in_bias[own_now], self._hidden, expert.mlp_weight,
            expert.mlp_bias, token,
        )  # fmt: skip
        self._norm(0, False, x, None, rows_in, own_at, None, _attention_norm(table, 0))
        for index in range(len(expert.layers)):
            self._qkv_of(index)
            if index in expert.crossing:
                ops.place_qkv(
                    self._made_by(index), self.cos, self.sin, rows.starts, self._q, *self._written(True),
                    rows.sequences, rows.starts,
                )  # fmt: skip
                ops.attend(self._q, *self.kv[index], self.slots, self.lengths, self._attended)
            else:
                ops.attend_rotary(
                    self._qkv, self.cos, self.sin, self._q, self._k, *self.kv[index], self.slots,
                    self.lengths, self._attended, self.alone, self._seen,
                )  # fmt: skip
            self._o_of(index)
            gate = None if table is None else table.attention_gate[:, index]
            self._norm(index, True, x, projected, rows_in, own_at, gate, _mlp_norm(table, index))
            self._mlp_of(index)
            gate = None if table is None else table.mlp_gate[:, index]
            if index + 1 < len(expert.layers):
                norm = _attention_norm(table, index + 1)
                self._norm(index + 1, False, x, projected, rows_in, own_at, gate, norm)
            else:
                self._end_of_layers(x, projected, own_at, gate)
        self._end(now, at)

    def _norm(
        self, index: int, before_mlp: bool, x: Tensor, made: Tensor | None, rows_in: Tensor, at: Tensor,
        gate: Tensor | None, tables: NormTables,
    ) -> None:  # fmt: skip
        """Add the last product to the rows, and norm them for the next product of this layer."""
        self.ops.add_norm(x, made, rows_in, at, gate, *tables, eps=self.expert.eps)

    def _end_of_layers(self, x: Tensor, made: Tensor, at: Tensor, gate: Tensor | None) -> None:
        """Add the last product to the rows."""
        self.ops.add_norm(x, made, None, at, gate)

    def _qkv_of(self, index: int) -> None:
        """Queries, keys and values of the normed rows."""
        qkv = self.expert.layers[index].qkv
        torch.mm(self._rows_in.flatten(0, 1), qkv.t(), out=self._made_by(index).flatten(0, 1))

    def _made_by(self, index: int) -> Tensor:
        """Where a layer's product goes, [B, T, rows of its qkv]: contiguous."""
        shape = (*self._qkv.shape[:2], len(self.expert.layers[index].qkv))
        return self._qkv.flatten()[: math.prod(shape)].view(shape)

    def _o_of(self, index: int) -> None:
        """Attention's output product, in split-K parts."""
        product_in_parts(self._attended.flatten(0, 1), self.expert.layers[index].o, self._made.flatten(1, 2))

    def _mlp_of(self, index: int) -> None:
        """The layer's MLP on the normed rows, in split-K parts."""
        layer = self.expert.layers[index]
        torch.mm(self._rows_in.flatten(0, 1), layer.gate_up.t(), out=self._gate_up.flatten(0, 1))
        self.ops.glu(self._gate_up, self._fed, self.expert.activation)
        product_in_parts(self._fed.flatten(0, 1), layer.down, self._made.flatten(1, 2))


def _attention_norm(table: Modulation | None, layer: int) -> NormTables:
    """Scale and shift [S, W] of every step."""
    return (
        (None, None) if table is None else (table.attention_scale[:, layer], table.attention_shift[:, layer])
    )


def _mlp_norm(table: Modulation | None, layer: int) -> NormTables:
    return (None, None) if table is None else (table.mlp_scale[:, layer], table.mlp_shift[:, layer])
