"""From pixels to image tokens: large products with one pass over the rows between them.

Encode begins with the cameras' own pixels, so nothing is computed for an image before its graph. Products are
those of kernels/cuda where the device's table says so, else cuBLAS, which is near its limit at these sizes.
The product itself adds the residual, or the norm after it.

fp8 has as many launches. The pass before a product (a norm, a gelu) writes its rows in fp8 with their scales.
If a pass follows a product, that pass applies the scales (`Product`), because cuBLAS is faster so. The norm
after a product adds the residual. Products of attention's output stay bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.engine.stages.memory.offload import LayerRing
from vla_accel_ros.engine.stages.memory.upload import ImageUpload
from vla_accel_ros.engine.stages.precision import SmallVision
from vla_accel_ros.engine.stages.prefill.layered import Layered, layer_cost
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.kernels.reference.quantized import Product, Rows
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.vision import Layer, joined
from vla_accel_ros.models.processing.pixels import PixelRule
from vla_accel_ros.models.smolvla.folding import Foldable

Left = tuple[Tensor | None, Tensor | None]
"""What a layer of the image encoder leaves for the next one to add, and its bias."""

VISION_COST = 1.5
"""Time of an operation of the image encoder relative to one of the prefix stack, because its products are
smaller; measured on an H200."""


def tower_of(model: Foldable, offload: float = 0.0, slots: int | None = None) -> LayerRing:
    """The image encoder's layers, a share of them streamed: query, key and value, output, fc1, fc2."""
    layers = [
        (_qkv(layer), (layer.self_attn.out_proj,), (layer.mlp.fc1,), (layer.mlp.fc2,))
        for layer in _layers(model)
    ]
    return LayerRing(layers, offload, model.embed_table.device, slots)


def _layers(model: Foldable) -> list[Layer]:
    return cast("list[Layer]", list(model.vision.encoder.layers))


def _qkv(layer: Layer) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    attention = layer.self_attn
    return attention.q_proj, attention.k_proj, attention.v_proj


class Encode(Layered):
    """Encodes `images` images in one forward, from the cameras' pixels, which a rule turns into patches.

    tower: gives the layers' matrices, see `tower_of`; all stages of a model share it; None = all resident.
    upload: takes the images; patches float32 [N, tokens, 3 * patch * patch]: in [-1, 1], channels first;
    tokens [N * image tokens, W]: the input of the prefix stack; those of a projector without bias, SmolVLA's,
    are multiplied by sqrt(W).
    """

    def __init__(
        self, model: Foldable, ops: Ops, images: int, rule: PixelRule, tower: LayerRing | None = None
    ) -> None:
        sizes = model.config.vision
        cost = VISION_COST * layer_cost(
            images * sizes.tokens, sizes.tokens, sizes.width, sizes.width, 3 * sizes.width, 2 * sizes.mlp
        )
        super().__init__(model.embed_table.device, [cost] * sizes.depth)
        self.ops = ops
        self._vision, self._projector, width = model.vision, model.projector, model.config.prefix.width
        self._layers, self._tower = _layers(model), tower_of(model) if tower is None else tower
        self._qkv_bias = [cast(Tensor, fuse(_qkv(layer))[1]) for layer in self._layers]
        self._matrices: Iterator[tuple[Tensor, ...]] = iter(())
        self._heads, self._images = sizes.heads, images
        dtype, rows = self._vision.post_layernorm.weight.dtype, images * sizes.tokens

        def place(width: int) -> Tensor:
            return torch.zeros(rows, width, device=self.device, dtype=dtype)

        self._patch, self.upload = sizes.patch, ImageUpload(rule, sizes.image_size, images, self.device)
        self.patches = torch.zeros(images, sizes.tokens, 3 * sizes.patch**2, device=self.device)
        self.tokens = self._vision.post_layernorm.weight.new_zeros(images * model.config.image_tokens, width)
        self._join = math.isqrt(sizes.tokens // model.config.image_tokens)
        self._x, self._y, self._normed = (place(sizes.width) for _ in range(3))
        self._qkv_out, self._fed = place(3 * sizes.width), place(sizes.mlp)

    def body(self) -> None:
        self._matrices = self._tower.between(*self.computed)
        super().body()

    def _layer(self, index: int, left: Left | None) -> Left:
        ops, layer, (qkv, o, fc1, fc2) = self.ops, self._layers[index], next(self._matrices)
        first, second, attention, mlp = layer.layer_norm1, layer.layer_norm2, layer.self_attn, layer.mlp
        y, bias = left or (None, None)
        ops.add_layer_norm(self._x, y, bias, first.weight, first.bias, self._normed)
        ops.bias_product(self._normed, qkv, self._qkv_bias[index], self._qkv_out)
        y, bias = ops.add_product(self._attended(), o, attention.out_proj.bias, self._x, self._y)
        ops.add_layer_norm(self._x, y, bias, second.weight, second.bias, self._normed)
        ops.gelu_product(self._normed, fc1, mlp.fc1.bias, self._fed)
        return ops.add_product(self._fed, fc2, mlp.fc2.bias, self._x, self._y)

    def _enter(self) -> None:
        """Compute the first layer's input x."""
        self.ops.patches(self.upload.views, self._patch, self.patches)
        embeddings, patch = self._vision.embeddings, self._vision.embeddings.patch_embedding
        embedded = F.linear(self.patches.to(patch.weight.dtype), patch.weight.flatten(1), patch.bias)
        x = self._x.view(embedded.shape)
        torch.add(embedded, embeddings.position_embedding.weight, out=x)

    def _leave(self, left: Left) -> None:
        """Compute the tokens, from x and what the last layer left to add."""
        last, (y, y_bias) = self._vision.post_layernorm, left
        self.ops.add_layer_norm(self._x, y, y_bias, last.weight, last.bias, self._normed)
        tokens, weight, bias = self.tokens, self._projector.weight, self._projector.bias
        if bias is not None:
            return self.ops.bias_product(self._normed, weight, bias, tokens)
        rows = joined(self._normed.unflatten(0, (self._images, -1)), self._join).flatten(0, 1)
        torch.addmm(tokens, rows, weight.t(), beta=0, alpha=math.sqrt(tokens.shape[1]), out=tokens)
        return None

    def _attended(self) -> Tensor:
        return self.ops.attend_views(self._qkv_out, self._heads, self._images)


class EncodeFp8(Encode):
    """Encode with fp8 products. small: the image encoder's layers; other arguments: see Encode."""

    def __init__(self, *arguments: Any, small: Sequence[SmallVision]) -> None:
        super().__init__(*arguments)
        self._small = small
        self._normed_rows, self._fed_rows = (
            Rows.place(len(exact), exact.shape[1], self.device) for exact in (self._normed, self._fed)
        )

    def _layer(self, index: int, left: Any) -> Any:
        ops, rows, small = self.ops, self._normed_rows, self._small[index]
        layer, qkv_bias = self._layers[index], self._qkv_bias[index]
        first, second, attention, mlp = layer.layer_norm1, layer.layer_norm2, layer.self_attn, layer.mlp
        y, bias = left or (None, None)
        ops.layer_norm_rows(self._x, y, bias, first.weight, first.bias, rows)
        ops.multiply_rows(rows, small.qkv, self._qkv_out, qkv_bias)
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
