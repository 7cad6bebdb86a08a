"""The vision encoder and the Gemma stack against Hugging Face's own, which share no code with ours."""

from __future__ import annotations

import pytest
import torch
import transformers
from builders import make_config, make_model
from closeness import assert_near
from torch import Tensor

from vla_accel_ros.models.config import GemmaConfig, VisionConfig
from vla_accel_ros.models.pi.model import KV, Pi


@pytest.fixture(params=[1, 2], ids=["one kv head", "two kv heads"])
def model(request: pytest.FixtureRequest) -> Pi:
    gemma = GemmaConfig(width=32, depth=3, mlp=48, heads=4, kv_heads=request.param, head_dim=10)
    vision = VisionConfig(width=36, depth=3, mlp=50, heads=3, image_size=42, patch=14)
    return make_model(make_config(prefix=gemma, expert=gemma, vision=vision), seed=5)


def huggingface_gemma(model: Pi) -> transformers.GemmaModel:
    config = model.config.prefix
    theirs = transformers.GemmaModel(
        transformers.GemmaConfig(
            vocab_size=model.config.vocab,
            hidden_size=config.width,
            intermediate_size=config.mlp,
            num_hidden_layers=config.depth,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            hidden_act="gelu_pytorch_tanh",
            rms_norm_eps=1e-6,
            attn_implementation="eager",
        )
    )
    theirs.load_state_dict(model.language_model.state_dict(), strict=True)
    return theirs.eval()


def additive(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)[:, None]


def test_vision_features(model: Pi) -> None:
    config = model.config.vision
    theirs = transformers.SiglipVisionModel(
        transformers.SiglipVisionConfig(
            hidden_size=config.width,
            intermediate_size=config.mlp,
            num_hidden_layers=config.depth,
            num_attention_heads=config.heads,
            image_size=config.image_size,
            patch_size=config.patch,
            hidden_act="gelu_pytorch_tanh",
            layer_norm_eps=1e-6,
            vision_use_head=False,
        )
    ).eval()
    ours = model.paligemma_with_expert.paligemma.model.vision_tower.vision_model
    theirs.load_state_dict(ours.state_dict(), strict=True)
    images = torch.rand(2, 3, 42, 42, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        assert_near(ours(images), theirs(images).last_hidden_state)


def test_prefix_with_any_mask_and_positions(model: Pi) -> None:
    generator = torch.Generator().manual_seed(1)
    embs = torch.randn(2, 9, model.config.prefix.width, generator=generator)
    attend = torch.rand(2, 9, 9, generator=generator) > 0.4
    attend |= torch.eye(9, dtype=torch.bool)
    positions = torch.randint(0, 40, (2, 9), generator=generator)
    with torch.no_grad():
        hidden, kv = model.prefix(embs, attend, positions)
        theirs = huggingface_gemma(model)(
            inputs_embeds=embs, attention_mask=additive(attend), position_ids=positions, use_cache=True
        )
    assert_near(hidden, theirs.last_hidden_state)
    for layer in range(model.config.prefix.depth):
        cache = theirs.past_key_values.layers[layer]
        assert_near(kv.k[layer], cache.keys)
        assert_near(kv.v[layer], cache.values)


def test_tokens_are_embedded_and_scored_alike(model: Pi) -> None:
    tokens = torch.tensor([[2, 7, 9, 30, 5]])
    with torch.no_grad():
        theirs = huggingface_gemma(model)(input_ids=tokens).last_hidden_state  # causal
        causal = torch.ones(1, 5, 5, dtype=torch.bool).tril()
        hidden, _ = model.prefix(model.embed_tokens(tokens), causal)
    assert_near(hidden, theirs)
    scores = theirs @ model.embed_table.T
    assert_near(model.logits(hidden), scores)


def test_decoding_a_bidirectional_prefix_token_by_token(model: Pi) -> None:
    """Their cache, ours in two pieces, and one joint pass: the same text scores."""
    generator = torch.Generator().manual_seed(2)
    embs = torch.randn(1, 6, model.config.prefix.width, generator=generator)
    text = torch.tensor([[4, 8, 15, 16]])
    theirs = huggingface_gemma(model)
    with torch.no_grad():
        full = torch.ones(1, 6, 6, dtype=torch.bool)
        cache = theirs(inputs_embeds=embs, attention_mask=additive(full), use_cache=True).past_key_values
        _, past = model.prefix(embs)
        tail, ours, expected = None, [], []
        for token in text[0]:
            embedded = model.embed_tokens(token.view(1, 1))
            hidden, new = model.extend(embedded, past, tail=tail)
            tail = new if tail is None else KV(*(torch.cat(pair, dim=3) for pair in zip(tail, new)))
            ours.append(hidden)
            expected.append(
                theirs(input_ids=token.view(1, 1), past_key_values=cache, use_cache=True).last_hidden_state
            )
        joint, _ = model.extend(model.embed_tokens(text), past)
    assert_near(torch.cat(ours, 1), torch.cat(expected, 1))
    assert_near(torch.cat(ours, 1), joint)
