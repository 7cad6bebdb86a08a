"""When micro-batches ran, for the timeline: in their lane on the host, and on the GPU by its events.

A pair of CUDA events is recorded around what a micro-batch launches, from a ring made once; nothing waits for
them. They are read when somebody reads the timeline: pairs that the GPU has not come to yet are left for the
next time, and an event recorded then, on a stream of its own, tells where GPU time is on the host's clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.request import OBSERVE, MicroBatch
from vla_accel_ros.timeline import TIMELINE, Event, Flows, flow

PAIRS = 4096
"""Micro-batches whose GPU times are kept, if nobody reads them."""
MOST_READ = 256
"""At once: it takes a few milliseconds."""


def note(lane: str, batch: MicroBatch, began_s: float, ended_s: float) -> None:
    """A micro-batch ran in a lane. Times: seconds of the monotonic clock."""
    begin_ns, end_ns = round(began_s * 1e9), round(ended_s * 1e9)
    detail: list[str | int] = []
    for request in batch.requests:
        frame = request.result if request.want == OBSERVE else request.prefix
        version = getattr(frame, "version", "unknown")
        number = "" if request.number < 0 else request.number
        detail += (request.robot, request.want, number, "of frame", version)
    TIMELINE.span(f"lane {lane}", batch.kind, begin_ns, end_ns, flows_of(batch), tuple(detail))


def flows_of(batch: MicroBatch) -> Flows:
    """The frames that its requests are about, and of one that is observed all its images."""
    frames: dict[tuple[int, str], None] = {}
    stamp_ns, robot = None, ""  # of the one before: most chunks of a step are of one frame
    for request in batch.requests:
        if request.want != OBSERVE:
            prefix = request.prefix
            if prefix is not None and (prefix.stamp_ns != stamp_ns or request.robot != robot):
                stamp_ns, robot = prefix.stamp_ns, request.robot
                frames[stamp_ns, robot] = None
        elif (seen := request.observation) is not None:
            for captured_ns in (seen.stamp_ns, *seen.stamps_ns.values()):
                frames[captured_ns, request.robot] = None
    return tuple(dict.fromkeys([flow(*frame) for frame in frames]))


@dataclass
class _Pair:
    begin: torch.cuda.Event = field(default_factory=lambda: torch.cuda.Event(enable_timing=True))
    end: torch.cuda.Event = field(default_factory=lambda: torch.cuda.Event(enable_timing=True))
    name: str = ""
    flows: Flows = ()
    recorded: int = 0  # how often, and with that which micro-batch it is of; 0 while it runs

    def seconds(self) -> float | None:
        """Between the two; waits for the second. None of a device that is gone."""
        try:
            self.end.synchronize()
            return float(self.begin.elapsed_time(self.end)) * 1e-3
        except RuntimeError:
            return None


class GpuTimes:
    """Of the micro-batches of one lane, on the track "GPU, lane <name>"."""

    def __init__(self, lane: str, device: torch.device, pairs: int = PAIRS) -> None:
        self._track, self._device = f"GPU, lane {lane}", device
        self._pairs = [_Pair() for _ in range(pairs)]
        self._count = self._read = 0
        self._reading = threading.Lock()
        self._anchor = torch.cuda.Event(enable_timing=True)
        self._beside = torch.cuda.Stream(device)
        TIMELINE.add_source(self.spans)

    @contextmanager
    def __call__(self, batch: MicroBatch) -> Iterator[Callable[[], float | None]]:
        """See Timing; what is launched goes into the current stream. By the lane's thread."""
        pair = self._pairs[self._count % len(self._pairs)]
        pair.recorded = 0
        stream = current_stream(self._device)
        begun = _record(pair.begin, stream)
        try:
            yield pair.seconds
        finally:
            if begun and _record(pair.end, stream):
                pair.name, pair.flows = batch.kind, flows_of(batch)
                self._count += 1
                pair.recorded = self._count

    def spans(self) -> list[Event]:
        """The next that the GPU has computed and nobody was told of, in order, MOST_READ at most. Waits for
        nothing but an event of a stream in which nothing else is."""
        with self._reading:
            first = max(self._read, self._count - len(self._pairs))
            if first == self._count:
                return []
            self._anchor.record(self._beside)
            self._anchor.synchronize()
            anchor_ns, found = TIMELINE.now_ns(), list[Event]()
            for number in range(first + 1, min(first + MOST_READ, self._count) + 1):
                pair = self._pairs[(number - 1) % len(self._pairs)]
                if pair.recorded == number:
                    if not pair.end.query():
                        break
                    event = self._event(pair, anchor_ns)
                    if pair.recorded == number:  # the lane may have taken it again meanwhile
                        found.append(event)
                self._read = number
            return found

    def _event(self, pair: _Pair, anchor_ns: int) -> Event:
        begin_ns = anchor_ns - round(pair.begin.elapsed_time(self._anchor) * 1e6)
        took_ns = round(pair.begin.elapsed_time(pair.end) * 1e6)
        return Event(self._track, pair.name, begin_ns, begin_ns + took_ns, pair.flows)


def _record(event: torch.cuda.Event, stream: torch.cuda.Stream) -> bool:
    """Whether it could be. A device that is gone is for those to tell who compute on it."""
    try:
        event.record(stream)
    except RuntimeError:
        return False
    return True
