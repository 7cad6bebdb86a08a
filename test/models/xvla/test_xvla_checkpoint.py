"""Folders in which lerobot saved an X-VLA: both layouts of names, what is refused, and what a folder says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folders import edit_json, edit_weights, refused, same_weights
from safetensors.torch import load_file, save_file
from xvla_oracle import XVLAOracle, whole_folder

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
from vla_accel_ros.models.xvla.config import XVLA as PUBLISHED
from vla_accel_ros.models.xvla.model import XVLA

MICROSOFTS = (
    (r"vlm\.multi_modal_projector\.image_projection\.weight", "vlm.image_projection"),
    (r"vlm\.multi_modal_projector\.image_position_embed\.", "vlm.image_pos_embed."),
    (r"vlm\.multi_modal_projector\.", "vlm."),
    (r"vlm\.language_model\.", "vlm.language_model.model."),
    (r"(convs\.\d)\.conv\.", r"\1.proj."),
    (r"\.(conv[12])\.(weight|bias)$", r".\1.fn.dw.\2"),
    (r"spatial_block\.norm1\.", "spatial_block.window_attn.norm."),
    (r"channel_block\.norm1\.", "channel_block.channel_attn.norm."),
    (r"\.(window_attn|channel_attn)\.(qkv|proj)\.", r".\1.fn.\2."),
    (r"\.ffn\.(fc[12])\.", r".ffn.fn.net.\1."),
    (r"\.norm2\.(weight|bias)$", r".ffn.norm.\1"),
)
"""transformers' names -> those of Microsoft's Florence-2, as lerobot up to 0.4.4 has them."""

RECORDED = (
    [0.267095, -0.182411, 0.22428, 0.113422, 0.188203],
    [0.920105, 1.003132, 0.882752, 1.004319, 0.879783],
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return whole_folder("xvla/checkpoint", tmp_path / "policy")


def microsofts(name: str) -> str:
    if not name.startswith("model.vlm."):
        return name
    for pattern, replacement in MICROSOFTS:
        name = re.sub(pattern, replacement, name)
    return name


def test_microsofts_names_are_the_same_weights(folder: Path, tmp_path: Path) -> None:
    file = folder / "model.safetensors"
    native = load_policy(folder)
    tensors = {microsofts(name): value for name, value in load_file(file).items()}
    projection = "model.vlm.image_projection"
    tensors[projection] = tensors[projection].t().contiguous()
    tensors["model.vlm.language_model.final_logits_bias"] = torch.zeros(1, 400)
    embedding = tensors.pop("model.vlm.language_model.model.encoder.embed_tokens.weight")
    tensors["model.vlm.language_model.model.shared.weight"] = embedding
    assert "model.vlm.vision_tower.blocks.2.1.channel_block.ffn.fn.net.fc2.weight" in tensors
    save_file(tensors, file)
    assert same_weights(load_policy(folder), native)


def with_an_empty_camera(folder: Path) -> None:
    empty = {"type": "VISUAL", "shape": [3, 64, 64]}
    change = {"observation.images.empty_camera_0": empty}
    edit_json(folder / "config.json", lambda c: c["input_features"].update(change))
    edit_json(folder / "config.json", lambda c: c.update(empty_cameras=1))


def without_soft_prompts(folder: Path) -> None:
    edit_json(folder / "config.json", lambda c: c.update(len_soft_prompts=0))
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("model.transformer.soft_prompt_hub.weight")
    save_file(tensors, folder / "model.safetensors")


def with_more_states_than_room(folder: Path) -> None:
    def normalise(data: Any) -> None:
        (step,) = [s for s in data["steps"] if s["registry_name"] == "normalizer_processor"]
        step["config"]["norm_map"]["STATE"] = "MEAN_STD"
        step["state_file"] = "statistics.safetensors"

    edit_json(folder / "policy_preprocessor.json", normalise)
    moments = {"mean": torch.arange(24) / 24, "std": torch.arange(1, 25) / 12}
    save_file({f"observation.state.{k}": v for k, v in moments.items()}, folder / "statistics.safetensors")


@pytest.mark.parametrize(
    ("change", "more", "recorded"),
    [
        (with_an_empty_camera, (), [0.134165, 0.082316, 0.136171, 0.127765, 0.132845]),
        (without_soft_prompts, (), [0.100532, 0.040356, 0.102323, 0.089921, 0.098212]),
        (with_more_states_than_room, (5, 6, 7, 8), [0.502425, 0.464081, 0.498008, 0.488486, 0.491274]),
    ],
)
def test_a_changed_folder_is_the_published_codes(
    folder: Path, change: Callable[[Path], None], more: tuple[float, ...], recorded: list[float]
) -> None:
    """recorded: lerobot 7427f318 of the same folder, changed, on the recorded frame. It counts an empty
    camera twice if config.json lists it, and cuts a state that is longer than max_state_dim."""
    oracle = XVLAOracle.load("xvla/checkpoint", whole_folder("xvla/checkpoint", folder.parent / "whole"))
    change(folder)
    engine, frame = Engine(load_policy(folder), steps=10), oracle.observation
    with engine.observe(replace(frame, state=np.array([*frame.state, *more], np.float32))) as prefix:
        chunk = engine.act(prefix, noise=oracle["noise"][0].numpy())
    assert chunk.actions.flatten()[::40].tolist() == pytest.approx(recorded, abs=1e-5)


def test_a_folder_says_its_sizes_domain_and_actions(folder: Path) -> None:
    said = describe(folder)
    assert not said.missing
    assert said.config.horizon == 10 and said.config.image_names == ("image", "image2", "image3")  # type: ignore[attr-defined]
    assert any("domain 3 of 6" in note and "ee6d" in note for note in said.notes)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda c: c.update(action_mode="gripper9"), ("action_mode", "gripper9", "ee6d")),
        (lambda c: c.update(resize_imgs_with_padding=None), ("resize_imgs_with_padding", "[224, 224]")),
        (
            lambda c: c["input_features"]["observation.images.image2"].update(type=5),
            ("image2", "5", "VISUAL"),
        ),
        (lambda c: c.update(domain_feature_key="domain"), ("domain_feature_key", "domain")),
        (lambda c: c.update(flow_schedule="cosine"), ("flow_schedule",)),
        (lambda c: c["florence_config"]["vision_config"].update(qkv_bias=False), ("qkv_bias",)),
        (lambda c: c["florence_config"]["text_config"].update(scale_embedding=True), ("scale_embedding",)),
        (lambda c: c["florence_config"].pop("text_config"), ("text_config",)),
    ],
)
def test_another_setting_is_refused_by_name(
    folder: Path, change: Callable[[Any], object], names: tuple[str, ...]
) -> None:
    edit_json(folder / "config.json", change)
    refused(folder, *names)


@pytest.mark.parametrize("domain", [6, -1, "libero", None])
def test_a_domain_that_the_network_has_not_is_refused(folder: Path, domain: Any) -> None:
    def set_domain(data: Any) -> None:
        (step,) = [s for s in data["steps"] if s["registry_name"] == "xvla_add_domain_id"]
        step["config"]["domain_id"] = domain

    edit_json(folder / "policy_preprocessor.json", set_domain)
    refused(folder, "domain_id", repr(domain))


def test_every_tensor_that_does_not_fit_is_named(folder: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors.pop("model.transformer.norm.bias")
        tensors["model.transformer.blocks.9.norm1.bias"] = torch.zeros(48)

    edit_weights(folder / "model.safetensors", spoil)
    refused(folder, "transformer.norm.bias", "blocks.9")


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "captured"])
def test_robots_of_two_domains_share_an_engine_bit_for_bit(folder: Path, fast: bool) -> None:
    oracle = XVLAOracle.load("xvla/checkpoint", folder)
    own, noise = oracle.policy, oracle["noise"][0].numpy()
    robots = {"left": Embodiment(own, 0.1), "right": Embodiment(replace(own, domain=5), 0.1)}
    together = Engine(own, fast=fast, steps=10, robots=robots)
    frames = {name: together.observe(replace(oracle.observation, robot=name)) for name in robots}
    chunks = {name: together.act(frames[name], noise=noise).actions for name in ("right", "left")}
    for name, robot in robots.items():
        alone = Engine(robot.policy, fast=fast, steps=10)
        assert (alone.act(alone.observe(oracle.observation), noise=noise).actions == chunks[name]).all()
    assert abs(chunks["left"] - oracle["actions_model"][0].numpy()).max() < 1e-5
    assert abs(chunks["right"] - chunks["left"]).max() > 1e-3


def test_published_sizes_have_879_million_parameters() -> None:
    with torch.device("meta"):
        model = XVLA(PUBLISHED)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == pytest.approx(879e6, rel=0.002)
    assert (
        PUBLISHED.image_tokens == 50 and PUBLISHED.prefix_rows + PUBLISHED.horizon + PUBLISHED.prompts == 276
    )


def projecting_by_domain(folder: Path) -> Path:
    """The folder with `use_hetero_proj`: six projections for six domains, from a seed."""
    random = torch.Generator().manual_seed(9)
    edit_json(folder / "config.json", lambda config: config.update(use_hetero_proj=True))
    tensors = load_file(folder / "model.safetensors")
    for name in ("vlm_proj", "aux_visual_proj"):
        width, text = tensors.pop(f"model.transformer.{name}.weight").shape
        tensors.pop(f"model.transformer.{name}.bias")
        table = torch.randn(6, text * width, generator=random) / text**0.5
        tensors[f"model.transformer.{name}.fc.weight"] = table
        tensors[f"model.transformer.{name}.bias.weight"] = torch.randn(6, width, generator=random)
    save_file(tensors, folder / "model.safetensors")
    return folder


def of_domains(oracle: XVLAOracle, domains: list[int]) -> torch.Tensor:
    """Clean actions [B, H, A] at the first recorded state, of robots of these domains in one batch."""
    model, count = oracle.policy.model, len(domains)
    domain = torch.tensor(domains)
    words, others = (oracle[f"prefix.{name}"] for name in ("vlm_features", "aux_visual_inputs"))
    rows = model.transformer.rows(words.expand(count, -1, -1), others.expand(count, -1, -1), domain)
    x, t, state = (oracle[f"steps.{name}"][0] for name in ("x_t", "t", "proprio"))
    with torch.inference_mode():
        return model.denoise(x.expand(count, -1, -1), t.expand(count), state.expand(count, -1), rows, domain)


def test_projections_of_each_domain_are_the_published_codes_in_one_batch(folder: Path) -> None:
    """RECORDED: lerobot's SoftPromptedTransformer (7427f318) with the same weights and inputs."""
    actions = of_domains(XVLAOracle.load("xvla/checkpoint", projecting_by_domain(folder)), [3, 5])
    for action, recorded in zip(actions, RECORDED, strict=True):
        assert action.flatten()[::40].tolist() == pytest.approx(recorded, abs=1e-5)


def test_projections_that_config_json_denies_are_refused_by_every_name(folder: Path) -> None:
    projecting_by_domain(folder)
    edit_json(folder / "config.json", lambda config: config.update(use_hetero_proj=False))
    leaves = [
        f"'transformer.{name}.{leaf}'"
        for name in ("vlm_proj", "aux_visual_proj")
        for leaf in ("fc.weight", "bias.weight", "bias", "weight")
    ]
    refused(folder, *leaves)
