"""How fast chunks are made, and how fast the contract needs them.

A chunk moves the robot until its observation is A = chunk.max_age_s old. A chunk arrives L after its images
were taken. If the next images are taken T later, the next chunk arrives T + L after the first images. Motion
goes on without a stop only if T + L <= A, so the contract needs 1 / (A - L) chunks a second; where L >= A no
pace is enough. T is the model's own time with images at hand, so that a slow camera does not count as a slow
model. L counts from the stamp and includes everything in between. A second chunk from the same images renews
nothing and does not count. Times are given, never read.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import NamedTuple

WINDOW_S = 5.0


class _Made(NamedTuple):
    at_ns: int
    work_s: float
    latency_s: float


class ChunkPace:
    """The pace of one model. Safe to use from several threads.

    max_age_s: age limit of a chunk's observation, from the contract. most_hz: the most that is asked of the
    model.
    """

    def __init__(self, max_age_s: float, most_hz: float = math.inf) -> None:
        self._max_age_s, self._most_hz = max_age_s, most_hz
        self._expected: tuple[float, float] | None = None
        self._lock = threading.Lock()
        self.clear()

    def expect(self, work_s: float, latency_s: float) -> None:
        """Set the values that count until something was measured. work_s: from images at hand to the chunk;
        latency_s: from their capture to the chunk."""
        self._expected = work_s, latency_s

    def clear(self) -> None:
        """Forget the measurements: at activation and after a clock jump."""
        with self._lock:
            self._made: deque[_Made] = deque()
            self._taken: dict[int, int] = {}  # stamp of the images -> when the model took them
            self._stamp_ns: int | None = None

    def observed(self, stamp_ns: int, now_ns: int) -> None:
        """The model begins to work on images with this stamp."""
        with self._lock:
            self._taken[stamp_ns] = now_ns

    def made(self, stamp_ns: int, now_ns: int) -> None:
        """The chunk for images with this stamp is complete."""
        with self._lock:
            taken_ns = self._taken.get(stamp_ns)
            self._taken = {stamp: instant_ns for stamp, instant_ns in self._taken.items() if stamp > stamp_ns}
            if taken_ns is None or (self._stamp_ns is not None and stamp_ns <= self._stamp_ns):
                return
            self._stamp_ns = stamp_ns
            began_ns = max(taken_ns, self._made[-1].at_ns) if self._made else taken_ns
            self._made.append(_Made(now_ns, (now_ns - began_ns) * 1e-9, (now_ns - stamp_ns) * 1e-9))

    def per_s(self, now_ns: int) -> tuple[float, float]:
        """Chunks/s that the model makes, and that the contract needs. Both are 0 while unknown; the second is
        infinite where no pace is enough."""
        with self._lock:
            work_s, latency_s = self._times(now_ns)
        if math.isnan(work_s):
            return 0.0, 0.0
        left_s = self._max_age_s - latency_s
        production_hz = min(1.0 / work_s if work_s > 0.0 else math.inf, self._most_hz)
        return production_hz, 1.0 / left_s if left_s > 0.0 else math.inf

    def _times(self, now_ns: int) -> tuple[float, float]:
        """Median work and latency in seconds: with that of a few late chunks, the contract would need many
        times as much. A chunk that is overdue counts with its time so far."""
        while self._made and not 0 <= now_ns - self._made[0].at_ns <= WINDOW_S * 1e9:
            self._made.popleft()
        if self._made:
            work_s = _quantile([chunk.work_s for chunk in self._made], 0.5)
            latency_s = _quantile([chunk.latency_s for chunk in self._made], 0.5)
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
    """Quantile of a few dozen values. It is computed twenty times a second, for which numpy's is too slow."""
    values.sort()
    rank = q * (len(values) - 1)
    lower = int(rank)
    upper = min(lower + 1, len(values) - 1)
    return values[lower] + (rank - lower) * (values[upper] - values[lower])
