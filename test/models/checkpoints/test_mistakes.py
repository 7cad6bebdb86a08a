"""What people give instead of a checkpoint: the error names the true fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builders import make_checkpoint
from folders import edit_json, edit_weights, refused
from lerobot_builders import make_lerobot_config, make_lerobot_folder
from openvla_builders import make_norm_stats, make_openvla_folder
from orbax_folder import make_orbax_folder
from safetensors.torch import save_file
from smolvla_recording import make_smolvla_folder

from vla_accel_ros.models.checkpoints.checkpoint import load_policy

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 6940000000\n"
MAKERS: dict[str, Callable[[Path], Path]] = {
    "lerobot": make_lerobot_folder,
    "openpi": make_checkpoint,
    "openvla": make_openvla_folder,
    "smolvla": make_smolvla_folder,
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, "model.safetensors") for kind in MAKERS),
        *((kind, "tokenizer.json") for kind in MAKERS),
        ("lerobot", "config.json"),
        ("lerobot", "policy_preprocessor.json"),
        ("lerobot", "normalizer_of_policy_preprocessor.safetensors"),
        ("openpi", "tokenizer.model"),
        ("openvla", "dataset_statistics.json"),
    ],
)
def test_a_pointer_of_git_lfs_is_called_that(tmp_path: Path, kind: str, name: str) -> None:
    folder = MAKERS[kind](tmp_path / "folder")
    if name == "tokenizer.model":
        (folder / "tokenizer.json").unlink()
    (folder / name).write_text(POINTER)
    refused(folder, name, "git lfs pull")


def test_a_pointer_in_a_jax_checkpoint_is_called_that(tmp_path: Path) -> None:
    pytest.importorskip("tensorstore")
    folder = make_orbax_folder(tmp_path / "folder", "pi0")
    file = max(file for file in (folder / "params").rglob("*") if file.is_file())
    file.write_text(POINTER)
    refused(folder, file.name, "git lfs pull")


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_json_in_the_encodings_of_windows_is_read(tmp_path: Path, kind: str, encoding: str) -> None:
    folder = MAKERS[kind](tmp_path / "folder")
    for file in folder.glob("*.json"):
        if encoding == "utf-8-sig" or not file.name.startswith("tokenizer"):
            file.write_text(file.read_text(), encoding=encoding)
    load_policy(folder)


def test_a_policy_that_lerobot_saved_before_0_4_is_migrated(tmp_path: Path) -> None:
    """Its statistics are among the weights, by the names that lerobot's own script looks for."""
    folder = make_smolvla_folder(tmp_path / "old")
    old = {"normalize_inputs.buffer_observation_state.mean": torch.zeros(6)}
    edit_weights(folder / "model.safetensors", lambda tensors: tensors.update(old))
    for file in folder.glob("policy_*"):
        file.unlink()
    refused(folder, f"lerobot.processor.migrate_policy_normalization --pretrained-path {folder}")
    pi0 = make_lerobot_folder(tmp_path / "pi0", make_lerobot_config("pi0"))
    edit_weights(pi0 / "model.safetensors", lambda tensors: tensors.update(old))
    refused(pi0, "before 0.4", "normalize_inputs.buffer_observation_state.mean", "train it again")


def test_the_statistics_of_smolvla_base_are_those_of_its_data_sets(tmp_path: Path) -> None:
    """The keys of its unnormalizer, as it is published."""
    folder = make_smolvla_folder(tmp_path / "base")
    data = json.loads((folder / "policy_preprocessor.json").read_text())
    state = next(step["state_file"] for step in data["steps"] if "state_file" in step)
    names = (f"{name}.buffer.action.{which}" for name in ("so100", "so100-red") for which in ("mean", "std"))
    save_file({name: torch.ones(6) for name in names}, folder / state)
    refused(folder, state, "so100, so100-red", "fine-tune", "statistics: FOLDER")


def test_norm_stats_of_action_are_called_actions_by_openpi(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "folder")
    (file,) = folder.glob("assets/**/norm_stats.json")
    edit_json(file, lambda data: data["norm_stats"].update(action=data["norm_stats"].pop("actions")))
    refused(folder, "norm_stats.json has norm_stats.action", "norm_stats.actions", "rename")


def test_statistics_of_openvla_without_the_name_of_a_data_set(tmp_path: Path) -> None:
    folder = make_openvla_folder(tmp_path / "folder")
    action = make_norm_stats("a")["a"]["action"]
    (folder / "dataset_statistics.json").write_text(json.dumps({"action": action, "proprio": action}))
    refused(folder, "dataset_statistics.json", "NAME")


@pytest.mark.parametrize("place", ["", "checkpoints", "checkpoints/last", "checkpoints/020000"])
def test_a_folder_of_lerobots_training_names_the_policy_within(tmp_path: Path, place: str) -> None:
    checkpoints = tmp_path / "train" / "checkpoints"
    for step in ("5000", "020000"):
        make_lerobot_folder(checkpoints / step / "pretrained_model")
        (checkpoints / step / "training_state").mkdir()
    (checkpoints / "last").symlink_to("020000")
    step = "last" if place == "checkpoints/last" else "020000"
    refused(tmp_path / "train" / place, f"give {checkpoints / step / 'pretrained_model'}")


def test_a_folder_of_openpis_training_names_the_newest_step(tmp_path: Path) -> None:
    for step in ("9999", "29999"):
        make_checkpoint(tmp_path / "pi05_mine" / "run" / step)
    refused(tmp_path / "pi05_mine", f"give {tmp_path / 'pi05_mine' / 'run' / '29999'}")


def test_a_link_to_the_last_checkpoint_that_was_not_copied(tmp_path: Path) -> None:
    (tmp_path / "last").symlink_to("020000")
    for folder in (tmp_path / "last", tmp_path / "last" / "pretrained_model"):
        refused(folder, "last is a link to 020000", str(tmp_path))
