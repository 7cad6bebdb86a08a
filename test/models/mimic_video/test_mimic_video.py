"""mimic-video: the authors' files, what is refused, units, and the micro-requests in the engine."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from folders import edit_json, edit_torch, refused, same_weights
from mimic_video_oracle import MimicVideoOracle, settings_of
from torch import Tensor

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
from vla_accel_ros.models.checkpoints.conversion import convert
from vla_accel_ros.models.flow.sampling import flow_times
from vla_accel_ros.models.mimic_video.config import MIMIC_VIDEO
from vla_accel_ros.models.mimic_video.model import MimicVideo
from vla_accel_ros.models.mimic_video.policy import MimicVideoPolicy
from vla_accel_ros.models.mimic_video.statistics import read_units
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.sensing.cameras.image import image_message
from vla_accel_ros.sensing.ingest import Ingest

RECORDING = Path(__file__).parents[2] / "data" / "oracles" / "mimic_video"
SAID = settings_of(json.loads((RECORDING / "oracle.json").read_text()))
STATISTICS = "dataset_statistics.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(RECORDING / "checkpoint", tmp_path / "policy")
    return tmp_path / "policy"


@pytest.fixture(scope="module")
def recording() -> MimicVideoOracle:
    policy = load_policy(RECORDING / "checkpoint", trained_as=SAID)
    assert isinstance(policy, MimicVideoPolicy)
    arrays = {name: torch.from_numpy(value) for name, value in np.load(RECORDING / "oracle.npz").items()}
    return MimicVideoOracle("", json.loads((RECORDING / "oracle.json").read_text()), arrays, policy)


def test_files_as_they_are_published_say_the_block_and_the_data_set(folder: Path) -> None:
    flat = load_policy(folder, trained_as=SAID)
    names = {
        "video_backbone.pt": "video_backbone/v2w_bridge_lora.pt",
        "action_decoder.pt": "action_decoder/w2a_bridge_v2w_bridge_lora_lr1.000e-04_layer2_bsz256.pt",
        STATISTICS: "dataset_statistics/bridge.json",
        "tokenizer.pth": "tokenizer/tokenizer.pth",
    }
    for name, place in names.items():
        (folder / place).parent.mkdir()
        (folder / name).rename(folder / place)
    edit_torch(folder / names["video_backbone.pt"], lambda tensors: tensors.update(_extra()))
    policy = load_policy(folder, trained_as=SAID.replace("xattn_layer_idx=2 ", ""))
    assert isinstance(policy, MimicVideoPolicy)
    assert policy.config.settings.xattn_layer_idx == 2 and same_weights(policy, flat)
    said = describe(folder, trained_as=SAID)
    assert said.statistics == ("bridge",) and "relative" in said.other_actions and not said.missing


def _extra() -> dict[str, Tensor]:
    return {"net.blocks.0.self_attn.q_norm._extra_state": torch.zeros(3, dtype=torch.uint8)}


def test_what_no_file_says_is_asked_for_unless_it_is_the_published_network(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"trained_as.*image_size=480x640"):
        load_policy(folder)


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("layer=2", ("layer=2", "xattn_layer_idx")),
        ("image_size=32", ("image_size", "32")),
        ("image_size=36x48", ("height", "36", "16 pixels")),
        ("img_horizon=3", ("img_horizon", "3")),
        ("img_horizon=65", ("img_horizon", "61")),
        ("stop_after_step=35", ("stop_after_step", "35")),
        ("xattn_layer_idx=4", ("xattn_layer_idx", "4", "3 blocks")),
        ("rope_h=0", ("rope_h", "0")),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(folder: Path, said: str, names: tuple[str, ...]) -> None:
    refused(folder, *names, trained_as=f"{SAID} {said}")


def test_every_file_that_is_missing_is_named(folder: Path) -> None:
    (folder / "tokenizer.pth").unlink()
    shutil.rmtree(folder / "text_encoder")
    shutil.copyfile(folder / "video_backbone.pt", folder / "video_backbone2.pt")
    (folder / "action_decoder").mkdir()
    shutil.copyfile(folder / "action_decoder.pt", folder / "action_decoder" / "other.pt")
    refused(folder, "tokenizer.pth", "text_encoder", "action_decoder/other.pt", trained_as=SAID)


def test_every_tensor_number_and_file_that_does_not_fit_is_in_one_error(folder: Path) -> None:
    edit_torch(folder / "video_backbone.pt", lambda t: t.pop("net.blocks.1.mlp.layer2.weight"))
    edit_torch(folder / "action_decoder.pt", lambda t: t.update({"net.other.weight": torch.zeros(3)}))
    edit_torch(folder / "tokenizer.pth", lambda t: t.update({"encoder.head.0.gamma": torch.ones(5, 1, 1, 1)}))
    edit_json(folder / STATISTICS, lambda s: s["obs/gripper_lowdim"].update(mean=["x"]))
    (folder / "text_encoder" / "tokenizer.json").unlink()
    refused(
        folder,
        *("video.blocks.1.mlp.layer2.weight", "decoder.other.weight", "obs/gripper_lowdim.mean"),
        *("vae.encoder.head.0.gamma [5, 1, 1, 1]", "tokenizer.json"),
        trained_as=SAID,
    )
    assert describe(folder, trained_as=SAID).missing


@pytest.mark.parametrize(
    ("file", "content", "names"),
    [
        ("config.json", {"guidance": 7.0}, ("guidance",)),
        (
            "text_encoder/config.json",
            {"feed_forward_proj": "gated-silu"},
            ("_proj", "gated-silu"),
        ),
        ("text_encoder/config.json", {"sparse": 2}, ("sparse",)),
    ],
)
def test_a_file_that_says_something_unknown_is_refused(
    folder: Path, file: str, content: dict[str, Any], names: tuple[str, ...]
) -> None:
    if not (folder / file).exists():
        (folder / file).write_text("{}")
    edit_json(folder / file, lambda data: data.update(content))
    refused(folder, *names, trained_as=SAID)


@pytest.mark.parametrize("stop", [0, 1])
def test_a_converted_folder_has_the_bits_and_the_settings(folder: Path, tmp_path: Path, stop: int) -> None:
    said = f"{SAID} stop_after_step={stop}"
    out = convert(folder, tmp_path / "out", trained_as=said)
    policy = load_policy(out)
    assert same_weights(policy, load_policy(folder, trained_as=said))
    assert policy.config.settings.stop_after_step == stop and not describe(out).missing
    assert not [file for file in out.rglob("*") if file.suffix in (".pt", ".pth")]
    with pytest.raises(ValueError, match="trained_as"):
        load_policy(out, trained_as=said)


def test_a_step_of_the_video_alone_has_no_blocks_beyond_the_one_that_is_read(folder: Path) -> None:
    counts = [
        len(load_policy(folder, trained_as=f"{SAID} stop_after_step={stop}").model.video.blocks)
        for stop in (0, 1)
    ]
    assert counts == [2, 3]


def test_published_sizes() -> None:
    """Numbers of parameters that were counted on the authors' own modules."""
    whole = replace(MIMIC_VIDEO, settings=replace(MIMIC_VIDEO.settings, stop_after_step=1))
    with torch.device("meta"):
        first, further = MimicVideo(MIMIC_VIDEO), MimicVideo(whole)
    counts = [
        sum(parameter.numel() for parameter in module.parameters())
        for module in (further.video, first.video.blocks, first.decoder, first.text_encoder, first.vae)
    ]
    assert counts == pytest.approx([1.956e9, 1.384e9, 0.499e9, 4.865e9, 53.6e6], rel=2e-3)
    assert MIMIC_VIDEO.settings.rows == 19_200


