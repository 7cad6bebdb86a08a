"""Highest wait ratio first (Kairos, algorithm 1).

A task's wait ratio is the share of its life that it has waited. Ratios fall into buckets of equal width, so
that small differences do not decide. Within a bucket the longest execution goes first, scaled by 1 + the
seconds that its request has waited. A request moves up one bucket after every kairos_ageing_s of waiting. The
paper counts both in scheduling decisions. A decision is a full batch there; a replica that takes requests one
by one makes tens of decisions in that time, and nearly all requests would age. The dispatcher renews stale
observations (lines 20 to 22); placement on edge and cloud is shared by all rules here.

The options (RuleOptions) and the parameters below choose what the paper leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vla_accel_ros.fleet.rules.rule import FleetSetup, InOrder
from vla_accel_ros.fleet.task import Task, TaskRequest

SHORTEST_S = 1e-3
"""Least duration assumed for an execution, so that scaling has an effect."""
LONGEST_S = 1e6
"""Longest scaled execution; longer ones rank equal. Bucket and execution share one float as the sort key: a
tuple for each of a thousand requests would burden the garbage collector in each decision."""


class HighestWaitRatio(InOrder):
    """In overload a small kairos_ageing_s lifts all requests to the top bucket, where the longest execution
    goes first (docs/lab/fleet_sim.md).
    first_wait: whether the wait for a task's first chunk counts. With it, a task that was never served has
    waited all its life and goes before all others, so the default is False.
    open_wait: whether the present, unfinished wait counts; the paper sums over recorded rounds.
    first_execution_s: execution time assumed before a task's first chunk.
    Raises ValueError if first_execution_s is not positive.
    """

    def __init__(
        self,
        setup: FleetSetup,
        first_wait: bool = False,
        open_wait: bool = False,
        first_execution_s: float = 1.0,
    ) -> None:
        super().__init__(setup, math.inf)
        if not first_execution_s > 0:
            raise ValueError(f"first_execution_s is {first_execution_s} s; give more than 0.")
        self._buckets, self._ageing_s = setup.options.kairos_buckets, setup.options.kairos_ageing_s
        self._first_wait, self._open_wait = first_wait, open_wait
        self._first_execution_s = first_execution_s

    def keys(self, ready: Sequence[TaskRequest], now_s: float) -> Sequence[float]:
        buckets, ageing_s, first_s = self._buckets, self._ageing_s, self._first_execution_s
        as_recorded, ratio = not (self._first_wait or self._open_wait), self.ratio
        top, keys = 1 - buckets, []
        for request in ready:
            task = request.task
            age_s, execution_s = now_s - task.asked_s, task.last_execution_s
            if as_recorded:  # Task.wait_ratio inlined: this runs for a thousand tasks in each decision
                life_s, waited_s = now_s - task.began_s, task.waited_s
                share = 0.0 if life_s <= 0.0 else waited_s / life_s if waited_s < life_s else 1.0
            else:
                share = ratio(task, now_s)
            bucket = -int(share * buckets)
            if age_s >= ageing_s:
                bucket -= int(age_s / ageing_s)
            if execution_s is None:
                execution_s = first_s
            elif execution_s < SHORTEST_S:
                execution_s = SHORTEST_S
            scaled_s = execution_s * (1.0 + age_s) if age_s > 0.0 else execution_s
            if bucket < top:
                bucket = top
            keys.append(bucket * LONGEST_S - (scaled_s if scaled_s < LONGEST_S else LONGEST_S))
        return keys

    def ratio(self, task: Task, now_s: float) -> float:
        """Return a task's wait ratio, 0 to 1."""
        life_s = now_s - task.began_s
        if life_s <= 0.0:
            return 0.0
        waited_s = task.waited_s
        if self._first_wait:
            waited_s += task.first_waited_s if task.rounds else life_s
        if self._open_wait and task.rounds:
            waited_s += max(0.0, now_s - task.runs_out_s)
        return waited_s / life_s if waited_s < life_s else 1.0
