"""Folders of a pi0-FAST, its tokenizer of actions, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folders import edit_json, refused
from oracle import FOLDER
from pi_fast_oracle import SAMPLES, PiFastOracle, pi_fast_names, sized_folder

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
from vla_accel_ros.models.pi_fast.fast import FastTokenizer, cosines
from vla_accel_ros.models.policies import AnyPolicy

pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture(params=pi_fast_names(), scope="module")
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PiFastOracle:
    return PiFastOracle.load(request.param, tmp_path_factory.mktemp("pi_fast") / "folder")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return sized_folder("pi0_fast", tmp_path / "recording")


def test_raw_actions_are_the_tokens_of_the_actions(oracle: PiFastOracle) -> None:
    state = oracle["state"].numpy()
    tokens = oracle.policy.raw_actions(oracle["target_actions"].numpy(), state)
    again = oracle.policy.actions(tokens[None], state)
    recorded = oracle["actions"][0].numpy()
    assert np.abs(again - recorded).max() < 1e-5


def test_cosines_are_orthonormal() -> None:
    waves = cosines(9)
    assert np.abs(waves @ waves.T - np.eye(9)).max() < 1e-12
    assert waves[1, 0] == pytest.approx(np.sqrt(2 / 9) * np.cos(np.pi / 18))


def test_a_robot_that_shares_the_engine_has_its_own_prompt_and_units(oracle: PiFastOracle) -> None:
    engine = Engine(oracle.policy)
    prefixes = {sample: engine.observe(oracle.observation(sample)) for sample in SAMPLES}
    for sample in reversed(SAMPLES):
        actions = engine.act(prefixes[sample]).actions
        assert np.abs(actions - oracle[f"{sample}actions"][0].numpy()).max() < 1e-5


@pytest.mark.parametrize(
    ("tokens", "names"), [([5, 6, 7], ("Action: ",)), (None, ("action tokens", "1408"))], ids=["text", "far"]
)
def test_what_is_no_chunk_is_refused(
    oracle: PiFastOracle, tokens: list[int] | None, names: tuple[str, ...]
) -> None:
    policy = oracle.policy
    wrong = tokens or [*policy.tokenizer.encode("Action: "), 1, policy.end_token]
    with pytest.raises(ValueError) as refused:
        policy.actions(torch.tensor([wrong]), oracle["state"].numpy())
    assert names[0] in str(refused.value)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"token_mode": "speculative"}, r"token_mode is 'speculative'.*pi0_fast.*pipelined"),
        ({"token_mode": "auto", "fast": True}, r"token_mode is 'auto'.*pi0_fast.*pipelined"),
        ({"precision": "int8", "fast": True}, r"precision is int8.*pi0_fast"),
        ({"prefill_groups": 2, "fast": True}, r"prefill_groups is 2.*pi0_fast"),
    ],
    ids=str,
)
def test_options_that_it_lacks_are_refused_by_name(
    oracle: PiFastOracle, options: dict[str, Any], fact: str
) -> None:
    with pytest.raises(ValueError, match=fact):
        Engine(oracle.policy, **options)


def test_without_its_tokenizer_of_actions_a_folder_says_what_to_copy(folder: Path) -> None:
    name = "physical-intelligence/fast"
    edit_json(folder / "config.json", lambda data: data.update(action_tokenizer_name=name))
    (missing,) = describe(folder).missing
    assert "fast_tokenizer" in missing and name in missing
    (folder.parent / "fast_tokenizer").rename(folder / "fast_tokenizer")
    assert not describe(folder).missing


@pytest.mark.parametrize(("field", "value"), [("temperature", 0.7), ("fast_skip_tokens", 64), ("beams", 4)])
def test_another_setting_is_refused_by_name(folder: Path, field: str, value: object) -> None:
    edit_json(folder / "config.json", lambda data: data.update({field: value}))
    refused(folder, field)


def test_a_broken_tokenizer_of_actions_is_refused_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    settings = json.loads((FOLDER / "pi0_fast" / "fast_tokenizer" / "processor_config.json").read_text())
    (tmp_path / "processor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        FastTokenizer(tmp_path)
    (tmp_path / "processor_config.json").write_text(json.dumps(settings | {"scale": 0}))
    with pytest.raises(ValueError, match="scale"):
        FastTokenizer(tmp_path)


def test_a_converted_folder_is_the_same_policy(folder: Path, oracle: PiFastOracle) -> None:
    loaded: AnyPolicy = load_policy(folder)
    assert loaded.config == oracle.policy.config
