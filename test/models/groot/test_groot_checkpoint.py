"""Folders of GR00T: every layout gives the same network, an embodiment is chosen, and mistakes are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folders import edit_json, edit_weights, refused, same_weights
from groot_builders import DATA, KINDS, LAYOUTS, OTHER, TAG, add_embodiment, make_groot_folder
from groot_oracle import GrootOracle

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy, with_statistics
from vla_accel_ros.models.checkpoints.conversion import convert
from vla_accel_ros.models.groot.config import GrootConfig
from vla_accel_ros.models.groot.policy import GrootPolicy


def load(folder: Path, **arguments: Any) -> GrootPolicy:
    policy = load_policy(folder, **arguments)
    assert isinstance(policy, GrootPolicy)
    return policy


def plain(kind: str, layout: str) -> dict[str, Any]:
    """Arguments for a folder without units."""
    return {"normalize": False, "statistics": "gr1"} if (kind, layout) == ("groot_n1_5", "nvidia") else {}


@pytest.mark.parametrize("kind", KINDS)
def test_both_layouts_are_one_network(tmp_path: Path, kind: str) -> None:
    policies = [
        load(make_groot_folder(tmp_path / layout, kind, layout), **plain(kind, layout)) for layout in LAYOUTS
    ]
    assert same_weights(*policies)
    if kind == "groot_n1_7":
        assert policies[0].config == policies[1].config
        state = np.linspace(-0.2, 0.4, 17, dtype=np.float32)
        assert torch.equal(policies[0].normalized_state(state), policies[1].normalized_state(state))


def test_sizes_are_those_of_the_recording() -> None:
    sizes = json.loads((DATA / "groot_n1_7" / "oracle.json").read_text())["sizes"]
    config = describe(DATA / "groot_n1_7" / "checkpoint").config
    assert isinstance(config, GrootConfig)
    assert (config.vision.width, config.vision.depth, config.vision.heads) == (
        sizes["vh"],
        sizes["vdepth"],
        sizes["vheads"],
    )
    assert (config.text.heads, config.text.kv_heads, config.text.head_dim) == (
        sizes["theads"],
        sizes["tkv"],
        sizes["thd"],
    )
    assert (config.taps, config.sections) == (tuple(sizes["deep"]), tuple(sizes["mrope"]))
    assert (config.dit.depth, config.dit.heads, config.dit.head_dim) == (
        sizes["dl"],
        sizes["dheads"],
        sizes["dhd"],
    )
    assert (config.horizon, config.state_dim, config.action_dim) == (
        sizes["horizon"],
        sizes["sd"],
        sizes["ad"],
    )
    assert config.image_names == tuple(sizes["cams"])
    assert GrootConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_inspection_says_what_the_actions_are() -> None:
    described = describe(DATA / "groot_n1_7" / "checkpoint")
    assert described.statistics == (TAG,)
    assert described.other_actions.startswith("eef_9d")
    assert described.relative is not None
    assert described.relative.tolist() == [False] * 10 + [True] * 7, "poses are absolute when they are given"
    assert described.state.shape == described.actions.shape == (2, 17)
    assert not described.missing
    assert any("9 of 11" in note for note in described.notes)


def test_an_embodiment_is_chosen_and_shares_the_network(tmp_path: Path) -> None:
    folder = make_groot_folder(tmp_path / "two")
    add_embodiment(folder)
    refused(folder, TAG, OTHER, "statistics")
    assert describe(folder).missing
    arm = load(folder, statistics=TAG)
    other = with_statistics(arm, folder, statistics=OTHER)
    assert isinstance(other, GrootPolicy)
    assert other.model is arm.model
    assert (arm.settings.number, other.settings.number) == (3, 1)
    assert (len(arm.config.image_names), other.config.image_names) == (2, ("front",))
    assert other.normalized_state(np.array([0.5, 3.0, 7.0], np.float32))[:3].tolist() == [1.0, 1.0, 0.0]
    chunk = other.actions(torch.ones(11, 23), np.zeros(3, np.float32))
    assert chunk.shape == (5, 3)
    assert chunk[0].tolist() == [0.5, 3.0, 5.0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_folder_is_the_same_policy(tmp_path: Path, kind: str) -> None:
    layout = {"groot_n1_7": "nvidia", "groot_n1_5": "lerobot"}[kind]
    folder = make_groot_folder(tmp_path / "source", kind, layout)
    ours = load(convert(folder, tmp_path / "converted"))
    theirs = load(folder)
    assert ours.config == theirs.config
    state = np.full(7 if kind == "groot_n1_5" else 17, 0.1, np.float32)
    assert torch.equal(ours.normalized_state(state), theirs.normalized_state(state))
    assert same_weights(ours, theirs)


def test_layers_beyond_the_cut_are_left_out(tmp_path: Path) -> None:
    folder = make_groot_folder(tmp_path / "cut")
    edit_json(folder / "config.json", lambda data: data.update(select_layer=3))
    assert load(folder).config.text.depth == 3


def test_features_are_those_before_what_the_vision_adds_to_the_last_kept_layer(tmp_path: Path) -> None:
    """recorded: lerobot 7427f318 with select_layer 3, of the recording's first frame."""
    recorded = [-0.53327, 2.016305, 0.044837, -0.398851, -1.697194, 1.159695]
    folder = make_groot_folder(tmp_path / "cut")
    edit_json(folder / "config.json", lambda data: data.update(select_layer=3))
    oracle = GrootOracle.load("groot_n1_7/checkpoint")
    engine = Engine(load(folder), steps=len(oracle["timesteps"]))
    with engine.observe(oracle.observation()) as prefix:
        chunk = engine.act(prefix, noise=oracle["noise"][0].numpy())
    assert chunk.actions.flatten()[::30].tolist() == pytest.approx(recorded, abs=1e-5)


