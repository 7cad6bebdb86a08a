"""Denoising steps with int8 rows, of one chunk or several: engine.stages.denoise.wide in 8 bits.

The norm before a product adds the product before it to the residual and writes the int8 rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from vla_accel_ros.engine.stages.denoise.wide import NormTables, Wide
from vla_accel_ros.engine.stages.int8 import Int8Layer, Places, by_of


class DenoiseInt8(Wide):
    """Wide with int8 rows. small: the expert's layers; other arguments: see Denoise."""

    def __init__(self, *given: Any, small: Sequence[Int8Layer]) -> None:
        super().__init__(*given)
        self._small = small
        self._normed_rows, self._read, self._fed_rows = map(
            Places.beside, (self._rows_in, self._attended, self._fed)
        )

    def _norm(
        self, index: int, before_mlp: bool, x: Tensor, made: Tensor | None, rows_in: Tensor, at: Tensor,
        gate: Tensor | None, tables: NormTables,
    ) -> None:  # fmt: skip
        small = self._small[index]
        weight = small.gate_up if before_mlp else small.qkv
        y = None if made is None else made[0]
        self.ops.add_norm_int8(x, y, by_of(weight), self._normed_rows.of(weight), at, gate, *tables)

    def _end_of_layers(self, x: Tensor, made: Tensor, at: Tensor, gate: Tensor | None) -> None:
        self.ops.add_norm_int8(x, made[0], None, None, at, gate)

    def _qkv_of(self, index: int) -> None:
        weight = self._small[index].qkv
        self.ops.multiply_int8(self._normed_rows.of(weight), weight, self._qkv.flatten(0, 1))

    def _o_of(self, index: int) -> None:
        weight = self._small[index].o
        self.ops.multiply_int8(self._read.rounded(self.ops, weight), weight, self._made[0].flatten(0, 1))

    def _mlp_of(self, index: int) -> None:
        ops, small = self.ops, self._small[index]
        ops.gated_int8(self._normed_rows.of(small.gate_up), small.gate_up, self._fed.flatten(0, 1))
        ops.multiply_int8(self._fed_rows.rounded(ops, small.down), small.down, self._made[0].flatten(0, 1))
