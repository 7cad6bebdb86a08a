"""The network itself: its parameter names, what sees what, that it trains, what bfloat16 leaves alone, and
that each fold computes what it computes unfolded."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from builders import make_config, make_model
from closeness import assert_near
from torch import Tensor, nn

from vla_accel_ros.models.config import PI0, PI05, PiConfig
from vla_accel_ros.models.flow.sampling import flow_times
from vla_accel_ros.models.layers import vision
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.gemma import NORM_EPS, Gemma, Layer
from vla_accel_ros.models.pi.folding import fold_expert, fold_prefix
from vla_accel_ros.models.pi.model import KV, Pi, time_embedding

KINDS = ("pi0", "pi05")
PUBLISHED = json.loads((Path(__file__).parents[2] / "data" / "openpi_parameters.json").read_text())
UNUSED = "paligemma_with_expert.gemma_expert.lm_head.weight"


def inputs(config: PiConfig, batch: int, tokens: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """embeddings [B, T, W], x [B, H, A], t [B], state [B, S]"""
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randn(batch, tokens, config.prefix.width, generator=g),
        torch.randn(batch, config.horizon, config.action_dim, generator=g),
        torch.rand(batch, generator=g),
        torch.randn(batch, config.state_dim, generator=g),
    )


@pytest.mark.parametrize("config", [PI0, PI05], ids=KINDS)
def test_full_size_names_shapes_and_float32_parts_are_the_published_ones(config: PiConfig) -> None:
    with torch.device("meta"):
        state = Pi(config).set_precision(torch.bfloat16).state_dict()
    groups = [re.sub(r"layers\.\d+\.", "layers.*.", name) for name in state]
    ours = {
        group: [count, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
        for (group, count), tensor in zip(
            Counter(groups).items(), dict(zip(groups, state.values())).values(), strict=True
        )
    }
    published = {name: entry for name, entry in PUBLISHED[config.kind].items() if name != UNUSED}
    assert ours == published


@pytest.mark.parametrize("kind", KINDS)
def test_padded_and_masked_equals_left_out(kind: str) -> None:
    """A batch whose samples are padded in the middle and at the end gives what each alone gives."""
    model = make_model(make_config(kind))
    embs, x, t, state = inputs(model.config, 2, 9)
    valid = torch.tensor([[1, 1, 1, 0, 0, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    with torch.no_grad():
        attend = valid[:, None] & valid[:, :, None]
        _, kv = model.prefix(embs, attend, valid.cumsum(1) - 1)
        together = model.velocity(x, t, state, kv, valid)
        for b in range(2):
            _, alone = model.prefix(embs[b : b + 1, valid[b]])
            v = model.velocity(x[b : b + 1], t[b : b + 1], state[b : b + 1], alone)
            assert_near(together[b : b + 1], v)


@pytest.mark.parametrize("kind", KINDS)
def test_masked_tokens_do_not_reach_anything(kind: str) -> None:
    """Whatever stands in a masked place, the valid results are the same bits."""
    model = make_model(make_config(kind))
    embs, x, t, state = inputs(model.config, 1, 7)
    valid = torch.tensor([[1, 1, 0, 1, 1, 1, 0]], dtype=torch.bool)
    attend, positions = valid[:, None] & valid[:, :, None], valid.cumsum(1) - 1
    results = []
    for filler in (0.0, 1e4):
        filled = torch.where(valid[..., None], embs, torch.full_like(embs, filler))
        with torch.no_grad():
            hidden, kv = model.prefix(filled, attend, positions)
            results.append((hidden[valid], model.velocity(x, t, state, kv, valid)))
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_state_of_pi0_does_not_see_the_actions_but_they_see_it() -> None:
    model = make_model(make_config("pi0"))
    embs, x, t, state = inputs(model.config, 1, 5)
    seen: list[Tensor] = []
    layer = model.expert.layers[-1]
    handle = layer.register_forward_hook(lambda _module, _args, out: seen.append(out[0]))
    with torch.no_grad():
        _, kv = model.prefix(embs)
        first = model.velocity(x, t, state, kv)
        model.velocity(x + 1, t, state, kv)
        other_state = model.velocity(x, t, state + 1, kv)
    handle.remove()
    assert torch.equal(seen[0][:, 0], seen[1][:, 0])
    assert not torch.equal(seen[0][:, 1], seen[1][:, 1])
    assert not torch.allclose(first, other_state)


def test_state_does_not_reach_the_expert_of_pi05() -> None:
    model = make_model(make_config("pi05"))
    embs, x, t, state = inputs(model.config, 1, 5)
    with torch.no_grad():
        _, kv = model.prefix(embs)
        assert torch.equal(model.velocity(x, t, state, kv), model.velocity(x, t, None, kv))


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16 autocast"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_gets_a_finite_gradient(kind: str, autocast: bool) -> None:
    """A training step's graph: images, prompt and causal answer, the flow, a row that may see nothing."""
    model = make_model(make_config(kind)).train()
    config = model.config
    _, x, t, state = inputs(config, 2, 1)
    g = torch.Generator().manual_seed(3)
    images = torch.rand(2 * 2, 3, 28, 28, generator=g) * 2 - 1
    tokens = torch.randint(4, config.vocab, (2, 6), generator=g)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        image = model.encode(images).unflatten(0, (2, 2)).flatten(1, 2)
        embs = torch.cat((image, model.embed_tokens(tokens)), dim=1)
        total = embs.shape[1]
        prompt = total - 3
        attend = torch.ones(2, total, total, dtype=torch.bool).tril(0)
        attend[:, :prompt, :prompt] = True
        attend[1, -1] = False
        hidden, kv = model.prefix(embs, attend)
        mask = (torch.arange(total) < prompt).expand(2, total)
        v = model.velocity(x, t, state, kv, mask)
        loss = v.square().mean() + model.logits(hidden[:, prompt:]).float().logsumexp(-1).mean()
    loss.backward()
    assert v.dtype == torch.float32
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


