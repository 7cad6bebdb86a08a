"""Encode and prefill with fp8 products: as engine.stages.prefill, but rows come in fp8 from the pass before.

As many launches as in bfloat16. What makes the rows of a product (a norm, a gelu) leaves them in fp8 with
their scales. A product that a pass follows leaves its scales to that pass (`Product`): cuBLAS is faster so.
Residuals are added by the norm after a product, which passes over those rows anyhow. Products of attention's
results stay bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from vla_accel_ros.engine.stages.precision import SmallLayer, SmallVision
from vla_accel_ros.engine.stages.prefill import Encode, Prefill
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.kernels.reference.quantized import Product, Rows
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.processing.pixels import PixelRule


class EncodeFp8(Encode):
    """small: of the model's image encoder, layer by layer; other arguments: see Encode."""

    def __init__(
        self, model: Pi, ops: Ops, images: int, rule: PixelRule, small: Sequence[SmallVision]
    ) -> None:
        super().__init__(model, ops, images, rule)
        self._small, sizes, rows = small, model.config.vision, self._x.shape[0]
        self._normed_rows = Rows.place(rows, sizes.width, self.device)
        self._fed_rows = Rows.place(rows, sizes.mlp, self.device)

    def _layer(self, index: int, left: Any) -> Any:
        ops, rows, small = self.ops, self._normed_rows, self._small[index]
        layer, (_, qkv_bias) = self._layers[index], self._qkv[index]
        first, second, attention, mlp = layer.layer_norm1, layer.layer_norm2, layer.self_attn, layer.mlp
        y, bias = left or (None, None)
        ops.layer_norm_rows(self._x, y, bias, first.weight, first.bias, rows)
        ops.multiply_rows(rows, small.qkv, self._qkv_out, cast(Tensor, qkv_bias))
        torch.mm(self._attended(), attention.out_proj.weight.t(), out=self._y)
        ops.layer_norm_rows(self._x, self._y, attention.out_proj.bias, second.weight, second.bias, rows)
        ops.multiply_unscaled(rows, small.fc1, self._fed)
        fed = Product(self._fed, rows.scale, small.fc1.scale)
        ops.gelu_rows(fed, mlp.fc1.bias, self._fed_rows)
        if index == len(self._small) - 1:
            ops.multiply_rows(self._fed_rows, small.fc2, self._y)
            return self._y, mlp.fc2.bias
        ops.multiply_unscaled(self._fed_rows, small.fc2, self._y)
        return Product(self._y, self._fed_rows.scale, small.fc2.scale), mlp.fc2.bias


class PrefillFp8(Prefill):
    """small: of the prefix stack, layer by layer; other arguments: see Prefill."""

    def __init__(self, *arguments: Any, small: Sequence[SmallLayer]) -> None:
        super().__init__(*arguments)
        self._small = small
        self._y = self._place_rows("y", self.prefix.attention_norm.shape[1]).flatten(0, 1)
        # What Prefill has for these rows in bfloat16 is not needed.
        self._normed_rows, self._fed_rows = Rows.within(self._normed), Rows.within(self._fed)

    def _layer(self, index: int, y: Product | None) -> Product | None:  # type: ignore[override]
        ops, rows, gate_up = self.ops, self._normed_rows, self._gate_up.flatten(0, 1)
        x, layer, small = self._x.flatten(0, 1), self.prefix.layers[index], self._small[index]
        ops.rms_norm_rows(x, y, self.prefix.attention_norm[index], rows)
        if index == len(self._small) - 1:
            ops.multiply_rows(rows, small.qkv.rows(-self._kv.shape[2]), self._kv.flatten(0, 1))
            return None
        ops.multiply_rows(rows, small.qkv, self._qkv.flatten(0, 1))
        self._attend(index)
        x.addmm_(self._attended.flatten(0, 1), layer.o.t())
        ops.rms_norm_rows(x, None, self.prefix.mlp_norm[index], rows)
        ops.multiply_unscaled(rows, small.gate_up, gate_up)
        ops.glu_rows(Product(gate_up, rows.scale, small.gate_up.scale), self._fed_rows)
        ops.multiply_unscaled(self._fed_rows, small.down, self._y)
        return Product(self._y, self._fed_rows.scale, small.down.scale)
