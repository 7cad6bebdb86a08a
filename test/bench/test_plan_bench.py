"""bench/plan.py: against recorded figures, and all of it on a CPU with tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plan import main


def test_recorded_figures_are_compared_and_misses_have_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--recorded", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "plan.json").read_text())
    assert "orin-agx-64" in capsys.readouterr().out
    assert found["of"] == len(found["rows"]) and found["met"] == sum(row["met"] for row in found["rows"])
    for row in found["rows"]:
        off = 100 * (row["predicted_ms"] / row["measured_ms"] - 1)
        assert off == pytest.approx(row["off_percent"], abs=0.3)
        assert bool(row["reason"]) != row["met"]


def test_everything_runs_small_on_a_cpu(tmp_path: Path) -> None:
    assert main(["--small", "--out", str(tmp_path), "--views", "1"]) == 0
    found = json.loads((tmp_path / "plan_small.json").read_text())
    seen = {(row["device"], row["model"], row["stage"]) for row in found["rows"]}
    for model, stage in (("pi0", "whole"), ("pi05", "denoise"), ("openvla", "prefill"), ("smolvla", "frame")):
        assert {("measured", model, stage), ("h200", model, stage)} <= seen
    assert found["left_out"] == {}
