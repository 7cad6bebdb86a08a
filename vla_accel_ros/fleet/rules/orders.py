"""Baseline orders, which need only what is known of each task."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vla_accel_ros.fleet.rules.rule import FleetSetup, InOrder
from vla_accel_ros.fleet.task import TaskRequest


class FirstInFirstOut(InOrder):
    """Serves in order of submission, as LLM serving systems do."""

    def __init__(self, setup: FleetSetup) -> None:
        super().__init__(setup, math.inf)

    def keys(self, ready: Sequence[TaskRequest], now_s: float) -> Sequence[int]:
        return range(len(ready))


class LeastAttainedService(InOrder):
    """Serves tasks with the least replica time so far (Autellix, arXiv 2502.13965)."""

    def keys(self, ready: Sequence[TaskRequest], now_s: float) -> Sequence[float]:
        return [request.task.generated_s for request in ready]


class OldestTaskFirst(InOrder):
    """Serves the oldest tasks first."""

    def keys(self, ready: Sequence[TaskRequest], now_s: float) -> Sequence[float]:
        return [request.task.began_s for request in ready]
