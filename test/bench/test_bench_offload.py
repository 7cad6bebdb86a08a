"""bench/offload.py with tiny encoders: a row for each case, the same bits, nothing written unasked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from offload import CASES, SMALL_CASES, main


def test_both_encoders_are_measured_case_by_case(tmp_path: Path, one_thread: None) -> None:
    assert main(["--small", "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "offload.json").read_text())
    assert document["small"] and [tower["tower"] for tower in document["towers"]] == list(CASES)
    for tower in document["towers"]:
        assert [row["streamed"] for row in tower["cases"]] == [case.streamed for case in SMALL_CASES]
        assert all(row["same_bits"] and row["predicted_ms"] > 0 for row in tower["cases"])
        assert [row["slots"] for row in tower["cases"]] == [2, 1, 3, 1]
        assert tower["bandwidth_gb_s"] > 0 and 0 <= tower["largest_share_at_1_percent"] <= 1


def test_small_ones_are_for_trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--small", "--towers", "cogagent"]) == 0
    assert not list(tmp_path.iterdir())


def test_full_size_needs_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 1
    assert "full-size encoders are measured on a GPU" in capsys.readouterr().err
