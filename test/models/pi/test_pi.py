"""The network itself: its parameter names, what sees what, that it trains, and what bfloat16 leaves alone."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from builders import make_config, make_model
from closeness import assert_near
from torch import Tensor

from vla_accel_ros.models.config import PI0, PI05, PiConfig
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
