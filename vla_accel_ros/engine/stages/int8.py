"""Weights of stages that multiply int8 rows by int8 weights (precision w8a8), and where such rows lie; or fp8
rows by fp8 weights (w8a8-fp8), in the same launches.

Copies are made from the folded weights layer by layer, when a stage first asks for them, or as soon as a
layer is loaded if the exact ones are given up (engine.stages.dropping); prefill and text share those of the
prefix stack. A product that its calibration found to lose too much keeps its exact matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from vla_accel_ros.engine.stages.precision import ROWS, ROWS_EVERYWHERE, feeds_fast
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.kernels.reference.int8 import Activations, place_rows
from vla_accel_ros.kernels.reference.quantized import Rows
from vla_accel_ros.models.calibration import Calibration, int8_weight
from vla_accel_ros.models.layers.few_bits import given
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.gemma import Gemma
from vla_accel_ros.models.layers.llama import Llama
from vla_accel_ros.models.layers.quantized import W8A8, Quantized, Weight
from vla_accel_ros.models.pi.folded import FoldedLayer
from vla_accel_ros.models.pi.model import Pi

L = TypeVar("L")


@dataclass(frozen=True)
class Int8Layer:
    """As models.pi.folded.FoldedLayer."""

    qkv: Weight
    o: Weight
    gate_up: Weight
    down: Weight


@dataclass(frozen=True)
class Int8Vision:
    """The matrices of a layer of the image encoder."""

    qkv: Weight
    o: Weight
    fc1: Weight
    fc2: Weight


class Int8:
    """Copies for the stages of one model.

    calibration: None = columns are not smoothed, all products are in 8 bits. denoise: whether denoising has
    int8 rows; None = unless the device has fast memory (engine.stages.precision), where launches bound it, of
    which it would need nine a layer instead of five. kind: of rows and weights, W8A8 = int8, or FP8.
    """

    def __init__(
        self, calibration: Calibration | None = None, denoise: bool | None = None, kind: str = W8A8
    ) -> None:
        self.calibration, self._denoise, self.kind = calibration, denoise, kind
        self._made: dict[str, tuple[Any, ...]] = {}

    @classmethod
    def of(cls, precision: str, calibration: Calibration | None = None, denoise: bool | None = None) -> Int8:
        """Of a precision of engine.stages.precision.ROWS. denoise: where that has such rows in denoising."""
        return cls(calibration, denoise if precision in ROWS_EVERYWHERE else False, ROWS[precision])

    def vision(self, model: Pi) -> tuple[Int8Vision, ...]:
        """Of the image encoder."""
        tower = model.paligemma_with_expert.paligemma.model.vision_tower.vision_model
        return self._once("vision", list(tower.encoder.layers), self.of_vision)

    def of_vision(self, index: int, layer: Any) -> Int8Vision:
        """Of a layer of the image encoder."""
        attention = layer.self_attn
        exact = {
            "qkv": fuse((attention.q_proj, attention.k_proj, attention.v_proj))[0],
            "o": attention.out_proj.weight.detach(),
            "fc1": layer.mlp.fc1.weight.detach(),
            "fc2": layer.mlp.fc2.weight.detach(),
        }
        return Int8Vision(**self._weights(f"vision.{index}", exact, given(layer)))

    def prefix(self, layers: Sequence[FoldedLayer], stack: Gemma | Llama) -> tuple[Int8Layer, ...]:
        """Of the prefix stack, whose folded layers these are."""
        own: list[Any] = list(stack.layers)
        return self._once("prefix", layers, lambda index, layer: self.of_prefix(index, layer, own[index]))

    def of_prefix(self, index: int, layer: FoldedLayer, own: nn.Module) -> Int8Layer:
        """Of a layer of the prefix stack. own: of the model."""
        return Int8Layer(**self._weights(f"prefix.{index}", vars(layer), given(own)))

    def in_denoise(self, device: torch.device) -> bool:
        """Whether denoising has rows in 8 bits there."""
        return not feeds_fast(device) if self._denoise is None else self._denoise

    def expert(self, model: Pi, layers: Sequence[FoldedLayer]) -> tuple[Int8Layer, ...]:
        """Of the action expert, whose folded layers these are: pi0's have the factors of its norms."""
        own: list[Any] = list(model.expert.layers)
        return self._once("expert", layers, lambda index, layer: self.of_expert(index, layer, own[index]))

    def of_expert(self, index: int, layer: FoldedLayer, own: Any) -> Int8Layer:
        """Of a layer of the action expert. own: of the model."""
        norms = {"qkv": own.input_layernorm, "gate_up": own.post_attention_layernorm}
        scaled = {} if own.input_layernorm.modulated else norms
        factors = {name: 1.0 + norm.weight.float() for name, norm in scaled.items()}
        return Int8Layer(**self._weights(f"expert.{index}", vars(layer), given(own), factors))

    @property
    def nbytes(self) -> int:
        """Memory of the copies that were made."""
        weights = [weight for layers in self._made.values() for layer in layers for weight in _all(layer)]
        return sum(weight.nbytes for weight in weights if isinstance(weight, Quantized))

    @property
    def said(self) -> str:
        """What it is made by, for a log."""
        if self.calibration is None:
            return (
                "activations are rounded by rows, columns are not smoothed: a file of `vla calibrate` makes "
                "actions more exact"
            )
        exact, seen = self.calibration.exact(self.kind), self.calibration.observations
        said = f"columns are smoothed as calibrated on {seen} observations"
        if not exact:
            return f"{said}, all products are in 8 bits"
        total, error = len(self.calibration.errors), self.calibration.most_error
        return (
            f"{said}; {len(exact)} of {total} products, above {error:g} of error, stay exact: "
            + ", ".join(exact)
        )

    def _weights(
        self,
        name: str,
        exact: Mapping[str, Tensor],
        made: Mapping[str, Quantized],
        scaled: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Weight]:
        """Of a layer's matrices, by their names: what is made already, or a copy. scaled: see
        Calibration.factors."""
        factors = scaled or {}
        return {
            one: made[one]
            if one in made
            else int8_weight(f"{name}.{one}", weight, self.calibration, factors.get(one), self.kind)
            for one, weight in exact.items()
        }

    def _once(self, name: str, layers: Sequence[Any], make: Callable[[int, Any], L]) -> tuple[L, ...]:
        if name not in self._made:
            self._made[name] = tuple(make(index, layer) for index, layer in enumerate(layers))
        return self._made[name]


