"""A scheduling policy: whatever came last goes first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vla_accel_ros.engine.policies.policy import Setup
from vla_accel_ros.engine.request import MicroBatch, Request


class LastFirst:
    """One request at a time, each stage to its end."""

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        """The newest request."""
        return MicroBatch(ready[-1].stage, (ready[-1],), steps=0) if ready else None

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        """Nothing is remembered."""

    def wake_s(self, ready: Sequence[Request], now_s: float) -> float:
        """Never."""
        return math.inf


def make(setup: Setup) -> LastFirst:
    """Of any engine."""
    return LastFirst()
