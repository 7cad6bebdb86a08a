"""Observe when a robot asks for chunks: its period, the variation of that, and its next request.

Only new rounds count; a repeated attempt or a new observation does not ask for another chunk. After a pause,
as of a robot that was held or has a new instruction, observation starts again.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

from vla_accel_ros.fleet.admission.forecast import Rhythm

LEAST, MOST = 4, 16
"""Requests needed for a rhythm, and the most that are remembered."""
PAUSE = 2.0
"""After so many periods without a request the rhythm is unknown."""
SHORTEST_S = 1e-3
"""Requests that follow each other faster show no rhythm, for instance while simulated time stands still."""


class Asked:
    """The latest request times of one robot."""

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=MOST)
        self._buffer_s = math.inf

    def note(self, now_s: float, buffer_s: float = 0.0) -> None:
        """Record a request. buffer_s: how long its arm still moves, 0 if unknown."""
        if self._times_s and now_s - self._times_s[-1] > PAUSE * self._period_s:
            self._times_s.clear()
        self._times_s.append(now_s)
        self._buffer_s = buffer_s if buffer_s > 0.0 else math.inf

    def rhythm(self, now_s: float) -> Rhythm | None:
        """Return the present rhythm; None if too few requests were seen or the robot has paused."""
        times_s, period_s = self._times_s, self._period_s
        if len(times_s) < LEAST or period_s < SHORTEST_S or now_s - times_s[-1] > PAUSE * period_s:
            return None
        squares = sum((later - earlier - period_s) ** 2 for earlier, later in pairwise(times_s))
        vary = min(1.0, math.sqrt(3.0 * squares / (len(times_s) - 1)) / period_s)
        return Rhythm(period_s, vary, max(0.0, times_s[-1] + period_s - now_s), self._buffer_s)

    @property
    def _period_s(self) -> float:
        """Mean interval of the remembered requests; inf with only one."""
        times_s = self._times_s
        return (times_s[-1] - times_s[0]) / (len(times_s) - 1) if len(times_s) > 1 else math.inf
