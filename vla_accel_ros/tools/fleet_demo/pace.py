"""Sets the speed of simulated time, so that any machine makes enough chunks for all robots.

A robot's cameras, joints, controllers, chunks and age limits use simulated time; the model takes real time.
If chunks arrive too old, simulated time is slowed; if they arrive young, it is sped up, to real time at most.
The first factor comes from what the scheduler measured while nothing else ran. An age is that of a chunk's
images when the chunk arrives, in simulated seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

AGE_S = 0.25
"""The wanted age in seconds: with older chunks no arm stalls, but it lags behind a moving target."""
LEAST, MOST = 0.05, 1.0
BEGINS_WITH = 0.3
"""Share of the measured chunks a second that the robots may need; the arms' own nodes take the rest of the
CPU."""
SLOWER, FASTER = 0.6, 1.15
"""Smallest and largest factor of one change."""
EVERY_S = 1.0
"""Real seconds between changes."""


def first(chunks_hz: float, needed_hz: float) -> float:
    """Return the first factor, simulated over real time.

    chunks_hz: chunks that the machine makes in a real second; needed_hz: chunks that all robots need in a
    simulated second.
    """
    return min(MOST, max(LEAST, BEGINS_WITH * chunks_hz / needed_hz))


def changed(factor: float, ages_s: Sequence[float]) -> float:
    """Return the next factor.

    ages_s: for each robot that should have chunks, the newest chunk's age, or how long it has lacked one.
    """
    if not ages_s:
        return factor
    return min(MOST, max(LEAST, factor * min(FASTER, max(SLOWER, AGE_S / max(*ages_s, 1e-3)))))
