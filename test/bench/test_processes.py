"""bench/processes.py with a tiny model on a CPU: every process does its part, and what is counted of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import torch
from node_loops.figures import figures
from node_loops.running import Port, Processes

pytestmark = pytest.mark.usefixtures("one_thread")

MS = 1_000_000


def test_frames_become_commands_through_all_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--small", "--seconds", "2.0", "--warm-up", "1.0", "--size", "30", "40", "--out", str(tmp_path)]
    assert processes.main([*given, "--ways", "stream", "--staggered", "4", "--engine", "seed=3"]) == 0
    document = json.loads((tmp_path / "processes.json").read_text())
    assert {"machine", "versions", "date", "seeds", "transport", "camera_hz", "dtype"} <= document.keys()
    (case,) = document["cases"]
    assert (case["way"], case["lanes"]) == ("stream", "one")
    assert (case["engine"]["seed"], case["engine"]["staggered"]) == (3, 4)
    assert case["vision"]["hz"] > 0 and case["vision"]["dropped"] < case["vision"]["frames"]
    assert case["chunks"]["hz"] > 0 and case["commands"]["hz"] > 0
    assert case["image_to"].keys() == {"arrival", "observation", "prefix", "chunk", "command"}
    assert all(times["p99_ms"] >= times["p50_ms"] > 0 for times in case["image_to"].values())
    assert case["image_to"]["prefix"]["p50_ms"] > case["image_to"]["observation"]["p50_ms"]
    assert case["page_lock"] and case["chunks"]["why_refused"] == ""
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[1].startswith("stream, one ")


def test_of_a_frame_the_first_of_everything_counts() -> None:
    """Three frames: one as it should be, one that moves nothing, one that was dropped."""
    stamps = np.array([100, 133, 166]) * MS
    logs: dict[str, dict[str, Any]] = {
        "camera": {"stamps_ns": stamps},
        "inference": {
            "came": np.array([[100, 101], [133, 134], [166, 167]]) * MS,
            "taken": np.array([[100, 102], [133, 136]]) * MS,
            "seen": np.array([[100, 110], [133, 144]]) * MS,
            "made": np.array([[100, 115], [100, 117], [133, 150]]) * MS,
            "lost": {"left": 1, "right": 2},
            "misses": {},
            "given_up": {},
            "page_lock": {},
        },
        "trajectory": {
            "commands": np.array([[114, 0], [116, 100], [118, 100], [120, 0]]) * MS,
            "follow_s": np.array([0.001]),
            "stops": [(90 * MS, "before"), (120 * MS, "late")],
            "overtaken": 0,
            "buffer": {"accepted": 2, "slow": 0},
            "why_refused": "",
        },
    }
    found = figures(logs, 95 * MS, 1095 * MS)
    assert found["vision"] == {"hz": 2.0, "frames": 3, "dropped": 1, "lost_in_rings": 3}
    assert found["image_to"]["chunk"] == {"p50_ms": 16.0, "p99_ms": 16.98, "max_ms": 17.0}
    assert found["image_to"]["command"]["p50_ms"] == 16.0
    assert found["without_command"] == 1 and found["stops"] == ["late"]
    assert found["commands"] == {"hz": 4.0, "interval": {"p50_ms": 2.0, "p99_ms": 2.0, "max_ms": 2.0}}
    assert found["chunks"]["hz"] == 3.0 and found["chunks"]["followed_hz"] == 2.0
    assert found["chunks"]["buffer"] == {"accepted": 2}


def _fail(port: Port) -> dict[str, str]:
    raise ValueError("no such thing")


def test_a_process_that_fails_is_named_with_its_reason() -> None:
    with Processes() as started:
        started.start("camera", _fail)
        with pytest.raises(RuntimeError, match=r"(?s)process camera failed.*no such thing"):
            started.ready()


def test_an_option_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert processes.main(["--small", "--engine", "sped=3"]) == 2
    assert "--engine sped=3 is no KEY=VALUE of a field of EngineConfig" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert processes.main([]) == 1
    assert "--small tries the command on a CPU" in capsys.readouterr().err
