"""bench/corun.py with a tiny model on a CPU, and in simulated time: a row for each case, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import corun
import pytest
import torch
from agent_durations import DURATIONS

from agents.schedulers import LANES, OURS

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = tuple(LANES)


def test_every_scheduler_has_a_row_at_every_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--small", "--seconds", "1.0", "--loads", "0.3", "0.8", "--at-once", "4", "--policies", *NAMES]
    assert corun.main([*given, "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "corun.json").read_text())
    assert {"machine", "versions", "date", "seeds", "durations", "chunk", "dtype"} <= document.keys()
    assert [(case["load"], case["policy"]) for case in document["cases"]] == [
        (load, name) for load in (0.3, 0.8, None) for name in NAMES
    ]
    for case in document["cases"]:
        assert case["lost"] == 0 < case["requests"]
        assert case["max_s"] >= case["p99_s"] >= case["p50_s"] > 0 and case["average_s"] > 0
        assert case["requests_s"] > 0 and case["queue_s"] >= 0 and "queue_mg1_s" in case
    counts = {(case["load"], case["requests"]) for case in document["cases"]}
    assert len(counts) == 3 and (None, 4) in counts, "the same arrivals for every scheduler"
    compared = [(row["load"], row["policy"]) for row in document["against_best"]]
    assert compared == [(load, name) for load in (0.3, 0.8, None) for name in OURS]
    assert [settings["load"] for settings in document["settings"]] == [0.3, 0.8, None]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 3 + len(document["cases"]) and lines[3].startswith("fifo ")


def test_a_robot_acts_beside_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--small", "--robot", "--seconds", "1.0", "--loads", "0.5", "--policies", "adaptive"]
    assert corun.main([*given, "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "corun.json").read_text())
    (case,) = document["cases"]
    for acted in (document["robot_alone"], case["robot"]):
        assert acted["frames"] > 0 and acted["p99_ms"] >= acted["p50_ms"] > 0 <= acted["dropped"]
    assert case["lost"] == 0 and "robot " in capsys.readouterr().out.splitlines()[-1]


def test_simulated_figures_say_that_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "measured.json"
    measured = {"durations": DURATIONS.document(), "chunk": 16, "prompt": 64, "answers": [2, 6]}
    file.write_text(json.dumps({**measured, "machine": {"gpu": "some"}}))
    given = ["--simulate", str(file), "--requests", "100", "--loads", "0.6", "--policies", *NAMES]
    assert corun.main([*given, "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "corun_simulated.json").read_text())
    assert document["simulated"] is True and document["durations_of"] == {"gpu": "some"}
    assert [case["requests"] for case in document["cases"]] == [100] * len(NAMES)
    (settings,) = document["settings"]
    assert settings["shares"]["adaptive"]["encode"]["most"] in DURATIONS.splits
    assert not (tmp_path / "corun.json").exists()
    assert capsys.readouterr().out.startswith("simulated, on the durations of ")


def test_the_adaptive_split_is_compared_with_the_best_of_the_others() -> None:
    def case(policy: str, average_s: float, max_s: float, requests_s: float) -> dict[str, object]:
        return {
            "policy": policy,
            "load": 0.8,
            "average_s": average_s,
            "max_s": max_s,
            "requests_s": requests_s,
        }

    ours = case("adaptive", 0.8, 1.5, 4.0)
    others = [case("chunked", 1.0, 3.0, 3.0), case("static", 1.2, 2.0, 5.0)]
    assert corun.against_best([*others, ours]) == [
        {"policy": "adaptive", "load": 0.8, "max_below": 0.25, "average_below": 0.2, "requests_over": 0.8}
    ]
    assert corun.against_best(others) == corun.against_best([ours]) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--loads", "0"], "give numbers above 0"),
        (["--seconds", "-1"], "give numbers above 0"),
        (["--at-once", "300"], "300 requests at once: give 0 to 256"),
        (["--simulate", "nowhere.json"], "nowhere.json is not there; measure first"),
    ],
)
def test_what_cannot_be_is_refused(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert corun.main(["--small", *given]) == 2
    assert said in capsys.readouterr().err


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert corun.main([]) == 1
    assert "--small tries the command on a CPU" in capsys.readouterr().err
