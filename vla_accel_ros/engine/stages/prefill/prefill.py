"""From image tokens and a prompt to keys and values: large products with one pass over the rows between them.

Products use cuBLAS. The prompt is padded to a bucket; lengths on the device keep the padding from being read.
The last layer is read only through its keys and values, so nothing else of it is computed; its input for the
last token is kept, from which engine.stages.prefill.finish computes the hidden state if somebody asks for
text. engine.stages.prefill.encode explains the rows and scales of fp8 products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.memory.host_buffers import Inputs
from vla_accel_ros.engine.stages.precision import SmallLayer
from vla_accel_ros.engine.stages.prefill.encode import Encode
from vla_accel_ros.engine.stages.prefill.layered import Layered, layer_cost
from vla_accel_ros.engine.stages.stage import Memory
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.kernels.reference.linear import product_in_parts
from vla_accel_ros.kernels.reference.quantized import Product, Rows
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.pi.folded import Prefix
from vla_accel_ros.models.smolvla.folding import Foldable


class Prefill(Layered):
    """Prefill of `batch` frames, with all images that `encode` takes and prompts of up to `bucket` tokens.

    image_tokens [images, W]: the encoder's; prompt int64 [B, bucket]; slots int32 [B]: where keys and values
    go; lengths int32 [B]: image and prompt tokens without padding. carry [slots of the pool, W], written at
    slots: the input of the last layer for the last token. memory: buffers shared by prefills. crossed [slots
    of the pool, C, kv_heads, max_tokens, D] each: where `prefix.cross` makes keys and values; None = nothing
    reads them. beside: tokens besides images and prompt, 1 with a state. Raises ValueError if a prefix does
    not fit into a slot.
    """

    def __init__(
        self,
        model: Foldable,
        prefix: Prefix,
        pool: KVPool,
        tables: tuple[Tensor, Tensor],
        carry: Tensor,
        ops: Ops,
        memory: Memory,
        encode: Encode,
        bucket: int,
        batch: int = 1,
        crossed: KV | None = None,
    ) -> None:
        sizes, images = model.config.prefix, encode.tokens.shape[0] // batch
        self.beside = 0 if prefix.state_weight is None else 1
        tokens = images + bucket + self.beside
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
        state = torch.float32, (batch, model.config.state_dim)
        fields = {
            "prompt": (torch.int64, (batch, bucket)), "state": state, "slots": counts, "lengths": counts,
        }  # fmt: skip
        self._inputs = Inputs(self.device, fields)
        self.prompt, self.state, self.slots, self.lengths = self._inputs.fields.values()
        self.lengths.fill_(tokens)
        self._zeros = torch.zeros_like(self.slots)

        def place(name: str, width: int) -> Tensor:
            elements = batch * pool.max_tokens * width
            return memory.take(f"{name} {batch}", batch, tokens, width, most=elements)

        self._place_rows = place
        self._x, self._normed = place("x", sizes.width), place("normed", sizes.width)
        self._q = place("q", attended).unflatten(2, (sizes.heads, sizes.head_dim))
        self._qkv = place("qkv", attended + kv)
        self._kv = place("kv", kv)
        self._attended = place("attended", attended)
        self._gate_up, self._fed = place("gate and up", 2 * sizes.mlp), place("fed", sizes.mlp)
        self._images, self._scale = images, math.sqrt(sizes.width)
        parts, elements = (
            ops.parts(batch * tokens, prefix.layers[0].down),
            batch * pool.max_tokens * sizes.width,
        )
        self._made: Tensor | None = None
        if parts > 1:
            name = f"{parts} parts {batch}"
            self._made = memory.take(name, parts, batch, tokens, sizes.width, most=parts * elements)
        self._batch, self._crossed = torch.arange(batch, device=self.device), crossed
        self._seen: Tensor | None = None
        if self.beside:
            self._tokens = torch.arange(1, tokens + 1, dtype=torch.int32, device=self.device)
            self._seen = torch.zeros(batch, tokens, dtype=torch.int32, device=self.device)

    def set(self, prompts: Sequence[Tensor], slots: Sequence[int], states: Sequence[Tensor] = ()) -> None:
        """prompts int64 [t], each with t at most the bucket; slots: as many; states float32 [S], normalised,
        on the host: as many, for a prefix with a state. Does not block."""
        padded = np.zeros(self.prompt.shape, np.int64)
        on_device: list[tuple[int, Tensor]] = []
        for row, prompt in enumerate(prompts):
            if prompt.is_cuda:
                on_device.append((row, prompt))
            else:
                padded[row, : len(prompt)] = prompt.numpy()
        lengths = [self._images + len(prompt) + self.beside for prompt in prompts]
        state = {"state": torch.stack(list(states))} if self.beside else {}
        self._inputs.put(prompt=padded, slots=slots, lengths=lengths, **state)
        for row, prompt in on_device:
            self.prompt[row, : len(prompt)].copy_(prompt)

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
        ops.rms_norm(x, self.prefix.mlp_norm[index], normed, self.prefix.eps)
        torch.mm(normed, layer.gate_up.t(), out=self._gate_up.flatten(0, 1))
        ops.glu(self._gate_up, self._fed, self.prefix.activation)
        return self._down(layer.down)

    def _enter(self) -> None:
        """Compute the first layer's input x."""
        self._x[:, : self._images].copy_(self.image_tokens.view(self._x.shape[0], self._images, -1))
        words = self._x[:, self._images : self._images + self.prompt.shape[1]]
        torch.mul(self._table[self.prompt], self._scale, out=words)
        weight, bias = self.prefix.state_weight, self.prefix.state_bias
        if weight is not None and self._seen is not None:
            self._x[self._batch, self.lengths.long() - 1] = F.linear(self.state, weight, bias).to(words.dtype)
            last = self.lengths[:, None] - 1
            torch.add(last, (self._tokens > last).int(), out=self._seen)

    def _down(self, weight: Tensor) -> Tensor | None:
        """Add a layer's MLP output to x, or return the parts of a split-K product for the next norm to
        add."""
        x, fed = self._x.flatten(0, 1), self._fed.flatten(0, 1)
        if self._made is None:
            x.addmm_(fed, weight.t())
        else:
            product_in_parts(fed, weight, self._made.flatten(1, 2))
        return self._made

    def _norm(self, made: Tensor | None, weight: Tensor) -> None:
        """Norm the rows of x, after adding the parts if there are any."""
        if made is None:
            self.ops.rms_norm(self._x.flatten(0, 1), weight, self._normed.flatten(0, 1), self.prefix.eps)
        else:
            self.ops.add_norm(
                self._x, made, self._normed, self._zeros, None, weight[None], eps=self.prefix.eps
            )

    def _attend(self, index: int) -> None:
        """Write a layer's keys and values from qkv into the pool, and attend to all."""
        self._place(self._qkv, self._q, index)
        self.ops.attend(
            self._q, self.pool.k[:, index], self.pool.v[:, index], self.slots, self.lengths, self._attended,
            seen=self._seen,
        )  # fmt: skip

    def _leave(self, left: object) -> None:
        """Write the last layer's keys and values into the pool, and its input for the last token into
        carry."""
        self._place(self._kv, self._q[:, :, :0], len(self.prefix.layers) - 1)
        self.carry[self.slots.long()] = self._x[self._batch, self.lengths.long() - 1]
        cross, tokens, slots = self.prefix.cross, self._x.shape[1], self.slots.long()
        if cross is None or self._crossed is None:
            return
        for kv, weight, crossed in zip((self.pool.k, self.pool.v), cross[1:], self._crossed, strict=True):
            rows = kv[slots[:, None], cross.layers, :, :tokens].transpose(2, 3)
            product = rows.flatten(3) @ weight.mT
            crossed[:, :, :, :tokens][slots] = product.view(rows.shape).transpose(2, 3)

    def _place(self, y: Tensor, q: Tensor, index: int) -> None:
        k, v = self.pool.k[:, index], self.pool.v[:, index]
        self.ops.place_qkv(y, self.cos, self.sin, self._zeros, q, k, v, self.slots, self._zeros)