def _all(layer: Int8Layer | Int8Vision) -> list[Weight]:
    return list(vars(layer).values())


class Places(NamedTuple):
    """Where the rows before a product lie: exact ones, and others of the weight's dtype if that is in 8
    bits."""

    exact: Tensor
    int8: Rows

    @classmethod
    def beside(cls, exact: Tensor) -> Places:
        """Memory for as many rows in 8 bits as a tensor [..., K] has, whose memory is not used."""
        width = exact.shape[-1]
        return cls(exact.view(-1, width), place_rows(exact.numel() // width, width, exact.device))

    def of(self, weight: Weight) -> Activations:
        """What a norm before a product with this weight leaves rows in."""
        return self._in(weight) if isinstance(weight, Quantized) else self.exact

    def _in(self, weight: Quantized) -> Rows:
        return Rows(self.int8.values.view(weight.dtype), self.int8.scale)

    def rounded(self, ops: Ops, weight: Weight, exact: Tensor | None = None) -> Activations:
        """The exact rows, these or others of their shape, as a product with this weight takes them."""
        rows = self.exact if exact is None else exact
        if isinstance(weight, Quantized):
            ops.quantize(rows, weight.by, made := self._in(weight))
            return made
        return rows


def smoothed(factor: Tensor, weight: Weight) -> Tensor:
    """float32 [K]: a norm's factor or shift, with what smooths the activations of a product with it."""
    by = weight.by if isinstance(weight, Quantized) else None
    return factor.detach().float() if by is None else factor.detach().float() * by


def columns(weight: Weight, start: int) -> Weight:
    """Rows of a weight from `start` on: fewer columns of its product."""
    return weight.rows(start) if isinstance(weight, Quantized) else weight[start:]


def by_of(weight: Weight) -> Tensor | None:
    """What columns of activations are multiplied by before they are rounded."""
    return weight.by if isinstance(weight, Quantized) else None
