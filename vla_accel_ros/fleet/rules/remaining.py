"""Orders by the work that tasks still need, as learnt from earlier tasks of their kind.

Shortest remaining processing time first (SRPT) minimises mean latency but delays long tasks, so all orders
here favour tasks as they age. A request whose arm keeps moving for longer than a full batch takes can wait
for the next batch.

The estimate of the remaining rounds is the mean of what earlier tasks needed further, over those that needed
more rounds than this one has had. A task with more rounds than any before is assumed to need its excess once
more. For a kind without a finished task the estimate uses all kinds, and at least the rounds that the longest
unfinished task of the kind has had. Without any finished task it is FIRST rounds in all. Only the latest
tasks and kinds are remembered.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from math import sqrt

from vla_accel_ros.fleet.rules.rule import PATIENCE, FleetSetup, InOrder
from vla_accel_ros.fleet.task import Task, TaskRequest

CALM = 1e9
"""Added to the key of requests that can wait for the next batch; above any number of rounds."""


class Remaining(InOrder):
    """What these orders share."""

    def __init__(self, setup: FleetSetup, patience: float = PATIENCE) -> None:
        super().__init__(setup, patience)
        self._rounds = Rounds()

    def keys(self, ready: Sequence[TaskRequest], now_s: float) -> Sequence[float]:
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


TASKS, KINDS = 64, 1024
FIRST = 16
LONGEST = 4096
"""Longer tasks count as this many rounds."""


class Rounds:
    """Rounds that finished tasks needed. tasks: remembered for each kind. kinds: remembered."""

    def __init__(self, tasks: int = TASKS, kinds: int = KINDS) -> None:
        self._tasks, self._kinds = tasks, kinds
        self._needed: OrderedDict[str, deque[int]] = OrderedDict()
        self._all: deque[int] = deque(maxlen=tasks)
        self._left: dict[str, list[float]] = {}
        self._left_of_all: list[float] = []
        self._going_on: OrderedDict[str, int] = OrderedDict()  # rounds so far, for kinds that are new

    def learn(self, kind: str, rounds: int) -> None:
        """Record a finished task."""
        if rounds < 1:
            return
        needed = self._needed.setdefault(kind, deque(maxlen=self._tasks))
        self._needed.move_to_end(kind)
        self._going_on.pop(kind, None)
        needed.append(min(rounds, LONGEST))
        self._all.append(min(rounds, LONGEST))
        if len(self._needed) > self._kinds:
            self._left.pop(self._needed.popitem(last=False)[0], None)
        self._left[kind], self._left_of_all = left_after(needed), left_after(self._all)

    def left(self, kind: str, done: int) -> float:
        """Return the expected remaining rounds of an unfinished task that has had `done`, at least 1."""
        remaining = self._left.get(kind)
        if remaining is not None:
            return remaining[done] if done < len(remaining) else 1.0 + done - len(remaining)
        return max(self._left_of_new(done), self._most(kind, done) - done)

    def left_of(self, tasks: Iterable[Task]) -> list[float]:
        """Return `left` for each task, fast enough for a thousand tasks in each decision."""
        known_of, remaining, results = self._left.get, self.left, []
        for task in tasks:
            of_kind = known_of(task.kind)
            if of_kind is not None and task.rounds < len(of_kind):
                results.append(of_kind[task.rounds])
            else:
                results.append(remaining(task.kind, task.rounds))
        return results

    def _left_of_new(self, done: int) -> float:
        of_new = self._left_of_all
        if not of_new:
            return float(max(1, FIRST - done))
        return of_new[done] if done < len(of_new) else 1.0 + done - len(of_new)

    def _most(self, kind: str, done: int) -> int:
        longest = self._going_on.get(kind, 0)
        if done > longest:
            self._going_on[kind] = longest = done
            if len(self._going_on) > self._kinds:
                self._going_on.popitem(last=False)
        return longest


def left_after(needed: Iterable[int]) -> list[float]:
    """Return the mean of the remaining rounds after 0, 1, ... rounds, up to one less than the most."""
    counts: dict[int, int] = {}
    for rounds in needed:
        counts[rounds] = counts.get(rounds, 0) + 1
    remaining, more, total = [], 0, 0
    for done in range(
        max(counts) - 1, -1, -1
    ):  # count the tasks that needed more than `done`, and sum what they needed further
        more += counts.get(done + 1, 0)
        total += more
        remaining.append(total / more)
    return remaining[::-1]