def test_an_unknown_field_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    folder = make_groot_folder(tmp_path / "folder")
    edit_json(folder / "config.json", lambda data: data["diffusion_model_cfg"].update(gated=True))
    refused(folder, "diffusion_model_cfg", "gated")
    folder = make_groot_folder(tmp_path / "other")
    edit_json(
        folder / "processor_config.json",
        lambda data: data["processor_kwargs"].update(apply_sincos_state_encoding=True),
    )
    refused(folder, "processor_config.json", "apply_sincos_state_encoding")


def test_every_tensor_that_does_not_fit_is_in_one_error(tmp_path: Path) -> None:
    folder = make_groot_folder(tmp_path / "folder")

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["action_head.extra"] = torch.zeros(1)
        del tensors["action_head.vlln.bias"]
        tensors["action_head.vlln.weight"] = torch.zeros(65)

    edit_weights(folder / "model.safetensors", spoil)
    refused(folder, "action_head.extra", "action_head.vlln.bias", "action_head.vlln.weight", "[65]")


def first(data: dict[str, Any], kind: str) -> dict[str, Any]:
    """What processor_config.json says of the embodiment's states, actions or images."""
    modality: dict[str, Any] = data["processor_kwargs"]["modality_configs"][TAG][kind]
    return modality


def drop(*path: str) -> Any:
    """A change that removes the last of these fields."""

    def change(data: Any) -> None:
        for name in path[:-1]:
            data = data[name]
        del data[path[-1]]

    return change


@pytest.mark.parametrize(
    ("file", "change", "parts"),
    [
        ("statistics.json", drop(TAG), (TAG, "statistics")),
        ("statistics.json", drop(TAG, "state", "eef_9d"), ("state.eef_9d",)),
        ("statistics.json", drop(TAG, "relative_action", "eef_9d", "min"), ("relative_action.eef_9d", "min")),
        ("embodiment_id.json", lambda data: data.update({TAG: "three"}), (TAG, "number")),
        (
            "processor_config.json",
            lambda data: first(data, "state").update(delta_indices=[-1, 0]),
            ("delta_indices", "[0]"),
        ),
        (
            "processor_config.json",
            lambda data: first(data, "action")["action_configs"][0].update(format="XYZ_ROTVEC"),
            ("eef_9d", "XYZ_ROT6D"),
        ),
        (
            "processor_config.json",
            lambda data: data["processor_kwargs"].update(crop_fraction="most"),
            ("crop_fraction", "most"),
        ),
        (
            "processor_config.json",
            lambda data: first(data, "action")["action_configs"].__setitem__(0, 3),
            ("action_configs[0]", "3", "relative"),
        ),
        (
            "processor_config.json",
            lambda data: first(data, "action")["action_configs"][1].update(rep="DELTA"),
            ("action_configs[1].rep", "DELTA", "relative"),
        ),
        (
            "processor_config.json",
            lambda data: first(data, "action").update(delta_indices=9),
            ("delta_indices", "9", "list"),
        ),
        (
            "processor_config.json",
            lambda data: data["processor_kwargs"].update(letter_box_transform="no"),
            ("letter_box_transform", "'no'", "true"),
        ),
        ("embodiment_id.json", lambda data: data.update({TAG: 5}), (TAG, "5", "0 to 4")),
        (
            "backbone/preprocessor_config.json",
            lambda data: data.update(image_mean=[0.4, 0.5, 0.5]),
            ("image_mean", "0.4"),
        ),
        (
            "backbone/preprocessor_config.json",
            lambda data: data["size"].update(shortest_edge="x"),
            ("preprocessor_config.json", "shortest_edge", "'x'"),
        ),
        ("backbone/config.json", lambda data: data.update(vision_config=3), ("num_heads",)),
        ("config.json", lambda data: data.update(model_type=[]), ("model_type", "[]")),
        ("backbone/config.json", drop("vision_config", "num_heads"), ("num_heads",)),
        ("backbone/config.json", drop("text_config", "rope_parameters", "rope_theta"), ("rope_theta",)),
        ("backbone/config.json", drop("text_config", "rope_parameters", "mrope_section"), ("mrope_section",)),
    ],
)
def test_a_broken_small_file_is_named_with_its_field(
    tmp_path: Path, file: str, change: Any, parts: tuple[str, ...]
) -> None:
    folder = make_groot_folder(tmp_path / "folder")
    edit_json(folder / file, change)
    refused(folder, *parts)


