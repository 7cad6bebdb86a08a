"""Fold the network: precompute everything that does not depend on an observation.

There are three kinds of fold, all exact in real arithmetic and each compared with the unfolded network in
float32. Projections of one input become one matrix (fused.py). Constant factors (norm weights, -dt) move into
the matrix after them. Everything that depends only on the flow time is computed once for all steps, as
tables. A modulated norm before a matrix, `(normed * (1 + scale) + shift) @ W`, is `rms * (x * (1 + scale)) @
W + shift @ W`: the second term is a table too, and the row factor `rms` can be applied after the product, so
a norm needs no pass over its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.flow.sampling import flow_times
from vla_accel_ros.models.layers.few_bits import wide
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.gemma import Gemma, Layer, RMSNorm
from vla_accel_ros.models.pi.folded import Constants, Expert, FoldedLayer, Modulation, Prefix
from vla_accel_ros.models.pi.model import Pi, Worded, time_embedding


def fold_prefix(model: Worded) -> Prefix:
    """Fuse the prefix stack in place."""
    stack = model.language_model
    norms = [(layer.input_layernorm.weight, layer.post_attention_layernorm.weight) for layer in _of(stack)]
    return Prefix(
        layers=_layers(stack),
        attention_norm=torch.stack([first.detach().float() for first, _ in norms]),
        mlp_norm=torch.stack([second.detach().float() for _, second in norms]),
        final_norm=stack.norm.weight.detach().float(),
        first=model.first,
    )


@torch.no_grad()
def fold_expert(model: Pi, steps: int, time_rule: str = "openpi", like: Expert | None = None) -> Expert:
    """Return the expert with everything of `steps` Euler steps that depends on no observation.

    pi0's matrices are copies, because its norms are folded into them; pi0.5 shares the model's memory.
    like: the expert of the same model for another number of steps, whose matrices are reused.
    Raises ValueError if steps or time_rule is invalid.
    """
    folding = Folding(model, steps, time_rule)
    if like is not None and model.config.kind == "pi0":
        layers = like.layers
    else:
        layers = tuple(map(folding.layer, _of(model.expert)))
    return _expert(model, layers, folding.constants())


def fold_layer(layer: Layer, scaled: bool) -> FoldedLayer:
    """Return a layer's matrices, fused in place. scaled: fold the norms' factors into them, as in pi0's
    expert."""
    return _scaled(fused(layer), layer) if scaled else fused(layer)


@torch.no_grad()
def with_clean_step(model: Pi, expert: Expert, time_rule: str = "openpi") -> Expert:
    """Return the expert with one more row at the end of its tables: flow time 0, for committed actions.

    expert: of the same model, from fold_expert. The matrices are shared. See models.flow.committed.
    """
    folding = Folding(model, expert.steps, time_rule, times=(0.0,))
    if model.config.kind == "pi05":
        for layer in _of(model.expert):
            folding.layer(layer)
    clean = folding.constants()

    modulation = expert.modulation
    if modulation is not None and clean.modulation is not None:
        tables = zip(vars(modulation).values(), vars(clean.modulation).values(), strict=True)
        modulation = Modulation(*map(torch.cat, tables))
    return replace(
        expert,
        modulation=modulation,
        in_bias=torch.cat((expert.in_bias, clean.in_bias)),
        out_bias=torch.cat((expert.out_bias, clean.out_bias)),
    )


class Folding:
    """Folds an expert for S steps, layer by layer.

    times: flow times other than those of the rule.
    Raises ValueError if steps or time_rule is invalid.
    """

    def __init__(self, model: Pi, steps: int, time_rule: str, times: Sequence[float] | None = None) -> None:
        self._model = model
        self._times = flow_times(steps, time_rule) if times is None else list(times)
        self._steps = steps
        self._rows: list[tuple[Tensor, ...]] = []

    @property
    def times(self) -> Tensor:
        """float32 [S]"""
        return torch.tensor(self._times, device=self._model.action_in_proj.weight.device)

    @cached_property
    def condition(self) -> Tensor:
        """The condition that modulates the norms of pi0.5, [S, W]."""
        return self._model._modulator(self.times)

    @torch.no_grad()
    def layer(self, layer: Layer) -> FoldedLayer:
        """Fold the next layer, in order; it is fused in place."""
        folded = fused(layer)
        if self._model.config.kind == "pi0":
            return _scaled(folded, layer)
        self._rows.append(_modulated(folded, layer, self.condition))
        return folded

    @torch.no_grad()
    def constants(self) -> Constants:
        """Return the constants. For pi0.5, fold all layers first."""
        model, rows = self._model, len(self._times)
        dt, norm = -1.0 / self._steps, model.expert.norm
        out_weight = model.action_out_proj.weight.float() * dt
        out_bias = model.action_out_proj.bias.float() * dt
        if model.config.kind == "pi05":
            columns = [torch.stack(column, dim=1).contiguous() for column in zip(*self._rows, strict=True)]
            final, shift, _ = _modulation(norm, self.condition)
            modulation = Modulation(*[*columns, final.contiguous()])
            in_weight = model.action_in_proj.weight.float()
            in_bias = model.action_in_proj.bias.float().expand(rows, -1)
            out_biases = F.linear(shift, out_weight, out_bias)
        else:
            modulation = None
            in_weight, in_bias = action_time_in(model.action_in_proj, model.action_time_mlp_in, self.times)
            out_weight = out_weight * (1.0 + norm.weight.float())
            out_biases = out_bias.expand(rows, -1)
        ends = (in_weight, in_bias, out_weight, out_biases)
        return Constants(modulation, *[end.contiguous() for end in ends])


def _expert(model: Pi, layers: tuple[FoldedLayer, ...], constants: Constants) -> Expert:
    state_weight = state_bias = mlp_weight = mlp_bias = None
    if model.config.kind == "pi0":
        mlp_weight = model.action_time_mlp_out.weight.to(model.expert.dtype)
        mlp_bias = model.action_time_mlp_out.bias.float()
        state_weight, state_bias = model.state_proj.weight.float(), model.state_proj.bias.float()
    return Expert(
        layers=layers,
        mlp_weight=mlp_weight,
        mlp_bias=mlp_bias,
        state_weight=state_weight,
        state_bias=state_bias,
        **vars(constants),
    )


def _layers(stack: Gemma) -> tuple[FoldedLayer, ...]:
    return tuple(map(fused, _of(stack)))


def fused(layer: Any) -> FoldedLayer:
    """Return the matrices of a layer of Gemma or Llama, fused in place."""
    attention, mlp = layer.self_attn, layer.mlp
    return FoldedLayer(
        qkv=fuse((attention.q_proj, attention.k_proj, attention.v_proj))[0],
        o=attention.o_proj.weight.detach(),
        gate_up=fuse((mlp.gate_proj, mlp.up_proj))[0],
        down=mlp.down_proj.weight.detach(),
    )


def _of(stack: Gemma) -> list[Layer]:
    return cast("list[Layer]", list(stack.layers))


def _scaled(folded: FoldedLayer, layer: Layer) -> FoldedLayer:
    """Return the layer with its norms' factors (1 + weight) folded into the matrices after them."""
    return FoldedLayer(
        qkv=_columns_scaled(folded.qkv, layer.input_layernorm),
        o=folded.o,
        gate_up=_columns_scaled(folded.gate_up, layer.post_attention_layernorm),
        down=folded.down,
    )


