"""bench/plan.py: against recorded figures, and all of it on a CPU with tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plan import main

ROOT = Path(__file__).resolve().parents[2]


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


def test_what_is_not_begun_in_time_is_named(tmp_path: Path) -> None:
    arguments = ["--small", "--out", str(tmp_path), "--views", "1", "--seconds", "-1"]
    assert main(arguments) == 0
    found = json.loads((tmp_path / "plan_small.json").read_text())
    assert found["rows"] == [] and len(found["not_measured"]) == 1
    assert set(found["left_out"]) == {"pi0 exact", "pi05 exact", "openvla exact", "smolvla exact"}


def test_the_tables_of_the_page_are_those_of_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "plan.md").read_text()
    for name in ("plan", "plan_h200"):
        assert main(["--page", str(ROOT / "bench" / "results" / f"{name}.json")]) == 0
        rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
        assert len(rows) > 20 and all(row in text for row in rows)


def test_everything_runs_small_on_a_cpu(tmp_path: Path) -> None:
    assert main(["--small", "--out", str(tmp_path), "--views", "1"]) == 0
    found = json.loads((tmp_path / "plan_small.json").read_text())
    seen = {(row["device"], row["model"], row["stage"]) for row in found["rows"]}
    for model, stage in (("pi0", "whole"), ("pi05", "denoise"), ("openvla", "prefill"), ("smolvla", "frame")):
        assert {("measured", model, stage), ("h200", model, stage)} <= seen
    assert found["left_out"] == {}