def test_liberos_fields_are_steps_and_one_of_several_data_sets_is_named(folder: Path) -> None:
    def rename(data: dict[str, Any]) -> None:
        for name, other in (
            ("eef_pos", "eef_pos_ref_delta"),
            ("eef_rot", "eef_rot_ref_delta"),
            ("gripper", "gripper_action"),
        ):
            data[f"action/{other}_lowdim"] = data.pop(f"action/{name}_lowdim")

    (folder / "dataset_statistics").mkdir()
    shutil.copyfile(folder / STATISTICS, folder / "dataset_statistics" / "libero_goal_one.json")
    edit_json(folder / "dataset_statistics" / "libero_goal_one.json", rename)
    refused(folder, "libero_goal_one", "name one", trained_as=SAID)
    said = describe(folder, statistics="libero_goal_one", trained_as=SAID)
    assert "steps" in said.other_actions and not said.missing
    edit_json(folder / STATISTICS, lambda data: data.pop("action/eef_rot_lowdim"))
    with pytest.raises(ValueError, match=r"action/eef_pos_lowdim"):
        read_units(folder, "dataset_statistics", 10, 10)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda entry: entry.update(q01=[0.0]), ("q01",)),
        (lambda entry: entry.update(percentiles=[[0.0]] * 101), ("percentiles", "1001")),
        (lambda entry: entry.update(std_clamped=[-1.0]), ("obs/gripper_lowdim",)),
        (lambda entry: entry.update(mean=[0.0, 1.0]), ("obs/gripper_lowdim",)),
    ],
)
def test_statistics_that_do_not_fit_are_refused(
    folder: Path, change: Callable[[Any], object], names: tuple[str, ...]
) -> None:
    edit_json(folder / STATISTICS, lambda data: change(data["obs/gripper_lowdim"]))
    refused(folder, *names, trained_as=SAID)


