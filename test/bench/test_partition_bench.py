"""bench/partition.py with a tiny model on a CPU: a row without a split, and what it counts."""

from __future__ import annotations

import json
from pathlib import Path

import partition
import pytest
import torch

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_a_row_has_stages_alone_and_beside_each_other(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--small", "--kind", kind, "--seconds", "0.3", "--staggered", "4", "--out", str(tmp_path)]
    assert partition.main(given) == 0
    document = json.loads((tmp_path / "partition.json").read_text())
    assert {"machine", "versions", "date", "seeds", "steps", "staggered", "dtype"} <= document.keys()
    (case,) = document["splits"]
    assert case["asked"] == "none" and case["split"] is None
    for name in ("frame", "step", "chunk"):
        assert case["alone"][name]["p99_ms"] >= case["alone"][name]["p50_ms"] > 0
    assert case["beside"]["frames_hz"] > 0 and case["beside"]["steps_hz"] > 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[1].startswith("none ")


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert partition.main([]) == 1
    assert "--small tries the command on a CPU" in capsys.readouterr().err
