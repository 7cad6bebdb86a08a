"""Sizes of OpenVLA: stated, inferred from published folders, refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from openvla_builders import make_openvla_config, make_published_config

from vla_accel_ros.models.config import LlamaConfig, VisionConfig
from vla_accel_ros.models.openvla.config import OPENVLA_7B, SPACE_TOKEN, OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA, is_unused
from vla_accel_ros.models.openvla.sizes import infer_openvla

Shapes = dict[str, tuple[int, ...]]


def published_shapes() -> Shapes:
    """Every tensor of openvla-7b."""
    data = json.loads((Path(__file__).parents[2] / "data" / "openvla_parameters.json").read_text())
    return {
        name.replace("*", str(index)): tuple(shape)
        for name, (count, shape) in data.items()
        for index in range(count)
    }


def small_llama_shapes(llama: LlamaConfig, vocab: int) -> Shapes:
    """The published towers with a small language model."""
    small = make_openvla_config(
        prefix=llama, vocab=vocab, action_vocab=vocab - 64, bins=256, space_token=None
    )
    with torch.device("meta"):
        language = OpenVLA(small).language_model.state_dict()
    towers = {name: shape for name, shape in published_shapes().items() if name.startswith("vision_backbone")}
    return towers | {f"language_model.{name}": tuple(tensor.shape) for name, tensor in language.items()}


def test_the_published_model_has_these_parameters() -> None:
    with torch.device("meta"):
        ours = {name: tuple(p.shape) for name, p in OpenVLA(OPENVLA_7B).named_parameters()}
    published = published_shapes()
    assert ours == {name: shape for name, shape in published.items() if not is_unused(name, OPENVLA_7B)}
    unused = {name for name in published if is_unused(name, OPENVLA_7B)}
    assert {name.split(".blocks.")[1].split(".")[0] for name in unused if ".blocks." in name} == {"23", "26"}


def test_published_folders_are_inferred_as_the_preset() -> None:
    """Their config.json leaves Llama's sizes to Hugging Face's defaults."""
    assert infer_openvla(published_shapes(), make_published_config()) == OPENVLA_7B
    assert infer_openvla(published_shapes(), {}) == OPENVLA_7B


def test_a_file_that_lost_its_last_layers_is_not_a_smaller_model() -> None:
    shapes = {name: shape for name, shape in published_shapes().items() if ".layers.31." not in name}
    assert infer_openvla(shapes, make_published_config()) == OPENVLA_7B


def test_written_sizes_count_before_the_shapes() -> None:
    llama = LlamaConfig(width=32, depth=3, mlp=48, heads=4, kv_heads=2, head_dim=8, norm_eps=1e-5)
    shapes = small_llama_shapes(llama, vocab=1064)
    config = infer_openvla(shapes, make_published_config(llama))
    assert config.prefix == llama
    assert (config.vocab, config.action_vocab, config.space_token) == (1064, 1000, None)
    assert (config.dino, config.siglip) == (OPENVLA_7B.dino, OPENVLA_7B.siglip)
    data = make_published_config(llama)
    data["text_config"] |= {"num_hidden_layers": 5, "vocab_size": 40064}
    config = infer_openvla(shapes, data)
    assert (config.prefix.depth, config.vocab, config.space_token) == (5, 40064, SPACE_TOKEN)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image_resize_strategy", "letterbox"),
        ("use_fused_vision_backbone", False),
        ("arch_specifier", "no-align+gelu-mlp"),
        ("llm_backbone_id", "vicuna-v15-7b"),
        ("timm_override_act_layers", [None, "quick_gelu"]),
        ("pad_to_multiple_of", "64"),
        ("n_action_bins", 0),
        ("image_sizes", [224, 384]),
        ("text_config", "llama"),
        ("text_config.model_type", "mistral"),
        ("text_config.rope_theta", 500000.0),
        ("text_config.rope_scaling", {"type": "linear", "factor": 2.0}),
        ("text_config.hidden_act", "gelu"),
        ("text_config.rms_norm_eps", 0),
        ("text_config.num_hidden_layers", -1),
        ("text_config.num_attention_heads", True),
    ],
)
def test_other_networks_are_refused(field: str, value: Any) -> None:
    data = make_published_config()
    inner = data["text_config"] if field.startswith("text_config.") else data
    inner[field.rpartition(".")[2]] = value
    with pytest.raises(ValueError) as caught:
        infer_openvla(published_shapes(), data)
    word = "image_size" if field == "image_sizes" else field
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("vision_backbone.fused_featurizer.", "have no tensor vision_backbone.fused_featurizer.patch_embed"),
        ("language_model.", "have no tensor language_model.model.embed_tokens"),
    ],
)
def test_what_cannot_be_inferred_is_said(gone: str, message: str) -> None:
    shapes = {name: shape for name, shape in published_shapes().items() if not name.startswith(gone)}
    with pytest.raises(ValueError, match=message):
        infer_openvla(shapes, make_published_config())


def test_heads_are_in_no_shape() -> None:
    llama = LlamaConfig(width=32, depth=3, mlp=48, heads=4, kv_heads=2, head_dim=8)
    with pytest.raises(ValueError, match=r"text_config\.num_attention_heads is None"):
        infer_openvla(small_llama_shapes(llama, 1064), make_published_config())
    shapes = published_shapes()
    shapes["vision_backbone.featurizer.patch_embed.proj.weight"] = (48, 3, 14, 14)
    with pytest.raises(ValueError, match="width 48"):
        infer_openvla(shapes, make_published_config())


def test_json_fields_are_checked() -> None:
    data = make_openvla_config().to_json()
    with pytest.raises(ValueError, match=r"missing \['bins'\], unknown \['boxes'\]"):
        OpenVLAConfig.from_json({**{k: v for k, v in data.items() if k != "bins"}, "boxes": 1})
    with pytest.raises(ValueError, match=r"config\.prefix must"):
        OpenVLAConfig.from_json({**data, "prefix": 3})
    with pytest.raises(ValueError, match=r"^config must"):
        OpenVLAConfig.from_json([])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "pi0"}, "kind is 'pi0'"),
        (
            {"dino": VisionConfig(24, 3, 48, 4, 42, 14)},
            "dino.image_size 42 differs from siglip.image_size 28",
        ),
        ({"siglip": VisionConfig(20, 1, 36, 2, 28, 14)}, "siglip.depth is 1"),
        ({"registers": -1}, "config.registers is -1"),
        ({"registers": 1.5}, "config.registers is 1.5"),
        ({"registers": None}, "config.registers is None"),
        ({"vocab": float("inf")}, "config.vocab is inf"),
        ({"action_vocab": None}, "config.action_vocab is None"),
        ({"bins": True}, "config.bins is True"),
        ({"max_prompt": 0}, "config.max_prompt is 0"),
        ({"space_token": "a"}, "space_token is 'a'"),
        ({"space_token": 1.0}, "space_token is 1.0"),
        ({"image_names": ("a", "b")}, "exactly one name"),
        ({"bins": 99}, "bins 99"),
        ({"action_vocab": 65}, "action_vocab 65"),
        ({"space_token": 64}, "space_token is 64"),
    ],
)
def test_sizes_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_openvla_config(**changes)
