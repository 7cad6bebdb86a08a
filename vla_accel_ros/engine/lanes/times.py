"""Records when micro-batches ran on the GPU, by events, for the timeline.

A pair of CUDA events, from a ring made once, is recorded around the launches of a micro-batch; nothing waits
for them. They are read when somebody reads the timeline: pairs that the GPU has not reached are left for the
next time. An event recorded then on its own stream relates GPU time to the host's clock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.lanes.lane import DeviceTime
from vla_accel_ros.engine.request import MicroBatch
from vla_accel_ros.timeline import TIMELINE, Event, Flows

PAIRS = 4096
"""Micro-batches whose GPU times are kept until they are read."""
ANCHORS = 3
"""Readings of both clocks, of which the quickest counts: a host that is held up reads its own too late."""
MOST_READ = 256
"""Most micro-batches per reading, which takes a few milliseconds."""


@dataclass
class _Pair:
    """A lane's DeviceTime."""

    begin: torch.cuda.Event = field(default_factory=lambda: torch.cuda.Event(enable_timing=True))
    end: torch.cuda.Event = field(default_factory=lambda: torch.cuda.Event(enable_timing=True))
    name: str = ""
    flows: Flows = ()
    recorded: int = 0  # how often, and with that which micro-batch it is of; 0 while it runs

    def over(self) -> bool:
        try:
            return bool(self.end.query())
        except RuntimeError:  # the device is lost, which whoever waits for the results is told
            return True

    def seconds(self) -> float | None:
        try:
            self.end.synchronize()
            return float(self.begin.elapsed_time(self.end)) * 1e-3
        except RuntimeError:
            return None


class GpuTimes:
    """Times of the micro-batches of one lane, on the track "GPU, lane <name>"."""

    def __init__(self, lane: str, device: torch.device, pairs: int = PAIRS) -> None:
        self._track, self._device = f"GPU, lane {lane}", device
        self._pairs = [_Pair() for _ in range(pairs)]
        self._count = self._read = 0
        self._reading = threading.Lock()
        self._anchors = [torch.cuda.Event(enable_timing=True) for _ in range(ANCHORS)]
        self._beside = torch.cuda.Stream(device)
        TIMELINE.add_source(self.spans)

    @contextmanager
    def __call__(self, batch: MicroBatch) -> Iterator[DeviceTime]:
        """See Timing; the launches go into the current stream. Call it from the lane's thread."""
        pair = self._pairs[self._count % len(self._pairs)]
        pair.recorded = 0
        stream = current_stream(self._device)
        begun = _record(pair.begin, stream)
        try:
            yield pair
        finally:
            if begun and _record(pair.end, stream):
                pair.name, pair.flows = batch.kind, batch.flows
                self._count += 1
                pair.recorded = self._count

    def spans(self) -> list[Event]:
        """The next unread micro-batches that the GPU has computed, in order, at most MOST_READ. Waits only
        for an event in a stream of its own."""
        with self._reading:
            first = max(self._read, self._count - len(self._pairs))
            if first == self._count:
                return []
            anchor, events = self._anchored(), list[Event]()
            for number in range(first + 1, min(first + MOST_READ, self._count) + 1):
                pair = self._pairs[(number - 1) % len(self._pairs)]
                if pair.recorded == number:
                    if not pair.end.query():
                        break
                    event = self._event(pair, *anchor)
                    if pair.recorded == number:  # the lane may have taken it again meanwhile
                        events.append(event)
                self._read = number
            return events

    def _anchored(self) -> tuple[torch.cuda.Event, int]:
        """An event that the GPU has just reached, and when, by the host's clock."""
        tried: list[tuple[int, int, torch.cuda.Event]] = []
        for anchor in self._anchors:
            before_ns = TIMELINE.now_ns()
            anchor.record(self._beside)
            anchor.synchronize()
            now_ns = TIMELINE.now_ns()
            tried.append((now_ns - before_ns, now_ns, anchor))
        _, now_ns, anchor = min(tried, key=lambda one: one[0])
        return anchor, now_ns

    def _event(self, pair: _Pair, anchor: torch.cuda.Event, anchor_ns: int) -> Event:
        begin_ns = anchor_ns - round(pair.begin.elapsed_time(anchor) * 1e6)
        took_ns = round(pair.begin.elapsed_time(pair.end) * 1e6)
        return Event(self._track, pair.name, begin_ns, begin_ns + took_ns, pair.flows)


def _record(event: torch.cuda.Event, stream: torch.cuda.Stream) -> bool:
    """Whether the event could be recorded. The code that computes on a lost device reports that."""
    try:
        event.record(stream)
    except RuntimeError:
        return False
    return True
