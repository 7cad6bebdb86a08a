"""A folder that lerobot saved a pi0 or pi0.5 in is told by its content, and run as lerobot runs it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builders import make_model, make_tokenizer
from folders import edit_json, edit_weights, refused
from lerobot_builders import CAMERAS, NAMES, make_lerobot_config, make_lerobot_folder, make_lerobot_stats
from torch import Tensor

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import describe, find_format, load_policy
from vla_accel_ros.models.checkpoints.conversion import convert
from vla_accel_ros.models.checkpoints.formats import Contents
from vla_accel_ros.models.config import VisionConfig
from vla_accel_ros.models.flow.sampling import sample
from vla_accel_ros.models.pi.weights import EMBED_TOKENS, LM_HEAD, UNUSED
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.tools.cli import main
from vla_accel_ros.types import Observation


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    return make_lerobot_folder(tmp_path / "anything", make_lerobot_config(kind), relative=False)


def observation(seed: int = 0, size: tuple[int, int] = (48, 64)) -> Observation:
    rng = np.random.default_rng(seed)
    images = {name: rng.integers(0, 256, (*size, 3), dtype=np.uint8) for name in CAMERAS}
    return Observation(images, rng.uniform(-0.5, 0.5, 6).astype(np.float32), " pick_up the\nred block", 5)


@pytest.mark.parametrize("tied", [{LM_HEAD}, {EMBED_TOKENS}, {LM_HEAD, EMBED_TOKENS}])
@pytest.mark.parametrize("before", ["model.", ""])
def test_every_weight_arrives(tmp_path: Path, kind: str, tied: set[str], before: str) -> None:
    config = make_lerobot_config(kind)
    folder = make_lerobot_folder(tmp_path, config, tied=sorted(tied), before=before)
    assert find_format(Contents.of(folder)).name == "lerobot"
    loaded, written = load_policy(folder).model.state_dict(), make_model(config).state_dict()
    assert loaded.keys() == written.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in written.items())


def test_a_fine_tuned_embedding_is_used_and_the_head_it_left_behind_is_not(folder: Path) -> None:
    """lerobot trains the embedding and not the head, and reads the embedding."""
    expected = load_policy(folder).model.embed_table

    def tune(tensors: dict[str, Tensor]) -> None:
        tensors["model." + EMBED_TOKENS] = tensors["model." + LM_HEAD].clone()
        tensors["model." + LM_HEAD] += 1

    edit_weights(folder / "model.safetensors", tune)
    model = load_policy(folder).model
    assert torch.equal(model.embed_table, expected)
    torch.testing.assert_close(model.logits(torch.ones(expected.shape[1])), expected.sum(dim=1))


def test_under_openpis_names_the_tied_tensor_must_be_one(tmp_path: Path, kind: str) -> None:
    folder = make_lerobot_folder(tmp_path, make_lerobot_config(kind), before="")

    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors[EMBED_TOKENS] = tensors[LM_HEAD].clone()
        tensors[EMBED_TOKENS][-1, -1] += 1

    edit_weights(folder / "model.safetensors", spoil)
    refused(folder, LM_HEAD, "differ; keep one of them")


def test_everything_wrong_is_in_one_error_in_its_own_names(folder: Path) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        del tensors["model.action_in_proj.weight"]
        tensors["model.action_out_proj.bias"] = torch.zeros(5)
        tensors["model.extra"] = torch.zeros(1)
        tensors["model." + UNUSED] = torch.zeros(2, 2)

    edit_weights(folder / "model.safetensors", spoil)
    refused(
        folder,
        "missing ['model.action_in_proj.weight'], unexpected ['model.extra']",
        "misshapen ['model.action_out_proj.bias [5] instead of [8]']",
    )


def test_images_are_resized_as_lerobot_does(folder: Path) -> None:
    """Written out: floating point, no antialiasing, centred on black."""
    seen = observation(size=(48, 70))
    inputs = load_policy(folder).inputs(seen)
    assert inputs.image_names == CAMERAS
    for name, found in zip(CAMERAS, inputs.images, strict=True):
        unit = torch.from_numpy(seen.images[name]).permute(2, 0, 1)[None].float() / 255.0
        ratio = 70 / 28
        shrunk = F.interpolate(unit, size=(int(48 / ratio), 28), mode="bilinear", align_corners=False)
        rest = 28 - shrunk.shape[2]
        padded = F.pad(shrunk.clamp(0, 1), (0, 0, rest // 2, rest - rest // 2))
        torch.testing.assert_close(found, (padded * 2 - 1)[0], rtol=0, atol=1e-6)


def test_the_prompt_is_lerobots(folder: Path, kind: str) -> None:
    policy, seen = load_policy(folder), observation()
    if kind == "pi0":
        text = " pick_up the\nred block\n"  # as it is, ended once
        assert policy.prompt(seen.instruction + "\n", seen.state) == policy.prompt(
            seen.instruction, seen.state
        )
    else:
        stats = make_lerobot_stats()
        normal = 2 * (seen.state - stats["q01"]) / (stats["q99"] - stats["q01"]) - 1
        bins = np.digitize(normal, np.linspace(-1, 1, 257)[:-1]) - 1
        text = f"Task: pick up the red block, State: {' '.join(map(str, bins))};\nAction: "
    words = make_tokenizer().encode(text, add_special_tokens=False).ids
    assert policy.prompt(seen.instruction, seen.state) == [2, *words]


def test_numbers_are_lerobots(folder: Path, kind: str) -> None:
    policy, seen = load_policy(folder), observation()
    state, action = make_lerobot_stats(0), make_lerobot_stats(1)
    raw = torch.linspace(-1, 1, 16).reshape(2, 8)
    if kind == "pi0":
        normal = (seen.state - state["mean"]) / (state["std"] + 1e-8)
        targets = raw[:, :6].numpy() * action["std"] + action["mean"]
    else:
        normal = 2 * (seen.state - state["q01"]) / (state["q99"] - state["q01"]) - 1
        targets = (raw[:, :6].numpy() + 1) * (action["q99"] - action["q01"]) / 2 + action["q01"]
    assert isinstance(policy, Policy)
    np.testing.assert_allclose(policy.normalized_state(seen.state)[:6], normal, rtol=1e-5)
    np.testing.assert_allclose(policy.actions(raw, seen.state), targets, rtol=1e-5, atol=1e-6)


def test_the_engine_steps_as_lerobot_does(folder: Path, kind: str) -> None:
    """The time of a step is 1 - i / S without rounding, unless the other rule is asked for."""
    policy, seen = load_policy(folder), observation()
    noise = np.random.default_rng(7).standard_normal((8, 8), dtype=np.float32)
    with torch.no_grad():
        inputs = policy.inputs(seen)
        assert isinstance(policy, Policy)
        _, kv = policy.model.prefix(policy.embed(inputs))
        state = inputs.state[None] if kind == "pi0" else None

        def at(x: torch.Tensor, t: float) -> torch.Tensor:
            return policy.model.velocity(x, torch.tensor([t]), state, kv)

        flows = {rule: sample(at, torch.tensor(noise)[None], 10, rule) for rule in ("lerobot", "openpi")}
    for rule, expected in flows.items():
        engine = Engine(policy) if rule == "lerobot" else Engine(policy, time_rule=rule)
        assert engine.runner.time_rule == rule
        with engine.observe(seen) as prefix:
            found = engine.act(prefix, noise=noise).actions
        assert np.array_equal(found, policy.actions(expected.actions[0], seen.state))


@pytest.mark.parametrize("relative", [True, False, None])
def test_relative_actions_are_what_the_folder_says(tmp_path: Path, relative: bool | None) -> None:
    folder = make_lerobot_folder(tmp_path, make_lerobot_config("pi0"), relative=relative)
    mask = [bool(relative)] * 5 + [False]
    assert load_policy(folder).delta_mask.tolist() == mask
    assert load_policy(folder, delta_mask=np.array(mask)).delta_mask.tolist() == mask
    other = np.array([not mask[0], *mask[1:]])
    if relative is None:
        assert load_policy(folder, delta_mask=other).delta_mask.tolist() == other.tolist()
    else:
        refused(folder, "action 0", f"write action: {'delta' if relative else 'absolute'}", delta_mask=other)


def test_relative_actions_must_be_undone(folder: Path) -> None:
    edit_json(folder / "policy_postprocessor.json", lambda data: data["steps"].pop())
    refused(folder, "must have one step relative_actions_processor and one absolute_actions_processor")


@pytest.mark.parametrize(
    ("relative", "asked", "padded"), [(None, "auto", 2), (False, "auto", 0), (None, "own", 0)]
)
def test_the_state_in_the_prompt_is_padded_as_in_training(
    tmp_path: Path, relative: bool | None, asked: str, padded: int
) -> None:
    """Up to 0.4.4 lerobot padded it to all of the network's dimensions, each a bin of 0."""
    folder = make_lerobot_folder(tmp_path, relative=relative)
    policy, seen = load_policy(folder, prompt_state=asked), observation()
    own = load_policy(folder, prompt_state="own").prompt(seen.instruction, seen.state)
    tokens = policy.prompt(seen.instruction, seen.state)
    zero = make_tokenizer().token_to_id("128")
    (semicolon,) = make_tokenizer().encode(";", add_special_tokens=False).ids
    at = own.index(semicolon)
    assert tokens == [*own[:at], *[zero] * padded, *own[at:]]


