"""Whether robots that were admitted truly fit: how many of their chunks come in time.

A forecast may be wrong: other programs use the GPU, pictures take long to decode, robots ask at once. So
answers are counted, and where more than LATE of them are late, all is taken to last so much longer. What is
promised then no longer fits, and the last robots that came are slowed or refused. It is forgotten again by
and by, more slowly each time it was found, so that robots do not come and go, and at once if a robot goes.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

ENOUGH = 100
"""Answers of which the share that is late says something."""
SOME, LATELY = 50, 400
"""Of which the median says something, and that are remembered."""
LATE = 0.05
SLOWER, SLOWEST = 1.1, 8.0
"""By which factor all is taken to last longer at once, and at most."""
PATIENT = 5
"""So many times nothing is found before that is taken back once, twice as many the second time, and so on."""


class Punctuality:
    """Of one fleet. within_s: from the first attempt of a request to its answer."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self.forget()

    def forget(self) -> None:
        """The fleet is another one."""
        self._came = self._late = self._times = self._well = 0
        self.slower, self.found = 1.0, ""
        self.changed()

    def changed(self) -> None:
        """More robots, or fewer: what requests took says nothing of what they take."""
        self._took_s = deque[float](maxlen=LATELY)

    @property
    def took_s(self) -> float | None:
        """The median of the requests since the fleet changed; None where too few were answered."""
        return median(self._took_s) if len(self._took_s) >= SOME else None

    def answered(self, took_s: float) -> None:
        """A chunk was answered; inf for one that nobody could use any longer."""
        if math.isfinite(took_s):
            self._took_s.append(took_s)
        if math.isfinite(self._within_s):
            self._came += 1
            self._late += took_s > self._within_s

    def judge(self) -> None:
        """Think about it; to be called from time to time."""
        share = self._late / self._came if self._came else 0.0
        if self._came >= ENOUGH:
            self._came = self._late = 0
        elif share > LATE:
            return  # too few to tell
        if share > LATE:
            self._times, self._well = self._times + 1, 0
            self.slower = min(SLOWEST, SLOWER * self.slower)
            self.found = f"{100 * share:.0f} of 100 chunks came later than {self._within_s:.3g} s"
        elif self.slower > 1.0:
            self._well += 1
            if self._well >= PATIENT * self._times:
                self.slower, self._well = max(1.0, self.slower / SLOWER), 0
