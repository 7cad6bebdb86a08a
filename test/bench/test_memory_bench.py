"""bench/memory.py: tiny models through all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from memory import CASES, main


def test_every_case_is_counted_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--small", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "memory.json").read_text())["rows"]
    assert len(rows) == len(CASES) == capsys.readouterr().out.count("|\n")
    for row in rows:
        assert 0 < row["loaded_bytes"] <= row["final_bytes"] <= row["peak_bytes"]
    assert [row["keep_exact"] for row in rows] == [case.endswith("keep") for case in CASES]


def test_a_case_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--small", "--cases", "pi9:fp8:keep"]) == 2
    assert "--cases has 'pi9:fp8:keep'; give MODEL:PRECISION:keep or drop" in capsys.readouterr().err
