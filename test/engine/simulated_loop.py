"""A loop whose time is given from outside, and what its thread would do, without waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vla_accel_ros.engine.streaming.loop import Loop


class Clock:
    """Time that stands still until moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_loop(
    clock: Clock,
    body: Callable[[], bool],
    rate_hz: float = 10.0,
    deadline_s: float = 0.05,
    **arguments: Any,
) -> Loop:
    return Loop("vision", rate_hz, deadline_s, body, clock, **arguments)


def drive(loop: Loop, clock: Clock, until: float) -> None:
    """What the thread does, without waiting."""
    while clock.now < until:
        clock.now = max(clock.now, loop.tick(clock.now))
