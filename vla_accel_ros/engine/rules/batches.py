"""Chunks of many robots in small batches, each finished before the next frames: short waits.

With steps between frames (`staggered`, `throughput`) all robots share the GPU, so each chunk waits for as
many other frames as it has steps. Here a few frames go first, then all steps of their chunks, and only then
the next frames: as many chunks a second, and most of them come earlier.

A batch is small (`few`), because the first request waits for the frames of the rest: two chunks take as long
in one batch as one after the other; a batch pays from four on. A batch doubles if twice as many requests
wait, and takes all seats if there are more requests than seats: short waits are then impossible, and full
seats make the most chunks a second.

A frame that comes soon after the steps have begun goes before the next step, and its chunk joins, because the
others lose little then. Lanes launch ahead, so the first step is chosen while the last frame is computed. Up
to `together` frames with the same number of images are one micro-batch. A second chunk of a frame waits for
frames, and after more frames than a batch takes, on which nobody acts, its steps go on.
"""

from __future__ import annotations

import math

from vla_accel_ros.engine.request import DENOISE, OBSERVE, MicroBatch, Requests
from vla_accel_ros.engine.rules.chunks import Chunks, WholeChunks
from vla_accel_ros.engine.rules.rule import Rule, Setup
from vla_accel_ros.engine.rules.throughput import chunks_of, frames_of

FEW = 4
"""Chunks in a batch while few robots wait."""
SOON = 3
"""Number of steps after which no frame goes before the rest of a batch."""


class Batches(Chunks):
    """seats: chunks at once; few: chunks in a batch while there are few requests; together: most frames in a
    micro-batch."""

    def __init__(self, seats: int, few: int = FEW, together: int = 1) -> None:
        super().__init__()
        self._seats, self._few, self._together = seats, min(few, seats), together
        self._steps = 0  # steps since a chunk joined

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        whole, begun, waiting = chunks_of(ready, self._later(ready))
        if whole is not None:
            return whole
        frames = sum(request.want == OBSERVE for request in ready)
        chunks = len(begun) + len(waiting)
        size = self._size(frames + chunks)
        passed = self._passed >= size + 2 * self._together  # nobody acts on these frames
        if frames and chunks < size and (not begun or self._steps < SOON) and not (passed and chunks):
            return frames_of(ready, min(self._together, size - chunks))
        joins = waiting[: max(0, self._seats - len(begun))]
        if not (begun or joins):
            return frames_of(ready, self._together)
        self._steps = 1 if joins else self._steps + 1
        return MicroBatch(DENOISE, (*begun, *joins))

    def _size(self, there: int) -> int:
        """Number of chunks in a batch when so many requests wait."""
        if there > self._seats:
            return self._seats
        return self._few if there < 2 * self._few else min(2 * self._few, self._seats)


def batches(setup: Setup) -> Rule:
    """The rule for `staggered` seats and `frames_together`; whole chunks if `staggered` is 0."""
    config = setup.config
    if not config.staggered:
        return WholeChunks()
    return Batches(config.staggered, together=config.frames_together)
