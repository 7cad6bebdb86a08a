"""bench/stream.py with tiny models on a CPU: a row for each case, and what it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import stream
import torch

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_case_has_its_rates_and_what_it_does_at_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--small", "--seconds", "0.5", "--warm-up", "0.2", "--saturated", "0.3", "--staggered", "4"]
    assert (
        stream.main([*given, "--size", "30", "40", "--settings", "one", "three", "--out", str(tmp_path)]) == 0
    )
    document = json.loads((tmp_path / "stream.json").read_text())
    assert {"machine", "versions", "date", "seeds", "steps", "staggered", "dtype"} <= document.keys()
    cases = {(case["kind"], case["way"], case["setting"]): case for case in document["cases"]}
    ways = [(kind, way) for kind in ("pi0", "pi05") for way in ("stream", "fresh")]
    assert cases.keys() == {(*way, lanes) for way in ways for lanes in ("one", "three")}
    for (_, way, lanes), case in cases.items():
        assert case["vision"]["hz"] > 0 and case["vision"]["dropped"] >= 0 and case["chunks"]["hz"] > 0
        assert case["first_chunk"]["p99_ms"] >= case["first_chunk"]["p50_ms"] > 0
        assert case["given_up"].keys() == {"level", "text_paused_s", "chunks", "frames"}
        assert min(case["alone_ms"].values()) > 0 and case["saturated"]["work"] > 0
        whole = case["saturated"]["rates_hz"]["first_chunks"]
        assert (whole > 0) == (way == "fresh"), "only first chunks are whole, and only there"
        assert lanes != "one" or case["saturated"]["against_first"] == 1.0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 and lines[1].startswith("pi0, stream, one ")


@pytest.mark.parametrize("word", ["four", "one,seats=2", "two,partition", "one,staggering=odd"])
def test_a_setting_that_cannot_be_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        stream.main(["--small", "--settings", word])
    assert "--settings" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert stream.main([]) == 1
    assert "--small tries the command on a CPU" in capsys.readouterr().err