def test_the_sizes_are_read_off_the_folder(tmp_path: Path, kind: str) -> None:
    vision = VisionConfig(width=72, depth=1, mlp=16, heads=1, image_size=28, patch=14)
    config = make_lerobot_config(kind, vision=vision, horizon=12)
    folder = make_lerobot_folder(tmp_path, config)
    edit_json(folder / "config.json", lambda data: data.pop("vla_accel_ros"))
    assert describe(folder).config == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda data: data.update(type="pi0" if data["type"] == "pi05" else "pi05"),
            "make config.json and the weights",
        ),
        (
            lambda data: data.update(type="act"),
            "type is 'act' and the weights have lerobot's names",
        ),
        (lambda data: data.update(type="act"), "only 'pi0' and 'pi05' are known"),
        (lambda data: data.update(use_visual_memory=True), "use_visual_memory is True; only False is known"),
        (lambda data: data.update(use_peft=True), "use_peft is True; only False is known"),
        (lambda data: data.update(n_obs_steps=2), "n_obs_steps is 2; only 1 is known"),
        (lambda data: data.update(image_resolution=[448, 448]), "the image tower takes [28, 28]"),
        (
            lambda data: data.update(chunk_size="many", vla_accel_ros=None) or data.pop("vla_accel_ros"),
            "chunk_size is 'many'",
        ),
        (lambda data: data.update(input_features={}) or data.pop("vla_accel_ros"), "names no camera"),
        (lambda data: data.update(rtc_training_max_delay=99), "rtc_training_max_delay is 99"),
    ],
)
def test_settings_are_checked(folder: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    edit_json(folder / "config.json", change)
    refused(folder, "config.json", message)


def test_statistics_of_more_actions_than_the_network_has_are_anothers(folder: Path) -> None:
    def widen(tensors: dict[str, Tensor]) -> None:
        tensors |= {name: value.repeat(2) for name, value in tensors.items() if name.startswith("action.")}

    edit_weights(folder / "unnormalizer_of_policy_postprocessor.safetensors", widen)
    refused(folder, "has statistics of actions with 12 numbers, but those of its network have 8")


def test_a_missing_tokeniser_and_missing_statistics_are_named(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokens")
    refused(folder, "no tokenizer.json and no tokenizer.model")
    (folder / "tokenizer").mkdir()
    (folder / "tokens").rename(folder / "tokenizer" / "tokenizer.json")
    load_policy(folder)
    (folder / "unnormalizer_of_policy_postprocessor.safetensors").unlink()
    refused(folder, "unnormalizer_of_policy_postprocessor.safetensors", "copy it")
    assert "copy it" in describe(folder).missing[0]
    (folder / "policy_postprocessor.json").unlink()
    refused(folder, "policy_postprocessor.json is not there", "migrate_policy_normalization")
    assert load_policy(folder, normalize=False).joints == 6


def test_what_it_says_of_itself(folder: Path, kind: str) -> None:
    told = describe(folder)
    assert told.format.startswith("lerobot")
    assert (told.config.kind, told.horizon, told.action_dim, told.missing) == (kind, 8, 8, ())
    stats = make_lerobot_stats()
    low, high = (
        (stats["mean"] - 2 * stats["std"], stats["mean"] + 2 * stats["std"])
        if kind == "pi0"
        else (stats["q01"], stats["q99"])
    )
    np.testing.assert_allclose(told.state, [low, high], rtol=1e-5)
    assert told.relative is not None and not told.relative.any()


@pytest.mark.parametrize(("relative", "border"), [(None, -3.0), (False, -1.0)], ids=["0.4.4", "0.5.1"])
def test_what_lies_beside_an_image_that_is_not_square_is_as_in_training(
    kind: str, relative: bool | None, border: float, tmp_path: Path
) -> None:
    """constant_value of resize_with_pad_torch, before 2 x - 1: -1 up to lerobot 0.4.4, 0 since 0.5.0."""
    folder = make_lerobot_folder(tmp_path / "model", make_lerobot_config(kind), relative=relative)
    policy = load_policy(folder)
    pixels = policy.inputs(observation(size=(48, 64))).images
    assert set(pixels[:, :, 0].flatten().tolist()) == {border}
    middle = pixels[:, :, policy.image_size // 2]
    assert middle.min() >= -1.0


OWN, PADDED = "own", "padded"


@pytest.mark.parametrize(
    ("config", "train", "relative", "expected"),
    [
        ({}, None, None, PADDED),  # 0.4.0 to 0.4.2
        ({"use_peft": False}, {"seed": 1000}, None, PADDED),  # 0.4.3 and 0.4.4
        ({"use_peft": False}, {"cudnn_deterministic": False}, None, OWN),  # 0.5.0
        ({"use_peft": False, "use_relative_actions": False}, None, None, OWN),  # 0.5.1, from an older policy
        ({"use_peft": False, "action_feature_names": None}, {"cudnn_deterministic": True}, None, OWN),
        ({"use_peft": False}, None, False, OWN),
        ({"use_peft": False}, None, None, None),  # 0.4.3 to 0.5.0
        ({"use_relative_actions": False}, {"seed": 1000}, None, None),
        ({}, {"seed": 1000}, False, None),
    ],
)
def test_the_newest_sign_says_which_version_saved_it_and_how_the_prompt_is_written(
    tmp_path: Path,
    kind: str,
    config: dict[str, Any],
    train: dict[str, Any] | None,
    relative: bool | None,
    expected: str | None,
) -> None:
    """lerobot padded it before 2026-03-05: up to 0.4.4. use_peft came with 0.4.3, cudnn_deterministic with
    0.5.0, the three fields of relative actions with 0.5.1."""
    folder = make_lerobot_folder(tmp_path, make_lerobot_config(kind), relative=relative, **config)
    if train is not None:
        (folder / "train_config.json").write_text(json.dumps(train))
    if expected is None:
        refused(folder, "prompt_state", "padded", "own")
        assert any("prompt_state" in sentence for sentence in describe(folder).missing)
    policy = load_policy(folder, prompt_state="auto" if expected else OWN)
    assert isinstance(policy, Policy)
    assert policy.prompt_state == (expected or OWN)


@pytest.mark.parametrize("answer", [OWN, PADDED])
def test_the_commands_ask_for_prompt_state_and_take_the_answer_by_as(
    tmp_path: Path, kind: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A conversion keeps it; only one that asks needs it, and no answer may contradict another."""
    folder = make_lerobot_folder(tmp_path / "model", make_lerobot_config(kind), use_peft=False)
    out, words = tmp_path / "out", f"prompt_state={answer}"
    for command in (["inspect", str(folder)], ["convert", str(folder), str(out)]):
        assert main(command) != 0
        assert "prompt_state=padded" in re.sub(r"\s+", " ", "".join(capsys.readouterr()))
        assert main([*command, "--as", words]) == 0
        assert command[0] != "inspect" or f"prompt_state {answer}" in capsys.readouterr().out
    assert main(["inspect", str(out)]) == 0
    again = load_policy(convert(out, tmp_path / "again"))
    assert isinstance(again, Policy) and again.prompt_state == answer
    other = OWN if answer == PADDED else PADDED
    assert main(["inspect", str(out), "--as", f"prompt_state={other}"]) == 2
    printed = capsys.readouterr().err
    assert OWN in printed and PADDED in printed
    refused(folder, OWN, PADDED, "prompt_state", trained_as=words, prompt_state=other)


def test_an_answer_that_is_none_is_refused(tmp_path: Path) -> None:
    folder = make_lerobot_folder(tmp_path / "m", use_peft=False)
    for words in ("prompt_state=full", "prompt_state", "prompt_state=auto x", "prompt_state=own padded"):
        refused(folder, "prompt_state", "own, padded, none", trained_as=words)
    for words in ("pi05_libero prompt_state=own", "=own", "action_horizon=5"):
        refused(folder, "prompt_state", words, trained_as=words)
    edit_json(
        folder / "config.json", lambda data: data["vla_accel_ros"].update(trained_as={"prompt_state": "x"})
    )
    refused(folder, "prompt_state", "'x'", "config.json")
    edit_json(folder / "config.json", lambda data: data["vla_accel_ros"].update(trained_as=["padded"]))
    refused(folder, "trained_as", "padded", "config.json")


def test_what_config_json_and_the_processors_say_of_relative_actions_must_agree(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"use_relative_actions": True, "relative_exclude_joints": ["gripper"]}
    refused(
        make_lerobot_folder(tmp_path / "a", **fields), "use_relative_actions", "relative_actions_processor"
    )
    refused(make_lerobot_folder(tmp_path / "b", relative=False, **fields), "use_relative_actions is True")
    named = {**fields, "action_feature_names": list(NAMES)}
    agreed = make_lerobot_folder(tmp_path / "c", relative=True, **named)
    assert load_policy(agreed).delta_mask.tolist() == [True] * 5 + [False]
    edit_json(agreed / "config.json", lambda data: data.update(relative_exclude_joints=["roll", "gripper"]))
    refused(agreed, "relative_exclude_joints", "roll")
    edit_json(agreed / "config.json", lambda data: data.update(use_relative_actions=False))
    refused(agreed, "use_relative_actions is False")


def test_paligemmas_own_tokenizer_is_taken(folder: Path) -> None:
    """Its `<image>` has the first id beyond the embedding, which has a row for each of its pieces."""
    inner = make_tokenizer()
    inner.add_special_tokens(["<image>"])
    inner.save(str(folder / "tokenizer.json"))
    policy = load_policy(folder)
    assert isinstance(policy, Policy)
    tokens = policy.prompt("reach <image>", np.zeros(6, np.float32))
    assert max(tokens) < policy.config.vocab == inner.get_vocab_size() - 1


def test_another_number_of_denoising_steps_is_noted(folder: Path) -> None:
    edit_json(folder / "config.json", lambda data: data.update(num_inference_steps=10))
    assert not any("num_inference_steps" in note for note in describe(folder).notes)
    edit_json(folder / "config.json", lambda data: data.update(num_inference_steps=4))
    assert any("num_inference_steps is 4" in note and "steps" in note for note in describe(folder).notes)


@pytest.mark.parametrize("train", [{"cudnn_deterministic": False}, {"seed": 1000}])
def test_a_conversion_keeps_the_sign_of_the_version(tmp_path: Path, train: dict[str, Any]) -> None:
    folder = make_lerobot_folder(tmp_path / "folder", use_peft=False)
    (folder / "train_config.json").write_text(json.dumps(train))
    policy, converted = load_policy(folder), load_policy(convert(folder, tmp_path / "out"))
    assert isinstance(policy, Policy) and isinstance(converted, Policy)
    assert converted.prompt_state == policy.prompt_state


def test_the_name_that_0_5_1_gives_the_relative_step_is_known(tmp_path: Path) -> None:
    """`@ProcessorStepRegistry.register("delta_actions_processor")` in its relative_action_processor.py."""
    folder = make_lerobot_folder(tmp_path / "model", relative=True)
    expected, file = load_policy(folder).delta_mask, folder / "policy_preprocessor.json"
    text = file.read_text()
    assert text.count('"relative_actions_processor"') == 1
    file.write_text(text.replace('"relative_actions_processor"', '"delta_actions_processor"'))
    np.testing.assert_array_equal(load_policy(folder).delta_mask, expected)
    assert expected.any()
