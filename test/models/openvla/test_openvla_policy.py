"""What an OpenVLA policy takes, and what it gives back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openvla_builders import (
    ACTIONS,
    CAMERA,
    SPACE,
    WORD_IDS,
    make_llama_tokenizer,
    make_openvla_config,
    make_openvla_folder,
    make_openvla_observation,
)
from PIL import Image

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.openvla.config import SPACE_TOKEN
from vla_accel_ros.models.openvla.policy import OpenVLAPolicy
from vla_accel_ros.models.text.decoding import decode
from vla_accel_ros.types import Observation

NO_STATE = np.zeros(0)


def load(folder: Path) -> OpenVLAPolicy:
    policy = load_policy(folder)
    assert isinstance(policy, OpenVLAPolicy)
    return policy


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> OpenVLAPolicy:
    return load(make_openvla_folder(tmp_path_factory.mktemp("openvla")))


def words(tokens: list[int]) -> list[str | None]:
    tokenizer = make_llama_tokenizer()
    return [tokenizer.id_to_token(token) for token in tokens]


def refused(policy: OpenVLAPolicy, observation: Observation, *parts: str) -> None:
    with pytest.raises(ValueError) as caught:
        policy.inputs(observation)
    for part in parts:
        assert part in str(caught.value)


def test_the_prompt_ends_with_the_space_token(policy: OpenVLAPolicy) -> None:
    tokens = policy.prompt("Lift the RED cup")
    asked = "<s> In : What action should the robot take to lift the red cup ? \n Out :"
    assert words(tokens[:-1]) == asked.split(" ")
    assert tokens[-1] == SPACE


def test_the_space_token_of_the_published_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = make_openvla_config(vocab=32064, action_vocab=32000, bins=256, space_token=SPACE_TOKEN)
    policy = load(make_openvla_folder(tmp_path_factory.mktemp("openvla"), config))
    assert policy.prompt("lift")[-1] == 29871
    assert policy.action_tokens.to_values(np.array([31999])) == -1 + 1 / 255


def test_the_space_token_is_appended_if_it_is_not_there(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Not where the prompt ends with it already, and not where the vocabulary has none."""
    colon = make_llama_tokenizer().token_to_id(":")
    for space in (colon, None):
        config = make_openvla_config(space_token=space)
        policy = load(make_openvla_folder(tmp_path_factory.mktemp("openvla"), config))
        assert words(policy.prompt("lift"))[-3:] == ["\n", "Out", ":"]


def test_inputs(policy: OpenVLAPolicy) -> None:
    observation = make_openvla_observation()
    inputs = policy.inputs(observation)
    assert inputs.image_names == (CAMERA,)
    assert inputs.tokens.tolist() == policy.prompt(observation.instruction)
    assert inputs.state.shape == (0,)
    squeezed = Image.fromarray(observation.images[CAMERA]).resize((28, 28), Image.Resampling.BICUBIC)
    unit = torch.from_numpy(np.array(squeezed)).permute(2, 0, 1) / 255.0
    mean, std = [0.484375, 0.455078125, 0.40625], [0.228515625, 0.2236328125, 0.224609375]
    dino = (unit - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    torch.testing.assert_close(inputs.images, torch.cat((dino, unit * 2 - 1))[None])


def test_wrong_observations_are_refused(policy: OpenVLAPolicy) -> None:
    good = make_openvla_observation()
    image = good.images[CAMERA]

    def seen(**images: np.ndarray) -> Observation:
        return Observation(images, good.state, good.instruction, 0)

    refused(policy, seen(), "observation.images has []", "takes one image")
    refused(policy, seen(**{CAMERA: image, "wrist": image}), f"['{CAMERA}', 'wrist']")
    refused(policy, seen(**{CAMERA: image.astype(np.float32)}), f"observation.images['{CAMERA}'] is float32")
    refused(policy, seen(**{CAMERA: image[:0]}), "[0, 64, 3]")
    refused(policy, seen(**{CAMERA: image[..., :1]}), "[48, 64, 1]")
    refused(policy, make_openvla_observation(instruction="lift " * 40), "the policy takes 32", "shorten")


def test_a_whole_action(policy: OpenVLAPolicy) -> None:
    """From an observation to the robot's units, as the reference does it: greedily, all ids allowed."""
    inputs = policy.inputs(make_openvla_observation())
    model = policy.model
    with torch.no_grad():
        hidden, past = model.prefix(model.embed(model.encode(inputs.images), inputs.tokens[None]))
        steps = decode(model, past, hidden[:, -1], policy.joints)
        tokens = torch.stack([step.tokens for step in steps], dim=1)
    assert tokens.shape == (1, ACTIONS)
    action = policy.actions(tokens, NO_STATE)
    assert action.dtype == np.float32
    assert action.shape == (1, ACTIONS)
    stats = policy.stats
    assert (action[0, :-1] >= stats.low[:-1] - 1e-6).all()
    assert (action[0, :-1] <= stats.high[:-1] + 1e-6).all()
    assert -1 <= action[0, -1] <= 1


@given(st.lists(st.integers(WORD_IDS + 1, WORD_IDS + 15), min_size=ACTIONS, max_size=ACTIONS))
def test_action_tokens_come_back(policy: OpenVLAPolicy, tokens: list[int]) -> None:
    ids = torch.tensor([tokens])
    assert torch.equal(policy.raw_actions(policy.actions(ids, NO_STATE), NO_STATE), ids)
