"""The network itself: its parameter names, what sees what, that it trains, what bfloat16 leaves alone, and
that each fold computes what it computes unfolded."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from builders import make_config, make_model
from closeness import assert_near
from torch import Tensor, nn

from vla_accel_ros.models.config import PI0, PI05, PiConfig
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.pi.folding import fold_expert, fold_prefix
from vla_accel_ros.models.pi.model import Pi

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


def test_state_does_not_reach_the_expert_of_pi05() -> None:
    model = make_model(make_config("pi05"))
    embs, x, t, state = inputs(model.config, 1, 5)
    with torch.no_grad():
        _, kv = model.prefix(embs)
        assert torch.equal(model.velocity(x, t, state, kv), model.velocity(x, t, None, kv))


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16 autocast"])
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


STEPS = 4


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


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
def test_folding_pi0_leaves_the_network_as_it_was() -> None:
    model = make_model(make_config("pi0"))
    embs, x, state = drawn(1, 5, 32), drawn(1, 8, 8), drawn(1, 8)
    _, kv = model.prefix(embs)
    before = model.velocity(x, torch.ones(1), state, kv)
    fold_expert(model, STEPS)
    fold_prefix(model)
    close(model.velocity(x, torch.ones(1), state, kv), before)
