"""What a node says again and again is logged once in a while, at no cost otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vla_accel_ros
from vla_accel_ros.nodes.throttled import Throttled


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
    now = [100.0]
    say = getattr(Throttled(log, 10.0, lambda: now[0]), level)
    for at_s, sentence in (
        (100.0, "first"),
        (100.1, "again"),
        (109.9, "again"),
        (110.0, "next"),
        (119.0, "no"),
    ):
        now[0] = at_s
        say(sentence)
    assert log.logged == [(level, "first"), (level, "next")]


def test_two_kinds_of_sentences_do_not_silence_each_other() -> None:
    log: Any = Log()
    for kind in (Throttled(log, 10.0), Throttled(log, 10.0)):
        kind.error("said")
    assert log.logged == [("error", "said")] * 2


def test_no_node_has_the_middleware_throttle_what_it_says() -> None:
    """That takes 0.7 ms a call even when nothing is logged."""
    files = Path(vla_accel_ros.__file__).parent.rglob("*.py")
    assert not [file for file in files if "throttle_duration_sec=" in file.read_text()]
