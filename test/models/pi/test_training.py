"""openpi's folders do not say how they were trained: what changes an action is asked for, never guessed.

Expected values are those of openpi's public configurations (src/openpi/training/config.py).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from builders import make_checkpoint, make_config, make_observation
from folders import edit_json, refused
from lerobot_builders import make_lerobot_folder
from openvla_builders import make_openvla_folder
from smolvla_recording import make_smolvla_folder

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
from vla_accel_ros.models.checkpoints.conversion import convert
from vla_accel_ros.models.config import PI05, VisionConfig
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.nodes.inference.loading import Load
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.tools.cli import main

SETTINGS = {
    "action_horizon": "7",
    "discrete_state_input": "false",
    "use_quantile_norm": "true",
    "adapt_to_pi": "false",
    "delta_action_mask": "5,-1",
}


def said(*without: str) -> str:
    return " ".join(f"{name}={value}" for name, value in SETTINGS.items() if name not in without)


def make_trained(folder: Path, kind: str = "pi05") -> Path:
    """What openpi's training leaves: weights and statistics, no config.json. Sizes show in the shapes."""
    vision = VisionConfig(width=72, depth=1, mlp=16, heads=1, image_size=28, patch=14)
    make_checkpoint(folder, make_config(kind, vision=vision, image_names=PI05.image_names))
    (folder / "config.json").unlink()
    (folder / "optimizer.pt").write_bytes(b"")
    return folder


def load(folder: Path, trained_as: str, **arguments: object) -> Policy:
    policy = load_policy(folder, trained_as=trained_as, **arguments)  # type: ignore[arg-type]
    assert isinstance(policy, Policy)
    return policy


@pytest.fixture
def contract() -> Contract:
    return Contract.load(demo_contract())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder's name is no answer."""
    return make_trained(tmp_path / "pi05_libero")


def test_every_setting_is_asked_for(folder: Path) -> None:
    refused(folder, str(folder), *SETTINGS, "pi05_libero", "trained_as")
    for name in SETTINGS:
        refused(folder, f"no file says {name},", f"{name}=", trained_as=said(name))
    assert load(folder, said()).config.horizon == 7


def test_a_mask_of_the_caller_answers_whether_actions_are_relative(folder: Path) -> None:
    mask = np.array([True] * 3 + [False] * 3)
    assert load(folder, said("delta_action_mask"), delta_mask=mask).delta_mask.tolist() == mask.tolist()
    refused(folder, "relative", trained_as=said(), delta_mask=mask)


def test_pi0_has_no_state_in_its_prompt_to_ask_about(tmp_path: Path) -> None:
    folder = make_trained(tmp_path / "model", "pi0")
    with pytest.raises(ValueError, match="adapt_to_pi") as asked:
        load_policy(folder)
    assert "discrete_state_input" not in str(asked.value)
    load(folder, said("discrete_state_input"))


