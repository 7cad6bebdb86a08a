"""Orders by the work that tasks still need, as learnt from earlier tasks of their kind.

Shortest remaining processing time first (SRPT) minimises mean latency but delays long tasks, so all orders
here favour tasks as they age. A request whose arm keeps moving for longer than a full batch takes can wait
for the next batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from vla_accel_ros.engine.request import Request
from vla_accel_ros.fleet.rules.rule import PATIENCE, FleetSetup, InOrder
from vla_accel_ros.fleet.rules.work import Rounds
from vla_accel_ros.fleet.task import Task

FIRST_EXECUTION_S = 1.0
"""Execution time assumed before a task's first chunk."""
CALM = 1e9
"""Added to the key of requests that can wait for the next batch; above any number of rounds."""


class Remaining(InOrder):
    """What these orders share."""

    def __init__(self, setup: FleetSetup, patience: float = PATIENCE) -> None:
        super().__init__(setup, patience)
        self._rounds = Rounds()

    def keys(self, ready: Sequence[Request], now_s: float) -> Sequence[float]:
        tasks = [request.task for request in ready]
        calm_s = now_s + max(replica.serves_s(replica.limit) for replica in self._replicas.values())
        keys = self.order(tasks, self._rounds.left_of(tasks), now_s)
        return [
            key if task.runs_out_s <= calm_s else CALM + key for task, key in zip(tasks, keys, strict=True)
        ]

    def order(self, tasks: Sequence[Task], left: Sequence[float], now_s: float) -> Sequence[float]:
        """Return a non-negative key for each task; the smallest goes first. left: rounds that each is
        expected to need."""
        raise NotImplementedError

    def ended(self, task: Task, now_s: float) -> None:
        """Learn from a finished task."""
        self._rounds.learn(task.kind, task.rounds)


class GatedFair(Remaining):
    """Key: remaining rounds over the squared slowdown. The slowdown is 1 + age / (expected execution time of
    the whole task)."""

    def order(self, tasks: Sequence[Task], left: Sequence[float], now_s: float) -> Sequence[float]:
        ordered = []
        for task, rounds_left in zip(tasks, left, strict=True):
            rounds = task.rounds
            each_s = task.moved_s / rounds if rounds else FIRST_EXECUTION_S
            whole_s = (rounds + rounds_left) * each_s
            slowdown = 1.0 + (now_s - task.began_s) / (whole_s if whole_s > 1e-3 else 1e-3)
            ordered.append(rounds_left / (slowdown * slowdown))
        return ordered


class AgedRemaining(Remaining):
    """Key: remaining rounds over sqrt(1 + age [s]), halved once a task has begun. A task four times as old
    may need twice the work, and a moving arm is kept moving rather than another task begun."""

    def order(self, tasks: Sequence[Task], left: Sequence[float], now_s: float) -> Sequence[float]:
        return [
            (0.5 if task.rounds else 1.0) * rounds_left / sqrt(1.0 + now_s - task.began_s)
            for task, rounds_left in zip(tasks, left, strict=True)
        ]


class AgedSrpt(Remaining):
    """Key: remaining rounds over (1 + age [s]) to the power age_exponent. With 2, the default, a task twice
    as old may need four times the work, so that long tasks are put off less than by AgedRemaining."""

    def __init__(self, setup: FleetSetup, patience: float = PATIENCE) -> None:
        super().__init__(setup, patience)
        self._exponent = setup.options.age_exponent

    def order(self, tasks: Sequence[Task], left: Sequence[float], now_s: float) -> Sequence[float]:
        exponent = -self._exponent
        return [
            rounds_left * (1.0 + now_s - task.began_s) ** exponent
            for task, rounds_left in zip(tasks, left, strict=True)
        ]
