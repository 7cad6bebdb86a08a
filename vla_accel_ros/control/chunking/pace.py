"""How fast chunks are made, and how fast the contract needs them.

A chunk moves the robot until the observation behind it is A = chunk.max_age_s old. A chunk comes L after its
images were taken, and the next one, of images taken T later, comes T + L after them. So the motion goes on
without a stop only if T + L <= A: the contract needs 1 / (A - L) chunks a second, and where L >= A no pace is
enough. T is the time that the model takes with images at hand, so that a slow camera is not a slow model; L
counts from the stamp, with all that lies between. Chunks of images that were acted on already renew nothing
and do not count. Time is given, never read.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import NamedTuple

WINDOW_S = 5.0
USUAL = 0.9


class _Made(NamedTuple):
    at_ns: int
    work_s: float
    latency_s: float


class ChunkPace:
    """The pace of one model. Any threads.

    max_age_s: of a chunk's observation, by the contract. most_hz: more is not asked of the model.
    """

    def __init__(self, max_age_s: float, most_hz: float = math.inf) -> None:
        self._max_age_s, self._most_hz = max_age_s, most_hz
        self._expected: tuple[float, float] | None = None
        self._lock = threading.Lock()
        self.clear()

    def expect(self, work_s: float, latency_s: float) -> None:
        """What counts while nothing was measured. work_s: from images at hand to the chunk; latency_s: from
        their capture."""
        self._expected = work_s, latency_s

    def clear(self) -> None:
        """Forget what was measured, as at activation and after a clock jump."""
        with self._lock:
            self._made: deque[_Made] = deque()
            self._taken: dict[int, int] = {}  # when images were taken to work on, by their stamp
            self._stamp_ns: int | None = None

    def observed(self, stamp_ns: int, now_ns: int) -> None:
        """The model begins on images of that stamp."""
        with self._lock:
            self._taken[stamp_ns] = now_ns

    def made(self, stamp_ns: int, now_ns: int) -> None:
        """There is a chunk of images of that stamp."""
        with self._lock:
            taken_ns = self._taken.get(stamp_ns)
            self._taken = {stamp: at for stamp, at in self._taken.items() if stamp > stamp_ns}
            if taken_ns is None or (self._stamp_ns is not None and stamp_ns <= self._stamp_ns):
                return
            self._stamp_ns = stamp_ns
            began_ns = max(taken_ns, self._made[-1].at_ns) if self._made else taken_ns
            self._made.append(_Made(now_ns, (now_ns - began_ns) * 1e-9, (now_ns - stamp_ns) * 1e-9))

    def per_s(self, now_ns: int) -> tuple[float, float]:
        """Chunks/s that the model makes, and that the contract needs; 0 where not known, and infinite where
        no pace is enough."""
        with self._lock:
            work_s, latency_s = self._times(now_ns)
        if math.isnan(work_s):
            return 0.0, 0.0
        left_s = self._max_age_s - latency_s
        made = min(1.0 / work_s if work_s > 0.0 else math.inf, self._most_hz)
        return made, 1.0 / left_s if left_s > 0.0 else math.inf

    def _times(self, now_ns: int) -> tuple[float, float]:
        """Usual work and latency in seconds; a chunk that takes longer than usual counts as it is."""
        while self._made and not 0 <= now_ns - self._made[0].at_ns <= WINDOW_S * 1e9:
            self._made.popleft()
        if self._made:
            work_s = _quantile([made.work_s for made in self._made], 0.5)
            latency_s = _quantile([made.latency_s for made in self._made], USUAL)
        else:
            work_s, latency_s = self._expected or (math.nan, math.nan)
        if self._taken:
            since_ns = min(self._taken.values())
            if self._made:
                since_ns = max(since_ns, self._made[-1].at_ns)
            late_s = (now_ns - since_ns) * 1e-9
            if late_s > 2.0 * work_s:
                return late_s, latency_s
        return work_s, latency_s


def _quantile(values: list[float], q: float) -> float:
    """Of a few dozen values; told twenty times a second, for which numpy's takes too long."""
    values.sort()
    place = q * (len(values) - 1)
    before = int(place)
    after = min(before + 1, len(values) - 1)
    return values[before] + (place - before) * (values[after] - values[before])
