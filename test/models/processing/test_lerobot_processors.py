"""Statistics that lerobot saved: its own formulas, written out, for every mode and for joints that rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from vla_accel_ros.models.processing.lerobot_processors import (
    STATISTICS,
    make_normalizer,
    read_lerobot_normalizers,
)

NUMBERS = st.floats(-1e3, 1e3)
SPANS = st.one_of(st.just(0.0), st.floats(1e-3, 1e3))
SPAN_MODES = ("MIN_MAX", "QUANTILES", "QUANTILE10")


@given(mean=NUMBERS, std=SPANS, x=NUMBERS)
def test_mean_and_std(mean: float, std: float, x: float) -> None:
    normalizer = make_normalizer("MEAN_STD", np.array([mean]), np.array([std]))
    normal = (x - mean) / (std + 1e-8)
    assert normalizer.normalize(np.array([x]))[0] == pytest.approx(normal, rel=1e-12)
    assert normalizer.unnormalize(np.array([x]))[0] == pytest.approx(
        x * std + mean, rel=1e-12, abs=1.01e-8 * abs(x)
    )


@pytest.mark.parametrize("mode", SPAN_MODES)
@given(low=NUMBERS, span=SPANS, x=NUMBERS)
def test_lowest_and_highest(mode: str, low: float, span: float, x: float) -> None:
    high = low + span
    normalizer = make_normalizer(mode, np.array([low]), np.array([high]))
    denominator = high - low or 1e-8
    normal = 2.0 * (x - low) / denominator - 1.0
    assert normalizer.normalize(np.array([x]))[0] == pytest.approx(normal, rel=1e-9, abs=1e-9)
    back = (x + 1.0) / 2.0 * denominator + low
    assert normalizer.unnormalize(np.array([x]))[0] == pytest.approx(back, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("mode", STATISTICS)
@given(low=NUMBERS, span=st.floats(1e-2, 1e3), x=NUMBERS)
def test_there_and_back(mode: str, low: float, span: float, x: float) -> None:
    first, second = (low, span) if mode == "MEAN_STD" else (low, low + span)
    normalizer = make_normalizer(mode, np.array([first]), np.array([second]))
    there = normalizer.normalize(np.array([x]))
    assert normalizer.unnormalize(there)[0] == pytest.approx(x, rel=1e-9, abs=1e-6)


def write(folder: Path, modes: dict[str, str], **statistics: list[float]) -> Path:
    """The two files of a folder, their states under names that no count of steps would give."""
    tensors = {name.replace("__", "."): torch.tensor(value) for name, value in statistics.items()}
    for file, name in (
        ("policy_preprocessor", "normalizer_processor"),
        ("policy_postprocessor", "unnormalizer_processor"),
    ):
        step = {"registry_name": name, "config": {"norm_map": modes}, "state_file": f"{name}_7.safetensors"}
        data = {"steps": [{"registry_name": "to_batch_processor", "config": {}}, step]}
        (folder / f"{file}.json").write_text(json.dumps(data))
        save_file(tensors, folder / f"{name}_7.safetensors")
    return folder


def test_state_and_actions_may_have_modes_of_their_own(tmp_path: Path) -> None:
    modes = {"VISUAL": "IDENTITY", "STATE": "MIN_MAX", "ACTION": "QUANTILES"}
    statistics: dict[str, Any] = {
        "observation.state.min": [0.0, 1.0],
        "observation.state.max": [2.0, 3.0],
        "action.q01": [0.0],
        "action.q99": [4.0],
    }
    state, actions = read_lerobot_normalizers(write(tmp_path, modes, **statistics))
    assert state.normalize(np.array([0.0, 3.0])).tolist() == [-1.0, 1.0]
    assert actions.unnormalize(np.array([0.5])).tolist() == [3.0]


def test_what_is_not_normalised_has_no_size(tmp_path: Path) -> None:
    state, actions = read_lerobot_normalizers(write(tmp_path, {}, unused=[0.0]))
    assert (state.size, actions.size) == (0, 0)


@pytest.mark.parametrize(
    ("modes", "message"),
    [
        ({"STATE": "LOG"}, r"normalizer_processor\.norm_map\.STATE is 'LOG'"),
        ({"STATE": ["MEAN_STD"]}, r"norm_map\.STATE is \['MEAN_STD'\]"),
        ({"VISUAL": "MEAN_STD"}, r"norm_map\.VISUAL is 'MEAN_STD'"),
        ({"ACTION": "MEAN_STD"}, r"has no action\.mean"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, modes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_lerobot_normalizers(write(tmp_path, modes, unused=[0.0]))


@pytest.mark.parametrize(
    ("mode", "statistics", "message"),
    [
        ("QUANTILES", {"q01": [0.0, 1.0], "q99": [1.0, 0.5]}, r"observation\.state\.q99\[1\] is below q01"),
        ("MIN_MAX", {"min": [2.0], "max": [1.0]}, r"observation\.state\.max\[0\] is below min"),
        ("MEAN_STD", {"mean": [2.0], "std": [-1.0]}, r"observation\.state\.std\[0\] is below 0"),
    ],
)
def test_statistics_that_turn_a_joint_round_are_refused(
    tmp_path: Path, mode: str, statistics: dict[str, list[float]], message: str
) -> None:
    named = {f"observation.state.{name}": value for name, value in statistics.items()}
    with pytest.raises(ValueError, match=message):
        read_lerobot_normalizers(write(tmp_path, {"STATE": mode}, **named))


def test_two_normalisers_are_not_one(tmp_path: Path) -> None:
    file = write(tmp_path, {}, unused=[0.0]) / "policy_preprocessor.json"
    data = json.loads(file.read_text())
    file.write_text(json.dumps({"steps": data["steps"] * 2}))
    with pytest.raises(ValueError, match="has 2 steps normalizer_processor; it must have one"):
        read_lerobot_normalizers(tmp_path)