def test_a_position_that_did_not_move_is_not_scaled(folder: Path) -> None:
    edit_json(
        folder / STATISTICS, lambda data: data["action/eef_pos_lowdim"].update(std_clamped=[9e-6, 0, 0.5])
    )
    assert read_units(folder, None, 10, 10).actions.scale[:3].tolist() == [1, 1, 0.5]


def test_states_and_actions_of_several_sizes_have_embedders_of_their_own(folder: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        for number, shape in ((0, (21, 7)), (2, (30, 21)), (4, (48, 30))):
            tensors[f"net.obs_embedder.layers.{number}.weight"] = torch.zeros(shape)
            tensors[f"net.obs_embedder.layers.{number}.bias"] = torch.zeros(shape[0])

    edit_torch(folder / "action_decoder.pt", change)
    policy = load_policy(folder, trained_as=SAID, normalize=False)
    assert policy.config.state_dim == 7 and policy.config.state_hidden == (21, 30)
    assert policy.config.action_hidden == ()
    with pytest.raises(ValueError, match=rf"{STATISTICS}.*10 numbers of a state.*7"):
        load_policy(folder, trained_as=SAID)


def test_without_statistics_numbers_pass_as_they_are(folder: Path) -> None:
    (folder / STATISTICS).unlink()
    policy = load_policy(folder, trained_as=SAID, normalize=False)
    state = np.full(10, 3.0, np.float32)
    assert policy.normalized_state(state).tolist() == state.tolist()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=STATISTICS):
        load_policy(folder, trained_as=SAID)


def test_the_newest_frame_stands_for_older_ones_that_are_missing(recording: MimicVideoOracle) -> None:
    policy, whole = recording.policy, recording.observation
    newest = whole.images["workspace_rgb"]
    older = whole.images["workspace_rgb_2"]
    alone = replace(whole, images={"workspace_rgb_2": older, "workspace_rgb": newest})
    still = replace(whole, images=dict.fromkeys(policy.config.image_names, newest))
    latents = [policy.vae_encode(policy.inputs(o).images)["latents"] for o in (alone, still, whole)]
    assert torch.equal(latents[0], latents[1]) and not torch.equal(latents[0], latents[2])
    others = {name: image for name, image in whole.images.items() if name != "workspace_rgb"}
    with pytest.raises(ValueError, match="workspace_rgb"):
        policy.inputs(replace(whole, images=others))


