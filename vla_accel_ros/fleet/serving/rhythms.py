"""When a robot asked lately, and so how it asks: its period, by how much that varies, and when it asks next.

Of new rounds alone: what is asked again, or observed anew, is no request of another chunk. A pause, as of a
robot that is held or has another instruction, begins it anew.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

from vla_accel_ros.fleet.admission.forecast import Rhythm

LEAST, MOST = 4, 16
"""Requests from which on a rhythm is known, and that are remembered."""
PAUSE = 2.0
"""Periods without a request after which nothing is known of the next."""


class Asked:
    """Of one robot."""

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=MOST)
        self._buffer_s = math.inf

    def note(self, now_s: float, buffer_s: float = 0.0) -> None:
        """It asks now. buffer_s: for how long its arm still moves, 0 where that is not known."""
        if self._times_s and now_s - self._times_s[-1] > PAUSE * self._period_s:
            self._times_s.clear()
        self._times_s.append(now_s)
        self._buffer_s = buffer_s if buffer_s > 0.0 else math.inf

    def rhythm(self, now_s: float) -> Rhythm | None:
        """As of now; None where too little was seen, or it has paused."""
        times_s = self._times_s
        if len(times_s) < LEAST or now_s - times_s[-1] > PAUSE * self._period_s:
            return None
        period_s = self._period_s
        squares = sum((after - before - period_s) ** 2 for before, after in pairwise(times_s))
        vary = min(1.0, math.sqrt(3.0 * squares / (len(times_s) - 1)) / period_s)
        return Rhythm(period_s, vary, max(0.0, times_s[-1] + period_s - now_s), self._buffer_s)

    @property
    def _period_s(self) -> float:
        """The mean of those that are known; inf for a robot that has asked once."""
        times_s = self._times_s
        return (times_s[-1] - times_s[0]) / (len(times_s) - 1) if len(times_s) > 1 else math.inf
