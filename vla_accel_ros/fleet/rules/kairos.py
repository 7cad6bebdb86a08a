"""Highest wait ratio first (Kairos, algorithm 1).

A task's wait ratio is the share of its life that it has waited. Ratios fall into buckets of equal width, so
that small differences do not decide. Within a bucket the longest execution goes first, scaled by 1 + the
seconds that its request has waited. A request moves up one bucket after every kairos_ageing_s of waiting. The
paper counts both in scheduling decisions. A decision is a full batch there; a replica that takes requests one
by one makes tens of decisions in that time, and nearly all requests would age. The dispatcher renews stale
observations (lines 20 to 22); placement on edge and cloud is shared by all rules here.

The options (RuleOptions) choose what the paper leaves open. A wait counts once its round is over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vla_accel_ros.fleet.rules.rule import FleetSetup, InOrder
from vla_accel_ros.fleet.task import TaskRequest

FIRST_EXECUTION_S = 1.0
"""Execution time assumed before a task's first chunk."""
SHORTEST_S = 1e-3
"""Least duration assumed for an execution, so that scaling has an effect."""
LONGEST_S = 1e6
"""Longest scaled execution; longer ones rank equal. Bucket and execution share one float as the sort key: a
tuple for each of a thousand requests would burden the garbage collector in each decision."""


class HighestWaitRatio(InOrder):
    """In overload a small kairos_ageing_s lifts all requests to the top bucket, where the longest execution
    goes first (docs/lab/fleet_sim.md)."""

    def __init__(self, setup: FleetSetup) -> None:
        super().__init__(setup, math.inf)
        self._buckets, self._ageing_s = setup.options.kairos_buckets, setup.options.kairos_ageing_s

    def keys(self, ready: Sequence[TaskRequest], now_s: float) -> Sequence[float]:
        buckets, ageing_s = self._buckets, self._ageing_s
        top, keys = 1 - buckets, []
        for request in ready:
            task = request.task
            age_s, execution_s = now_s - task.asked_s, task.last_execution_s
            # Task.wait_ratio inlined: this runs for a thousand tasks in each decision
            life_s, waited_s = now_s - task.began_s, task.waited_s
            share = 0.0 if life_s <= 0.0 else waited_s / life_s if waited_s < life_s else 1.0
            bucket = -int(share * buckets)
            if age_s >= ageing_s:
                bucket -= int(age_s / ageing_s)
            if execution_s is None:
                execution_s = FIRST_EXECUTION_S
            elif execution_s < SHORTEST_S:
                execution_s = SHORTEST_S
            scaled_s = execution_s * (1.0 + age_s) if age_s > 0.0 else execution_s
            if bucket < top:
                bucket = top
            keys.append(bucket * LONGEST_S - (scaled_s if scaled_s < LONGEST_S else LONGEST_S))
        return keys