def _columns_scaled(weight: Tensor, norm: RMSNorm) -> Tensor:
    """Return the scaled matrix, computed in float32 and rounded once, without a float32 copy. A matrix that
    exists only quantised (on `meta`) is returned as it is: its quantised copy includes the norm."""
    if weight.is_meta:
        return weight
    return torch.mul(weight, 1.0 + norm.weight.float(), out=torch.empty_like(weight))


def action_time_in(actions: nn.Linear, mlp: nn.Linear, times: Tensor) -> tuple[Tensor, Tensor]:
    """Fold action_in_proj, the time embedding and action_time_mlp_in into weight [W, A] and bias [S, W]."""
    width = actions.out_features
    of_action, of_time = mlp.weight.double().split(width, dim=1)
    weight = of_action @ actions.weight.double()
    constant = of_action @ actions.bias.double() + mlp.bias.double()
    bias = time_embedding(times, width).double() @ of_time.T + constant
    return weight.float(), bias.float()


def _modulated(folded: FoldedLayer, layer: Layer, condition: Tensor) -> tuple[Tensor, ...]:
    """Return a layer's rows of Modulation's tables, all but `final`."""
    scale, shift, gate = _modulation(layer.input_layernorm, condition)
    mlp_scale, mlp_shift, mlp_gate = _modulation(layer.post_attention_layernorm, condition)
    bias = shift @ wide(layer, "qkv", folded.qkv).T
    mlp_bias = mlp_shift @ wide(layer, "gate_up", folded.gate_up).T
    return scale, bias, gate, mlp_scale, mlp_bias, mlp_gate, shift, mlp_shift


def _modulation(norm: RMSNorm, condition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return scale, shift and gate of a norm for the conditions [S, W] of the steps."""
    scale, shift, gate = norm.dense(condition).float().chunk(3, dim=-1)
    return scale, shift, gate
