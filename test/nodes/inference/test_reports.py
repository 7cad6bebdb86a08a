"""What diagnostics say of overload, in which nothing is dropped silently, the partition, and the horizon."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from vla_accel_ros.control.horizon import Horizons
from vla_accel_ros.engine.config import ALL_APART, EngineConfig, Split
from vla_accel_ros.engine.lanes.partitioned import Partitioned
from vla_accel_ros.engine.rules.overload import LEVELS, Degradation
from vla_accel_ros.engine.rules.partition import Measured
from vla_accel_ros.engine.streaming.loop import LoopStats
from vla_accel_ros.nodes.diagnostics import OK, WARN
from vla_accel_ros.nodes.inference.reports import HorizonReport, of_loops, of_overload, of_partition
from vla_accel_ros.types import Chunk


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_a_warning_that_says_what_is_given_up(level: str) -> None:
    line = of_overload(Degradation(level, 4, 1.5, {"a": 2, "b": 3}, {"a": 7}))
    assert line.level == (OK if level == "none" else WARN)
    assert ("overloaded" in line.message) == (level != "none")
    values = {value.key: value.value for value in line.values}
    assert values == {
        "level": level,
        "rungs taken": "4",
        "text paused [s]": "1.5",
        "further chunks given up": "5",
        "frames skipped": "7",
    }


def test_a_loop_tells_what_was_given_up_beside_its_misses() -> None:
    (line,) = of_loops([LoopStats("vision", 30.0, 20.0, 0.01, 0.02, 100, 2, 5, given_up=9)])
    values = {value.key: value.value for value in line.values}
    assert (values["deadline misses"], values["given up"]) == ("5", "9")


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("word", "level", "said"),
    [
        ("none", OK, "no partition was requested"),
        ("auto", OK, "partition is 'auto', but the model runs on cpu"),
        ("32:100", WARN, "partition is '32:100', but the model runs on cpu"),
    ],
)
def test_a_partition_that_is_not_there_is_told(word: str, level: bytes, said: str) -> None:
    line = of_partition(Partitioned(EngineConfig(lanes=ALL_APART, partition=word), CPU, True))
    assert (line.name, line.level) == ("partition", level) and line.message.startswith(said)
    values = {value.key: value.value for value in line.values}
    assert values == {"partition": "none", "splits by load": "no", "switched": "0"}


def test_what_auto_measured_is_told() -> None:
    partitioned = Partitioned(EngineConfig(lanes=ALL_APART, partition="auto"), CPU, True)
    partitioned.measured = tuple(Measured(split, 7e-3, 2e-3) for split in (None, Split(32, 100)))
    values = {value.key: value.value for value in of_partition(partitioned).values}
    assert values["frame, without [ms]"] == values["frame, 32:100 [ms]"] == "7"
    assert values["action p99, 32:100 [ms]"] == "2"


S = 1_000_000_000


def make_chunk(stamp_ns: int = 0, number: int = 0) -> Chunk:
    sizes = np.ones((2, 10), np.float32)
    return Chunk(np.zeros((10, 2), np.float32), stamp_ns, 0.1, 0, number, sizes[-1], step_magnitudes=sizes)


def horizon_line(report: HorizonReport) -> tuple[bytes, dict[str, str]]:
    line = report.status()
    assert line.name == "horizon"
    return line.level, {value.key: value.value for value in line.values}


def test_horizon_line_says_how_much_is_executed() -> None:
    horizons, report = Horizons("static:4; put *=static:6"), HorizonReport("static:4; put *=static:6")
    assert horizon_line(report)[1]["executed, newest [actions]"] == "none yet"
    for number, (instruction, actions) in enumerate({"reach it": 4, "put it there": 6}.items()):
        chunk = horizons.limit(make_chunk(number * S, number), instruction)
        assert chunk.execution_horizon == actions
        report.note(chunk, 0)
    level, values = horizon_line(report)
    assert level == OK and values["horizon"] == "static:4; put *=static:6"
    assert (values["executed, newest [actions]"], values["executed, mean [actions]"]) == ("6", "5")
    assert (values["chunks"], values["past when made"]) == ("2", "0")


def test_horizon_that_ends_before_its_chunk_is_made_is_a_warning_until_one_does_not() -> None:
    report = HorizonReport("static:4")
    for now_ns, level, past in ((399_999_999, OK, "0"), (400_000_000, WARN, "1"), (10, OK, "1")):
        report.note(replace(make_chunk(), execution_horizon=4), now_ns)
        line_level, values = horizon_line(report)
        assert (line_level, values["past when made"]) == (level, past)
    whole = HorizonReport("all")
    whole.note(make_chunk(), 60 * S)
    assert horizon_line(whole)[0] == OK, "an old chunk that is not cut is no matter of the horizon"
