"""`vla inspect`, `vla convert` and `vla compare`: what they print, and where the public code cannot run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import make_checkpoint, make_config
from lerobot_builders import make_lerobot_config, make_lerobot_folder
from openvla_builders import make_norm_stats, make_openvla_folder
from smolvla_recording import CASES, SPEC, Case, make_smolvla_folder

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
from vla_accel_ros.tools.cli import main
from vla_accel_ros.tools.compare.command import errors


def test_checkpoint_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_lerobot_folder(tmp_path / "model", make_lerobot_config("pi0"), relative=False)
    assert main(["inspect", str(folder)]) == 0
    output = capsys.readouterr().out
    for part in (
        f"pi0 in {folder} (lerobot, safetensors)",
        "24 x 2 layers, 28 px in patches of 14 (4 tokens)",
        "chunk         8 action(s) of 6 numbers (of 8)",
        "cameras       top, wrist",
        "state MEAN_STD, actions MEAN_STD",
        "none: all actions are absolute",
        "image: wrist",
        "robot: my_robot",
        "name: shoulder",
    ):
        assert part in output


def test_checkpoint_several_data_sets_are_listed_and_one_is_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_openvla_folder(tmp_path / "model")
    data = json.loads((folder / "config.json").read_text())
    data["norm_stats"] = make_norm_stats("bridge_orig", "kuka")
    (folder / "config.json").write_text(json.dumps(data))
    assert main(["inspect", str(folder)]) == 1
    output = capsys.readouterr().out
    assert "bridge_orig, kuka: choose with --statistics" in output
    assert "cannot be loaded: " in output and "no dataset was named" in output
    assert main(["inspect", str(folder), "--statistics", "kuka"]) == 0
    output = capsys.readouterr().out
    assert "action 6 is not normalised: a gripper's, " in output
    assert f"vla contract make --model {folder} --statistics kuka" in output


def test_checkpoint_what_is_missing_is_said_and_the_rest_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_checkpoint(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    (folder / "assets" / "arm" / "norm_stats.json").unlink()
    assert main(["inspect", str(folder)]) == 1
    output = capsys.readouterr().out
    assert output.count("cannot be loaded: ") == 2 and "chunk         8 action(s)" in output


def test_checkpoint_convert_and_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = make_checkpoint(tmp_path / "model"), tmp_path / "out"
    assert main(["convert", str(folder), str(out)]) == 0
    assert f"vla inspect --verify {out}" in capsys.readouterr().out
    assert main(["inspect", "--verify", str(out)]) == 0
    output = capsys.readouterr().out
    assert "model.safetensors is unchanged since its conversion, SHA-256 " in output
    assert main(["inspect", "--verify", str(folder)]) == 2
    assert "nothing to compare with" in capsys.readouterr().err
    assert main(["convert", str(folder), str(out)]) == 2
    assert "not overwritten" in capsys.readouterr().err


MAKERS = {
    "pi0": lambda folder: make_checkpoint(folder, make_config("pi0")),
    "lerobot": lambda folder: make_lerobot_folder(folder, relative=True),
    "openvla": lambda folder: make_openvla_folder(folder, shards=2),
    "smolvla": lambda folder: make_smolvla_folder(folder),
}


@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("pi0", "32 parameters as 12 tensors, "),
        ("lerobot", "32 parameters as 12 tensors, "),
        ("openvla", "15 parameters as 6 tensors, "),
        ("smolvla", "nothing: no stage"),
    ],
)
def test_checkpoint_what_is_fused_is_said(
    name: str, fused: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = MAKERS[name](tmp_path / "source"), tmp_path / "out"
    assert main(["inspect", str(source)]) == 0
    plain = capsys.readouterr().out
    assert "  fused         nothing: " in plain
    assert "  converted" not in plain
    assert main(["convert", str(source), str(out), "--steps", "4", "--dtype", "float32"]) == 0
    converted = capsys.readouterr().out
    assert main(["inspect", str(out)]) == 0
    inspected = " ".join(capsys.readouterr().out.split())
    digest = json.loads((out / "config.json").read_text())["provenance"]["sha256"]
    for output in (" ".join(converted.split()), inspected):
        assert f"fused {fused}" in output
        assert "converted from source (" in output and f"SHA-256 {digest}" in output


def test_checkpoint_plain_is_for_other_tools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_checkpoint(tmp_path / "model")
    assert main(["convert", str(folder), str(tmp_path / "out")]) == 0
    assert main(["convert", str(tmp_path / "out"), str(tmp_path / "plain"), "--plain"]) == 0
    assert "fused           nothing: every parameter is a tensor" in capsys.readouterr().out


def test_checkpoint_what_is_no_checkpoint_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["inspect", str(tmp_path)], ["convert", str(tmp_path), str(tmp_path / "out")]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "is no checkpoint that is known here" in error


def test_checkpoint_a_name_of_the_hub_is_no_folder_and_is_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "lerobot/pi05_base"]) == 2
    assert "vla fetch lerobot/pi05_base" in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_smolvla_folder(tmp_path / "model")


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python without packages."""
    file = tmp_path / "python"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    file.chmod(0o755)
    return file


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["compare", *map(str, arguments)]) == 2
    line = capsys.readouterr().err.strip()
    assert "\n" not in line and len(line) < 500, line
    return line


