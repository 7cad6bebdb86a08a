"""Highest wait ratio first (Kairos, algorithm 1).

A task's wait ratio is the share of its life that it waited. Ratios fall into buckets of equal width, so that
small differences do not decide; within a bucket the longest execution goes first, scaled by 1 + skipped.
Every `ageing` decisions that pass a request over lift it by a bucket. Observations that went stale are
fetched anew by whoever dispatches (lines 20 to 22), and placement on edge and cloud is that of all policies
here.

The paper leaves open what the parameters below choose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vla_accel_ros.engine.request import Request
from vla_accel_ros.fleet.policies.policy import FleetSetup, InOrder
from vla_accel_ros.fleet.task import Task

SHORTEST_S = 1e-3
"""What any execution is taken to last at least, so that scaling it lifts it."""
LONGEST_S = 1e6
"""Scaled executions that are longer are all alike. One number says bucket and execution: a pair for each of a
thousand requests would be work for the garbage collector in each decision."""


class HighestWaitRatio(InOrder):
    """buckets: B. ageing: A, in decisions; the paper gives no value. In overload small ones lift all
    to the top bucket, where the longest execution goes first (docs/fleet_sim.md).
    first_wait: whether the wait for a task's first chunk counts. If it does, a task that was not served yet
    has waited all its life, and comes before all others; so by default it does not.
    open_wait: whether the wait that goes on now counts; the paper's sum is over recorded rounds.
    first_execution_s: what the first chunk's execution is taken to last, as no chunk was executed before.
    Raises ValueError for numbers that cannot be.
    """

    def __init__(
        self,
        setup: FleetSetup,
        buckets: int = 10,
        ageing: int = 100,
        first_wait: bool = False,
        open_wait: bool = False,
        first_execution_s: float = 1.0,
    ) -> None:
        super().__init__(setup, math.inf)
        if buckets < 1 or ageing < 1 or not first_execution_s > 0:
            raise ValueError(
                f"buckets is {buckets}, ageing {ageing}, first_execution_s {first_execution_s}; give 1 or "
                "more, 1 or more, and a number above 0."
            )
        self._buckets, self._ageing = buckets, ageing
        self._first_wait, self._open_wait = first_wait, open_wait
        self._first_execution_s = first_execution_s

    def keys(self, ready: Sequence[Request], now_s: float) -> Sequence[float]:
        buckets, ageing, first_s = self._buckets, self._ageing, self._first_execution_s
        as_recorded, ratio = not (self._first_wait or self._open_wait), self.ratio
        top, keys = 1 - buckets, []
        for request in ready:
            task = request.task
            skipped, execution_s = task.skipped, task.last_execution_s
            if as_recorded:  # Task.wait_ratio, for a thousand tasks in each decision
                life_s, waited_s = now_s - task.began_s, task.waited_s
                share = 0.0 if life_s <= 0.0 else waited_s / life_s if waited_s < life_s else 1.0
            else:
                share = ratio(task, now_s)
            bucket = -int(share * buckets)
            if skipped >= ageing:
                bucket -= -(-skipped // ageing)
            if execution_s is None:
                execution_s = first_s
            elif execution_s < SHORTEST_S:
                execution_s = SHORTEST_S
            scaled_s = execution_s * (1 + skipped)
            if bucket < top:
                bucket = top
            keys.append(bucket * LONGEST_S - (scaled_s if scaled_s < LONGEST_S else LONGEST_S))
        return keys

    def ratio(self, task: Task, now_s: float) -> float:
        """Of a task, 0 to 1."""
        life_s = now_s - task.began_s
        if life_s <= 0.0:
            return 0.0
        waited_s = task.waited_s
        if self._first_wait:
            waited_s += task.first_waited_s if task.rounds else life_s
        if self._open_wait and task.rounds:
            waited_s += max(0.0, now_s - task.runs_out_s)
        return waited_s / life_s if waited_s < life_s else 1.0
