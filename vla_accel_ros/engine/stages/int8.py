"""Weights of stages that multiply int8 rows by int8 weights (precision w8a8), and buffers for such rows.

Copies are made from the folded weights layer by layer, when a stage first needs them, or when a layer is
loaded if its exact weights are freed (engine.stages.dropping). Prefill and text share the copies of the
prefix stack. A product in which its calibration found too large an error keeps its exact matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from vla_accel_ros.engine.stages.precision import W8A8_INT4, feeds_fast
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.kernels.reference.int8 import Activations, place_rows
from vla_accel_ros.kernels.reference.quantized import Rows
from vla_accel_ros.models.calibration import Calibration, int8_weight
from vla_accel_ros.models.layers.few_bits import given
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.gemma import Gemma
from vla_accel_ros.models.layers.llama import Llama
from vla_accel_ros.models.layers.quantized import Quantized, Weight
from vla_accel_ros.models.pi.folded import FoldedLayer
from vla_accel_ros.models.smolvla.folding import Foldable
from vla_accel_ros.models.smolvla.stack import Stack

L = TypeVar("L")


@dataclass(frozen=True)
class Int8Layer:
    """The matrices of a decoder layer, as in models.pi.folded.FoldedLayer."""

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
    """Makes and holds the copies for the stages of one model.

    calibration: None = columns are not smoothed, all products are in 8 bits. denoise: whether denoising uses
    int8 rows; None = only on devices without fast memory (engine.stages.precision). With fast memory launches
    are the bottleneck, and 8 bits need nine a layer instead of five.
    """

    def __init__(self, calibration: Calibration | None = None, denoise: bool | None = None) -> None:
        self.calibration, self._denoise = calibration, denoise
        self._made: dict[str, tuple[Any, ...]] = {}

    @classmethod
    def of(cls, precision: str, calibration: Calibration | None = None) -> Int8:
        """The copies for a precision of engine.stages.precision.ROWS."""
        return cls(calibration, False if precision == W8A8_INT4 else None)

    def vision(self, model: Foldable) -> tuple[Int8Vision, ...]:
        """The layers of the image encoder."""
        tower = model.vision
        return self._once("vision", list(tower.encoder.layers), self.of_vision)

    def of_vision(self, index: int, layer: Any) -> Int8Vision:
        """One layer of the image encoder."""
        attention = layer.self_attn
        exact = {
            "qkv": fuse((attention.q_proj, attention.k_proj, attention.v_proj))[0],
            "o": attention.out_proj.weight.detach(),
            "fc1": layer.mlp.fc1.weight.detach(),
            "fc2": layer.mlp.fc2.weight.detach(),
        }
        return Int8Vision(**self._weights(f"vision.{index}", exact, given(layer)))

    def prefix(self, layers: Sequence[FoldedLayer], stack: Gemma | Llama | Stack) -> tuple[Int8Layer, ...]:
        """The layers of the prefix stack, from its folded layers."""
        modules: list[Any] = list(stack.layers)
        return self._once("prefix", layers, lambda index, layer: self.of_prefix(index, layer, modules[index]))

    def of_prefix(self, index: int, layer: FoldedLayer, own: nn.Module) -> Int8Layer:
        """One layer of the prefix stack. own: the model's layer."""
        return Int8Layer(**self._weights(f"prefix.{index}", vars(layer), given(own)))

    def in_denoise(self, device: torch.device) -> bool:
        """Whether denoising on the device uses rows in 8 bits."""
        return not feeds_fast(device) if self._denoise is None else self._denoise

    def expert(self, model: Any, layers: Sequence[FoldedLayer]) -> tuple[Int8Layer, ...]:
        """The layers of the action expert, from its folded layers; pi0's contain the factors of the norms."""
        modules: list[Any] = list(model.expert.layers)
        return self._once("expert", layers, lambda index, layer: self.of_expert(index, layer, modules[index]))

    def of_expert(self, index: int, layer: FoldedLayer, own: Any) -> Int8Layer:
        """One layer of the action expert. own: the model's layer."""
        norms = {"qkv": own.input_layernorm, "gate_up": own.post_attention_layernorm}
        scaled = {} if own.input_layernorm.modulated else norms
        factors = {name: 1.0 + norm.weight.float() for name, norm in scaled.items()}
        return Int8Layer(**self._weights(f"expert.{index}", vars(layer), given(own), factors))

    @property
    def nbytes(self) -> int:
        """Bytes of the copies made so far."""
        weights = [weight for layers in self._made.values() for layer in layers for weight in _all(layer)]
        return sum(weight.nbytes for weight in weights if isinstance(weight, Quantized))

    @property
    def said(self) -> str:
        """One phrase on how the weights are made, for a log."""
        if self.calibration is None:
            return (
                "activations are rounded by rows, columns are not smoothed: a file of `vla calibrate` makes "
                "actions more exact"
            )
        exact, observations = self.calibration.exact(), self.calibration.observations
        smoothing = f"columns are smoothed as calibrated on {observations} observations"
        if not exact:
            return f"{smoothing}, all products are in 8 bits"
        total, error = len(self.calibration.errors), self.calibration.most_error
        return (
            f"{smoothing}; {len(exact)} of {total} products, above {error:g} of error, stay exact: "
            + ", ".join(exact)
        )

    def _weights(
        self,
        name: str,
        exact: Mapping[str, Tensor],
        made: Mapping[str, Quantized],
        scaled: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Weight]:
        """A layer's matrices by name: those of `made`, or new copies. scaled: see Calibration.factors."""
        factors = scaled or {}
        return {
            part: made[part]
            if part in made
            else int8_weight(f"{name}.{part}", weight, self.calibration, factors.get(part))
            for part, weight in exact.items()
        }

    def _once(self, name: str, layers: Sequence[Any], make: Callable[[int, Any], L]) -> tuple[L, ...]:
        if name not in self._made:
            self._made[name] = tuple(make(index, layer) for index, layer in enumerate(layers))
        return self._made[name]


