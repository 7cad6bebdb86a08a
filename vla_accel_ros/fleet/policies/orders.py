"""Orders that need nothing but what is known of each task: the baselines."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vla_accel_ros.engine.request import Request
from vla_accel_ros.fleet.policies.policy import FleetSetup, InOrder


class FirstInFirstOut(InOrder):
    """In order of submission, as serving systems of language models do."""

    def __init__(self, setup: FleetSetup) -> None:
        super().__init__(setup, math.inf)

    def keys(self, ready: Sequence[Request], now_s: float) -> Sequence[int]:
        return range(len(ready))


class LeastAttainedService(InOrder):
    """Tasks for which replicas have worked least (Autellix, arXiv 2502.13965)."""

    def keys(self, ready: Sequence[Request], now_s: float) -> Sequence[float]:
        return [request.task.generated_s for request in ready]


class OldestTaskFirst(InOrder):
    """Tasks that began first."""

    def keys(self, ready: Sequence[Request], now_s: float) -> Sequence[float]:
        return [request.task.began_s for request in ready]
