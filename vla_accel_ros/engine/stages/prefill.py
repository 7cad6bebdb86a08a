"""From pixels to keys and values: two stages of large products with one pass over the rows between them.

Encode begins with the cameras' own pixels, so that nothing is computed for an image before its graph. Its
products are those of kernels/cuda where the device's table says so; else, and in prefill, they are cuBLAS,
which is near its limit at these sizes. Residuals are added by the product itself, or by the norm after it.
The prompt is padded to a bucket; lengths on the device keep what is beyond them from being read. Nobody reads
the last layer but through its keys and values, so nothing else of it is computed; its input for the last
token is kept, and `engine.stages.finish` makes the hidden state of it when somebody asks for text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.host_buffers import Inputs
from vla_accel_ros.engine.stages.layered import Layered, layer_cost
from vla_accel_ros.engine.stages.stage import Memory
from vla_accel_ros.engine.stages.upload import ImageUpload
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.kernels.reference.linear import product_in_parts
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.vision import Layer
from vla_accel_ros.models.pi.folded import Prefix
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.processing.pixels import PixelRule

Left = tuple[Tensor | None, Tensor | None]
"""What a layer of the image encoder leaves for the next to add, and its bias."""

VISION_COST = 1.5
"""Times as long as one of the prefix stack an operation of the image encoder takes, in its smaller products;
as measured on an H200."""


class Encode(Layered):
    """`images` images of one forward, as they come from the cameras, made patches of by a rule.

    upload: where they are put; patches float32 [N, tokens, 3 * patch * patch]: in [-1, 1], channels first;
    tokens [N * tokens, W]: what the prefix stack gets.
    """

    def __init__(self, model: Pi, ops: Ops, images: int, rule: PixelRule) -> None:
        sizes = model.config.vision
        cost = VISION_COST * layer_cost(
            images * sizes.tokens, sizes.tokens, sizes.width, sizes.width, 3 * sizes.width, 2 * sizes.mlp
        )
        super().__init__(model.embed_table.device, [cost] * sizes.depth)
        self.ops = ops
        paligemma = model.paligemma_with_expert.paligemma.model
        self._vision, self._projector = (
            paligemma.vision_tower.vision_model,
            paligemma.multi_modal_projector.linear,
        )
        self._layers = cast("list[Layer]", list(self._vision.encoder.layers))
        self._qkv = [
            fuse((a.q_proj, a.k_proj, a.v_proj)) for a in (layer.self_attn for layer in self._layers)
        ]
        self._heads, self._images = sizes.heads, images
        dtype, rows = self._vision.post_layernorm.weight.dtype, images * sizes.tokens

        def place(width: int) -> Tensor:
            return torch.zeros(rows, width, device=self.device, dtype=dtype)

        self._patch, self.upload = sizes.patch, ImageUpload(rule, sizes.image_size, images, self.device)
        self.patches = torch.zeros(images, sizes.tokens, 3 * sizes.patch**2, device=self.device)
        self.tokens = place(model.config.prefix.width)
        self._x, self._y, self._normed = (place(sizes.width) for _ in range(3))
        self._qkv_out, self._fed = place(3 * sizes.width), place(sizes.mlp)

    def _layer(self, index: int, left: Left | None) -> Left:
        ops, layer, (weight, qkv_bias) = self.ops, self._layers[index], self._qkv[index]
        first, second, attention, mlp = layer.layer_norm1, layer.layer_norm2, layer.self_attn, layer.mlp
        y, bias = left or (None, None)
        ops.add_layer_norm(self._x, y, bias, first.weight, first.bias, self._normed)
        ops.bias_product(self._normed, weight, cast(Tensor, qkv_bias), self._qkv_out)
        attended, o = self._attended(), attention.out_proj
        y, bias = ops.add_product(attended, o.weight, o.bias, self._x, self._y)
        ops.add_layer_norm(self._x, y, bias, second.weight, second.bias, self._normed)
        ops.gelu_product(self._normed, mlp.fc1.weight, mlp.fc1.bias, self._fed)
        return ops.add_product(self._fed, mlp.fc2.weight, mlp.fc2.bias, self._x, self._y)

    def _enter(self) -> None:
        """The first layer's input x."""
        self.ops.patches(self.upload.views, self._patch, self.patches)
        embeddings, patch = self._vision.embeddings, self._vision.embeddings.patch_embedding
        embedded = F.linear(self.patches, patch.weight.flatten(1), patch.bias)
        x = self._x.view(embedded.shape)
        torch.add(embedded, embeddings.position_embedding.weight, out=x)

    def _leave(self, left: Left) -> None:
        """The tokens, of x and what the last layer adds to it."""
        last, (y, bias) = self._vision.post_layernorm, left
        self.ops.add_layer_norm(self._x, y, bias, last.weight, last.bias, self._normed)
        self.ops.bias_product(self._normed, self._projector.weight, self._projector.bias, self.tokens)

    def _attended(self) -> Tensor:
        return self.ops.attend_views(self._qkv_out, self._heads, self._images)