@pytest.mark.parametrize(
    "name", ["processor_config.json", "statistics.json", "embodiment_id.json", "backbone/tokenizer.json"]
)
def test_a_missing_small_file_is_named(tmp_path: Path, name: str) -> None:
    folder = make_groot_folder(tmp_path / "folder")
    (folder / name).unlink()
    refused(folder, Path(name).name)


def test_eagles_assets_are_asked_for(tmp_path: Path) -> None:
    folder = make_groot_folder(tmp_path / "folder", "groot_n1_5", "lerobot")
    (folder / "eagle_assets").rename(tmp_path / "moved")
    refused(folder, "eagle_assets", "lerobot/eagle2hg-processor-groot-n1p5")


def test_nvidias_n1_5_does_not_say_its_units(tmp_path: Path) -> None:
    folder = make_groot_folder(tmp_path / "folder", "groot_n1_5", "nvidia")
    refused(folder, "statistics", statistics="gr1")
    assert describe(folder).missing
    assert load(folder, normalize=False, statistics="gr1").settings.number == 24


def test_a_base_model_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    folder = make_groot_folder(tmp_path / "folder", "groot_n1_7", "lerobot")
    edit_json(folder / "config.json", lambda data: data.update(base_model_path="somebody/elses"))
    refused(folder, "base_model_path", "somebody/elses")


def test_statistics_of_a_data_set_stand_in_for_those_of_groups(tmp_path: Path) -> None:
    """As lerobot saves a new embodiment: no groups, and its own last step."""
    from safetensors.torch import save_file

    folder = make_groot_folder(tmp_path / "folder", "groot_n1_7", "lerobot")
    state, actions = torch.tensor([-1.0, 0.0]), torch.tensor([[0.0, 2.0], [4.0, 4.0]])
    ends = {
        "observation.state.min": state,
        "observation.state.max": state + 2,
        "action.min": actions[0],
        "action.max": actions[1],
    }
    save_file(ends, folder / "pack.safetensors")

    def unknown_groups(data: dict[str, Any]) -> None:
        data["steps"][0]["config"] |= {"raw_stats": None, "modality_config": None}
        data["steps"][0]["state_file"] = "pack.safetensors"

    edit_json(folder / "policy_preprocessor.json", unknown_groups)
    unpack = {
        "registry_name": "groot_action_unpack_unnormalize_v1",
        "config": {"env_action_dim": 2, "normalize_min_max": True},
    }
    edit_json(folder / "policy_postprocessor.json", lambda data: data.update(steps=[unpack]))
    policy = load(folder)
    assert policy.normalized_state(np.array([1.0, 1.0], np.float32))[:3].tolist() == [1.0, 0.0, 0.0]
    assert policy.actions(torch.zeros(11, 23), np.zeros(2, np.float32)).tolist() == [[2.0, 3.0]] * 9


