"""bench/groups.py with tiny models on a CPU: a row for each case, and what it counts."""

from __future__ import annotations

import json
from pathlib import Path

import groups
import pytest
import torch

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_case_has_its_groups_and_what_they_add_between_two_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--small", "--runs", "3", "--counts", "1", "3", "--size", "30", "40", "--out", str(tmp_path)]
    assert groups.main(given) == 0
    document = json.loads((tmp_path / "groups.json").read_text())
    assert {"machine", "versions", "date", "seeds", "steps", "runs", "dtype"} <= document.keys()
    cases = {(case["kind"], case["groups"]): case for case in document["cases"]}
    assert cases.keys() == {(kind, count) for kind in ("pi0", "pi05") for count in (1, 3)}
    for (_, count), case in cases.items():
        assert case["same_bits"] and len(case["gpu_ms"]) == len(case["host_ms"]) == count
        assert case["sum_gpu_ms"] == pytest.approx(sum(one["p50_ms"] for one in case["gpu_ms"]), abs=1e-3)
        assert case["longest_gpu_ms"] == max(one["p50_ms"] for one in case["gpu_ms"])
        assert case["apart_ms"]["p50_ms"] > 0 < case["step_ms"]["p50_ms"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and lines[2].startswith("pi0, 3 groups ")


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert groups.main([]) == 1
    assert "--small tries the command on a CPU" in capsys.readouterr().err
