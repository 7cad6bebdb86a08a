"""bench/fleet.py with tiny models on a CPU: every part has its figures, and the trace is what it says."""

from __future__ import annotations

import json
from pathlib import Path

import fleet
import numpy as np
import pytest
import torch

from fleets.loads import make_trace, most_robots
from fleets.serving import options_of

pytestmark = pytest.mark.usefixtures("one_thread")
SETTING = "scheduling=throughput,staggered=12,frames_together=2"


def test_every_part_has_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--small", "--size", "30", "40", "--seconds", "0.3", "--fleet-seconds", "1", "--window", "1.5"]
    given += ["--robots", "3", "--most-robots", "2", "--hz", "1", "--within", "60", "--buffer", "60"]
    given += [
        "--settings",
        SETTING,
        "staggered=4,lanes=two",
        "--serve",
        SETTING,
        "--admit",
        SETTING,
        "--seeds",
        "0",
        "--admit-seeds",
        "0",
    ]
    assert fleet.main([*given, "--parts", *fleet.PARTS[:-1], "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "fleet.json").read_text())
    assert {"machine", "versions", "date", "seeds", "dtype", "serve", *fleet.PARTS[:-1]} <= document.keys()
    assert [case["setting"] for case in document["throughput"]] == [SETTING, "staggered=4,lanes=two"]
    others = {case["setting"] for case in document["peers"]}
    assert others == {"one at a time", "lock-step of 16, exact", "eager"}
    for case in (*document["throughput"], *document["peers"]):
        assert case["chunks_hz"] >= 0 and "failed" not in case
    (played,) = document["fleet"]
    assert played["requests"] >= 3 and 0.0 <= played["late"] <= 1.0 and played["robots"] == 3
    assert played["image_to_chunk"]["p99_ms"] >= played["image_to_chunk"]["p50_ms"] > 0
    (admitted,) = document["admission"]
    assert 0 <= admitted["most"] <= 2 and 0 <= admitted["expected"] <= 2
    assert admitted["frames_ms"].keys() == {"1", "2"} and admitted["windows"][0]["seen"]
    assert "throughput,staggered=12,frames_together=2" in capsys.readouterr().out


def test_a_trace_asks_at_its_rate_and_is_the_same_for_a_seed() -> None:
    trace = make_trace(5, hz=4.0, jitter=0.1, seconds=50.0, seed=3)
    assert trace == make_trace(5, 4.0, 0.1, 50.0, 3) != make_trace(5, 4.0, 0.1, 50.0, 4)
    assert [due.at_s for due in trace] == sorted(due.at_s for due in trace)
    for robot in {due.robot for due in trace}:
        own = [due for due in trace if due.robot == robot]
        assert [due.number for due in own] == list(range(len(own)))
        gaps = np.diff([due.at_s for due in own])
        assert 0.225 <= gaps.min() < gaps.max() <= 0.275 and len(own) == pytest.approx(200, abs=8)


@pytest.mark.parametrize("fit", range(8))
def test_the_largest_number_that_fits_is_found(fit: int) -> None:
    tried: list[int] = []

    def fits(robots: int) -> bool:
        tried.append(robots)
        return robots <= fit

    assert most_robots(fits, 1, 6) == min(fit, 6) and len(tried) <= 3
    assert all(most_robots(fits, 1, 6, guess) == min(fit, 6) for guess in range(9))


@pytest.mark.parametrize(
    "word", ["four", "seats=2", "staggered=1", "lanes=five", "staggered=8,seats_by_load=yes"]
)
def test_a_setting_that_cannot_be_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fleet.main(["--small", "--settings", word])
    assert "--settings" in capsys.readouterr().err
    assert options_of("staggered=8,seats_by_load=true") == {"staggered": 8, "seats_by_load": True}


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert fleet.main([]) == 1
    assert "--small tries the command on a CPU" in capsys.readouterr().err
