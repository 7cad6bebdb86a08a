"""Decides when the cameras' newest frames belong together, and waits for the next such set.

A loop that takes images at its own times gets frames that are up to one interval old, and always equally old,
depending on when it was started. So it asks here when to start. A set that came within a quarter of an
interval is as good as new and is taken at once. Otherwise the loop waits for the next set, if the last
intervals predict it within the caller's patience, and at most half an interval longer than predicted. The
wait always ends: for a silent camera no set is predicted, and the checks of age and skew report it. A set is
whole when its oldest frame is new and the newest stamps are within (n - 1) / n of an interval, as they are
for n cameras at one rate. Arrivals are timed by a clock that never jumps.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from vla_accel_ros.sensing.cameras.frames import JUMP_NS, NotReady

FRESH = 0.25
LATE = 0.5
LEAST = 1 / 32
_INTERVALS = 9
_SLACK = 1.1
_SILENT = 2.0

NOTHING_NEW = NotReady("no new frame since the last observation")


def again(stamps: tuple[int, ...], observed: tuple[int, ...] | None) -> NotReady | None:
    """Refuse frames of these stamps if they were observed already, or older ones: the middleware may deliver
    out of order. observed: stamps of the last observation, None before the first."""
    if stamps == observed:
        return NOTHING_NEW
    back_ns = [was_ns - stamp_ns for was_ns, stamp_ns in zip(observed or stamps, stamps, strict=True)]
    if any(0 < ns < JUMP_NS for ns in back_ns):
        return NotReady("the newest frames to arrive are older than those of the last observation")
    return None


class FrameSets:
    """The arrivals of all cameras, whose rates are given [Hz]. Safe to use from several threads. clock:
    monotonic seconds.

    Attribute `count`: number of whole sets so far.
    """

    def __init__(self, rates_hz: Mapping[str, float], clock: Callable[[], float] = time.monotonic) -> None:
        n, interval_ns = len(rates_hz), 1e9 / max(rates_hz.values())
        self._apart_ns = _SLACK * interval_ns * (n - 1) / n
        self._cameras, self._clock = tuple(rates_hz), clock
        self._changed = threading.Condition()
        self.count = 0
        self.clear()

    def clear(self) -> None:
        """Forget all frames: at activation and after a clock jump."""
        with self._changed:
            self._stamps: dict[str, int] = {}
            self._oldest_ns: int | None = None
            self._came_s: float | None = None
            self._intervals: deque[float] = deque(maxlen=_INTERVALS)

    def arrived(self, camera: str, stamp_ns: int) -> None:
        """A frame with this capture time is now usable."""
        with self._changed:
            self._stamps[camera] = stamp_ns
            if len(self._stamps) < len(self._cameras):
                return
            oldest_ns = min(self._stamps.values())
            is_scattered = max(self._stamps.values()) - oldest_ns > self._apart_ns
            if is_scattered or not self._is_newer(oldest_ns):
                return
            now_s = self._clock()
            if self._came_s is not None:
                self._intervals.append(now_s - self._came_s)
            self._oldest_ns, self._came_s = oldest_ns, now_s
            self.count += 1
            self._changed.notify_all()

    def wait(self, patience_s: float, given_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the next whole set while it is worth it. Returns whether the newest set is now fresh.

        given_up: called under the lock after `wake`; True ends the wait.
        """
        with self._changed:
            count = self.count
            worth_s = self.worth_s(patience_s)
            if worth_s > 0.0:
                self._changed.wait_for(lambda: self.count != count or given_up(), worth_s)
            return self.count != count or self._is_fresh()

    def worth_s(self, patience_s: float) -> float:
        """How long to wait for the next set, in seconds from now; 0 to take the newest."""
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
        """How much earlier or later than their rhythm recent sets came: at least LEAST of an interval, at
        most half the time for which a set is fresh, and 0 while the rhythm is unknown."""
        with self._changed:
            if not self._intervals:
                return 0.0
            interval_s = float(np.median(self._intervals))
            uneven_s = max(abs(measured_s - interval_s) for measured_s in self._intervals)
            return min(max(LEAST * interval_s, uneven_s), 0.5 * FRESH * interval_s)

    def age_s(self) -> float:
        """Seconds since the newest set came; inf if none did."""
        with self._changed:
            return math.inf if self._came_s is None else self._clock() - self._came_s

    def wake(self) -> None:
        """Make every waiting thread call its given_up."""
        with self._changed:
            self._changed.notify_all()

    def _is_newer(self, oldest_ns: int) -> bool:
        """Whether this set is newer than the last one; a much older stamp means a clock that was set back."""
        return self._oldest_ns is None or not -JUMP_NS < oldest_ns - self._oldest_ns <= 0

    def _is_fresh(self) -> bool:
        if self._came_s is None or not self._intervals:
            return False
        return self._clock() - self._came_s <= FRESH * float(np.median(self._intervals))
