"""Each fold computes what the network computes unfolded: float32, random weights of every parameter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from builders import make_config, make_model
from torch import Tensor, nn

from vla_accel_ros.models.flow.sampling import flow_times
from vla_accel_ros.models.layers import vision
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.gemma import NORM_EPS, Gemma, Layer
from vla_accel_ros.models.pi.folding import fold_expert, fold_prefix
from vla_accel_ros.models.pi.model import Pi

KINDS = ("pi0", "pi05")
STEPS = 4


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rms(x: Tensor) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


def layers_of(stack: Gemma) -> Iterator[Layer]:
    for layer in stack.layers:
        assert isinstance(layer, Layer)
        yield layer


def conditions(model: Pi) -> Tensor:
    return model._modulator(torch.tensor(flow_times(STEPS)))


@torch.no_grad()
def test_fused_projections_are_the_parts_and_share_their_memory() -> None:
    layer = next(layers_of(make_model(make_config("pi0")).language_model)).self_attn
    x = drawn(5, 32)
    apart = torch.cat([layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)], dim=1)
    weight, bias = fuse((layer.q_proj, layer.k_proj, layer.v_proj))
    assert bias is None
    close(x @ weight.T, apart)
    close(torch.cat([layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)], dim=1), apart)
    weight[0, 0] = 7.0
    assert layer.q_proj.weight[0, 0] == 7.0
    again, _ = fuse((layer.q_proj, layer.k_proj, layer.v_proj))
    assert again.data_ptr() == weight.data_ptr()


def test_fused_projections_still_take_gradients() -> None:
    """Stages are built in inference mode; the exact Jacobian needs the plain network's gradients later."""
    parts = [nn.Linear(3, 2, bias=False) for _ in range(2)]
    with torch.inference_mode():
        fuse(parts)
    x = drawn(4, 3).requires_grad_()
    torch.cat([part(x) for part in parts], dim=1).sum().backward()
    assert x.grad is not None
    close(x.grad, torch.cat([part.weight for part in parts]).sum(dim=0).expand(4, 3))


@torch.no_grad()
def test_fused_biases_too() -> None:
    model = make_model(make_config()).paligemma_with_expert.paligemma.model.vision_tower.vision_model
    layer, x = model.encoder.layers[1], drawn(3, 24)
    assert isinstance(layer, vision.Layer)
    attention = layer.self_attn
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    apart = torch.cat([part(x) for part in parts], dim=1)
    close(F.linear(x, *fuse(parts)), apart)


@torch.no_grad()
def test_norm_weights_of_pi0_go_into_the_next_matrix_and_the_row_factor_after_it() -> None:
    model = make_model(make_config("pi0"))
    x = drawn(2, 5, 24)
    for folded, layer in zip(fold_expert(model, STEPS).layers, layers_of(model.expert), strict=True):
        normed, _ = layer.input_layernorm(x)
        heads = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
        close(x @ folded.qkv.T * rms(x), torch.cat([head(normed) for head in heads], dim=-1))
        normed, _ = layer.post_attention_layernorm(x)
        apart = torch.cat([layer.mlp.gate_proj(normed), layer.mlp.up_proj(normed)], dim=-1)
        close(x @ folded.gate_up.T * rms(x), apart)


@torch.no_grad()
def test_folding_pi0_leaves_the_network_as_it_was() -> None:
    model = make_model(make_config("pi0"))
    embs, x, state = drawn(1, 5, 32), drawn(1, 8, 8), drawn(1, 8)
    _, kv = model.prefix(embs)
    before = model.velocity(x, torch.ones(1), state, kv)
    fold_expert(model, STEPS)
    fold_prefix(model.language_model)
    close(model.velocity(x, torch.ones(1), state, kv), before)


@torch.no_grad()
def test_modulated_norms_are_tables_of_the_steps() -> None:
    model = make_model(make_config("pi05"))
    folded = fold_expert(model, STEPS)
    assert folded.modulation is not None
    table, x = folded.modulation, drawn(5, 24)
    for step, condition in enumerate(conditions(model)):
        for index, layer in enumerate(layers_of(model.expert)):
            normed, gate = layer.input_layernorm(x[None], condition[None])
            heads = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
            apart = torch.cat([head(normed) for head in heads], dim=-1)[0]
            scaled = x * (1 + table.attention_scale[step, index])
            ours = scaled @ folded.layers[index].qkv.T * rms(x) + table.attention_bias[step, index]
            close(ours, apart)
            close(table.attention_gate[step, index], gate[0, 0])
            normed, gate = layer.post_attention_layernorm(x[None], condition[None])
            apart = torch.cat([layer.mlp.gate_proj(normed), layer.mlp.up_proj(normed)], dim=-1)[0]
            scaled = x * (1 + table.mlp_scale[step, index])
            close(scaled @ folded.layers[index].gate_up.T * rms(x) + table.mlp_bias[step, index], apart)
            close(table.mlp_gate[step, index], gate[0, 0])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_action_tokens_of_every_step(kind: str) -> None:
    model = make_model(make_config(kind))
    folded = fold_expert(model, STEPS)
    x, state = drawn(1, 8, 8), drawn(1, 8, seed=1)
    for step, t in enumerate(flow_times(STEPS)):
        tokens, _ = model.suffix(x, torch.tensor([t]), state)
        ours = F.linear(x, folded.in_weight, folded.in_bias[step])
        if kind == "pi0":
            assert folded.mlp_weight is not None and folded.state_weight is not None
            ours = F.linear(F.silu(ours), folded.mlp_weight, folded.mlp_bias)
            first = F.linear(state, folded.state_weight, folded.state_bias)[:, None]
            ours = torch.cat((first, ours), dim=1)
        close(ours, tokens)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_final_norm_and_step_are_in_the_last_matrix(kind: str) -> None:
    model = make_model(make_config(kind))
    folded = fold_expert(model, STEPS)
    hidden, x = drawn(1, 9, 24), drawn(1, 8, 8)
    condition = conditions(model) if kind == "pi05" else None
    for step in range(STEPS):
        normed, _ = model.expert.norm(hidden, None if condition is None else condition[step][None])
        update = -1 / STEPS * model.read_out(normed, x)
        rows = hidden[:, -8:]
        scaled = rows if folded.modulation is None else rows * (1 + folded.modulation.final[step])
        close(scaled @ folded.out_weight.T * rms(rows) + folded.out_bias[step], update)


@torch.no_grad()
def test_prefix_keeps_its_norms_beside_its_fused_matrices() -> None:
    model = make_model(make_config("pi05"))
    folded, x = fold_prefix(model.language_model), drawn(3, 32)
    for index, layer in enumerate(layers_of(model.language_model)):
        normed, _ = layer.input_layernorm(x)
        close(x * rms(x) * (1 + folded.attention_norm[index]), normed)
        apart = torch.cat([layer.mlp.gate_proj(x), layer.mlp.up_proj(x)], dim=-1)
        close(x @ folded.layers[index].gate_up.T, apart)
    close(drawn(32) * 0 + folded.final_norm, model.language_model.norm.weight.detach())
