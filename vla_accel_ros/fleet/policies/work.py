"""How many rounds a task still needs, from those of earlier tasks of its kind.

Of tasks of a kind that needed more rounds than this one had so far, the mean of what they needed further. One
that had more than any before is taken to need as many again as it had more. Of a kind that is new, all kinds
together tell; where nothing is known, a task needs FIRST. Only the last tasks of the last kinds are
remembered.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

TASKS, KINDS = 64, 1024
FIRST = 16
LONGEST = 4096
"""Rounds up to which tasks are told apart."""


class Rounds:
    """What tasks that are over needed. tasks: remembered of a kind; kinds: remembered."""

    def __init__(self, tasks: int = TASKS, kinds: int = KINDS) -> None:
        self._tasks, self._kinds = tasks, kinds
        self._needed: OrderedDict[str, deque[int]] = OrderedDict()
        self._all: deque[int] = deque(maxlen=tasks)
        self._left: dict[str, list[float]] = {}
        self._left_of_all: list[float] = []

    def learn(self, kind: str, rounds: int) -> None:
        """A task of a kind is over, after so many rounds."""
        if rounds < 1:
            return
        needed = self._needed.setdefault(kind, deque(maxlen=self._tasks))
        self._needed.move_to_end(kind)
        needed.append(min(rounds, LONGEST))
        self._all.append(min(rounds, LONGEST))
        if len(self._needed) > self._kinds:
            self._left.pop(self._needed.popitem(last=False)[0], None)
        self._left[kind], self._left_of_all = left_after(needed), left_after(self._all)

    def left(self, kind: str, done: int) -> float:
        """Expected rounds of a task that had `done`, at least 1."""
        known = self._left.get(kind, self._left_of_all)
        if done < len(known):
            return known[done]
        return 1.0 + (done - len(known)) if known else float(max(1, FIRST - done))


def left_after(needed: Iterable[int]) -> list[float]:
    """Mean of what is left after 0, 1, ... rounds, to one less than the most."""
    counts: dict[int, int] = {}
    for rounds in needed:
        counts[rounds] = counts.get(rounds, 0) + 1
    left, more, rest = [], 0, 0
    for done in range(
        max(counts) - 1, -1, -1
    ):  # those that needed more than `done`, and what they needed further
        more += counts.get(done + 1, 0)
        rest += more
        left.append(rest / more)
    return left[::-1]
