"""Ages of the images behind the sent trajectories, as the statistics of a loop."""

from __future__ import annotations

from collections import deque

import numpy as np

from vla_accel_ros.engine.streaming.loop import LoopStats

_AGES = 512


class ImageAges:
    """Counts ages of images; one older than max_age_s is a miss. Time is given."""

    def __init__(self, max_age_s: float) -> None:
        self._max_age_s = max_age_s
        self._ages: deque[tuple[int, float]] = deque(maxlen=_AGES)  # (sent at, age of the image [s])
        self._sent = self._misses = 0

    def sent(self, stamp_ns: int, now_ns: int) -> None:
        """A trajectory was sent for an image with this stamp."""
        age_s = (now_ns - stamp_ns) * 1e-9
        self._ages.append((now_ns, age_s))
        self._sent += 1
        self._misses += age_s > self._max_age_s

    def stats(self, now_ns: int) -> LoopStats:
        """Statistics of the ages: p50_s and p99_s over the last 512; measured_hz: trajectories in the last
        second; runs: all trajectories; misses: those whose image was too old."""
        ages = [age_s for _, age_s in self._ages] or [0.0]
        p50, p99 = np.quantile(ages, (0.5, 0.99))
        recent = sum(sent_ns > now_ns - 1_000_000_000 for sent_ns, _ in self._ages)
        return LoopStats(
            name="image_to_trajectory",
            target_hz=0.0,
            measured_hz=float(recent),
            p50_s=float(p50),
            p99_s=float(p99),
            runs=self._sent,
            idle=0,
            misses=self._misses,
        )