class SmallPrefill(Prefill):
    """Prefill with products in fp8 or nvfp4. small: the prefix stack's layers; other arguments: see
    Prefill."""

    def __init__(self, *arguments: Any, small: Sequence[SmallLayer]) -> None:
        super().__init__(*arguments)
        self._small, self._last = small, small[-1].qkv.rows(-self._kv.shape[2])
        self._y = self._place_rows("y", self.prefix.attention_norm.shape[1]).flatten(0, 1)
        # These rows reuse the bfloat16 buffers of Prefill, which are not needed here.
        self._normed_rows, self._fed_rows = (
            Rows.within(memory, small[0].qkv.kind) for memory in (self._normed, self._fed)
        )

    def _layer(self, index: int, y: Product | None) -> Product | None:  # type: ignore[override]
        ops, rows, gate_up = self.ops, self._normed_rows, self._gate_up.flatten(0, 1)
        x, layer, small = self._x.flatten(0, 1), self.prefix.layers[index], self._small[index]
        ops.rms_norm_rows(x, y, self.prefix.attention_norm[index], rows)
        if index == len(self._small) - 1:
            ops.multiply_rows(rows, self._last, self._kv.flatten(0, 1))
            return None
        ops.multiply_rows(rows, small.qkv, self._qkv.flatten(0, 1))
        self._attend(index)
        x.addmm_(self._attended.flatten(0, 1), layer.o.t())
        ops.rms_norm_rows(x, None, self.prefix.mlp_norm[index], rows)
        ops.multiply_unscaled(rows, small.gate_up, gate_up)
        ops.glu_rows(Product(gate_up, rows.scale, small.gate_up.scale), self._fed_rows)
        ops.multiply_unscaled(self._fed_rows, small.down, self._y)
        return Product(self._y, self._fed_rows.scale, small.down.scale)
