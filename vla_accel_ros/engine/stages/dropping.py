"""Frees the exact matrices of layers whose stages compute in fewer bits, one layer at a time.

The stages of some precisions hold a copy of a matrix in fewer bits and rarely need the exact one. Setting
`keep_exact` to false saves the memory of the exact one: a layer's matrices are quantised while a checkpoint
is loaded (`dropping`) or when the engine is made (`drop`), and the exact ones are freed. What needs them is
then refused with a message: staggered chunks, guidance by the exact Jacobian, engines of the same policy that
keep them, and questions if the prefix stack is in fp8 or nvfp4. With rows in 8 bits (w8a8, w8a8-int4)
answers, including their first token, are computed in 8 bits. What no stage has in fewer bits stays exact,
such as the prefix stack of pi0 in int4, and products in which a calibration found too large an error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vla_accel_ros.engine.stages.int8 import Int8, Int8Layer, Int8Vision
from vla_accel_ros.engine.stages.precision import IN_PREFIX, ROWS, W8A8_INT4, in_prefill_alone
from vla_accel_ros.models.checkpoints.streaming import LayerLoaded
from vla_accel_ros.models.layers import gemma, llama, vision
from vla_accel_ros.models.layers.few_bits import give, given
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.quantized import FP8, INT4, INT8, Quantized, quantized
from vla_accel_ros.models.pi.folding import fold_layer

EXPERT = ".gemma_expert."


def called(precision: str, calibration: str = "") -> str:
    """The name under which exact weights are freed, from the precision and the calibration file
    (few_bits.given_as)."""
    return f"{precision} by {calibration}" if calibration else precision


def dropping(
    precision: str,
    device: torch.device,
    prefill_only: bool | None = None,
    int8: Int8 | None = None,
    calibration: str = "",
) -> LayerLoaded:
    """Returns a function that replaces a layer's exact matrices by those of the precision, where the stages
    use them.

    prefill_only: whether fp8 is for prefill alone; None = the faster choice on the device. int8: makes the
    weights of a precision with rows in 8 bits; None = not calibrated. calibration: the file behind int8.
    """
    few = in_prefill_alone(precision, device, prefill_only)
    name = called(precision, calibration)
    if precision in ROWS:
        return _dropping_rows(precision, device, int8 or Int8.of(precision), name)

    def drop(path: str, layer: nn.Module) -> None:
        if given(layer):
            return
        if isinstance(layer, vision.Layer):
            if precision == FP8 and not few:
                _drop_vision(layer, precision, name)
        elif isinstance(layer, llama.Layer):
            if precision in (INT8, INT4):
                _drop(layer, precision, name)
        elif isinstance(layer, gemma.Layer):
            if EXPERT in path and not few:
                _drop(layer, precision, name, scaled=not layer.input_layernorm.modulated)
            elif EXPERT not in path and precision in IN_PREFIX:
                _drop(layer, precision, name, o=False)

    return drop


def _dropping_rows(precision: str, device: torch.device, int8: Int8, name: str) -> LayerLoaded:
    """`dropping` for stages with rows in 8 bits."""

    def drop(path: str, layer: nn.Module) -> None:
        if given(layer) or not isinstance(layer, vision.Layer | gemma.Layer | llama.Layer):
            return
        index = int(path.rpartition(".")[2])
        if isinstance(layer, vision.Layer):
            _keep(layer, int8.of_vision(index, layer), name)
        elif isinstance(layer, llama.Layer) or (isinstance(layer, gemma.Layer) and EXPERT not in path):
            _keep(layer, int8.of_prefix(index, fold_layer(layer, scaled=False), layer), name)  # type: ignore[arg-type]
        elif isinstance(layer, gemma.Layer):
            scaled = not layer.input_layernorm.modulated
            if precision == W8A8_INT4:
                _drop(layer, INT4, name, scaled=scaled)
            elif int8.in_denoise(device):
                _keep(layer, int8.of_expert(index, fold_layer(layer, scaled), layer), name)

    return drop


@torch.no_grad()
def drop(
    model: nn.Module,
    precision: str,
    device: torch.device,
    int8: Int8 | None = None,
    calibration: str = "",
) -> None:
    """Free the exact matrices of a loaded model; every other user of the model loses them, too. int8,
    calibration: see dropping."""
    free = dropping(precision, device, None, int8, calibration)
    for path, module in model.named_modules():
        free(path, module)


def few_bits_in_prefix(model: Any) -> bool:
    """Whether exact weights of the prefix stack were freed."""
    stack = getattr(model, "stack", None)
    return stack is not None and bool(given(stack.layers[0]))


def _drop(layer: Any, kind: str, name: str, o: bool = True, scaled: bool = False) -> None:
    folded = fold_layer(layer, scaled)
    names = ("qkv", "o", "gate_up", "down") if o else ("qkv", "gate_up", "down")
    _give(layer, {part: quantized(getattr(folded, part), kind) for part in names}, name)


def _keep(layer: Any, made: Int8Layer | Int8Vision, name: str) -> None:
    """Keep a layer's 8-bit matrices instead of the exact ones; matrices that its calibration leaves exact
    stay."""
    small = {part: weight for part, weight in vars(made).items() if isinstance(weight, Quantized)}
    if small:
        _give(layer, small, name)


def _drop_vision(layer: vision.Layer, kind: str, name: str) -> None:
    attention, mlp = layer.self_attn, layer.mlp
    qkv: Tensor = fuse([attention.q_proj, attention.k_proj, attention.v_proj])[0]
    matrices = {"qkv": qkv, "fc1": mlp.fc1.weight, "fc2": mlp.fc2.weight}
    _give(layer, {part: quantized(matrix, kind) for part, matrix in matrices.items()}, name)


def _give(layer: Any, small: dict[str, Quantized], name: str) -> None:
    """Give a layer these matrices instead of the exact ones of the same names."""
    attention, mlp = layer.self_attn, layer.mlp
    linears = {"qkv": [attention.q_proj, attention.k_proj, attention.v_proj]}
    if isinstance(layer, vision.Layer):
        linears |= {"o": [attention.out_proj], "fc1": [mlp.fc1], "fc2": [mlp.fc2]}
    else:
        linears |= {"o": [attention.o_proj], "gate_up": [mlp.gate_proj, mlp.up_proj], "down": [mlp.down_proj]}
    give(layer, small, [linear for part in small for linear in linears[part]], name)
