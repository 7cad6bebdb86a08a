"""The parameter `horizon`: what chunks are sent with, what diagnostics say, and their replay to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from builders import make_checkpoint, make_config
from running import NodeProcess
from stack import CALM_SENSORS, wait_for_recorder

from vla_accel_ros.control.horizon import Horizons
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.diagnostics import OK, WARN
from vla_accel_ros.nodes.inference.reports import HorizonReport
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.tools.replay.again import replay
from vla_accel_ros.tools.replay.moments import Moments
from vla_accel_ros.types import Chunk

S = 1_000_000_000
STEPS, CHUNKS = 4, 12

Start = Callable[..., NodeProcess]


def make_chunk(stamp_ns: int = 0, number: int = 0) -> Chunk:
    sizes = np.ones((2, 10), np.float32)
    return Chunk(np.zeros((10, 2), np.float32), stamp_ns, 0.1, 0, number, sizes[-1], step_magnitudes=sizes)


def said(report: HorizonReport) -> tuple[bytes, dict[str, str]]:
    line = report.status()
    assert line.name == "horizon"
    return line.level, {value.key: value.value for value in line.values}


def test_diagnostics_tell_how_much_is_executed() -> None:
    horizons, report = Horizons("static:4; put *=static:6"), HorizonReport("static:4; put *=static:6")
    assert said(report)[1]["executed, newest [actions]"] == "none yet"
    for number, (instruction, actions) in enumerate({"reach it": 4, "put it there": 6}.items()):
        chunk = horizons.limit(make_chunk(number * S, number), instruction)
        assert chunk.execution_horizon == actions
        report.note(chunk, 0)
    level, values = said(report)
    assert level == OK and values["horizon"] == "static:4; put *=static:6"
    assert (values["executed, newest [actions]"], values["executed, mean [actions]"]) == ("6", "5")
    assert (values["chunks"], values["past when made"]) == ("2", "0")


def test_a_horizon_that_ends_before_its_chunk_is_made_is_a_warning_until_one_does_not() -> None:
    report = HorizonReport("static:4")
    for now_ns, level, past in ((399_999_999, OK, "0"), (400_000_000, WARN, "1"), (10, OK, "1")):
        report.note(replace(make_chunk(), execution_horizon=4), now_ns)
        found, values = said(report)
        assert (found, values["past when made"]) == (level, past)
    assert "give horizon more actions" not in report.status().message
    whole = HorizonReport("all")
    whole.note(make_chunk(), 60 * S)
    assert said(whole)[0] == OK, "an old chunk that is not cut is no matter of the horizon"


def test_chunks_are_sent_with_their_horizon_and_replay_to_the_bit(
    start: Start, operator: Operator, tmp_path: Path
) -> None:
    """Guided ones, too, which go on from no more of a chunk than is executed."""
    start("sim_robot", **CALM_SENSORS)
    recorder = start("recorder", autostart=True, record_dir=str(tmp_path / "bags"))
    model = make_checkpoint(tmp_path / "model", make_config("pi0", horizon=16))
    horizon = "static:13; *blue block=update_ratio:-0.99+least:11+elastic:1"
    given = {"steps": STEPS, "language_hz": 0.0, "rtc": "always", "horizon": horizon}
    start("inference", autostart=True, model=str(model), **given)
    wait_for_recorder(operator)
    for colour, actions in (("red", 13), ("blue", 12)):
        operator.instruct(f"reach the {colour} block")

        def executed(actions: int = actions) -> list[int]:
            return [one.chunk.executed for one in operator.chunks if one.chunk.executed == actions]

        operator.wait(lambda: len(executed()) >= CHUNKS, 60.0, f"{CHUNKS} chunks of {actions} actions")
    assert {one.chunk.executed for one in operator.chunks} == {13, 12}
    operator.wait(lambda: "inference: horizon" in operator.diagnostics, 30.0, "line of diagnostics")
    assert recorder.end() == 0
    result = replay(Moments(Bag(next((tmp_path / "bags").iterdir()))))
    assert result.equal and result.chunks >= CHUNKS, result.different_chunks


def test_what_is_no_horizon_is_refused_before_the_model_is_loaded(start: Start, tmp_path: Path) -> None:
    node = start("inference", autostart=True, model=str(tmp_path / "nowhere"), horizon="sometimes")
    node.wait_for_log("horizon is 'sometimes', but 'sometimes' is none of")
