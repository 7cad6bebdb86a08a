"""A decoder stack in few matrices, and its packed forward of one shape as a captured stage.

Between two products there is one pass over the rows, and attention is one launch. With quantised weights,
products of few rows widen the weights as they read them; with int8 rows (precision w8a8) the passes before
the products write them. For tokens of text the stage includes the embedding before the first layer, and the
language head and argmax after the last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vla_accel_ros.engine.stages.int8 import Int8Layer, Places, smoothed
from vla_accel_ros.engine.stages.precision import SmallLayer
from vla_accel_ros.engine.stages.prefill.layered import Layered
from vla_accel_ros.kernels.ops import Ops, of_rows_in_8_bits
from vla_accel_ros.kernels.reference import packed_attention, quantized, rows
from vla_accel_ros.kernels.tuning import load_table
from vla_accel_ros.kernels.work import Work
from vla_accel_ros.models.config import GemmaConfig
from vla_accel_ros.models.layers.gemma import NORM_EPS, Gemma
from vla_accel_ros.models.layers.llama import Llama
from vla_accel_ros.models.layers.quantized import Quantized, Weight
from vla_accel_ros.models.pi.folded import FoldedLayer
from vla_accel_ros.models.pi.folding import fused


@dataclass(frozen=True)
class FusedStack:
    """A decoder stack in few matrices. factors float32 [2 * layers + 1, W]: of the norms, in order of use."""

    layers: tuple[FoldedLayer | SmallLayer | Int8Layer, ...]
    factors: Tensor
    eps: float
    activation: str
    sizes: GemmaConfig
    dtype: torch.dtype


def fuse_stack(stack: Gemma | Llama, sizes: GemmaConfig) -> FusedStack:
    """Fuse a stack's matrices in place; its norms must not be modulated."""
    own: list[Any] = list(stack.layers)
    layers = tuple(map(fused, own))
    norms = [norm for layer in own for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    weights = torch.stack([norm.weight for norm in (*norms, stack.norm)]).detach().float()
    if isinstance(stack, Llama):
        return FusedStack(layers, weights, stack.norm.eps, "silu", sizes, stack.dtype)
    return FusedStack(layers, 1.0 + weights, NORM_EPS, "gelu", sizes, stack.dtype)


class Kernels(NamedTuple):
    """The modules whose functions a forward launches: those of kernels.reference, and for rows in 8 bits
    those of kernels.ops.Ops."""

    attention: Any
    rows: Any
    quantized: Any = quantized
    int8: Any = Ops


def kernels_for(device: torch.device) -> Kernels:
    """Triton kernels on a GPU, the plain references elsewhere. Raises ImportError on a GPU without triton."""
    if device.type != "cuda":
        return Kernels(packed_attention, rows)
    from vla_accel_ros.kernels.triton import packed_attention as gpu_attention
    from vla_accel_ros.kernels.triton import rows as gpu_rows
    from vla_accel_ros.kernels.triton import small_weights

    rows_in_8_bits = SimpleNamespace(**of_rows_in_8_bits(load_table(device)))
    return Kernels(gpu_attention, gpu_rows, small_weights, rows_in_8_bits)


class Words(NamedTuple):
    """What precedes and follows a stack whose rows are tokens of text. embed: ids int64 [rows] -> [rows, W];
    logits: hidden [rows, W] -> logits of the next ids [rows, vocab]."""

    embed: Callable[[Tensor], Tensor]
    logits: Callable[[Tensor], Tensor]


class PackedStage(Layered):
    """A packed forward of one shape. x [rows, W]: the input; hidden [rows, W]: the output after the final
    norm.

    With words the input is ids int64 [rows], and likeliest int64 [rows] and scores [rows, vocab] are outputs,
    too.
    """

    def __init__(
        self,
        stack: FusedStack,
        tables: tuple[Tensor, Tensor],
        kernels: Kernels,
        work: Work,
        words: Words | None = None,
    ) -> None:
        device, sizes = stack.factors.device, stack.sizes
        super().__init__(device, [1.0] * len(stack.layers))
        self.stack, self.work, self._tables, self._kernels = stack, work, tables, kernels

        def place(width: int) -> Tensor:
            return torch.zeros(work.rows, width, device=device, dtype=stack.dtype)

        heads = sizes.heads + 2 * sizes.kv_heads
        self.x, self.hidden, self._residual = (place(sizes.width) for _ in range(3))
        self._qkv, self._attended = place(heads * sizes.head_dim), place(sizes.heads * sizes.head_dim)
        self._gate_up, self._fed = place(2 * sizes.mlp), place(sizes.mlp)
        self._words = words
        if words is not None:
            self.ids = torch.zeros(work.rows, device=device, dtype=torch.int64)
            self.likeliest = torch.zeros_like(self.ids)
            self.scores = torch.zeros_like(words.logits(self.hidden))

    def _enter(self) -> None:
        self._residual.copy_(self.x if self._words is None else self._words.embed(self.ids))

    def _layer(self, index: int, left: None) -> None:
        sizes, attention = self.stack.sizes, self._kernels.attention
        self._qkv_of(index)
        attention.rotary_write(self._qkv, *self._tables, self.work, index, sizes.heads)
        attention.attend(self._qkv, self.work, index, sizes.heads, sizes.head_dim, self._attended)
        self._o_of(index)
        self._mlp_of(index)

    def _leave(self, left: None) -> None:
        stack = self.stack
        self._kernels.rows.rms_norm(self._residual, stack.factors[-1], stack.eps, self.hidden)
        if self._words is not None:
            self.scores.copy_(self._words.logits(self.hidden))
            torch.argmax(self.scores, dim=-1, out=self.likeliest)

    def _qkv_of(self, index: int) -> None:
        """Queries, keys and values of the normalised residual."""
        stack, normed = self.stack, self.hidden
        self._kernels.rows.rms_norm(self._residual, stack.factors[2 * index], stack.eps, normed)
        self._multiply(normed, stack.layers[index].qkv, self._qkv)

    def _o_of(self, index: int) -> None:
        """Add the attention output to the residual."""
        self._multiply(self._attended, self.stack.layers[index].o, self._residual, add=True)

    def _mlp_of(self, index: int) -> None:
        """Add the layer's MLP output to the residual."""
        stack, rows, normed, layer = self.stack, self._kernels.rows, self.hidden, self.stack.layers[index]
        rows.rms_norm(self._residual, stack.factors[2 * index + 1], stack.eps, normed)
        self._multiply(normed, layer.gate_up, self._gate_up)
        rows.glu(self._gate_up, self._fed, stack.activation)
        self._multiply(self._fed, layer.down, self._residual, add=True)

    def _multiply(self, a: Tensor, weight: Weight, out: Tensor, add: bool = False) -> None:
        if isinstance(weight, Quantized):
            self._kernels.quantized.multiply(a, weight, out, add)
        elif add:
            out.addmm_(a, weight.t())
        else:
            torch.mm(a, weight.t(), out=out)


class PackedInt8(PackedStage):
    """PackedStage of a stack whose layers are Int8Layer."""

    def __init__(self, stack: FusedStack, *arguments: Any) -> None:
        super().__init__(stack, *arguments)
        self._normed, self._read, self._fed_rows = map(
            Places.beside, (self.hidden, self._attended, self._fed)
        )
        self._factors = [
            (smoothed(first, layer.qkv), smoothed(second, layer.gate_up))
            for layer, first, second in zip(stack.layers, stack.factors[:-1:2], stack.factors[1::2])
        ]

    def _qkv_of(self, index: int) -> None:
        ops, weight = self._kernels.int8, self.stack.layers[index].qkv
        rows = self._normed.of(weight)
        ops.rms_norm_int8(self._residual, self._factors[index][0], rows, self.stack.eps)
        ops.multiply_int8(rows, weight, self._qkv)

    def _o_of(self, index: int) -> None:
        ops, weight = self._kernels.int8, self.stack.layers[index].o
        ops.multiply_int8(self._read.rounded(ops, weight), weight, self._residual, None, "add")

    def _mlp_of(self, index: int) -> None:
        ops, layer = self._kernels.int8, self.stack.layers[index]
        rows = self._normed.of(layer.gate_up)
        ops.rms_norm_int8(self._residual, self._factors[index][1], rows, self.stack.eps)
        ops.gated_int8(rows, layer.gate_up, self._fed, self.stack.activation)
        fed = self._fed_rows.rounded(ops, layer.down)
        ops.multiply_int8(fed, layer.down, self._residual, None, "add")