class Prefill(Layered):
    """`batch` frames, of all images that `encode` takes together, and prompts of up to `bucket` tokens.

    image_tokens [images, W]: the encoder's; prompt int64 [B, bucket]; slots int32 [B]: where keys and values
    go; lengths int32 [B]: image and prompt tokens without padding. carry [slots of the pool, W], written at
    slots: the input of the last layer for the last token. memory: what prefills share.
    """

    def __init__(
        self,
        model: Pi,
        prefix: Prefix,
        pool: KVPool,
        tables: tuple[Tensor, Tensor],
        carry: Tensor,
        ops: Ops,
        memory: Memory,
        encode: Encode,
        bucket: int,
        batch: int = 1,
    ) -> None:
        sizes, images = model.config.prefix, encode.tokens.shape[0] // batch
        tokens = images + bucket
        attended, kv = sizes.heads * sizes.head_dim, 2 * sizes.kv_heads * sizes.head_dim
        cost = layer_cost(batch * tokens, tokens, sizes.width, attended, attended + kv, 3 * sizes.mlp)
        last = 2.0 * batch * tokens * sizes.width * kv
        super().__init__(pool.k.device, [*[cost] * (len(prefix.layers) - 1), last])
        self.prefix, self.pool, self.carry, self.ops = prefix, pool, carry, ops
        self.cos, self.sin = tables
        self.image_tokens, self._table = encode.tokens, model.embed_table
        if tokens > pool.max_tokens:
            raise ValueError(f"a prefix of {tokens} tokens does not fit into slots of {pool.max_tokens}.")
        counts = torch.int32, (batch,)
        fields = {"prompt": (torch.int64, (batch, bucket)), "slots": counts, "lengths": counts}
        self._inputs = Inputs(self.device, fields)
        self.prompt, self.slots, self.lengths = self._inputs.fields.values()
        self.lengths.fill_(tokens)
        self._zeros = torch.zeros_like(self.slots)

        def place(name: str, width: int) -> Tensor:
            most = batch * pool.max_tokens * width
            return memory.take(f"{name} {batch}", batch, tokens, width, most=most)

        self._place_rows = place
        self._x, self._normed = place("x", sizes.width), place("normed", sizes.width)
        self._q = place("q", attended).unflatten(2, (sizes.heads, sizes.head_dim))
        self._qkv = place("qkv", attended + kv)
        self._kv = place("kv", kv)
        self._attended = place("attended", attended)
        self._gate_up, self._fed = place("gate and up", 2 * sizes.mlp), place("fed", sizes.mlp)
        self._images, self._scale = images, math.sqrt(sizes.width)
        parts, most = ops.parts(batch * tokens, prefix.layers[0].down), batch * pool.max_tokens * sizes.width
        self._made: Tensor | None = None
        if parts > 1:
            name = f"{parts} parts {batch}"
            self._made = memory.take(name, parts, batch, tokens, sizes.width, most=parts * most)
        self._batch = torch.arange(batch, device=self.device)

    def set(self, prompts: Sequence[Tensor], slots: Sequence[int]) -> None:
        """prompts int64 [t], each with t at most the bucket; slots: as many. Nothing is waited for."""
        padded = torch.zeros(self.prompt.shape, dtype=torch.int64)
        for row, prompt in zip(padded, prompts, strict=True):
            if not prompt.is_cuda:
                row[: len(prompt)] = prompt
        lengths = [self._images + len(prompt) for prompt in prompts]
        self._inputs.put(prompt=padded, slots=slots, lengths=lengths)
        for row, prompt in zip(self.prompt, prompts, strict=True):
            if prompt.is_cuda:
                row[: len(prompt)].copy_(prompt)

    def _layer(self, index: int, made: Tensor | None) -> Tensor | None:
        ops, layer = self.ops, self.prefix.layers[index]
        x, normed = self._x.flatten(0, 1), self._normed.flatten(0, 1)
        self._norm(made, self.prefix.attention_norm[index])
        if index == len(self.prefix.layers) - 1:
            rows = layer.qkv[-self._kv.shape[2] :]
            torch.mm(normed, rows.t(), out=self._kv.flatten(0, 1))
            return None
        torch.mm(normed, layer.qkv.t(), out=self._qkv.flatten(0, 1))
        self._attend(index)
        x.addmm_(self._attended.flatten(0, 1), layer.o.t())
        ops.rms_norm(x, self.prefix.mlp_norm[index], normed)
        torch.mm(normed, layer.gate_up.t(), out=self._gate_up.flatten(0, 1))
        ops.glu(self._gate_up, self._fed)
        return self._down(layer.down)

    def _enter(self) -> None:
        """The first layer's input x."""
        self._x[:, : self._images].copy_(self.image_tokens.view(self._x.shape[0], self._images, -1))
        torch.mul(self._table[self.prompt], self._scale, out=self._x[:, self._images :])

    def _down(self, weight: Tensor) -> Tensor | None:
        """Add what a layer fed forward to x, or return it in parts for the next norm to add."""
        x, fed = self._x.flatten(0, 1), self._fed.flatten(0, 1)
        if self._made is None:
            x.addmm_(fed, weight.t())
        else:
            product_in_parts(fed, weight, self._made.flatten(1, 2))
        return self._made

    def _norm(self, made: Tensor | None, weight: Tensor) -> None:
        """Normed rows of x, to which parts are added before."""
        if made is None:
            self.ops.rms_norm(self._x.flatten(0, 1), weight, self._normed.flatten(0, 1))
        else:
            self.ops.add_norm(self._x, made, self._normed, self._zeros, None, weight[None])

    def _attend(self, index: int) -> None:
        """A layer's keys and values of qkv into the pool, and what its queries read of all."""
        self._place(self._qkv, self._q, index)
        self.ops.attend(
            self._q, self.pool.k[:, index], self.pool.v[:, index], self.slots, self.lengths, self._attended
        )

    def _leave(self, left: object) -> None:
        """The last layer's keys and values into the pool, and its input for the last token."""
        self._place(self._kv, self._q[:, :, :0], len(self.prefix.layers) - 1)
        self.carry[self.slots.long()] = self._x[self._batch, self.lengths.long() - 1]

    def _place(self, y: Tensor, q: Tensor, index: int) -> None:
        k, v = self.pool.k[:, index], self.pool.v[:, index]
        self.ops.place_qkv(y, self.cos, self.sin, self._zeros, q, k, v, self.slots, self._zeros)
