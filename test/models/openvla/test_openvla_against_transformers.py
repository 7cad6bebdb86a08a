"""Llama and the two towers against Hugging Face's own, which share no code with ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from closeness import assert_near
from openvla_builders import make_openvla, make_openvla_config
from torch import Tensor

from shared.decoding import decode
from vla_accel_ros.models.config import LlamaConfig, VisionConfig
from vla_accel_ros.models.openvla.model import OpenVLA

pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture(params=[1, 2, 4], ids=["1 kv head", "2 kv heads", "4 kv heads"])
def model(request: pytest.FixtureRequest) -> OpenVLA:
    llama = LlamaConfig(
        width=40, depth=3, mlp=48, heads=4, kv_heads=request.param, head_dim=10, norm_eps=1e-3
    )
    tower = {"image_size": 42, "patch": 14}
    return make_openvla(
        make_openvla_config(
            prefix=llama,
            dino=VisionConfig(width=36, depth=4, mlp=72, heads=3, **tower),
            siglip=VisionConfig(width=24, depth=3, mlp=50, heads=4, **tower),
        ),
        seed=5,
    )


def huggingface_llama(model: OpenVLA) -> transformers.LlamaForCausalLM:
    config = model.config.prefix
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=model.config.vocab,
            hidden_size=config.width,
            intermediate_size=config.mlp,
            num_hidden_layers=config.depth,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.norm_eps,
            attn_implementation="eager",
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    theirs.load_state_dict(model.language_model.state_dict(), strict=True)
    return theirs.eval()


def same(ours: Tensor, theirs: Tensor) -> None:
    assert_near(ours, theirs)


def test_a_causal_pass(model: OpenVLA) -> None:
    embs = torch.randn(2, 11, model.config.prefix.width, generator=torch.Generator().manual_seed(1))
    theirs = huggingface_llama(model)(inputs_embeds=embs, use_cache=True)
    hidden, kv = model.prefix(embs)
    same(model.logits(hidden), theirs.logits)
    for layer in range(model.config.prefix.depth):
        cache = theirs.past_key_values.layers[layer]
        same(kv.k[layer], cache.keys)
        same(kv.v[layer], cache.values)


def test_greedy_decoding(model: OpenVLA) -> None:
    prompt = torch.tensor([[1, 7, 9, 30, 5]])
    theirs = huggingface_llama(model).generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    hidden, past = model.prefix(model.embed_tokens(prompt))
    steps = list(decode(model, past, hidden[:, -1], 12))
    assert [int(step.tokens) for step in steps] == theirs.sequences[0, 5:].tolist()
    for step, logits in zip(steps, theirs.logits, strict=True):
        same(step.logits, logits)


def test_dinov2_features(model: OpenVLA) -> None:
    """Theirs with a position for the class token, which is 0 in timm's; the state before the last layer."""
    config, ours = model.config.dino, model.vision_backbone.featurizer
    theirs = transformers.Dinov2WithRegistersModel(
        transformers.Dinov2WithRegistersConfig(
            hidden_size=config.width,
            num_hidden_layers=config.depth,
            num_attention_heads=config.heads,
            mlp_ratio=config.mlp // config.width,
            image_size=config.image_size,
            patch_size=config.patch,
            num_register_tokens=model.config.registers,
            hidden_act="gelu",
            layer_norm_eps=1e-6,
        )
    ).eval()
    embeddings = theirs.embeddings
    embeddings.cls_token.copy_(ours.cls_token)
    embeddings.register_tokens.copy_(ours.reg_token)
    embeddings.position_embeddings[:, :1] = 0
    embeddings.position_embeddings[:, 1:] = ours.pos_embed
    embeddings.patch_embeddings.projection.load_state_dict(ours.patch_embed.proj.state_dict())
    for layer, block in zip(theirs.encoder.layer, ours.blocks, strict=False):
        copy_in_order(layer, block)
    images = torch.randn(2, 3, 42, 42, generator=torch.Generator().manual_seed(0))
    features = theirs(images, output_hidden_states=True).hidden_states[-2]
    same(ours(images), features[:, 1 + model.config.registers :])


def test_siglip_features(model: OpenVLA) -> None:
    config, ours = model.config.siglip, model.vision_backbone.fused_featurizer
    theirs = transformers.SiglipVisionModel(
        transformers.SiglipVisionConfig(
            hidden_size=config.width,
            intermediate_size=config.mlp,
            num_hidden_layers=config.depth,
            num_attention_heads=config.heads,
            image_size=config.image_size,
            patch_size=config.patch,
            hidden_act="gelu",
            layer_norm_eps=1e-6,
            vision_use_head=False,
        )
    ).eval()
    state = theirs.state_dict()
    prefix = next(name for name in state if name.endswith("embeddings.patch_embedding.weight"))
    prefix = prefix[: -len("embeddings.patch_embedding.weight")]
    patch = ours.patch_embed.proj
    state[prefix + "embeddings.patch_embedding.weight"].copy_(patch.weight)
    state[prefix + "embeddings.patch_embedding.bias"].copy_(patch.bias)
    state[prefix + "embeddings.position_embedding.weight"].copy_(ours.pos_embed[0])
    for index, block in enumerate(ours.blocks):
        layer = f"{prefix}encoder.layers.{index}."
        for our_name, their_names in {
            "norm1": ["layer_norm1"],
            "attn.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            "attn.proj": ["self_attn.out_proj"],
            "norm2": ["layer_norm2"],
            "mlp.fc1": ["mlp.fc1"],
            "mlp.fc2": ["mlp.fc2"],
        }.items():
            for kind in ("weight", "bias"):
                parts = block.get_parameter(f"{our_name}.{kind}").chunk(len(their_names))
                for name, part in zip(their_names, parts, strict=True):
                    state[f"{layer}{name}.{kind}"].copy_(part)
    images = torch.randn(2, 3, 42, 42, generator=torch.Generator().manual_seed(0))
    same(ours(images), theirs(images, output_hidden_states=True).hidden_states[-2])


def copy_in_order(layer: torch.nn.Module, block: Any) -> None:
    """A DINOv2 layer's parameters, whose names change between versions but whose order is this one."""
    qkv = block.attn.qkv
    parts = [block.norm1.weight, block.norm1.bias]
    parts += [part for pair in zip(qkv.weight.chunk(3), qkv.bias.chunk(3), strict=True) for part in pair]
    parts += [block.attn.proj.weight, block.attn.proj.bias, block.ls1.scale_factor]
    parts += [block.norm2.weight, block.norm2.bias, *block.mlp.parameters(), block.ls2.scale_factor]
    for theirs, ours in zip(layer.parameters(), parts, strict=True):
        theirs.copy_(ours)
