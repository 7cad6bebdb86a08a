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


def test_what_is_not_begun_in_time_is_named(tmp_path: Path) -> None:
    arguments = ["--small", "--out", str(tmp_path), "--views", "1", "--seconds", "-1"]
    assert main(arguments) == 0
    found = json.loads((tmp_path / "plan_small.json").read_text())
    assert found["rows"] == [] and len(found["not_measured"]) == 1
    assert set(found["left_out"]) == {"pi0 exact", "pi05 exact", "openvla exact", "smolvla exact"}


def test_what_was_tuned_is_printed_as_a_device_file_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = {
        "prefill, 2 views, gate and up, w8a8 rows": {"before_us": 282.8, "us": 202.4151},
        "encode, 1 views, fc2, w8a8 rows": {"before_us": 26.2, "us": 22.3},
        "encode, 1 views, o, w8a8 rows": None,
        "project, int4": {"before_us": 9.0, "us": 8.0},
    }
    file = tmp_path / "tuned.json"
    file.write_text(json.dumps({"about": {"batches": [1]}, "done": done}))
    assert main(["--tuned", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "  - [544, 32768, 2048, int8 gated rows, 202.42]",
        "  - [256, 1152, 4304, int8 rows, 22.3]",
    ]


def test_everything_runs_small_on_a_cpu(tmp_path: Path) -> None:
    assert main(["--small", "--out", str(tmp_path), "--views", "1"]) == 0
    found = json.loads((tmp_path / "plan_small.json").read_text())
    seen = {(row["device"], row["model"], row["stage"]) for row in found["rows"]}
    for model, stage in (("pi0", "whole"), ("pi05", "denoise"), ("openvla", "prefill"), ("smolvla", "frame")):
        assert {("measured", model, stage), ("h200", model, stage)} <= seen
    assert found["left_out"] == {}
