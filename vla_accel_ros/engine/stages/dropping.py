"""Matrices that are on the device in fewer bits alone: the exact ones are given up, a layer at a time.

The stages of some precisions have a copy of a matrix in fewer bits and need the exact one rarely. Whoever has
no room for both sets `keep_exact` to false: a layer's matrices are quantised as soon as they are there, while
a checkpoint is loaded (`dropping`) or when the engine is made (`drop`), and the exact are gone from then on.
What needs them is refused in a sentence: staggered chunks, guidance by the exact Jacobian, engines of the
same policy that keep them, and questions where the prefix stack has none. What no stage has in fewer bits
stays exact, such as the prefix stack of pi0 in int4.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vla_accel_ros.engine.stages.precision import feeds_fast
from vla_accel_ros.models.checkpoints.streaming import LayerLoaded
from vla_accel_ros.models.layers import gemma, llama, vision
from vla_accel_ros.models.layers.few_bits import give, given
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.quantized import FP8, INT4, INT8, quantized
from vla_accel_ros.models.pi.folding import fold_layer

EXPERT = ".gemma_expert."
IN_PREFIX = (FP8,)
"""Precisions in which prefill has the prefix stack (engine.stages.precision.Small.prefix)."""


def dropping(precision: str, device: torch.device, prefill_only: bool | None = None) -> LayerLoaded:
    """What gives a layer its matrices in that precision alone, where the stages have them in it.

    prefill_only: whether fp8 is for prefill alone; None = as it is faster on the device.
    """
    few = (feeds_fast(device) if prefill_only is None else prefill_only) and precision == FP8

    def drop(path: str, layer: nn.Module) -> None:
        if given(layer):
            return
        if isinstance(layer, vision.Layer):
            if precision == FP8 and not few:
                _drop_vision(layer, precision)
        elif isinstance(layer, llama.Layer):
            if precision in (INT8, INT4):
                _drop(layer, precision)
        elif isinstance(layer, gemma.Layer):
            if EXPERT in path and not few:
                _drop(layer, precision, scaled=not layer.input_layernorm.modulated)
            elif EXPERT not in path and precision in IN_PREFIX:
                _drop(layer, precision, o=False)

    return drop


@torch.no_grad()
def drop(model: nn.Module, precision: str, device: torch.device) -> None:
    """Give up what a model that is loaded still has of exact matrices. Whoever else has the model has them
    no longer, either."""
    one = dropping(precision, device)
    for path, module in model.named_modules():
        one(path, module)


def few_bits_in_prefix(model: Any) -> bool:
    """Whether the stack that prefixes are computed by has given up exact weights."""
    stack = getattr(model, "stack", None)
    return stack is not None and bool(given(stack.layers[0]))


def _drop(layer: Any, kind: str, o: bool = True, scaled: bool = False) -> None:
    attention, mlp = layer.self_attn, layer.mlp
    folded = fold_layer(layer, scaled)
    names = ("qkv", "o", "gate_up", "down") if o else ("qkv", "gate_up", "down")
    linears = [
        attention.q_proj,
        attention.k_proj,
        attention.v_proj,
        mlp.gate_proj,
        mlp.up_proj,
        mlp.down_proj,
    ]
    if o:
        linears.append(attention.o_proj)
    give(layer, {name: quantized(getattr(folded, name), kind) for name in names}, linears)


def _drop_vision(layer: vision.Layer, kind: str) -> None:
    attention, mlp = layer.self_attn, layer.mlp
    linears = [attention.q_proj, attention.k_proj, attention.v_proj]
    matrices: dict[str, Tensor] = {"qkv": fuse(linears)[0], "fc1": mlp.fc1.weight, "fc2": mlp.fc2.weight}
    small = {name: quantized(matrix, kind) for name, matrix in matrices.items()}
    give(layer, small, [*linears, mlp.fc1, mlp.fc2])
