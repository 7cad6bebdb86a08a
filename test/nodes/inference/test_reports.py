"""What diagnostics say of overload: nothing is given up in silence."""

from __future__ import annotations

import pytest

from vla_accel_ros.engine.loop import LoopStats
from vla_accel_ros.engine.policies.overload import LEVELS, Degradation
from vla_accel_ros.nodes.diagnostics import OK, WARN
from vla_accel_ros.nodes.inference.reports import of_loops, of_overload


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_a_warning_that_says_what_is_given_up(level: str) -> None:
    line = of_overload(Degradation(level, 4, 1.5, {"a": 2, "b": 3}, {"a": 7}))
    assert line.level == (OK if level == "none" else WARN)
    assert ("too much to do" in line.message) == (level != "none")
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