def flat_folder(folder: Path, actions: int, step: dict[str, Any]) -> Path:
    """As lerobot saves what it trained with a data set's statistics; actions lie between 0 and 1."""
    from safetensors.torch import save_file

    make_groot_folder(folder, "groot_n1_7", "lerobot")
    ends = {"min": torch.zeros(actions), "max": torch.ones(actions)}
    save_file(
        {f"{name}.{end}": x.clone() for name in ("observation.state", "action") for end, x in ends.items()},
        folder / "pack.safetensors",
    )

    def unknown_groups(data: dict[str, Any]) -> None:
        data["steps"][0]["config"] |= {"raw_stats": None, "modality_config": None, "video_horizon": None}
        data["steps"][0]["state_file"] = "pack.safetensors"

    edit_json(folder / "policy_preprocessor.json", unknown_groups)
    unpack = {"env_action_dim": actions, "normalize_min_max": True, "clip_normalized_action": True, **step}
    last = {"registry_name": "groot_action_unpack_unnormalize_v2", "config": unpack}
    edit_json(folder / "policy_postprocessor.json", lambda data: data.update(steps=[last]))
    return folder


LIBERO_STEP = {"libero_gripper_action": True, "libero_gripper_binarize": True}


@pytest.mark.parametrize("libero", [False, True])
def test_a_grippers_share_becomes_liberos_command_where_config_json_says_so(
    tmp_path: Path, libero: bool
) -> None:
    """-sign(2 g - 1) of the last number, after it is unnormalised, as lerobot (7427f318) computes it."""
    folder = flat_folder(tmp_path / "folder", 7, {"libero_gripper_action": not libero})
    edit_json(
        folder / "config.json", lambda data: data.update(action_decode_transform="libero" if libero else None)
    )
    policy = load(folder)
    raw = torch.zeros(11, 23)
    raw[:, 6] = torch.tensor([-1.0, -0.4, 0.4, 1.0, 7.0, *[0.1] * 6])
    chunk = policy.actions(raw, np.zeros(7, np.float32))
    shares = (raw[:9, 6].clamp(-1, 1).numpy() + 1) / 2
    expected = -np.sign(2 * shares - 1) if libero else shares
    np.testing.assert_allclose(chunk[:, 6], expected, atol=1e-6)
    np.testing.assert_allclose(chunk[:, :6], 0.5)
    ends = describe(folder).actions
    assert ends[:, 6].tolist() == ([-1.0, 1.0] if libero else [0.0, 1.0]) and ends[:, 5].tolist() == [
        0.0,
        1.0,
    ]
    back = policy.actions(policy.raw_actions(chunk, np.zeros(7, np.float32)), np.zeros(7, np.float32))
    np.testing.assert_allclose(back, chunk, atol=1e-6)


def test_a_data_set_of_fewer_numbers_than_a_hand_has_no_such_gripper(tmp_path: Path) -> None:
    folder = flat_folder(tmp_path / "folder", 6, LIBERO_STEP)
    edit_json(folder / "config.json", lambda data: data.update(action_decode_transform="libero"))
    assert load(folder).actions(torch.zeros(11, 23), np.zeros(6, np.float32))[0, -1] == 0.5


def test_liberos_command_is_made_of_the_group_with_a_grippers_name(tmp_path: Path) -> None:
    """The recorded embodiment calls it gripper_position; then it is asked for."""
    folder = make_groot_folder(tmp_path / "folder", "groot_n1_7", "lerobot")
    edit_json(folder / "config.json", lambda data: data.update(action_decode_transform="libero"))
    refused(folder, "'gripper'", "action_decode_transform")
    for file in ("policy_preprocessor.json", "policy_postprocessor.json"):
        path = folder / file
        path.write_text(path.read_text().replace('"gripper_position"', '"gripper"'))
    plain = load(make_groot_folder(tmp_path / "plain", "groot_n1_7", "lerobot"))
    raw, state = torch.linspace(-1, 1, 11 * 23).view(23, 11).T.contiguous(), np.zeros(17, np.float32)
    state[[3, 7]] = 1.0
    chunk, shares = (policy.actions(raw, state) for policy in (load(folder), plain))
    np.testing.assert_array_equal(chunk[:, 9], -np.sign(2 * shares[:, 9] - 1))
    np.testing.assert_array_equal(np.delete(chunk, 9, 1), np.delete(shares, 9, 1))


def test_another_transform_of_actions_is_refused(tmp_path: Path) -> None:
    folder = make_groot_folder(tmp_path / "folder", "groot_n1_7", "lerobot")
    edit_json(folder / "config.json", lambda data: data.update(action_decode_transform="robocasa"))
    refused(folder, "action_decode_transform", "robocasa", "libero")
