"""Fold SmolVLA: as models.pi.folding folds pi0, with two differences.

The expert's width, 720, has no whole tiles: rows and columns of zeros pad it. A mean of squares over the
padded row is too small by the factor W / padded; `eps` and the matrices after each norm include that factor.
In the cross layers the expert reads projections of the prefix's keys and values. They do not depend on the
flow, so they belong to the prefix (`Cross`), and such a layer has only queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.models.flow.sampling import flow_times
from vla_accel_ros.models.layers.llama import RMSNorm
from vla_accel_ros.models.pi.folded import Cross, Expert, FoldedLayer, Prefix
from vla_accel_ros.models.pi.folding import action_time_in, fused
from vla_accel_ros.models.pi.model import Worded
from vla_accel_ros.models.smolvla.model import SmolVLA

Foldable = Worded | SmolVLA
"""Networks with a folded form of images and prefix; those that denoise have one of their expert, too."""


@torch.no_grad()
def fold_prefix(model: SmolVLA) -> Prefix:
    """Fuse the language stack in place."""
    layers: list[Any] = list(model.language_model.layers)
    return Prefix(
        layers=tuple(map(fused, layers)),
        attention_norm=torch.stack([_less_one(layer.input_layernorm) for layer in layers]),
        mlp_norm=torch.stack([_less_one(layer.post_attention_layernorm) for layer in layers]),
        final_norm=_less_one(model.language_model.norm),
        eps=model.config.prefix.norm_eps,
        activation="silu",
        state_weight=model.state_proj.weight.float(),
        state_bias=model.state_proj.bias.float(),
        cross=_cross(model),
    )


@torch.no_grad()
def fold_expert(model: SmolVLA, steps: int, time_rule: str = "openpi", like: Expert | None = None) -> Expert:
    """Return the expert with everything of `steps` Euler steps that depends on no observation.

    like: the expert of the same model for another number of steps, whose matrices are reused.
    Raises ValueError if steps or time_rule is invalid.
    """
    sizes, to = model.config.expert, model.config.padded_width
    factor = (sizes.width / to) ** 0.5
    in_weight, in_bias, out_bias = _of_times(model, flow_times(steps, time_rule), steps)
    out_weight = model.action_out_proj.weight.float() * (-1.0 / steps)
    mix = model.action_time_mlp_out
    return Expert(
        layers=tuple(_padded(layer, to) for layer in model.expert.layers) if like is None else like.layers,
        modulation=None,
        in_weight=in_weight,
        in_bias=in_bias,
        mlp_weight=F.pad(mix.weight, (0, to - sizes.width, 0, to - sizes.width)).to(model.expert.dtype),
        mlp_bias=F.pad(mix.bias.float(), (0, to - sizes.width)),
        state_weight=None,
        state_bias=None,
        out_weight=_columns(out_weight, model.expert.norm, to),
        out_bias=out_bias,
        eps=sizes.norm_eps * factor**2,
        activation="silu",
        causal=True,
        crossing=frozenset(model.config.crossing),
    )


@torch.no_grad()
def with_clean_step(model: SmolVLA, expert: Expert, time_rule: str = "openpi") -> Expert:
    """See models.pi.folding.with_clean_step."""
    _, in_bias, out_bias = _of_times(model, (0.0,), expert.steps)
    return replace(
        expert,
        in_bias=torch.cat((expert.in_bias, in_bias)),
        out_bias=torch.cat((expert.out_bias, out_bias)),
    )


def _less_one(norm: Any) -> Tensor:
    return norm.weight.float() - 1.0


def _cross(model: SmolVLA) -> Cross | None:
    crossing = model.config.crossing
    if not crossing:
        return None
    attentions: list[Any] = [model.expert.layers[index].self_attn for index in crossing]
    keys = torch.stack([attention.k_proj.weight for attention in attentions])
    values = torch.stack([attention.v_proj.weight for attention in attentions])
    return Cross(torch.tensor(crossing, device=model.device), keys, values)


def _of_times(model: SmolVLA, times: Sequence[float], steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return in_weight, in_bias and out_bias of models.pi.folded.Expert for these flow times."""
    more = model.config.padded_width - model.config.expert.width
    moments = torch.tensor(times, device=model.device)
    weight, bias = action_time_in(model.action_in_proj, model.action_time_mlp_in, moments)
    out_bias = model.action_out_proj.bias.float() * (-1.0 / steps)
    return F.pad(weight, (0, 0, 0, more)), F.pad(bias, (0, more)), out_bias.repeat(len(times), 1)


def _padded(layer: Any, to: int) -> FoldedLayer:
    """Return copies of a layer's matrices with its norms' weights folded in, for rows of width `to`."""
    attention, mlp = layer.self_attn, layer.mlp
    read = (attention.q_proj,) if layer.is_cross else (attention.q_proj, attention.k_proj, attention.v_proj)
    more = to - attention.q_proj.in_features
    return FoldedLayer(
        qkv=_columns(torch.cat([linear.weight for linear in read]), layer.input_layernorm, to),
        o=F.pad(attention.o_proj.weight, (0, 0, 0, more)),
        gate_up=_columns(
            torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)), layer.post_attention_layernorm, to
        ),
        down=F.pad(mlp.down_proj.weight, (0, 0, 0, more)),
    )


def _columns(weight: Tensor, norm: RMSNorm, to: int) -> Tensor:
    """Return a matrix of normed rows for rows of width `to`, which are not normed; computed in float32 and
    rounded once."""
    width = weight.shape[1]
    scaled = weight.float() * (norm.weight.float() * (width / to) ** 0.5)
    return F.pad(scaled, (0, to - width)).to(weight.dtype)
