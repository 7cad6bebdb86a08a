"""Encode and prefill with int8 rows: four products a layer, each after a pass that writes its rows.

The norm writes the rows of the product after it. Separate passes round attention's output and the MLP's
activations. A product's epilogue applies bias, residual, gelu or gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from vla_accel_ros.engine.stages.int8 import Int8Layer, Int8Vision, Places, columns, smoothed
from vla_accel_ros.engine.stages.prefill.encode import Encode
from vla_accel_ros.engine.stages.prefill.prefill import Prefill


class EncodeInt8(Encode):
    """Encode with int8 rows. small: the image encoder's layers; other arguments: see Encode."""

    def __init__(self, *arguments: Any, small: Sequence[Int8Vision]) -> None:
        super().__init__(*arguments)
        self._small = small
        self._narrow, self._wide = Places.beside(self._normed), Places.beside(self._fed)
        self._norms = [
            [
                (smoothed(norm.weight, weight), smoothed(norm.bias, weight))
                for norm, weight in ((layer.layer_norm1, weights.qkv), (layer.layer_norm2, weights.fc1))
            ]
            for layer, weights in zip(self._layers, small, strict=True)
        ]

    def _layer(self, index: int, left: Any) -> Any:
        ops, small, (first, second) = self.ops, self._small[index], self._norms[index]
        layer, narrow = self._layers[index], self._narrow
        ops.layer_norm_int8(self._x, *first, narrow.of(small.qkv))
        ops.multiply_int8(narrow.of(small.qkv), small.qkv, self._qkv_out, self._qkv_bias[index])
        attended = narrow.rounded(ops, small.o, self._attended())
        ops.multiply_int8(attended, small.o, self._x, layer.self_attn.out_proj.bias, "add")
        ops.layer_norm_int8(self._x, *second, narrow.of(small.fc1))
        ops.multiply_int8(narrow.of(small.fc1), small.fc1, self._fed, layer.mlp.fc1.bias, "gelu")
        fed = self._wide.rounded(ops, small.fc2)
        ops.multiply_int8(fed, small.fc2, self._x, layer.mlp.fc2.bias, "add")
        return None, None


class PrefillInt8(Prefill):
    """Prefill with int8 rows. small: the prefix stack's layers; other arguments: see Prefill."""

    def __init__(self, *arguments: Any, small: Sequence[Int8Layer]) -> None:
        super().__init__(*arguments)
        self._small = small
        self._rows_in, self._read, self._fed_rows = map(
            Places.beside, (self._normed, self._attended, self._fed)
        )
        attention, mlp = self.prefix.attention_norm, self.prefix.mlp_norm
        self._factors = [
            (smoothed(1.0 + attention[index], weights.qkv), smoothed(1.0 + mlp[index], weights.gate_up))
            for index, weights in enumerate(small)
        ]

    def _layer(self, index: int, made: Tensor | None) -> None:
        ops, small, (first, second) = self.ops, self._small[index], self._factors[index]
        x, rows = self._x.flatten(0, 1), self._rows_in
        ops.rms_norm_int8(x, first, rows.of(small.qkv))
        if index == len(self._small) - 1:
            last = columns(small.qkv, -self._kv.shape[2])
            ops.multiply_int8(rows.of(small.qkv), last, self._kv.flatten(0, 1))
            return
        ops.multiply_int8(rows.of(small.qkv), small.qkv, self._qkv.flatten(0, 1))
        self._attend(index)
        ops.multiply_int8(self._read.rounded(ops, small.o), small.o, x, None, "add")
        ops.rms_norm_int8(x, second, rows.of(small.gate_up))
        ops.gated_int8(rows.of(small.gate_up), small.gate_up, self._fed.flatten(0, 1))
        ops.multiply_int8(self._fed_rows.rounded(ops, small.down), small.down, x, None, "add")
