"""A folder that lerobot saved, from what a robot sees to where it goes: as lerobot itself computes it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from closeness import rounding
from folders import edit_json, edit_weights, refused
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from smolvla_recording import CASES, FOLDER, SPEC, Case, make_smolvla_folder
from torch import Tensor

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.processing.conventions import Normalizer
from vla_accel_ros.models.smolvla.config import SMOLVLA
from vla_accel_ros.models.smolvla.model import SmolVLA
from vla_accel_ros.models.smolvla.policy import SmolVLAPolicy, resize_to_corner
from vla_accel_ros.models.smolvla.sizes import infer_smolvla

STATISTICS = "policy_preprocessor_step_5_normalizer_processor.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_smolvla_folder(tmp_path_factory.mktemp("smolvla") / "folder")


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def policy(request: pytest.FixtureRequest, folder: Path) -> SmolVLAPolicy:
    policy = load_policy(folder, request.param)
    assert isinstance(policy, SmolVLAPolicy)
    return policy


@pytest.fixture
def engine(policy: SmolVLAPolicy) -> Engine:
    return Engine(policy, steps=SPEC["num_steps"], time_rule="lerobot")


def near(ours: Tensor, recorded: Tensor) -> None:
    torch.testing.assert_close(ours.cpu(), recorded, rtol=0, atol=rounding(recorded))


@pytest.mark.parametrize("index", CASES)
def test_what_the_network_is_given(policy: SmolVLAPolicy, index: int) -> None:
    """Wide and tall images are shrunk, a small one is enlarged; the prompt ends its line once."""
    case = Case(index)
    inputs = policy.inputs(case.observation)
    assert inputs.image_names == tuple(case.cameras)
    near(inputs.images, case.images)
    assert inputs.tokens.tolist() == case["tokens"].tolist()
    near(inputs.state[: len(case["state_normalized"])], case["state_normalized"])
    assert not inputs.state[len(case["state_normalized"]) :].any()


@pytest.mark.parametrize("index", CASES)
def test_actions_of_an_observation(engine: Engine, index: int) -> None:
    case = Case(index)
    with engine.observe(case.observation) as prefix:
        chunk = engine.act(prefix, noise=case["noise"].numpy())
        assert prefix.n_tokens == len(case["prefix_embs"])
    near(torch.from_numpy(chunk.actions), case["actions"])


def test_a_newer_state_changes_nothing(engine: Engine) -> None:
    case = Case(0)
    with engine.observe(case.observation) as prefix:
        first = engine.act(prefix, noise=case["noise"].numpy())
        second = engine.act(prefix, np.ones(6, np.float32), case["noise"].numpy())
    assert np.array_equal(first.actions, second.actions)


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "captured"])
def test_robots_that_share_the_network_have_their_own_state_in_the_prefix(
    policy: SmolVLAPolicy, fast: bool
) -> None:
    shift, scale = np.full(4, 0.3), np.full(4, 0.7)
    own: dict[str, Any] = {
        "state_normalizer": Normalizer(shift, scale),
        "action_normalizer": Normalizer(-shift, scale),
    }
    other = Embodiment(replace(policy, delta_mask=np.array([True, False, True, True]), **own), 0.05)
    engine, seen = Engine(policy, robots={"other": other}, fast=fast), Case(0, str(policy.device)).observation
    theirs = replace(seen, state=seen.state[:4], robot="other")
    with engine.observe(seen) as first, engine.observe(theirs) as second:
        made = engine.act(second, noise=1), engine.act(first, noise=1)
    for chunk, observation, robot in zip(
        made, (theirs, seen), (other, Embodiment(policy, 1 / 30)), strict=True
    ):
        alone = Engine(robot.policy, step_dt_s=robot.step_dt_s, fast=fast)
        with alone.observe(observation) as prefix:
            want = alone.act(prefix, noise=1)
        np.testing.assert_array_equal(chunk.actions, want.actions)
        np.testing.assert_array_equal(chunk.step_magnitudes, want.step_magnitudes)
        assert chunk.step_dt_s == want.step_dt_s


def test_it_is_asked_nothing(engine: Engine) -> None:
    with (
        engine.observe(Case(0).observation) as prefix,
        pytest.raises(ValueError, match=r"smolvla .*language head"),
    ):
        engine.ask(prefix)


def test_a_prompt_that_is_too_long_is_refused(policy: SmolVLAPolicy) -> None:
    assert len(policy.prompt("x" * 31, np.zeros(6))) == 32
    with pytest.raises(ValueError, match="has 33 tokens"):
        policy.prompt("x" * 32, np.zeros(6))


def test_an_unknown_camera_is_named(policy: SmolVLAPolicy) -> None:
    observation = Case(0).observation
    image = observation.images["top"]
    with pytest.raises(ValueError, match=r"has \['left'\]"):
        policy.inputs(replace(observation, images={"left": image}))


def test_what_training_for_committed_actions_says_of_itself(tmp_path: Path) -> None:
    path = make_smolvla_folder(tmp_path / "folder", rtc_training_max_delay=3)
    assert load_policy(path).trained_delay == 3
    path = make_smolvla_folder(tmp_path / "other", rtc_training_max_delay=8)
    refused(path, "config.json", "rtc_training_max_delay is 8")


@given(height=st.integers(1, 40), width=st.integers(1, 40), level=st.integers(0, 255))
def test_a_plain_image_stays_plain_and_black_is_added_on_two_sides(
    height: int, width: int, level: int
) -> None:
    image = torch.full((height, width, 3), level, dtype=torch.uint8)
    resized = resize_to_corner(image, 16)
    inner = max(1, int(height / (max(height, width) / 16))), max(1, int(width / (max(height, width) / 16)))
    assert resized.shape == (3, 16, 16)
    assert (resized[:, : 16 - inner[0]] == -1).all()
    assert (resized[:, :, : 16 - inner[1]] == -1).all()
    torch.testing.assert_close(
        resized[:, 16 - inner[0] :, 16 - inner[1] :], torch.full((3, *inner), level / 255 * 2 - 1)
    )


def test_the_published_sizes_are_inferred() -> None:
    with torch.device("meta"):
        shapes = {f"model.{name}": tuple(p.shape) for name, p in SmolVLA(SMOLVLA).named_parameters()}
    features = {f"observation.images.{name}": {"type": "VISUAL"} for name in SMOLVLA.image_names}
    data = {
        "type": "smolvla",
        "input_features": {"observation.state": {"type": "STATE"}, **features},
        "chunk_size": 50,
        "tokenizer_max_length": 48,
        "resize_imgs_with_padding": [512, 512],
        "attention_mode": "cross_attn",
        "self_attn_every_n_layers": 2,
    }
    assert infer_smolvla(shapes, data) == SMOLVLA


def test_the_tokenizer_may_be_where_newer_lerobot_saves_it(tmp_path: Path) -> None:
    folder = make_smolvla_folder(tmp_path / "folder")
    words = load_policy(folder).prompt("put the cube down", np.zeros(1))
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer.json").rename(folder / "tokenizer" / "tokenizer.json")
    assert load_policy(folder).prompt("put the cube down", np.zeros(1)) == words


DEVIATION, BIAS = "observation.state.std", "model.state_proj.bias"


def weights(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    return lambda file: edit_weights(file, change)


def said(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda file: edit_json(file, change)


@pytest.mark.parametrize(
    ("file", "change", "facts"),
    [
        ("tokenizer.json", Path.unlink, ("tokenizer.json", "HuggingFaceTB/SmolVLM2-500M-Video-Instruct")),
        (STATISTICS, Path.unlink, (STATISTICS, "copy it")),
        ("policy_preprocessor.json", Path.unlink, ("migrate_policy_normalization",)),
        (STATISTICS, weights(lambda t: t.pop(DEVIATION)), (DEVIATION,)),
        (STATISTICS, weights(lambda t: t[DEVIATION].fill_(float("nan"))), (DEVIATION, "finite")),
        (
            "policy_postprocessor.json",
            said(lambda d: d["steps"].append({"registry_name": "absolute_actions_processor"})),
            ("'absolute_actions_processor'",),
        ),
        ("policy_preprocessor.json", said(lambda d: d["steps"].append({"class": "os.system"})), ("no code",)),
        (
            "policy_preprocessor.json",
            said(lambda d: d["steps"][5].update(state_file="../x.safetensors")),
            (".safetensors beside it",),
        ),
        ("model.safetensors", weights(lambda t: t.pop(BIAS)), (f"missing ['{BIAS}']",)),
        ("model.safetensors", lambda file: os.truncate(file, 5000), ("safetensors", "readable")),
    ],
)
def test_a_broken_folder_is_refused(
    tmp_path: Path, file: str, change: Callable[[Path], object], facts: tuple[str, ...]
) -> None:
    folder = make_smolvla_folder(tmp_path / "folder")
    change(folder / file)
    refused(folder, *facts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapt_to_pi_aloha": True}, "adapt_to_pi_aloha is True; only False is known"),
        ({"resize_imgs_with_padding": [32, 32]}, r"the image tower takes \[64, 64\]"),
        ({"attention_mode": "linear"}, "attention_mode is 'linear'"),
        ({"chunk_size": "8"}, "chunk_size is '8'"),
        ({"input_features": {}}, "names no camera"),
    ],
)
def test_settings_that_are_not_known_are_refused(changes: dict[str, Any], message: str) -> None:
    data = {**json.loads((FOLDER / "config.json").read_text()), **changes}
    shapes = {name: tuple(t.shape) for name, t in load_file(FOLDER / "model.safetensors").items()}
    with pytest.raises(ValueError, match=message):
        infer_smolvla(shapes, data, 12, 8)


def test_one_door_for_every_policy(folder: Path) -> None:
    loaded = load_policy(folder, delta_mask=np.arange(6) < 5)
    assert isinstance(loaded, SmolVLAPolicy)
    assert loaded.delta_mask.tolist() == [True] * 5 + [False]
