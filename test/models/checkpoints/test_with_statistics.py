"""A network that is loaded is shared by policies with other statistics, for which no weight is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import JOINTS, make_checkpoint, make_config, make_stats
from folders import edit_json
from lerobot_builders import make_lerobot_config, make_lerobot_folder, make_lerobot_stats
from openvla_builders import make_norm_stats, make_openvla_folder
from smolvla_recording import make_smolvla_folder

from vla_accel_ros.engine.session import statistics_checksum
from vla_accel_ros.models.checkpoints import checkpoint
from vla_accel_ros.models.checkpoints.checkpoint import describe, find_format, load_policy, with_statistics
from vla_accel_ros.models.checkpoints.formats import Contents
from vla_accel_ros.models.checkpoints.shards import SINGLE

FEW = 4


def several_assets(folder: Path) -> tuple[Path, str, str]:
    make_checkpoint(folder, make_config("pi05"))
    other = folder / "assets" / "lab" / "other"
    other.mkdir(parents=True)
    stats = {"state": make_stats(8, FEW), "actions": make_stats(9, FEW)}
    (other / "norm_stats.json").write_text(json.dumps({"norm_stats": stats}))
    return folder, "arm", "lab/other"


def several_datasets(folder: Path) -> tuple[Path, str, str]:
    make_openvla_folder(folder)
    stats = make_norm_stats("bridge_orig", "fractal20220817_data")
    few = stats["fractal20220817_data"]["action"]
    few.update({name: few[name][:FEW] for name in few})
    edit_json(folder / "config.json", lambda data: data.update(norm_stats=stats))
    return folder, "bridge_orig", "fractal20220817_data"


def write_dataset(folder: Path, joints: int = FEW) -> Path:
    """Statistics as lerobot keeps them beside a data set."""
    (folder / "meta").mkdir(parents=True)
    stats = {
        key: {name: value[:joints].tolist() for name, value in make_lerobot_stats(seed).items()}
        | {"min": [-1.0] * joints, "max": [1.0] * joints, "count": [9]}
        for key, seed in (("observation.state", 20), ("action", 21))
    }
    (folder / "meta" / "stats.json").write_text(json.dumps(stats))
    return folder


def saved_by_lerobot(folder: Path) -> tuple[Path, str, str]:
    make_lerobot_folder(folder, make_lerobot_config("pi05"))
    return folder, "", str(write_dataset(folder.parent / "data"))


def a_smolvla(folder: Path) -> tuple[Path, str, str]:
    make_smolvla_folder(folder)
    return folder, "", str(write_dataset(folder.parent / "data"))


MAKERS = (several_assets, several_datasets, saved_by_lerobot, a_smolvla)


@pytest.mark.parametrize("make", MAKERS)
def test_it_is_what_loading_the_folder_gives_on_the_same_weights(
    make: Callable[[Path], tuple[Path, str, str]], tmp_path: Path
) -> None:
    folder, first, second = make(tmp_path / "model")
    policy, loaded = (load_policy(folder, statistics=key) for key in (first, second))
    (folder / SINGLE).rename(tmp_path / "elsewhere")
    other, again = (with_statistics(policy, folder, statistics=key) for key in (second, first))
    assert other.model is policy.model is again.model and loaded.model is not policy.model
    assert other.joints == FEW != policy.joints
    assert statistics_checksum(other) == statistics_checksum(loaded)
    assert statistics_checksum(again) == statistics_checksum(policy) != statistics_checksum(other)


@pytest.mark.parametrize("make", MAKERS)
def test_the_folder_says_what_the_other_statistics_are(
    make: Callable[[Path], tuple[Path, str, str]], tmp_path: Path
) -> None:
    folder, first, second = make(tmp_path / "model")
    told, other = describe(folder, first or None), describe(folder, second)
    assert not told.missing and not other.missing
    assert other.actions.shape == (2, FEW) and told.actions.shape != other.actions.shape


def test_relative_actions_are_a_robots_own(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, make_config("pi0"))
    policy = load_policy(folder)
    other = with_statistics(policy, folder, np.ones(JOINTS, bool))
    assert other.delta_mask.all() and not policy.delta_mask.any()


def test_a_name_that_is_not_there_is_refused(tmp_path: Path) -> None:
    folder, first, _ = several_datasets(tmp_path / "model")
    policy = load_policy(folder, statistics=first)
    with pytest.raises(ValueError, match=r"'leg'.*'bridge_orig'"):
        with_statistics(policy, folder, statistics="leg")
    with pytest.raises(ValueError, match="'bridge_orig', 'fractal20220817_data'"):
        with_statistics(policy, folder)


def test_a_folder_of_another_network_is_refused(tmp_path: Path) -> None:
    policy = load_policy(make_checkpoint(tmp_path / "one", make_config("pi0")))
    for name, config in (
        ("kind", make_config("pi05")),
        ("cameras", make_config("pi0", image_names=("top",))),
    ):
        other = make_checkpoint(tmp_path / name, config)
        with pytest.raises(ValueError, match=f"/{name} "):
            with_statistics(policy, other)
    with pytest.raises(ValueError, match="/family "):
        with_statistics(policy, make_openvla_folder(tmp_path / "family"))


def test_a_format_that_shares_no_weights_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_checkpoint(tmp_path)
    policy, known = load_policy(folder), find_format(Contents.of(folder))
    alone = replace(known, load=lambda contents, options: known.load(contents, replace(options, model=None)))
    monkeypatch.setattr(checkpoint, "find_format", lambda contents: alone)
    with pytest.raises(ValueError, match="format openpi"):
        with_statistics(policy, folder)


@pytest.mark.parametrize("make", [saved_by_lerobot, a_smolvla])
def test_statistics_of_a_data_set_are_checked(
    make: Callable[[Path], tuple[Path, str, str]], tmp_path: Path
) -> None:
    folder, _, dataset = make(tmp_path / "model")
    with pytest.raises(ValueError, match="statistics is 'nowhere'"):
        load_policy(folder, statistics="nowhere")
    file = Path(dataset) / "meta" / "stats.json"
    edit_json(file, lambda data: data["action"].update(q99=[1.0], std=[1.0]))
    with pytest.raises(ValueError, match=r"stats\.json: action has 4 \w+ but 1 "):
        load_policy(folder, statistics=dataset)
    edit_json(file, lambda data: data.pop("action"))
    with pytest.raises(ValueError, match=r"stats\.json: action\.\w+ .*finite"):
        load_policy(folder, statistics=dataset)
