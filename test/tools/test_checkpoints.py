"""`vla inspect` and `vla convert`: what they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import make_checkpoint, make_config
from lerobot_builders import make_lerobot_config, make_lerobot_folder
from openvla_builders import make_norm_stats, make_openvla_folder
from smolvla_recording import make_smolvla_folder

from vla_accel_ros.tools.cli import main


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
    assert "bridge_orig, kuka: choose with the parameter statistics" in output
    assert "cannot be loaded: " in output and "no dataset was named" in output
    assert main(["inspect", str(folder), "--statistics", "kuka"]) == 0
    assert "action 6 is not normalised: a gripper's, " in capsys.readouterr().out


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
