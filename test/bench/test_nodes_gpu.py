"""bench/nodes_gpu.py with a tiny model on a CPU: the real nodes run, and what their timelines come to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import nodes_gpu
import numpy as np
import pytest
import torch
from real_nodes.figures import figures, window
from real_nodes.shares import PURPOSES, Shares
from real_nodes.spawned import Port, Processes

from vla_accel_ros.timeline import Event, Recorded

pytestmark = pytest.mark.usefixtures("one_thread", "environment")

MS, S = 1_000_000, 1_000_000_000
AHEAD_NS = 1_000 * S
"""Of ROS time before the monotonic clock."""
SLOW = ["--size", "48", "64", "--camera-hz", "5", "--joints-hz", "50", "--commands-hz", "100"]


@pytest.fixture
def environment() -> Iterator[None]:
    """What it was, after a command that enters a graph of its own."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_the_nodes_turn_frames_into_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--small", *SLOW, "--transports", "ring", "--ways", "plain", "--language-hz", "0"]
    given += ["--seconds", "2", "--window", "2", "--warm-up", "1"]
    more = ["--inference", "seed=3", "--logs", str(tmp_path / "logs"), "--out", str(tmp_path)]
    assert nodes_gpu.main([*given, *more]) == 0
    document = json.loads((tmp_path / "nodes_gpu.json").read_text())
    assert {"machine", "versions", "date", "seeds", "nodes", "camera_hz", "dtype"} <= document.keys()
    (case,) = document["cases"]
    assert (case["way"], case["transport"]) == ("plain", "ring")
    assert case["parameters"]["inference"]["seed"] == 3
    # It begins when chunks move the robot; how many do afterwards is the machine's affair.
    assert case["vision"]["arrived"] > 0 and case["commands"]["hz"] > 0
    assert case["image_to"].keys() == {"arrival", "observation", "prefix", "chunk", "command"}
    assert case["image_to"]["arrival"]["p99_ms"] >= case["image_to"]["arrival"]["p50_ms"] > 0
    assert case["steps"]["image on its way"]["frames"] == case["vision"]["arrived"]
    assert case["cpu"].keys() == {"inference", "trajectory", "cameras", "joints"}
    assert case["cpu"]["trajectory"]["executor"] > 0
    assert {"vision", "action", "image_to_trajectory"} <= case["misses"].keys()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[1].startswith("plain, ring ")


def test_of_a_frame_the_nodes_own_timelines_tell_the_moments() -> None:
    """Two frames of two: one that is commanded 18 ms after its stamp, one that is dropped."""
    begin_ns = 5 * S
    stamp_ns = AHEAD_NS + begin_ns + 100 * MS
    one = (stamp_ns,)

    def at(ms: float) -> int:
        return begin_ns + 100 * MS + round(ms * MS)

    inference = (
        Event("camera left", "taken", at(2.0), at(2.0), one, str(2 * MS)),
        Event("lane main", "observe.prefill", at(3.0), at(8.0), one),
        Event("lane main", "act.denoise", at(8.5), at(13.0), one),
        Event("topic /action_chunk", "write", at(13.5), at(13.6), one),
        Event("topic /action_chunk", "write", at(23.5), at(23.6), one),
    )
    trajectory = (
        Event("topic /action_chunk", "read", at(14.0), at(17.0), one),
        Event("trajectory", "follow", at(14.2), at(17.0), one),
        Event("topic /commands", "publish", at(17.5), at(18.0), one),
        Event("topic /commands", "publish", at(19.5), at(20.0)),
    )
    records = [
        Recorded("a 1", ("/inference",), inference, begin_ns + 2 * S, begin_ns + 2 * S + AHEAD_NS),
        Recorded("a 2", ("/trajectory",), trajectory, begin_ns + 2 * S, begin_ns + 2 * S + AHEAD_NS),
    ]
    found = figures(
        [window(records, begin_ns, begin_ns + S)], np.array([stamp_ns, stamp_ns + 33 * MS]), "/commands"
    )
    assert found["vision"] == {"hz": 1.33, "frames": 2, "arrived": 1, "dropped": 1}
    assert found["image_to"]["command"] == {"p50_ms": 18.0, "p99_ms": 18.0, "max_ms": 18.0}
    assert found["image_to"]["chunk"]["p50_ms"] == 13.5 and found["without_command"] == 0
    assert found["chunks"] == {"hz": 2.0, "followed_hz": 1.0}
    assert found["commands"]["hz"] == 2.0 and found["commands"]["interval"]["max_ms"] == 2.0
    assert found["steps"]["image stamp to command"] == {"frames": 1, **found["image_to"]["command"]}


def test_a_window_is_what_every_node_still_knows() -> None:
    def record(oldest_ns: int, asked_ns: int) -> Recorded:
        events = tuple(Event("lane main", "act", t * S, t * S) for t in range(20))
        return Recorded("a 1", ("/inference",), events, asked_ns, asked_ns + AHEAD_NS, oldest_ns)

    found = window([record(0, 12 * S), record(4 * S, 9 * S)], 3 * S, 11 * S)
    assert (found.begin_ns, found.end_ns, found.ahead_ns, found.seconds) == (4 * S, 9 * S, AHEAD_NS, 5.0)
    assert found.records[0].events[0].end_ns == 4 * S
    with pytest.raises(ValueError, match="make --window shorter"):
        window([record(11 * S, 12 * S)], 3 * S, 11 * S)


def test_processor_time_is_of_what_the_thread_is_for() -> None:
    shares = Shares({"us": os.getpid()})
    while not (found := shares.so_far()["us"])["executor"]:
        sum(range(100_000))
    assert tuple(found) == PURPOSES


def test_a_parameter_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert nodes_gpu.main(["--small", "--inference", "sped=3"]) == 2
    assert "--inference sped=3 is no KEY=VALUE of a parameter of inference" in capsys.readouterr().err


def test_a_node_that_refuses_its_parameters_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nodes_gpu.main(["--small", *SLOW, "--inference", "text_groups=64"]) == 1
    assert "inference: cannot configure: text_groups is 64" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert nodes_gpu.main([]) == 1
    assert "--small tries the command on a CPU" in capsys.readouterr().err


def _fail(port: Port) -> dict[str, str]:
    raise ValueError("no such thing")


def test_spawned_process_is_named_with_its_reason_when_it_fails() -> None:
    with Processes() as processes:
        processes.start("camera", _fail)
        with pytest.raises(RuntimeError, match=r"(?s)process camera failed.*no such thing"):
            processes.ready()
