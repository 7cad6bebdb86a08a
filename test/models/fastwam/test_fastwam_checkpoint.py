"""Folders of a Fast-WAM: lerobot's two layouts and the authors', what is refused, and what a folder says."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastwam_oracle import FastWAMOracle
from folders import edit_json, edit_weights, refused, same_weights
from oracle import FOLDER
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy, with_statistics
from vla_accel_ros.models.checkpoints.conversion import convert
from vla_accel_ros.models.fastwam.config import FASTWAM, FastWAMConfig
from vla_accel_ros.models.fastwam.policy import FastWAMPolicy
from vla_accel_ros.tools.summary import summary
from vla_accel_ros.types import Observation

AS_LIBERO = "libero head_dim=18 image_height=64 image_width=96 horizon=6 max_prompt=32"
LATER = re.compile(r"^model\.mot\.layers\.(\d+)\.blocks\.(\w+)\.")
VAE, TEXT = "vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with the parts of Wan beside it."""
    shutil.copytree(FOLDER / "fastwam", tmp_path / "fastwam")
    return tmp_path / "fastwam" / "checkpoint"


def earlier(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the names of the first published folders."""
    return {LATER.sub(r"model.mot.mixtures.\2.blocks.\1.", name): value for name, value in tensors.items()}


def authors(folder: Path) -> Path:
    """The same weights as the authors save them, with statistics of their shape."""
    tensors = earlier(load_file(folder / "model.safetensors"))
    parts = {
        part: {name.removeprefix(root): value for name, value in tensors.items() if name.startswith(root)}
        for part, root in (("mot", "model.mot."), ("proprio_encoder", "model.proprio_encoder."))
    }
    own = folder.parent / "checkpoint_original"
    own.mkdir()
    torch.save({**parts, "step": 20_000, "torch_dtype": torch.bfloat16}, own / "fastwam.pt")
    rng = np.random.default_rng(0)
    statistics = {
        kind: {
            "default": {f"global_{name}": (base + rng.uniform(0, 1, size)).tolist() for name, base in NUMBERS}
        }
        for kind, size in (("state", 5), ("action", 4))
    }
    statistics["state"]["default"]["global_max"][2] = statistics["state"]["default"]["global_min"][2]
    (own / "dataset_stats.json").write_text(json.dumps(statistics))
    return own


NUMBERS = (("min", -2.0), ("max", 1.0), ("mean", 0.0), ("std", 0.5))


def test_earlier_names_and_the_authors_file_are_the_same_weights(folder: Path) -> None:
    native = load_policy(folder)
    assert same_weights(native, load_policy(authors(folder), trained_as=AS_LIBERO))
    file = folder / "model.safetensors"
    save_file(earlier(load_file(file)), file)
    assert "model.mot.mixtures.video.blocks.2.self_attn.k.weight" in load_file(file)
    assert same_weights(native, load_policy(folder))


def test_a_converted_folder_needs_nothing_beside_it(folder: Path, tmp_path: Path) -> None:
    native, own = load_policy(folder), authors(folder)
    alone = convert(folder, tmp_path / "alone"), convert(own, tmp_path / "own", trained_as=AS_LIBERO)
    units = load_policy(own, trained_as=AS_LIBERO)
    shutil.rmtree(folder.parent)
    for converted, like in zip(alone, (native, units), strict=True):
        policy = load_policy(converted)
        assert same_weights(policy, native) and policy.config == like.config
        assert policy.prompt("push", np.zeros(5)) == like.prompt("push", np.zeros(5))
        raw = torch.linspace(-1, 1, 24).view(6, 4)
        np.testing.assert_array_equal(policy.actions(raw, np.zeros(5)), like.actions(raw, np.zeros(5)))
    stored = load_file(alone[0] / "model.safetensors")
    assert torch.equal(stored["vae.encoder.conv_in.weight"], load_vae()["encoder.conv_in.weight"])


def load_vae() -> dict[str, Tensor]:
    return load_file(FOLDER / "fastwam" / "wan_diffusers" / VAE)


def test_a_folder_says_its_sizes_and_toggles(folder: Path) -> None:
    said = describe(folder)
    assert not said.missing
    assert (
        isinstance(said.config, FastWAMConfig)
        and FastWAMConfig.from_json(json.loads(json.dumps(said.config.to_json()))) == said.config
    )
    assert said.config.image_names == ("front", "wrist") and said.config.image_tokens == 6
    assert any("[1]" in note and "gripper" in note for note in said.notes)
    lines = summary(said)
    assert "flow matching" in lines and "front, wrist" in lines and said.twist
    own = describe(authors(folder), trained_as=AS_LIBERO)
    assert own.twist and own.state.shape == (2, 5) and not own.missing
    assert any("vae.encoder" in name for name in own.tensors)


def test_what_only_later_frames_and_the_videos_end_read_changes_no_bit(folder: Path) -> None:
    """The two earlier slices of every kernel in time, convolutions over time, the video's head and all of its
    last layer but keys and values."""
    native, file = load_policy(folder), folder.parent / "wan_diffusers" / VAE
    tensors = load_file(file)
    for name, value in tensors.items():
        if value.ndim == 5 and value.shape[2] == 3:
            value[:, :, : 3 if "time_conv" in name else 2] += 1.0
    save_file(tensors, file)
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if re.search(r"video\.head|layers\.2\.blocks\.video\.(cross|ffn|norm3|self_attn\.[qo])", name):
            weights[name] += 1.0
    save_file(weights, folder / "model.safetensors")
    assert same_weights(native, load_policy(folder))
    tensors["encoder.conv_out.weight"][0, 0, 2, 1, 1] += 1.0
    save_file(tensors, file)
    assert not same_weights(native, load_policy(folder))


@pytest.mark.parametrize(
    ("file", "change", "names"),
    [
        ("", lambda c: c.update(tiled=True), ("tiled", "True")),
        ("", lambda c: c.update(flow_schedule="cosine"), ("flow_schedule",)),
        ("", lambda c: c.update(prompt_template="no word"), ("template", "{task}")),
        ("", lambda c: c.update(image_size=[60, 96]), ("60 x 96", "32")),
        ("", lambda c: c["video_dit_config"].update(video_attention_mask_mode="full"), ("mask_mode", "full")),
        ("", lambda c: c["video_dit_config"].update(action_conditioned=True), ("action_conditioned",)),
        ("", lambda c: c["action_dit_config"].update(num_heads=3), ("num_heads", "2", "3")),
        ("", lambda c: c["action_scheduler"].update(kind="karras"), ("action_scheduler", "kind")),
        ("", lambda c: c["video_dit_config"].update(patch_size=[1, 2, 4]), ("patch_size", "[1, 2, 4]")),
        ("../wan_diffusers/vae", lambda c: c.update(is_residual=False), ("is_residual",)),
        ("../wan_diffusers/vae", lambda c: c.update(patch_size=1), ("conv_in",)),
        ("../wan_diffusers/vae", lambda c: c.update(quantised=True), ("quantised",)),
        (
            "../wan_diffusers/text_encoder",
            lambda c: c.update(feed_forward_proj="gelu"),
            ("feed_forward_proj",),
        ),
        ("../wan_diffusers/text_encoder", lambda c: c.update(rope=1), ("rope",)),
    ],
)
def test_another_setting_is_refused_by_name(
    folder: Path, file: str, change: Callable[[Any], object], names: tuple[str, ...]
) -> None:
    edit_json(folder / file / "config.json", change)
    refused(folder, *names)


def test_all_mistakes_of_all_parts_are_in_one_error(folder: Path) -> None:
    wan = folder.parent / "wan_diffusers"

    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors.pop("model.mot.layers.1.blocks.action.norm3.bias")
        tensors["model.mot.mixtures.action.head.weight"] = torch.zeros(5, 16)

    edit_weights(folder / "model.safetensors", spoil)
    for file, name in ((VAE, "encoder.down_blocks.3.extra"), (TEXT, "encoder.block.7.extra")):
        save_file({**load_file(wan / file), name: torch.zeros(1)}, wan / file)
    (folder / "policy_postprocessor.json").unlink()
    (wan / "tokenizer" / "tokenizer.json").write_text("{")
    refused(
        folder,
        *("layers.1.blocks.action.norm3.bias", "action.head.weight", "vae.encoder.down_blocks.3.extra"),
        *("text_encoder.encoder.block.7.extra", "policy_postprocessor.json", "tokenizer.json"),
    )


def test_parts_that_are_not_there_are_named(folder: Path) -> None:
    shutil.rmtree(folder.parent / "wan_diffusers")
    (sentence,) = describe(folder).missing
    assert all(part in sentence for part in ("vae", "text_encoder", "tokenizer", "Wan2.2-TI2V-5B-Diffusers"))
    refused(folder, "text_encoder")


@pytest.mark.parametrize("toggles", [[4], ["gripper"], None, [True]])
def test_a_toggle_that_the_action_has_not_is_refused(folder: Path, toggles: Any) -> None:
    def set_toggles(data: Any) -> None:
        (step,) = [s for s in data["steps"] if "toggle" in s["registry_name"]]
        step["config"]["toggle_dimensions"] = toggles

    edit_json(folder / "policy_postprocessor.json", set_toggles)
    refused(folder, "toggle_dimensions")


@pytest.mark.parametrize("answer", ["", "bridge", "libero head_dim=x", "libero speed=3", "robotwin horizon"])
def test_the_authors_files_need_to_be_told_what_they_were_trained_for(folder: Path, answer: str) -> None:
    refused(authors(folder), "libero", "robotwin", "horizon", repr(answer), trained_as=answer)
    refused(folder, "trained_as", trained_as="libero")


def test_the_authors_units_are_those_of_their_normalisers(folder: Path) -> None:
    """Least and greatest to -1 and 1, what stood still begins at 0, joints are cut at 5; or z-scores."""
    own = authors(folder)
    data = json.loads((own / "dataset_stats.json").read_text())
    low, high = (np.array(data["state"]["default"][f"global_{name}"]) for name in ("min", "max"))
    libero = load_policy(own, trained_as=AS_LIBERO)
    assert isinstance(libero, FastWAMPolicy)
    state = (low + 0.75 * (high - low)).astype(np.float32)
    state[2], state[4] = low[2] + 0.3, 100.0
    assert libero.normalized_state(state).numpy() == pytest.approx([0.5, 0.5, 0.3, 0.5, 5.0], abs=1e-5)
    raw = torch.full((1, 4), -1.0)
    least = np.array(data["action"]["default"]["global_min"])
    assert least[3] < 0.5
    assert libero.actions(raw, state)[0] == pytest.approx([*least[:3], 1.0], abs=1e-5)
    assert libero.raw_actions(np.array([[*least[:3], -1.0]]), state)[0, :3].tolist() == pytest.approx(
        [-1] * 3
    )
    robotwin = load_policy(own, trained_as=AS_LIBERO.replace("libero", "robotwin"))
    mean, std = (np.array(data["action"]["default"][f"global_{name}"]) for name in ("mean", "std"))
    assert robotwin.actions(torch.ones(1, 4), state)[0] == pytest.approx(mean + std, abs=1e-5)


def test_the_authors_pictures_are_pillows(folder: Path) -> None:
    own, rng = authors(folder), np.random.default_rng(3)
    images = [rng.integers(0, 256, size, np.uint8) for size in ((50, 80, 3), (90, 60, 3), (64, 48, 3))]
    libero = load_policy(own, trained_as=AS_LIBERO)
    robotwin = load_policy(own, trained_as=AS_LIBERO.replace("libero", "robotwin"))
    assert isinstance(libero, FastWAMPolicy) and isinstance(robotwin, FastWAMPolicy)
    parts = []
    for image in images[:2]:
        scale = max(48 / image.shape[1], 64 / image.shape[0])
        resized = pillow(image, *(round(side * scale) for side in image.shape[:2]))
        top, left = (resized.shape[0] - 64) // 2, (resized.shape[1] - 48) // 2
        parts.append(resized[top : top + 64, left : left + 48])
    picture = levels(libero.resized([torch.from_numpy(image) for image in images[:2]]))
    np.testing.assert_array_equal(picture, np.concatenate(parts, axis=1))
    upper, *lower = (pillow(i, *size) for i, size in zip(images, ((42, 96), (22, 48), (22, 48)), strict=True))
    picture = levels(robotwin.resized([torch.from_numpy(image) for image in images]))
    np.testing.assert_array_equal(picture, np.concatenate((upper, np.concatenate(lower, axis=1))))


def pillow(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Rows first, as Pillow did until version 13."""
    rows = Image.fromarray(image).resize((width, image.shape[0]), Image.Resampling.BILINEAR)
    return np.asarray(rows.resize((width, height), Image.Resampling.BILINEAR))


def levels(pixels: Tensor) -> np.ndarray:
    return ((pixels[0] + 1.0) * 127.5).round().byte().permute(1, 2, 0).numpy()


def test_a_network_without_joints_runs(folder: Path) -> None:
    """proprio_dim null: nothing is appended to the words."""

    def without_joints(config: Any) -> None:
        config.update(proprio_dim=None)
        config["input_features"].pop("observation.state")

    edit_json(folder / "config.json", without_joints)
    weights = load_file(folder / "model.safetensors")
    save_file({n: v for n, v in weights.items() if "proprio" not in n}, folder / "model.safetensors")
    edit_json(
        folder / "policy_preprocessor.json",
        lambda c: c["steps"][3]["config"].update(norm_map={"ACTION": "MEAN_STD"}),
    )
    policy = load_policy(folder)
    frame = FastWAMOracle.load("fastwam/checkpoint").observation
    inputs = policy.inputs(frame)
    assert inputs.state.shape == (0,)
    assert isinstance(policy, FastWAMPolicy) and "state" not in policy.chain.of_frame[2].reads
    kept = policy.text_encode(inputs.tokens) | policy.vae_encode(inputs.images)
    assert policy.prefill(kept["latents"], kept["video_text"])["joints"].shape == (2, 3, 0, 36)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda o: replace(o, images={"front": o.images["front"]}), "front"),
        (lambda o: replace(o, state=o.state[:4]), "state"),
    ],
)
def test_an_observation_without_a_camera_or_joint_is_refused(
    change: Callable[[Observation], Observation], name: str
) -> None:
    oracle = FastWAMOracle.load("fastwam/checkpoint")
    with pytest.raises(ValueError, match=name):
        oracle.policy.inputs(change(oracle.observation))