@pytest.mark.parametrize(
    ("name", "kind", "horizon", "state", "quantiles", "relative"),
    [
        ("pi0_droid", "pi0", 10, None, False, []),
        ("pi05_droid", "pi05", 15, True, True, []),
        ("pi05_droid_finetune", "pi05", 16, True, True, []),
        ("pi05_full_droid_finetune", "pi05", 16, True, True, [0, 1, 2, 3, 4, 5]),
        ("pi05_libero", "pi05", 10, False, True, []),
        ("pi0_libero", "pi0", 50, None, False, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_public_configuration_answers_everything(
    name: str,
    kind: str,
    horizon: int,
    state: bool | None,
    quantiles: bool,
    relative: list[int],
    tmp_path: Path,
) -> None:
    folder = make_trained(tmp_path / "model", kind)
    policy = load(folder, name)
    engine = Engine(policy, steps=1)
    with engine.observe(make_observation()) as prefix:
        assert len(engine.act(prefix).actions) == horizon
    assert np.flatnonzero(policy.delta_mask).tolist() == relative
    stats = json.loads((folder / "assets" / "arm" / "norm_stats.json").read_text())["norm_stats"]["state"]
    stats = {group: np.array(values) for group, values in stats.items()}
    joints = make_observation().state.astype(np.float64)
    expected = (
        (joints - stats["q01"]) / (stats["q99"] - stats["q01"] + 1e-6) * 2 - 1
        if quantiles
        else (joints - stats["mean"]) / (stats["std"] + 1e-6)
    )
    np.testing.assert_allclose(policy.normalized_state(joints)[:6], expected, atol=1e-6)
    if state is not None:
        prompt = policy.prompt("reach the red block", joints)
        assert (policy.tokenizer.encode("State")[0] in prompt) is state


def test_a_pi05_may_be_normalised_by_mean_and_deviation(folder: Path) -> None:
    policy = load(folder, "pi05_droid use_quantile_norm=false")
    stats = json.loads((folder / "assets" / "arm" / "norm_stats.json").read_text())["norm_stats"]["actions"]
    raw = np.zeros((1, 6), np.float32)
    np.testing.assert_allclose(policy.action_normalizer.unnormalize(raw)[0], stats["mean"], atol=1e-6)
    assert policy.config.horizon == 15


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("pi0_droid", ("pi0_droid", "pi05")),
        ("pi05_librero", ("pi05_librero", "pi05_libero")),
        ("action_horizon=0", ("action_horizon", "0")),
        ("action_horizon=ten", ("action_horizon", "ten")),
        ("use_quantile_norm=perhaps", ("use_quantile_norm", "perhaps")),
        ("delta_action_mask=6,x", ("delta_action_mask", "6,x")),
        ("delta_action_mask=999999999", ("delta_action_mask", "999999999")),
        ("horizon=10", ("horizon", "action_horizon")),
        ("adapt_to_pi=true pi05_libero", ("pi05_libero",)),
        (said("adapt_to_pi") + " adapt_to_pi=true", ("adapt_to_pi", "ALOHA")),
        ("pi05_aloha", ("adapt_to_pi", "ALOHA")),
    ],
)
def test_a_wrong_answer_is_refused(folder: Path, words: str, parts: tuple[str, ...]) -> None:
    refused(folder, *parts, trained_as=words)


def test_answers_that_differ_are_refused(folder: Path) -> None:
    refused(folder, "prompt_state", "pi05_libero", trained_as="pi05_libero", prompt_state="own")
    (folder / "config.json").write_text(json.dumps({"action_dim": 8, "action_horizon": 50}))
    refused(folder, "action_horizon", "50", "10", trained_as="pi05_libero")
    assert load(folder, said("action_horizon")).config.horizon == 50


@pytest.mark.parametrize("make", [make_lerobot_folder, make_openvla_folder, make_smolvla_folder])
def test_families_whose_files_say_it_take_no_answer(make, tmp_path: Path) -> None:
    refused(make(tmp_path / "model"), "pi05_libero", "trained_as", trained_as="pi05_libero")


def test_lerobots_horizon_is_not_guessed_either(tmp_path: Path) -> None:
    folder = make_lerobot_folder(tmp_path / "model")
    edit_json(folder / "config.json", lambda data: (data.pop("chunk_size"), data.pop("vla_accel_ros")))
    refused(folder, "config.json", "chunk_size")


def test_a_converted_folder_keeps_the_answers(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="delta_action_mask"):
        convert(folder, tmp_path / "out", trained_as=said("delta_action_mask"))
    out = convert(folder, tmp_path / "out", trained_as=said())
    told = describe(out)
    assert (told.missing, told.assumed, told.horizon) == ((), "", 7)
    before, after = load(folder, said()), load(out, "")
    assert (before.prompt_state, after.prompt_state) == ("none", "none")
    np.testing.assert_array_equal(after.delta_mask, [True] * 5 + [False])
    assert describe(convert(out, tmp_path / "again")).trained_as == told.trained_as
    refused(out, "action_horizon", "7", "10", trained_as="pi05_libero")


def test_an_old_converted_folder_is_the_usual_one_and_says_so(
    tmp_path: Path, contract: Contract, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_checkpoint(tmp_path / "old")
    edit_json(folder / "config.json", lambda data: data["vla_accel_ros"].pop("trained_as"))
    assert load(folder, "").prompt_state == "own"
    warned: list[str] = []
    Load(folder, EngineConfig(steps=1), device="cpu").engine(contract, warned.append)
    assert any("use_quantile_norm true" in sentence for sentence in warned)
    main(["inspect", str(folder)])
    assert "use_quantile_norm true" in re.sub(r"\s+", " ", capsys.readouterr().out)
    assert load(folder, "discrete_state_input=false").prompt_state == "none"
    out = convert(folder, tmp_path / "out", trained_as="discrete_state_input=false")
    assert "use_quantile_norm true" in describe(out).assumed and load(out, "").prompt_state == "none"


def test_a_node_asks_before_it_loads(folder: Path, contract: Contract) -> None:
    with pytest.raises(ValueError, match=r"action_horizon.*use_quantile_norm"):
        Load(folder, device="cpu").engine(contract)
    words = said("delta_action_mask")
    engine = Load(folder, EngineConfig(steps=1), device="cpu", trained_as=words).engine(contract)
    np.testing.assert_array_equal(engine.policy.delta_mask, contract.delta_mask)
    assert engine.policy.config.horizon == 7
    with pytest.raises(ValueError, match="absolute"):
        Load(folder, device="cpu", trained_as=f"{words} delta_action_mask=none").engine(contract)


def test_the_commands_ask_too(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder)]) == 1
    assert "action_horizon" in capsys.readouterr().out
    assert main(["inspect", str(folder), "--as", "pi05_libero"]) == 0
    printed = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "10 action(s)" in printed and "no state" in printed
    out = tmp_path / "out"
    assert main(["convert", str(folder), str(out)]) != 0 and not out.exists()
    assert "adapt_to_pi" in capsys.readouterr().err
    assert main(["convert", str(folder), str(out), "--as", "pi05_libero"]) == 0
    assert main(["inspect", str(out)]) == 0
    assert main(["plan", str(folder)]) != 0
    assert "action_horizon" in capsys.readouterr().err
