"""How far a replay is, as lines that a log keeps: there may be no terminal to draw a bar on."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 5.0


class Progress:
    """Says "what n of total" at most every EVERY_S, and nothing of what takes less.

    total: 0 where it is not known. clock: monotonic seconds.
    """

    def __init__(
        self,
        what: str,
        total: int,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._total, self._say, self._clock = what, total, say, clock
        self._told_s = clock()

    def at(self, done: int) -> None:
        """So many are done."""
        if self._clock() - self._told_s < EVERY_S:
            return
        self._told_s = self._clock()
        share = f" of {self._total} ({100 * done // self._total} %)" if self._total else ""
        self._say(f"{self._what} {done}{share}")
