"""What diagnostics say of overload, of which nothing is given up in silence, and of the partition."""

from __future__ import annotations

import pytest
import torch

from vla_accel_ros.engine.config import ALL_APART, EngineConfig, Split
from vla_accel_ros.engine.lanes.partitioned import Partitioned
from vla_accel_ros.engine.policies.overload import LEVELS, Degradation
from vla_accel_ros.engine.policies.partition import Measured
from vla_accel_ros.engine.streaming.loop import LoopStats
from vla_accel_ros.nodes.diagnostics import OK, WARN
from vla_accel_ros.nodes.inference.reports import of_loops, of_overload, of_partition


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
        (
            "auto",
            OK,
            "partition is 'auto', but the model runs on cpu, which has no multiprocessors to divide",
        ),
        ("32:100", WARN, "partition is '32:100', but the model runs on cpu"),
    ],
)
def test_a_partition_that_is_not_there_is_told(word: str, level: bytes, said: str) -> None:
    line = of_partition(Partitioned(EngineConfig(lanes=ALL_APART, partition=word), CPU, True))
    assert (line.name, line.level) == ("partition", level) and line.message.startswith(said)
    values = {value.key: value.value for value in line.values}
    assert values == {"partition": "none", "splits by load": "no", "switched": "0"}


def test_what_auto_measured_is_told() -> None:
    made = Partitioned(EngineConfig(lanes=ALL_APART, partition="auto"), CPU, True)
    made.measured = tuple(Measured(split, 1e-3, 1e-3, 7e-3, 2e-3) for split in (None, Split(32, 100)))
    values = {value.key: value.value for value in of_partition(made).values}
    assert values["frame, without [ms]"] == values["frame, 32:100 [ms]"] == "7"
    assert values["action p99, 32:100 [ms]"] == "2"
