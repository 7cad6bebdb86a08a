"""Orders by the work that tasks still need, as learnt from earlier tasks of their kind.

Least remaining work first makes the mean latency small, and that of long tasks large; so both orders here
lift tasks as they grow old. A request of an arm that moves on for longer than a full batch takes can wait for
the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from vla_accel_ros.engine.request import Request
from vla_accel_ros.fleet.policies.policy import PATIENCE, FleetSetup, InOrder
from vla_accel_ros.fleet.policies.work import Rounds
from vla_accel_ros.fleet.task import Task

FIRST_EXECUTION_S = 1.0
"""Of a chunk where none was executed yet."""


class Remaining(InOrder):
    """What both share."""

    def __init__(self, setup: FleetSetup, patience: float = PATIENCE) -> None:
        super().__init__(setup, patience)
        self._rounds = Rounds()

    def keys(self, ready: Sequence[Request], now_s: float) -> Sequence[tuple[bool, float]]:
        left, key = self._rounds.left, self.key
        calm_s = now_s + max(one.serves_s(one.limit) for one in self._replicas.values())
        keys = []
        for request in ready:
            task = request.task
            rounds = left(task.kind, task.rounds)
            keys.append((task.runs_out_s > calm_s, key(task, rounds, now_s)))
        return keys

    def key(self, task: Task, left: float, now_s: float) -> float:
        """left: rounds that the task is expected to need."""
        raise NotImplementedError

    def ended(self, task: Task, now_s: float) -> None:
        """Learn from it."""
        self._rounds.learn(task.kind, task.rounds)


class GatedFair(Remaining):
    """Remaining rounds over the square of the slowdown: how many times as long the task will take as it would
    alone, if it takes no longer from now on."""

    def key(self, task: Task, left: float, now_s: float) -> float:
        each_s = task.moved_s / task.rounds if task.rounds else FIRST_EXECUTION_S
        slowdown = 1.0 + (now_s - task.began_s) / max(1e-3, (task.rounds + left) * each_s)
        return left / slowdown**2


class AgedRemaining(Remaining):
    """Remaining rounds over the square root of the task's age, halved once it has begun: a task four times as
    old may need twice the work, and an arm that moves is kept moving rather than another one begun."""

    def key(self, task: Task, left: float, now_s: float) -> float:
        return (0.5 if task.rounds else 1.0) * left / (1.0 + now_s - task.began_s) ** 0.5
