"""Estimate how many rounds a task still needs, from earlier tasks of its kind.

The estimate is the mean of what earlier tasks needed further, over those that needed more rounds than this
one has had. A task with more rounds than any before is assumed to need its excess once more. For a kind
without a finished task the estimate uses all kinds, and at least the rounds that the longest unfinished task
of the kind has had. Without any finished task it is FIRST rounds in all. Only the latest tasks and kinds are
remembered.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from vla_accel_ros.fleet.task import Task

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
        known = self._left.get(kind)
        if known is not None:
            return known[done] if done < len(known) else 1.0 + done - len(known)
        return max(self._left_of_new(done), self._most(kind, done) - done)

    def left_of(self, tasks: Iterable[Task]) -> list[float]:
        """Return `left` for each task, fast enough for a thousand tasks in each decision."""
        known_of, left, found = self._left.get, self.left, []
        for task in tasks:
            known = known_of(task.kind)
            if known is not None and task.rounds < len(known):
                found.append(known[task.rounds])
            else:
                found.append(left(task.kind, task.rounds))
        return found

    def _left_of_new(self, done: int) -> float:
        known = self._left_of_all
        if not known:
            return float(max(1, FIRST - done))
        return known[done] if done < len(known) else 1.0 + done - len(known)

    def _most(self, kind: str, done: int) -> int:
        most = self._going_on.get(kind, 0)
        if done > most:
            self._going_on[kind] = most = done
            if len(self._going_on) > self._kinds:
                self._going_on.popitem(last=False)
        return most


def left_after(needed: Iterable[int]) -> list[float]:
    """Return the mean of the remaining rounds after 0, 1, ... rounds, up to one less than the most."""
    counts: dict[int, int] = {}
    for rounds in needed:
        counts[rounds] = counts.get(rounds, 0) + 1
    left, more, rest = [], 0, 0
    for done in range(
        max(counts) - 1, -1, -1
    ):  # count the tasks that needed more than `done`, and sum what they needed further
        more += counts.get(done + 1, 0)
        rest += more
        left.append(rest / more)
    return left[::-1]
