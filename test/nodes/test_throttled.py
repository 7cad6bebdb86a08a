"""What a node says again and again is logged once in a while, at no cost otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vla_accel_ros
from vla_accel_ros.nodes.throttled import AGAIN_S, GRACE_S, Reasons, Throttled


class Log:
    """A node, and its logger, which keeps what is logged."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, str]] = []

    def get_logger(self) -> Log:
        return self

    def warning(self, sentence: str) -> None:
        self.logged.append(("warning", sentence))

    def error(self, sentence: str) -> None:
        self.logged.append(("error", sentence))


@pytest.mark.parametrize("level", ["warning", "error"])
def test_of_what_is_said_within_a_period_only_the_first_is_logged(level: str) -> None:
    log: Any = Log()
    clock = [100.0]
    say = getattr(Throttled(log, 10.0, lambda: clock[0]), level)
    for at_s, words in ((100.0, "first"), (100.1, "again"), (109.9, "again"), (110.0, "next"), (119.0, "no")):
        clock[0] = at_s
        say(words)
    assert log.logged == [(level, "first"), (level, "next")]


def test_two_kinds_of_sentences_do_not_silence_each_other() -> None:
    log: Any = Log()
    for kind in (Throttled(log, 10.0), Throttled(log, 10.0)):
        kind.error("said")
    assert log.logged == [("error", "said")] * 2


class Standing:
    """A robot that stands, and what its terminal shows."""

    def __init__(self) -> None:
        self._log: Any = Log()
        self._now_s = 100.0
        self._reasons = Reasons(self._log, lambda: self._now_s)

    def shows(self, seconds: float, *reasons: str, at_once: bool = False) -> list[str]:
        """The lines of a time in which it stood for these reasons; what each is about is its first word."""
        self._log.logged.clear()
        until_s = self._now_s + seconds
        while True:
            named = {reason.partition(" ")[0]: reason.format(s=self._now_s) for reason in reasons}
            self._reasons.log("stands", named, at_once)
            if self._now_s >= until_s:
                return [line for _, line in self._log.logged]
            self._now_s += 0.02


def test_each_reason_is_shown_once_while_it_lasts_whatever_its_numbers():
    robot = Standing()
    lines = robot.shows(60.0, "camera is {s} s old", "held by a person")
    assert len(lines) == 2
    assert lines[0].startswith("stands: camera is 101") and "held by a person" in lines[1]
    (line,) = robot.shows(60.0, "camera is {s} s old", "nobody listens")
    assert "nobody listens" in line and "camera" not in line


def test_a_reason_that_passes_at_once_is_not_shown_unless_the_robot_stopped_for_it():
    robot = Standing()
    assert robot.shows(GRACE_S / 2, "settling") == []
    robot.shows(0.1)
    assert robot.shows(0.0, "camera is late", at_once=True) == ["stands: camera is late"]


def test_a_reason_that_comes_and_goes_is_shown_at_most_every_ten_seconds():
    robot, lines = Standing(), 0
    for _ in range(30):
        lines += len(robot.shows(0.5, "camera is late", at_once=True)) + len(robot.shows(0.5))
    assert lines == 30 / AGAIN_S


def test_no_node_has_the_middleware_throttle_what_it_says() -> None:
    """That takes 0.7 ms a call even when nothing is logged."""
    files = Path(vla_accel_ros.__file__).parent.rglob("*.py")
    assert not [file for file in files if "throttle_duration_sec=" in file.read_text()]
