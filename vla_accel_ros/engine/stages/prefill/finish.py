"""The hidden state of a prefix's last token, from which the first token of text is computed.

Few frames are asked about, so prefill computes only keys and values of the last layer. This stage computes
that layer for one row, with the five launches of a denoising step on the prefix stack's weights; or, if those
exist only in 8 bits, with 8-bit rows as in prefill.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.int8 import Int8Layer, Places, smoothed
from vla_accel_ros.engine.stages.memory.host_buffers import Inputs
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.kernels.reference.linear import Norm
from vla_accel_ros.models.pi.folded import Prefix
from vla_accel_ros.models.smolvla.folding import Foldable


class Finish(Stage):
    """The last layer for the last token of a prefix, whose input Prefill kept in carry.

    slots, lengths, positions int32 [1]: place and length of the prefix, and length - 1; hidden [1, 1, W]:
    after the final norm.
    """

    def __init__(
        self,
        model: Foldable,
        prefix: Prefix,
        pool: KVPool,
        tables: tuple[Tensor, Tensor],
        carry: Tensor,
        ops: Ops,
    ) -> None:
        device, sizes = pool.k.device, model.config.prefix
        super().__init__(device)
        self.prefix, self.pool, self.carry, self.ops = prefix, pool, carry, ops
        self.cos, self.sin = tables

        def place(*shape: int) -> Tensor:
            return torch.zeros(1, *shape, device=device, dtype=pool.k.dtype)

        counts = torch.int32, (1,)
        self._inputs = Inputs(device, {"slots": counts, "lengths": counts, "positions": counts})
        self.slots, self.lengths, self.positions = self._inputs.fields.values()
        self.lengths.fill_(1)
        self._zeros = torch.zeros_like(self.slots)
        self._k, self._v = (place(sizes.kv_heads, 1, sizes.head_dim) for _ in range(2))
        self._x, self.hidden = place(1, sizes.width), place(1, sizes.width)
        self._fed, self._q = place(1, sizes.mlp), place(1, sizes.heads, sizes.head_dim)
        self._attended = place(1, sizes.heads * sizes.head_dim)
        self._scaled = Norm.of(self._x, scaled=True)

    def set(self, slot: int, length: int) -> None:
        """Set the slot and the length of the prefix."""
        self._inputs.put(slots=[slot], lengths=[length], positions=[length - 1])

    def body(self) -> None:
        ops, layer, index = self.ops, self.prefix.layers[-1], len(self.prefix.layers) - 1
        norm = self._scaled._replace(scale=self.prefix.attention_norm[index][None])
        mlp_norm = self._scaled._replace(scale=self.prefix.mlp_norm[index][None])
        self._x.copy_(self.carry[self.slots.long()][:, None])
        norm.leave(self._x)
        # The token's own key is in the pool already: the one computed here goes to a scratch buffer.
        ops.rotary_qkv(
            self._x, layer.qkv, self.cos, self.sin, self.positions, self._q, self._k, self._v, self._zeros,
            self._zeros, norm,
        )  # fmt: skip
        ops.attend(
            self._q, self.pool.k[:, index], self.pool.v[:, index], self.slots, self.lengths, self._attended
        )
        ops.project(self._attended, layer.o, self._x, None, mlp_norm)
        ops.gated_up(self._x, layer.gate_up, self._fed, mlp_norm)
        ops.project(self._fed, layer.down, self._x)
        ops.rms_norm(self._x.flatten(0, 1), self.prefix.final_norm, self.hidden.flatten(0, 1))


class FinishInt8(Finish):
    """Finish with int8 rows. small: the last layer of the prefix stack; other arguments: see Finish."""

    def __init__(self, *arguments: Any, small: Int8Layer) -> None:
        super().__init__(*arguments)
        index, width = len(self.prefix.layers) - 1, self._x.shape[2]
        columns = small.qkv.shape[0]
        self._small, self._qkv = small, self._x.new_zeros(1, 1, columns)
        self._normed = Places.beside(self._x.new_zeros(1, width))
        self._read, self._fed_rows = Places.beside(self._attended), Places.beside(self._fed)
        self._factors = (
            smoothed(1.0 + self.prefix.attention_norm[index], small.qkv),
            smoothed(1.0 + self.prefix.mlp_norm[index], small.gate_up),
        )

    def body(self) -> None:
        ops, small, index = self.ops, self._small, len(self.prefix.layers) - 1
        x, rows = self._x.flatten(0, 1), self._normed
        self._x.copy_(self.carry[self.slots.long()][:, None])
        ops.rms_norm_int8(x, self._factors[0], rows.of(small.qkv))
        ops.multiply_int8(rows.of(small.qkv), small.qkv, self._qkv.flatten(0, 1))
        ops.place_qkv(
            self._qkv, self.cos, self.sin, self.positions, self._q, self._k, self._v, self._zeros,
            self._zeros,
        )  # fmt: skip
        ops.attend(
            self._q, self.pool.k[:, index], self.pool.v[:, index], self.slots, self.lengths, self._attended
        )
        ops.multiply_int8(self._read.rounded(ops, small.o), small.o, x, None, "add")
        ops.rms_norm_int8(x, self._factors[1], rows.of(small.gate_up))
        ops.gated_int8(rows.of(small.gate_up), small.gate_up, self._fed.flatten(0, 1))
        ops.multiply_int8(self._fed_rows.rounded(ops, small.down), small.down, x, None, "add")
        ops.rms_norm(x, self.prefix.final_norm, self.hidden.flatten(0, 1))
