"""bench/chunks_at_once.py with tiny models on a CPU: a row for each batch, against one chunk."""

from __future__ import annotations

import json
from pathlib import Path

import chunks_at_once
import pytest

pytestmark = pytest.mark.usefixtures("one_thread")


def test_each_batch_is_compared_with_one_chunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--small", "--batches", "1", "3", "--runs", "3", "--prefix", "9", "--out", str(tmp_path)]
    assert chunks_at_once.main(given) == 0
    document = json.loads((tmp_path / "chunks_at_once.json").read_text())
    assert {"machine", "versions", "date", "seeds", "steps", "prefix", "dtype"} <= document.keys()
    cases = document["cases"]
    assert [(case["kind"], case["chunks"]) for case in cases] == [
        (kind, batch) for kind in ("pi0", "pi05") for batch in (1, 3)
    ]
    for one, three in (cases[:2], cases[2:]):
        assert one["against_one"] == 1.0 and three["p99_ms"] >= three["p50_ms"] > 0
        assert three["against_one"] == pytest.approx(three["p50_ms"] / one["p50_ms"], abs=1e-3)
    assert len(capsys.readouterr().out.splitlines()) == 5
