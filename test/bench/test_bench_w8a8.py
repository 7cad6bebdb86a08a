"""bench/w8a8.py: outliers that do not change what a network computes, and what 8 bits make of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from eight_bits import outliers, predicted

from full_size.subjects import plain, random_inputs, random_model
from vla_accel_ros.models.calibration import products
from vla_accel_ros.models.config import PI0, PI05, PiConfig

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
