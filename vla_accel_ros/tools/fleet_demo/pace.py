"""How fast simulated time goes, so that whatever machine it is makes enough chunks for all robots.

A robot lives in simulated time: its cameras, joints, controllers, chunks and their age limits. The model
takes the time that it takes. So where chunks are too old when they come, simulated time goes slower, and
where they are young it goes faster, up to real time. It begins with what the scheduler measured while
nothing else ran. Ages are of images, when the chunk made of them comes, in simulated seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

AGE_S = 0.25
"""Wanted: older, and arms lag behind what they are to follow, though none waits."""
LEAST, MOST = 0.05, 1.0
BEGINS_WITH = 0.3
"""Share of the chunks that were measured that the robots may need: the arms' own nodes need the rest."""
SLOWER, FASTER = 0.6, 1.15
"""At most, from one change to the next."""
EVERY_S = 1.0
"""Of real time."""


def first(chunks_hz: float, needed_hz: float) -> float:
    """Simulated over real time, to begin with. chunks_hz: what the machine makes, in real time; needed_hz: by
    all robots, in simulated time."""
    return min(MOST, max(LEAST, BEGINS_WITH * chunks_hz / needed_hz))


def changed(factor: float, ages_s: Sequence[float]) -> float:
    """The next. ages_s: of each robot that should have chunks, of the newest, or how long it lacks one."""
    if not ages_s:
        return factor
    return min(MOST, max(LEAST, factor * min(FASTER, max(SLOWER, AGE_S / max(*ages_s, 1e-3)))))