def chunks(folder: Path, sign: float = 1.0) -> np.ndarray:
    """Ours of the recorded observations; sign: of the joints."""
    engine = Engine(load_policy(folder), steps=SPEC["num_steps"])
    actions = []
    for case in map(Case, CASES):
        observation = replace(case.observation, state=sign * case.observation.state)
        with engine.observe(observation) as prefix:
            actions.append(engine.act(prefix, noise=case["noise"].numpy()).actions)
    return np.stack(actions)


def test_compare_what_lerobot_recorded_is_the_same_and_other_joints_are_not(folder: Path) -> None:
    recorded = np.stack([Case(index)["actions"].numpy() for index in CASES])
    trained = describe(folder).actions
    assert errors(chunks(folder), recorded, trained).same
    different = errors(chunks(folder, sign=-1.0), recorded, trained)
    assert not different.same
    np.testing.assert_allclose(different.range, trained[1] - trained[0])


def test_compare_error_counts_in_each_dimension_by_its_own_range() -> None:
    peer = np.zeros((1, 2, 3))
    trained = np.array([[-1.0, -0.01, 0.0], [1.0, 0.01, 0.0]])
    ours = peer + [1e-3, 1e-3, 0.0]
    comparison = errors(ours, peer, trained)
    np.testing.assert_allclose(comparison.shares, [5e-4, 5e-2, 0.0])
    assert not comparison.same
    with pytest.raises(ValueError, match=r"2 actions .* 3 actions"):
        errors(peer, np.zeros((1, 3, 3)), trained)
    with pytest.raises(ValueError, match="peer"):
        errors(peer, np.full((1, 2, 3), np.nan), trained)


def test_compare_peer_without_its_packages_is_told_with_what_to_type(
    folder: Path, bare_python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, folder, "--peer", "lerobot", "--python", bare_python)
    assert "numpy" in line and f"{bare_python} -m pip install" in line and "lerobot" in line


def test_compare_python_that_is_not_there_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "/nowhere/python" in refusal(capsys, folder, "--peer", "lerobot", "--python", "/nowhere/python")


def test_compare_folder_of_another_program_and_one_that_lacks_settings_are_refused_first(
    folder: Path, tmp_path: Path, bare_python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = ("--python", bare_python, "--peer")
    assert "lerobot" in refusal(capsys, folder, *peer, "openpi")
    openpi = make_checkpoint(tmp_path / "openpi")
    assert "numpy" in refusal(capsys, openpi, *peer, "openpi")
    (openpi / "config.json").write_text('{"action_horizon": 10}')
    assert main(["compare", str(openpi), *map(str, peer), "openpi"]) == 2