def test_a_long_instruction_is_cut_as_in_training() -> None:
    policy = FastWAMOracle.load("fastwam/checkpoint").policy
    ids = policy.prompt("pick up the red block " * 9, np.zeros(5))
    assert len(ids) == policy.config.max_prompt and ids[-1] == policy.tokenizer.eos


def test_another_robots_statistics_share_the_weights(folder: Path) -> None:
    policy = load_policy(folder)
    other = with_statistics(policy, folder, normalize=False)
    assert other.model is policy.model
    assert isinstance(other, FastWAMPolicy) and other.toggles == ()


def test_published_sizes_have_their_parameters() -> None:
    """5.00 G of the video without its head and the end of its last layer, 1.02 G of the actions, 5.68 G of
    the text, 150 M of the VAE, of whose 3 x 3 x 3 kernels a third is kept."""
    from vla_accel_ros.models.checkpoints.streaming import on_meta
    from vla_accel_ros.models.fastwam.model import FastWAM

    with on_meta():
        model = FastWAM(FASTWAM)
    sizes = {
        part: sum(p.numel() for name, p in model.named_parameters() if part in name)
        for part in ("video", "action", "text_encoder", "vae")
    }
    assert sizes["text_encoder"] == pytest.approx(5.681e9, rel=1e-3)
    assert sizes["action"] == pytest.approx(1.021e9, rel=1e-3)
    assert sizes["video"] == pytest.approx(5.000e9 - 163.7e6 + 18.9e6, rel=1e-3)
    assert 150e6 / 3 < sizes["vae"] < 1.2 * 150e6 / 3
    assert FASTWAM.image_tokens == 98