def test_a_camera_at_5_hz_gives_the_frames_of_the_recording_by_its_history(
    recording: MimicVideoOracle,
) -> None:
    names, frames = recording.policy.config.image_names, recording.observation.images
    arm = Contract.load(demo_contract())
    (camera, *_), history = arm.cameras, tuple(recording.policy.config.history["workspace_rgb"].items())
    camera = replace(camera, image="workspace_rgb", rate_hz=5.0, history=history)
    ingest = Ingest(replace(arm, cameras=(camera,)), page_lock=False)
    for number, name in enumerate(names):
        stamp_ns = 10**9 + number * 200_000_000
        ingest.joints(arm.joint_names, [0.0] * 6, stamp_ns, stamp_ns)
        ingest.image(camera.name, bytes(image_message(stamp_ns, "", frames[name])), stamp_ns)
    observation = ingest.observe(stamp_ns, "lift it")
    assert observation is not None and observation.images.keys() == frames.keys()
    for name in names:
        np.testing.assert_array_equal(observation.images[name], frames[name])


def test_images_are_squeezed_to_the_networks_shape_as_pillow_does(recording: MimicVideoOracle) -> None:
    image = np.random.default_rng(3).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    pillow = pytest.importorskip("PIL.Image")
    theirs = np.asarray(pillow.fromarray(image).resize((48, 32), pillow.BILINEAR), np.float32)
    ours = recording.policy.resized([torch.from_numpy(image)])[0].permute(1, 2, 0)
    np.testing.assert_allclose(ours, 2 * (theirs / 255 - 0.5), atol=1e-6)


def test_times_are_summed_in_float64_and_rounded() -> None:
    """Of three steps: 1, then what float32 makes of 1 - 1/3 and of that - 1/3."""
    second = np.float32(1 - 1 / 3)
    assert flow_times(3, "summed") == [1.0, float(second), float(np.float32(float(second) - 1 / 3))]
    assert flow_times(3, "summed") != flow_times(3, "openpi")


class Counting(MimicVideoPolicy):
    """Counts what is computed."""

    runs: ClassVar = Counter[str]()

    def text_encode(self, words: Tensor) -> dict[str, Tensor]:
        self.runs["text_encode"] += 1
        return super().text_encode(words)

    def video_denoise(self, *arguments: Any, **named: Any) -> dict[str, Tensor]:
        self.runs["video_denoise"] += 1
        return super().video_denoise(*arguments, **named)

    def prefill(self, features: Tensor) -> dict[str, Any]:  # type: ignore[override]
        self.runs["prefill"] += 1
        return super().prefill(features)


def test_text_once_an_instruction_video_once_a_frame_and_its_keys_once_a_chunk(
    recording: MimicVideoOracle, folder: Path
) -> None:
    policy = Counting(**vars(load_policy(folder, trained_as=f"{SAID} stop_after_step=2")))
    policy.runs.clear()
    engine, noise = Engine(policy, steps=10), recording["noise_action"][0].numpy()
    for _ in range(2):
        with engine.observe(recording.observation) as prefix:
            chunks = [engine.act(prefix, noise=noise).actions for _ in range(3)]
    recorded = recording.arrays["stop2.actions"][0].numpy()
    assert all(np.abs(actions - recorded).max() < 1e-5 for actions in chunks)
    assert policy.runs == {"text_encode": 1, "video_denoise": 2 * 3, "prefill": 2 * 3}


@pytest.mark.parametrize("goal", ["first_chunk", "rate", "memory", "many_robots"])
def test_a_goal_sets_what_a_family_without_a_stack_has(recording: MimicVideoOracle, goal: str) -> None:
    engine = Engine(recording.policy, steps=10, goal=goal)
    with engine.observe(recording.observation) as frame:
        actions = engine.act(frame, noise=recording["noise_action"][0].numpy()).actions
    assert np.abs(actions - recording.arrays["stop0.actions"][0].numpy()).max() < 1e-5


@pytest.mark.parametrize("option", [{"text_groups": 2}, {"prefill_groups": 2}])
def test_options_that_it_has_not_are_refused(recording: MimicVideoOracle, option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        Engine(recording.policy, **option)


def test_committed_actions_are_kept(recording: MimicVideoOracle) -> None:
    """Each action has a time of its own in the network."""
    engine = Engine(replace(recording.policy, trained_delay=3), steps=10)
    with engine.observe(recording.observation) as frame:
        first = engine.act(frame).actions
        second = engine.act(frame, committed=first[:2]).actions
    np.testing.assert_array_equal(second[:2], first[:2])
    assert np.isfinite(second).all() and np.abs(second[2:] - first[2:]).max() > 1e-4
