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

from vla_accel_ros.models.processing.conventions import state_bins
from vla_accel_ros.models.processing.lerobot_processors import (
    STATISTICS,
    make_normalizer,
    read_image_statistics,
    read_lerobot_normalizers,
)

NUMBERS = st.floats(-1e3, 1e3, width=32)
SPANS = st.one_of(st.just(0.0), st.floats(2**-10, 1e3, width=32))
SPAN_MODES = ("MIN_MAX", "QUANTILES", "QUANTILE10")
EPS = 1e-8


def its_own(mode: str, first: np.ndarray, second: np.ndarray, x: np.ndarray) -> np.ndarray:
    """lerobot's NormalizerProcessorStep, written out: float32 tensors throughout."""
    low, high, given = (torch.tensor(value, dtype=torch.float32) for value in (first, second, x))
    if mode == "MEAN_STD":
        return ((given - low) / (high + EPS)).numpy()
    span = high - low
    return (2 * (given - low) / torch.where(span == 0, torch.tensor(EPS), span) - 1).numpy()


@pytest.mark.parametrize("mode", STATISTICS)
@given(first=NUMBERS, span=SPANS, x=NUMBERS)
def test_a_state_is_lerobots_to_the_bit(mode: str, first: float, span: float, x: float) -> None:
    second = span if mode == "MEAN_STD" else first + span
    given = np.array([first]), np.array([second]), np.array([x])
    found = make_normalizer(mode, *given[:2]).normalize(given[2])
    assert np.array_equal(found, its_own(mode, *given))


@given(low=st.floats(-2.0, 2.0, width=32), span=st.floats(0.125, 4.0, width=32))
def test_a_state_on_the_edge_of_a_bin_is_in_lerobots(low: float, span: float) -> None:
    statistics = np.array([low]), np.array([low + span])
    edges = (low + span * np.arange(257) / 256).astype(np.float32)[:, None]
    found = state_bins(make_normalizer("QUANTILES", *statistics).normalize(edges))
    assert np.array_equal(found, state_bins(its_own("QUANTILES", *statistics, edges)))


@pytest.mark.parametrize("mode", SPAN_MODES)
def test_a_joint_that_rested_in_training_rests_at_the_lowest(mode: str) -> None:
    """0.1 in float64, as a data set's JSON has it, is not the 0.1 that the robot measures in float32."""
    normalizer = make_normalizer(mode, np.array([0.1]), np.array([0.1]))
    assert normalizer.normalize(np.array([0.1], np.float32)).tolist() == [-1.0]


@given(mean=NUMBERS, std=SPANS, x=NUMBERS)
def test_an_action_by_mean_and_std(mean: float, std: float, x: float) -> None:
    normalizer = make_normalizer("MEAN_STD", np.array([mean]), np.array([std]))
    most = abs(x * std) + abs(mean) + 1
    found = normalizer.unnormalize(np.array([x]))[0]
    assert found == pytest.approx(x * std + mean, rel=0, abs=1e-6 * most + 1.01e-8 * abs(x))


@pytest.mark.parametrize("mode", SPAN_MODES)
@given(low=NUMBERS, span=SPANS, x=NUMBERS)
def test_an_action_by_a_range_is_lerobots_to_the_bit(mode: str, low: float, span: float, x: float) -> None:
    given = torch.tensor([low, low + span, x], dtype=torch.float32)
    span_there = given[1] - given[0] or torch.tensor(EPS)
    back = (given[2] + 1) / 2 * span_there + given[0]
    normalizer = make_normalizer(mode, np.array([low]), np.array([low + span]))
    assert normalizer.unnormalize(np.array([x]))[0] == back.item()


@pytest.mark.parametrize("mode", STATISTICS)
@given(low=NUMBERS, span=st.floats(1.0, 1e3), share=st.floats(-2.0, 2.0))
def test_there_and_back(mode: str, low: float, span: float, share: float) -> None:
    x, (first, second) = low + share * span, (low, span) if mode == "MEAN_STD" else (low, low + span)
    normalizer = make_normalizer(mode, np.array([first]), np.array([second]))
    there = normalizer.normalize(np.array([x]))
    assert normalizer.unnormalize(there)[0] == pytest.approx(x, rel=0, abs=1e-6 * (abs(low) + 4 * span))


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
        ("MIN_MAX", {"min": [-3e38], "max": [3e38]}, r"observation\.state exceeds float32"),
    ],
)
def test_statistics_that_turn_a_joint_round_or_have_no_end_are_refused(
    tmp_path: Path, mode: str, statistics: dict[str, list[float]], message: str
) -> None:
    named = {f"observation.state.{name}": value for name, value in statistics.items()}
    with pytest.raises(ValueError, match=message):
        read_lerobot_normalizers(write(tmp_path, {"STATE": mode}, **named))


def test_a_state_that_was_left_out_is_not_normalised_silently(tmp_path: Path) -> None:
    statistics = {"observation.state.mean": [0.0], "observation.state.std": [1.0]}
    file = write(tmp_path, {"STATE": "MEAN_STD"}, **statistics) / "policy_preprocessor.json"
    data = json.loads(file.read_text())
    data["steps"][1]["config"]["normalize_observation_keys"] = ["observation.images.top"]
    file.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"normalize_observation_keys is .*, without observation\.state"):
        read_lerobot_normalizers(tmp_path)


def test_two_normalisers_are_not_one(tmp_path: Path) -> None:
    file = write(tmp_path, {}, unused=[0.0]) / "policy_preprocessor.json"
    data = json.loads(file.read_text())
    file.write_text(json.dumps({"steps": data["steps"] * 2}))
    with pytest.raises(ValueError, match="has 2 steps normalizer_processor"):
        read_lerobot_normalizers(tmp_path)


@pytest.mark.parametrize("imagenet", [False, True])
def test_the_pixels_in_training_are_read_unless_they_are_imagenets(tmp_path, imagenet):
    """lerobot saves a camera's figures as [3, 1, 1] in 0..1, and by default writes ImageNet's there."""
    mean = [0.485, 0.456, 0.406] if imagenet else [0.3, 0.4, 0.5]
    tensors = {
        "observation.images.top.mean": torch.tensor(mean).reshape(3, 1, 1),
        "observation.images.top.std": torch.full((3, 1, 1), 0.2),
        "observation.images.odd.mean": torch.zeros(1),
        "observation.state.mean": torch.zeros(6),
    }
    save_file(tensors, tmp_path / "stats.safetensors")
    step = {"registry_name": "normalizer_processor", "config": {}, "state_file": "stats.safetensors"}
    (tmp_path / "policy_preprocessor.json").write_text(json.dumps({"steps": [step]}))
    known = read_image_statistics(tmp_path)
    assert list(known) == ([] if imagenet else ["top"])
    for mean_read, std_read in known.values():
        np.testing.assert_allclose(mean_read, mean, atol=1e-6)
        np.testing.assert_allclose(std_read, [0.2] * 3, atol=1e-6)
    assert read_image_statistics(tmp_path / "none") == {}
