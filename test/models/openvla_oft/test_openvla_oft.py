"""OpenVLA-OFT's folders are read or refused, and its policy acts in the engine: alone, with robots, again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folders import edit_json, edit_torch, refused, same_weights
from openvla_oft_oracle import OFTOracle, folder_with_sizes
from oracle import FOLDER
from torch import Tensor

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy, with_statistics
from vla_accel_ros.models.checkpoints.conversion import convert
from vla_accel_ros.models.checkpoints.formats import Contents
from vla_accel_ros.models.openvla_oft.checkpoint import read_config
from vla_accel_ros.models.openvla_oft.policy import OpenVLAOFTPolicy

NAME = "openvla_oft"
pytestmark = pytest.mark.skipif(not (FOLDER / NAME).is_dir(), reason="VLA_ORACLES has no such recording")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_with_sizes(NAME, tmp_path / "checkpoint")


@pytest.fixture(scope="module")
def oracle() -> OFTOracle:
    return OFTOracle.load(NAME)


# Folders.


def test_oft_description_says_what_it_takes_and_gives(folder: Path) -> None:
    description = describe(folder)
    assert description.missing == () and description.config.kind == "openvla_oft"
    assert (description.horizon, description.action_dim, description.state_dim) == (8, 7, 8)
    assert description.actions.shape == (2, 7) and description.state.shape == (2, 8) and description.twist
    stats = json.loads((folder / "dataset_statistics.json").read_text())["libero_spatial_no_noops"]["action"]
    moved = np.array(stats["mask"])
    np.testing.assert_allclose(description.actions[0][moved], np.array(stats["q01"])[moved], atol=1e-7)


def test_oft_sizes_follow_from_the_published_folder_and_the_data_sets_name(folder: Path) -> None:
    """Those of the tiny towers do not, so they are taken from the published widths here."""
    ours = json.loads((folder / "config.json").read_text())["vla_accel_ros"]
    edit_json(folder / "config.json", lambda data: data.pop("vla_accel_ros"))
    with pytest.raises(ValueError, match="width 24"):
        read_config(Contents.of(folder))
    (folder / "dataset_statistics.json").rename(folder / "other.json")
    edit_json(folder / "config.json", lambda data: data.update(norm_stats={"my_arm": {}}))
    with pytest.raises(ValueError, match=r"trained_as.*libero.*bridge.*aloha"):
        read_config(Contents.of(folder))
    with pytest.raises(ValueError, match="width 24"):
        read_config(Contents.of(folder, trained_as="libero"))
    edit_json(folder / "config.json", lambda data: data.update(vla_accel_ros=ours))
    with pytest.raises(ValueError, match=r"no trained_as \('libero'\)"):
        read_config(Contents.of(folder, trained_as="libero"))


def without(pattern: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        for file in folder.glob(pattern):
            file.unlink()

    return remove


def shorter(tensors: dict[str, Tensor]) -> None:
    tensors["module.model.fc2.weight"] = tensors["module.model.fc2.weight"][1:].clone()


def not_finite(tensors: dict[str, Tensor]) -> None:
    tensors["module.fc1.bias"][0] = torch.inf


def crossed(statistics: dict[str, Any]) -> None:
    entry = next(iter(statistics.values()))["proprio"]
    entry["q99"][0] = entry["q01"][0] - 1.0


def robots(statistics: dict[str, Any]) -> None:
    statistics["other"] = next(iter(statistics.values()))


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        (without("proprio_projector*"), "proprio_projector.fc1.weight"),
        (without("dataset_statistics.json"), "statistics of 0 datasets"),
        (without("tokenizer*"), "tokenizer"),
        (without("action_head*"), "action_head"),  # as an OpenVLA
        (lambda folder: (folder / "action_head--9_checkpoint.pt").touch(), "action_head--9_checkpoint.pt"),
        (lambda folder: (folder / "noisy_action_projector--150000_checkpoint.pt").touch(), "denoises"),
        (
            lambda folder: edit_torch(next(folder.glob("action_head*")), shorter),
            "fc2.weight [6, 20] instead of [7, 20]",
        ),
        (
            lambda folder: edit_torch(next(folder.glob("proprio_projector*")), not_finite),
            "proprio_projector.fc1.bias",
        ),
        (lambda folder: edit_json(folder / "dataset_statistics.json", crossed), "proprio"),
        (lambda folder: edit_json(folder / "dataset_statistics.json", robots), "other"),
    ],
)
def test_oft_folder_that_does_not_fit_is_refused(
    folder: Path, damage: Callable[[Path], None], fact: str
) -> None:
    damage(folder)
    refused(folder, fact)


def test_oft_converted_has_the_same_actions_in_safetensors_alone(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "converted")
    assert not [*(tmp_path / "converted").glob("*.pt")]
    assert same_weights(load_policy(folder), load_policy(tmp_path / "converted"))


# In the engine.


def chunk_of(policy: OpenVLAOFTPolicy, observation: Any, state: np.ndarray) -> np.ndarray:
    """Without an engine."""
    with torch.inference_mode():
        given = policy.inputs(observation)
        seen = policy.encode(given.images)["seen"]
        raw = policy.forward(seen, given.tokens, policy.normalized_state(state))["actions"]
    return policy.actions(raw, state)


def test_oft_chunk_comes_from_the_frame_and_the_newest_joints(oracle: OFTOracle) -> None:
    policy, observation = oracle.policy, oracle.observation
    engine = Engine(policy)
    state = observation.state + 0.05
    with engine.observe(observation) as prefix:
        chunks = engine.act(prefix), engine.act(prefix, state)
    for chunk, joints in zip(chunks, (observation.state, state), strict=True):
        expected = chunk_of(policy, observation, np.asarray(joints, np.float32))
        np.testing.assert_array_equal(chunk.actions, expected)
    assert chunks[0].actions.shape == (8, 7) and not np.array_equal(chunks[0].actions, chunks[1].actions)
    again = Engine(policy)
    with again.observe(observation) as prefix:
        np.testing.assert_array_equal(again.act(prefix).actions, chunks[0].actions)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("frame", ["", "second_"])
def test_oft_actions_of_camera_images_are_the_recorded_ones(
    oracle: OFTOracle, frame: str, fast: bool
) -> None:
    engine = Engine(oracle.policy, fast=fast)
    with engine.observe(oracle.observation_of(frame)) as prefix:
        chunk = engine.act(prefix)
    assert np.abs(chunk.actions - oracle.arrays[f"{frame}actions"]).max() < 1e-5


def test_oft_robots_have_their_own_statistics(folder: Path, oracle: OFTOracle) -> None:
    data = json.loads((folder / "dataset_statistics.json").read_text())
    (name,) = data
    for field in ("q01", "q99"):
        data[name]["action"][field] = [2.0 * number for number in data[name]["action"][field]]
    (folder / "dataset_statistics.json").write_text(json.dumps(data))
    other = with_statistics(oracle.policy, folder)
    assert isinstance(other, OpenVLAOFTPolicy)
    policies = {"a": oracle.policy, "b": other}
    robots = {robot: Embodiment(policy, 0.05) for robot, policy in policies.items()}
    engine = Engine(oracle.policy, robots=robots, scheduling="batches")
    for robot, policy in policies.items():
        observation = replace(oracle.observation, robot=robot)
        with engine.observe(observation) as prefix:
            actions = engine.act(prefix).actions
        expected = chunk_of(policy, observation, np.asarray(observation.state, np.float32))
        np.testing.assert_array_equal(actions, expected)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"images": {}}, "full_image"),
        ({"state": np.zeros(7, np.float32)}, "8 finite"),
        ({"state": np.full(8, np.nan, np.float32)}, "8 finite"),
        ({"instruction": "lift " * 400}, "instruction"),
    ],
)
def test_oft_observation_that_does_not_fit_is_refused(
    oracle: OFTOracle, changes: dict[str, Any], fact: str
) -> None:
    engine = Engine(oracle.policy)
    with pytest.raises(ValueError, match=fact):
        engine.observe(replace(oracle.observation, **changes))
    with engine.observe(oracle.observation) as prefix, pytest.raises(ValueError, match="steps"):
        engine.act(prefix, steps=2)