def test_a_fresh_model_starts_near_unit_scale() -> None:
    torch.manual_seed(0)
    model = Pi(make_config())
    images = torch.rand(2, 3, 28, 28) * 2 - 1
    with torch.no_grad():
        assert 0.02 < model.encode(images).std() < 5
        assert 0.5 < model.embed_tokens(torch.arange(model.config.vocab)).std() < 2
        hidden, _ = model.prefix(torch.randn(1, 5, model.config.prefix.width))
        assert 0.5 < hidden.std() < 2


def test_head_and_embedding_stay_one_tensor() -> None:
    model = Pi(make_config())
    head = model.paligemma_with_expert.paligemma.lm_head
    assert head.weight is model.embed_table
    model.set_precision(torch.bfloat16)
    assert head.weight is model.embed_table
    names = [name for name, _ in model.named_parameters()]
    assert sum("embed_tokens" in name or "lm_head" in name for name in names) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_near_float32_and_the_flow_stays_float32(kind: str) -> None:
    model = make_model(make_config(kind))
    embs, x, t, state = inputs(model.config, 1, 7)
    with torch.no_grad():
        _, kv = model.prefix(embs)
        full = model.velocity(x, t, state, kv)
        half_model = make_model(make_config(kind)).set_precision(torch.bfloat16)
        _, half_kv = half_model.prefix(embs)
        half = half_model.velocity(x, t, state, half_kv)
    assert half_kv.k.dtype == torch.bfloat16
    assert half.dtype == torch.float32
    assert (half - full).abs().max() < 2.0**-5 * max(1.0, float(full.abs().max()))


def test_keys_and_values_are_written_where_asked() -> None:
    model = make_model(make_config())
    embs, *_ = inputs(model.config, 1, 5)
    with torch.no_grad():
        _, kv = model.prefix(embs)
        place = KV(torch.full_like(kv.k, 7.0), torch.full_like(kv.v, 7.0))
        _, returned = model.prefix(embs, out=place)
    assert returned is place
    assert torch.equal(place.k, kv.k)
    assert torch.equal(place.v, kv.v)


def test_time_embedding_by_hand() -> None:
    """Slowest and fastest period, at t = 1: sin and cos of 2 pi / 4e-3 and 2 pi / 4."""
    embedded = time_embedding(torch.tensor([1.0, 0.5]), 4)
    # 1 / 4e-3 = 250 whole turns, and a quarter turn.
    torch.testing.assert_close(embedded[0], torch.tensor([0.0, 1.0, 1.0, 0.0]), rtol=0, atol=1e-6)
    # 125 whole turns, and an eighth of a turn.
    eighth = 0.5**0.5
    torch.testing.assert_close(embedded[1], torch.tensor([0.0, eighth, 1.0, eighth]), rtol=0, atol=1e-6)


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
    fold_prefix(model)
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
    folded, x = fold_prefix(model), drawn(3, 32)
    for index, layer in enumerate(layers_of(model.language_model)):
        normed, _ = layer.input_layernorm(x)
        close(x * rms(x) * (1 + folded.attention_norm[index]), normed)
        apart = torch.cat([layer.mlp.gate_proj(x), layer.mlp.up_proj(x)], dim=-1)
        close(x @ folded.layers[index].gate_up.T, apart)
    close(drawn(32) * 0 + folded.final_norm, model.language_model.norm.weight.detach())