def _all(layer: Int8Layer | Int8Vision) -> list[Weight]:
    return list(vars(layer).values())


class Places(NamedTuple):
    """Buffers for the input rows of a product: exact ones, and ones of int8 if the weight is in 8 bits."""

    exact: Tensor
    int8: Rows

    @classmethod
    def beside(cls, exact: Tensor) -> Places:
        """Buffers for as many rows in 8 bits as a tensor [..., K] has, beside that tensor's memory."""
        width = exact.shape[-1]
        return cls(exact.view(-1, width), place_rows(exact.numel() // width, width, exact.device))

    def of(self, weight: Weight) -> Activations:
        """The buffer in which a norm leaves the rows for a product with this weight."""
        return self.int8 if isinstance(weight, Quantized) else self.exact

    def rounded(self, ops: Ops, weight: Weight, exact: Tensor | None = None) -> Activations:
        """The exact rows, these or others of the same shape, in the form that a product with this weight
        takes."""
        rows = self.exact if exact is None else exact
        if isinstance(weight, Quantized):
            ops.quantize(rows, weight.by, self.int8)
            return self.int8
        return rows


def smoothed(factor: Tensor, weight: Weight) -> Tensor:
    """float32 [K]: a norm's factor or shift, multiplied by the smoothing factors of the next product."""
    by = weight.by if isinstance(weight, Quantized) else None
    return factor.detach().float() if by is None else factor.detach().float() * by


def columns(weight: Weight, start: int) -> Weight:
    """The weight's rows from `start` on, which give the product's columns from there."""
    return weight.rows(start) if isinstance(weight, Quantized) else weight[start:]


def by_of(weight: Weight) -> Tensor | None:
    """The factors by which columns of activations are multiplied before rounding; None without smoothing."""
    return weight.by if isinstance(weight, Quantized) else None
