"""bench/w8a8.py: outliers that do not change what a network computes, and what 8 bits make of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from builders import make_checkpoint, make_observation
from eight_bits import kernels, outliers, predicted

from vla_accel_ros.models.calibration import products
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.config import PI0, PI05, PiConfig
from vla_accel_ros.tools.bench.subjects import plain, random_inputs, random_model
from vla_accel_ros.tools.calibrate.seen import calibrate

CPU = torch.device("cpu")


@pytest.mark.parametrize("config", [PI0, PI05], ids=["pi0", "pi05"])
@torch.inference_mode()
def test_outliers_are_large_and_the_function_is_the_same(config: PiConfig) -> None:
    sized = outliers.sized(config, full=False, small=True)
    model, given = random_model(sized, CPU), random_inputs(sized, 2, 20, CPU)
    largest: dict[str, float] = {}

    def see(name: str, rows: torch.Tensor) -> None:
        columns = rows.flatten(0, -2).abs().amax(0)
        largest[name] = float(columns.max() / columns.median())

    groups = products(model)
    hooks = [
        group[0].register_forward_pre_hook(lambda module, seen, name=name: see(name, seen[0]))
        for name, group in groups.items()
    ]
    before, ordinary = plain(model, given)(), dict(largest)
    outliers.add_outliers(model, 0)
    after = plain(model, given)()
    for hook in hooks:
        hook.remove()
    assert (after - before).norm() < 1e-4 * before.norm()
    for name in groups:
        assert (largest[name] > 2 * ordinary[name]) == (not name.endswith("fc2")), name


def test_a_calibration_brings_the_cosine_back(capsys: pytest.CaptureFixture[str]) -> None:
    found = outliers.measure(draws=1, full=False, small=True)
    rows = {(row["kind"], row["precision"]): row for row in found["rows"]}
    for kind in ("pi0", "pi05"):
        raw, smoothed = rows[kind, "w8a8"], rows[kind, "w8a8, calibrated"]
        ordinary = rows[kind, "w8a8, no outliers"]
        for part in ("tokens", "keys", "values", "actions"):
            assert smoothed[part]["cosine"] >= 0.999
            assert smoothed[part]["error"] < 0.3 * raw[part]["error"]
            assert smoothed[part]["error"] < 2.0 * ordinary[part]["error"]
    assert len(list(outliers.lines(found))) == 2 + len(rows)


def test_predictions_are_those_of_the_plan() -> None:
    rows = predicted.measure()["rows"]
    assert not any(row["precision"] == "fp8" and row["device"] == "orin-agx-64" for row in rows)
    for row in rows:
        assert np.isclose(row["whole"], row["encode"] + row["prefill"] + row["denoise"], atol=0.02)
        assert row["low"] < row["whole"] < row["high"]


def test_what_the_simulation_gave_is_measured_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    seen = [make_observation(number) for number in range(3)]
    monkeypatch.setattr(kernels, "frames", lambda count: seen[:count])
    kernels.record(tmp_path / "seen.npz", 3)
    found = kernels.recorded(tmp_path / "seen.npz", 2)
    assert len(found) == 2
    for ours, given in zip(found, seen[:2], strict=True):
        assert ours.images.keys() == given.images.keys() and ours.instruction == given.instruction
        assert all(np.array_equal(ours.images[name], given.images[name]) for name in given.images)
        assert np.array_equal(ours.state, given.state)
    model, file = make_checkpoint(tmp_path / "model"), tmp_path / "calibration.safetensors"
    calibrate(load_policy(model), seen).write(file)
    made = kernels.measure(model, file, found, ("float32",))
    rows = {row["precision"]: row for row in made["rows"]}
    assert rows["exact"]["to_exact"]["rms_mrad"] == 0.0 and rows["exact"]["to_float32"]["over_moved"] < 1e-4
    for name in ("w8a8", "w8a8, calibrated"):
        assert 0 < rows[name]["to_exact"]["over_moved"] < 0.2
        assert rows[name]["to_exact"]["worst"] <= rows[name]["to_exact"]["cosine"] < 1.0
    assert len(list(kernels.lines(made))) == 2 + len(rows)


def test_a_way_that_fails_has_the_reason_in_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    model = make_checkpoint(tmp_path / "model")
    policy, file = load_policy(model), tmp_path / "calibration.safetensors"
    calibrate(policy, [make_observation(0)]).write(file)
    ways = {"exact": {"precision": "exact"}, "other": {"precision": "exact", "steps": 0}}
    monkeypatch.setattr(kernels, "ways", lambda calibration: ways)
    made = kernels.measure(model, file, [make_observation(1)], ("float32",))
    assert made["rows"][1]["refused"].startswith("ValueError: steps is 0")
