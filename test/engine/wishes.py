"""Requests by what is wanted, for tests that want several things in the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from vla_accel_ros.engine.grid import Grid
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.request import (
    UNPACED,
    Act,
    Ask,
    MicroBatch,
    Observe,
    Pace,
    Request,
    Waits,
    Wish,
)
from vla_accel_ros.engine.scheduler import Scheduler

WISHES: dict[str, Callable[..., Wish]] = {wish.want: wish for wish in (Observe, Act, Ask)}


def make_request(
    want: str,
    robot: str = "",
    prefix: Prefix | None = None,
    priority: int = 0,
    waits: Waits = Waits.NOTHING,
    pace: Pace = UNPACED,
    on_progress: Callable[[Request], None] | None = None,
    **wish: Any,
) -> Request:
    return Request(WISHES[want](**wish), robot, prefix, priority, waits, pace, on_progress)


def due(due_s: float) -> Grid:
    """A grid whose next chunk is due then."""
    grid = Grid(1.0)
    grid.due_s = due_s
    return grid


def counted(scheduler: Scheduler) -> Counter[Request]:
    """How many micro-batches advanced each request from now on."""
    counts, ran = Counter[Request](), scheduler.rules.ran

    def ran_and_counted(batch: MicroBatch, took_s: float) -> None:
        counts.update(batch.requests)
        ran(batch, took_s)

    scheduler.rules.ran = ran_and_counted  # type: ignore[method-assign]
    return counts
