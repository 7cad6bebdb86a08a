"""When the cameras' newest frames belong together, and waiting for the next frames that do.

A loop that takes images at its own times finds them up to a frame interval old, always equally old, by the
chance of when it was started. So it asks here when it is due. A set that came within a quarter of an interval
is as good as a new one and is taken at once; else the next is waited for, if by the last intervals it is
expected within the caller's patience, and until half an interval after that. No camera is needed for this to
return: one that is silent makes no set, nothing is then expected, and what is wrong is said by the checks of
age and skew. A set is whole when the newest stamps are as near to each other as n cameras at one rate must
come, (n - 1) / n of an interval, and its oldest frame is new. Arrivals are timed by a clock that never jumps.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

FRESH = 0.25
LATE = 0.5
LEAST = 1 / 32
_INTERVALS = 9
_SLACK = 1.1
_SILENT = 2.0
_JUMP_NS = 500_000_000


class FrameSets:
    """The arrivals of all cameras, whose rates are given [Hz]. Any threads. clock: monotonic seconds.

    count: how many whole sets there were.
    """

    def __init__(self, rates_hz: Mapping[str, float], clock: Callable[[], float] = time.monotonic) -> None:
        n, interval_ns = len(rates_hz), 1e9 / max(rates_hz.values())
        self._apart_ns = _SLACK * interval_ns * (n - 1) / n
        self._cameras, self._clock = tuple(rates_hz), clock
        self._changed = threading.Condition()
        self.count = 0
        self.clear()

    def clear(self) -> None:
        """Forget all frames, as at activation and after a clock jump."""
        with self._changed:
            self._stamps: dict[str, int] = {}
            self._oldest_ns: int | None = None
            self._came_s: float | None = None
            self._intervals: deque[float] = deque(maxlen=_INTERVALS)

    def arrived(self, camera: str, stamp_ns: int) -> None:
        """A frame of that capture time can be used now."""
        with self._changed:
            self._stamps[camera] = stamp_ns
            if len(self._stamps) < len(self._cameras):
                return
            oldest_ns = min(self._stamps.values())
            apart = max(self._stamps.values()) - oldest_ns > self._apart_ns
            if apart or not self._is_newer(oldest_ns):
                return
            now_s = self._clock()
            if self._came_s is not None:
                self._intervals.append(now_s - self._came_s)
            self._oldest_ns, self._came_s = oldest_ns, now_s
            self.count += 1
            self._changed.notify_all()

    def wait(self, patience_s: float, given_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the next whole set as far as it is worth it; whether the newest set is now a fresh one.

        given_up: asked under the lock after `wake`; true ends the wait.
        """
        with self._changed:
            before = self.count
            worth_s = self.worth_s(patience_s)
            if worth_s > 0.0:
                self._changed.wait_for(lambda: self.count != before or given_up(), worth_s)
            return self.count != before or self._is_fresh()

    def worth_s(self, patience_s: float) -> float:
        """How long it is worth to wait for the next set from now on; 0 when the newest is to be taken."""
        with self._changed:
            if self._came_s is None or not self._intervals or self._is_fresh():
                return 0.0
            interval_s = float(np.median(self._intervals))
            age_s = self._clock() - self._came_s
            if interval_s - age_s > patience_s or age_s > _SILENT * interval_s:
                return 0.0
            return max(0.0, min(patience_s, (1.0 + LATE) * interval_s - age_s))

    @property
    def lead_s(self) -> float:
        """As long as sets lately came earlier or later than their rhythm; at least LEAST of an interval, at
        most half the time for which a set is fresh, and 0 before the rhythm is known."""
        with self._changed:
            if not self._intervals:
                return 0.0
            interval_s = float(np.median(self._intervals))
            uneven_s = max(abs(one - interval_s) for one in self._intervals)
            return min(max(LEAST * interval_s, uneven_s), 0.5 * FRESH * interval_s)

    def age_s(self) -> float:
        """How long ago the newest set came; inf if none did."""
        with self._changed:
            return math.inf if self._came_s is None else self._clock() - self._came_s

    def wake(self) -> None:
        """Have everybody who waits ask whether it is given up."""
        with self._changed:
            self._changed.notify_all()

    def _is_newer(self, oldest_ns: int) -> bool:
        """Whether this is a set after the last one; much older stamps are those of a clock set back."""
        return self._oldest_ns is None or not -_JUMP_NS < oldest_ns - self._oldest_ns <= 0

    def _is_fresh(self) -> bool:
        if self._came_s is None or not self._intervals:
            return False
        return self._clock() - self._came_s <= FRESH * float(np.median(self._intervals))
