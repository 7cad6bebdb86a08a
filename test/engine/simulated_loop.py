"""A loop whose time is given from outside, and what its thread would do, without waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vla_accel_ros.engine.simulated import Clock as SimulatedClock
from vla_accel_ros.engine.streaming.loop import Loop


class Clock(SimulatedClock):
    """From some time on."""

    def __init__(self) -> None:
        super().__init__(100.0)


def ignore(error: Exception) -> None:
    """For a body that raises nothing."""
    raise error


def make_loop(
    clock: Clock,
    body: Callable[[], bool],
    rate_hz: float = 10.0,
    deadline_s: float = 0.05,
    on_error: Callable[[Exception], None] = ignore,
    **arguments: Any,
) -> Loop:
    return Loop("vision", rate_hz, deadline_s, body, on_error, clock, **arguments)


def drive(loop: Loop, clock: Clock, until: float) -> None:
    """What the thread does, without waiting."""
    while clock.now_s < until:
        clock.wait(loop.tick(clock.now_s))
