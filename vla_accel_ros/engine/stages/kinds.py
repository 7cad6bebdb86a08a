"""Chooses the class of a stage: by the precision, and for denoising by the number of rows.

small: copies of weights in fewer bits (engine.stages.precision); int8: weights of rows in 8 bits, None for
another precision. All other arguments are those of the stage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.denoise.denoise import Denoise
from vla_accel_ros.engine.stages.denoise.int8 import DenoiseInt8
from vla_accel_ros.engine.stages.denoise.wide import MOST_NARROW, Wide
from vla_accel_ros.engine.stages.int8 import Int8
from vla_accel_ros.engine.stages.memory.offload import LayerRing
from vla_accel_ros.engine.stages.precision import Small
from vla_accel_ros.engine.stages.prefill.encode import Encode, EncodeFp8
from vla_accel_ros.engine.stages.prefill.finish import Finish, FinishInt8
from vla_accel_ros.engine.stages.prefill.int8 import EncodeInt8, PrefillInt8
from vla_accel_ros.engine.stages.prefill.prefill import Prefill, PrefillFp8
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.models.layers.few_bits import given
from vla_accel_ros.models.pi.folded import Expert, Prefix
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.processing.pixels import PixelRule


def encode_stage(
    small: Small, int8: Int8 | None, model: Pi, ops: Ops, images: int, rule: PixelRule, tower: LayerRing
) -> Encode:
    """See Encode."""
    layers = small.vision
    if int8 is not None:
        return EncodeInt8(model, ops, images, rule, int8.vision(model), tower)
    if layers is None:
        return Encode(model, ops, images, rule, tower)
    return EncodeFp8(model, ops, images, rule, layers, tower)


def prefill_stage(small: Small, int8: Int8 | None, model: Pi, prefix: Prefix, *further: Any) -> Prefill:
    """See Prefill."""
    own, layers = (model, prefix, *further), small.prefix
    if int8 is not None:
        return PrefillInt8(*own, small=int8.prefix(prefix.layers, model.language_model))
    return Prefill(*own) if layers is None else PrefillFp8(*own, small=layers)


def finish_stage(int8: Int8 | None, model: Pi, prefix: Prefix, *further: Any) -> Finish:
    """See Finish. It computes exactly if the last layer's exact weights are kept."""
    own, stack = (model, prefix, *further), model.language_model
    if int8 is not None and given(stack.layers[-1]):
        return FinishInt8(*own, small=int8.prefix(prefix.layers, stack)[-1])
    return Finish(*own)


def denoise_stage(
    small: Small,
    int8: Int8 | None,
    model: Pi,
    expert: Expert,
    pool: KVPool,
    tables: tuple[Tensor, Tensor],
    ops: Ops,
    batch: int,
    clean: Callable[[], Expert],
    *further: Any,
) -> Denoise:
    """See Denoise."""
    config, layers = model.config, small.expert(expert.layers)
    own = config, expert, pool, tables, ops, batch, layers, clean, *further
    if int8 is not None and int8.in_denoise(pool.k.device):
        return DenoiseInt8(*own, small=int8.expert(model, expert.layers))
    rows = batch * (config.horizon + (config.kind == "pi0"))
    return Wide(*own) if rows > MOST_NARROW and layers is None else Denoise(*own)
