"""As many chunks a second as a GPU can make, for frames of many robots in one queue.

A step of all seats takes about as long however many chunks are in them, and frames are compute-bound. So
while frames wait, a step runs only if enough chunks are ready to begin to keep all seats full, one for each
`steps` seats; otherwise frames go first. That delays a chunk by a frame or two. When no frame waits, steps
run one after another with the chunks there are, so a few robots are served as without this policy.

In its own lane (`lanes: two`) a step waits in the same way for the frame that is computed beside it. Up to
`together` frames with the same number of images are one micro-batch. After more frames than bring those
chunks a step runs nevertheless: nobody acts on such frames. A second chunk of a frame waits for frames.
"""

from __future__ import annotations

import math
from itertools import takewhile

from vla_accel_ros.engine.request import (
    ACT,
    DENOISE,
    OBSERVE,
    WAITING,
    MicroBatch,
    Request,
    Requests,
    by_priority,
)
from vla_accel_ros.engine.rules.chunks import Chunks, WholeChunks, joins_of
from vla_accel_ros.engine.rules.rule import Rule, Setup

HOLDS_S = 0.002
"""Time after which a step that waits for a frame in another lane is considered again."""


class Throughput(Chunks):
    """seats: chunks at once; begins: how many beginning chunks a step waits for while there are frames;
    together: most frames in a micro-batch."""

    def __init__(self, seats: int, begins: int = 1, together: int = 1) -> None:
        super().__init__()
        self._seats, self._begins, self._together = seats, begins, together
        self._lane, self._seen = "", tuple[Request, ...]()  # the frames' lane, and the frames it saw last
        self._holds = False

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        whole, begun, waiting = chunks_of(ready, self._later(ready))
        if whole is not None:
            return whole
        frames = frames_of(ready, self._together)
        if frames is not None or lane == self._lane:
            self._lane = lane
            self._seen = tuple(request for request in ready if request.want == OBSERVE)
        self._holds = False
        passed = self._passed >= self._begins + 2 * self._together  # nobody acts on these frames
        if len(waiting) < self._begins and not (passed and (begun or waiting)):
            if frames is not None:
                return frames
            if begun and not all(frame.finished for frame in self._seen):
                self._holds = True
                return None
        step = (*begun, *waiting[: max(0, self._seats - len(begun))])
        return MicroBatch(DENOISE, step) if step else frames

    def wake_s(self, ready: Requests, now_s: float) -> float:
        """A step that is held back for a frame is considered again soon, because the frame may not come."""
        return now_s + HOLDS_S if self._holds else math.inf


def chunks_of(ready: Requests, later: set[Request]) -> tuple[MicroBatch | None, list[Request], list[Request]]:
    """Returns a chunk that is denoised whole, if any, which goes before everything else; chunks that have
    begun in seats; and chunks that wait for a seat. Not those that wait for frames: a stream's further chunks
    of a frame, and those that come `later`."""
    if any(request.want == OBSERVE for request in ready):
        further = [request for request in ready if request.status is WAITING and not request.fresh]
        later |= {request for request in further if request.stream}
    acts = by_priority([request for request in ready if request.want == ACT and request not in later])
    whole = next((request for request in acts if request.whole), None)
    begun = [request for request in acts if request.status is not WAITING]
    waiting = [request for request in acts if request.status is WAITING]
    return MicroBatch(DENOISE, (whole,), steps=0) if whole is not None else None, begun, waiting


def frames_of(ready: Requests, most: int) -> MicroBatch | None:
    """The next frames to compute, up to `most` with the same number of images, rounded down to a power of
    two."""
    waiting = by_priority([request for request in ready if request.want == OBSERVE])
    if not waiting:
        return None
    first, images = waiting[0], _images(waiting[0])
    alike = takewhile(lambda one: images > 0 and _images(one) == images, waiting)
    several = tuple(alike)[:most]
    return MicroBatch(first.stage, several[: 1 << (len(several).bit_length() - 1)] if several else (first,))


def _images(request: Request) -> int:
    """Number of images of an observation that is known already; 0 for anything else."""
    return 0 if request.observation is None else len(request.observation.images)


def throughput(setup: Setup) -> Rule:
    """The rule for `staggered` seats and `frames_together`; whole chunks if `staggered` is 0."""
    config = setup.config
    if not config.staggered:
        return WholeChunks()
    return Throughput(config.staggered, joins_of(config.staggered, config.steps), config.frames_together)
