"""Count how many chunks of the admitted robots come late, and correct the forecast by it.

A forecast may be wrong: other programs use the GPU, images take long to decode, robots ask at the same time.
So answers are counted, and if more than LATE of them are late, all durations are assumed to be SLOWER times
longer. The promised rates then no longer fit, and the robots admitted last are slowed or refused. The
correction decays, more slowly each time lateness was found, so that robots do not come and go. It is dropped
at once when the fleet changes (`forget`).
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

ENOUGH = 100
"""Answers needed before the share of late ones counts."""
SOME, LATELY = 50, 400
"""Durations needed for a median, and the number of latest durations that are kept."""
LATE = 0.05
SLOWER, SLOWEST = 1.1, 8.0
"""Factor that one finding adds to all durations, and the largest total factor."""
PATIENT = 5
"""Judgements without lateness before one factor is taken back, times the number of findings so far."""


class Punctuality:
    """Lateness of one fleet. within_s: allowed time from the first attempt of a request to its answer."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self.forget()

    def forget(self) -> None:
        """Start again, for another fleet."""
        self._came = self._late = self._times = self._well = 0
        self.slower, self.found = 1.0, ""
        self.changed()

    def changed(self) -> None:
        """Drop the recorded durations, because the number of robots changed."""
        self._took_s = deque[float](maxlen=LATELY)

    @property
    def took_s(self) -> float | None:
        """Median duration of the requests since the fleet changed; None if too few were answered."""
        return median(self._took_s) if len(self._took_s) >= SOME else None

    def answered(self, took_s: float) -> None:
        """Record the duration of a request; inf if its chunk came too late to be used."""
        if math.isfinite(took_s):
            self._took_s.append(took_s)
        if math.isfinite(self._within_s):
            self._came += 1
            self._late += took_s > self._within_s

    def judge(self) -> None:
        """Compare the share of late chunks with LATE, and raise or lower `slower`. To be called
        periodically."""
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
