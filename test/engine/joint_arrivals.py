"""When joints come from a driver: with jitter, and some late, missing or in bursts."""

from __future__ import annotations

import numpy as np


def arrivals(
    seconds: float,
    period_s: float = 0.002,
    jitter_s: float = 1.5e-4,
    late: float = 0.0,
    missing: float = 0.0,
    burst_s: float = 0.0,
    begin_s: float = 0.0,
    seed: int = 0,
) -> list[tuple[float, int]]:
    """(time, stamp), in order. late: share that comes 1 to 3 ms late; missing: share that never comes.
    burst_s: for how long, once a second, none comes, and then all of them at once."""
    random = np.random.default_rng(seed)
    stamps = np.arange(1, round(seconds / period_s))
    times_s = begin_s + period_s * stamps + random.normal(0.0, jitter_s, len(stamps))
    times_s += random.uniform(0.001, 0.003, len(stamps)) * (random.random(len(stamps)) < late)
    phase_s = (times_s - begin_s) % 1.0
    times_s += np.where((phase_s >= 0.5) & (phase_s < 0.5 + burst_s), 0.5 + burst_s - phase_s, 0.0)
    times_s = np.maximum.accumulate(times_s)
    present = random.random(len(stamps)) >= missing
    return [*zip(times_s[present].tolist(), stamps[present].tolist())]
