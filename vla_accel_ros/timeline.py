"""A bounded ring of this process's recent events: micro-batches, uploads, callbacks, publishes, deadlines.

Always on, so that a problem can be examined afterwards (`vla trace`). An event is a tuple appended to a
deque: any thread writes, none waits, and the oldest events are dropped. Times are nanoseconds of the
machine's monotonic clock, which all its processes share. There is one ring for a process, `TIMELINE`, so a
writer needs one line and no handle.

A flow follows a frame from camera to command: a number made from its image's capture time (`flow`).
"""

from __future__ import annotations

import itertools
import logging
import os
import time
import uuid
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

MOST = 32768
"""Events that are kept: some 20 s of a robot at 30 Hz, 9 MB."""
MOST_SCANNED, MOST_TOLD = 4096, 512
"""Limits of one page, which takes a node about a millisecond."""

Flows = tuple[int, ...]
Detail = str | int | tuple[str | int, ...]
"""The words of a tuple are joined when the event is read; empty words are left out."""

_Entry = tuple[int, int, str, str, Flows, Detail]
"""begin_ns, end_ns, track, name, flows, detail."""

_LOG = logging.getLogger(__name__)


class Event(NamedTuple):
    """An event. track: "lane main", "loop vision", "topic /action_chunk", ... An instant has end_ns equal to
    begin_ns. flows: the frames that it belongs to. detail: further information."""

    track: str
    name: str
    begin_ns: int
    end_ns: int
    flows: Flows = ()
    detail: str = ""


@dataclass(frozen=True)
class Page:
    """A part of the events. oldest_ns: end of the oldest kept event, 0 without any. next: position of the
    next page. more: whether there is a next page."""

    events: tuple[Event, ...]
    oldest_ns: int
    next: int
    more: bool


@dataclass(frozen=True)
class Recorded:
    """The events of one process. process: see `process_name`. nodes: in the process. monotonic_ns, ros_ns:
    one instant in both clocks. oldest_ns: from then on no event is missing."""

    process: str
    nodes: tuple[str, ...]
    events: tuple[Event, ...]
    monotonic_ns: int = 0
    ros_ns: int = 0
    oldest_ns: int = 0


class Timeline:
    """A ring of events. Thread-safe. clock_ns: monotonic nanoseconds."""

    def __init__(self, most: int = MOST, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.now_ns = clock_ns
        self._ring: deque[tuple[_Entry, int]] = deque(maxlen=most)
        self._numbers = itertools.count()
        self._sources: list[weakref.WeakMethod[Callable[[], Iterable[Event]]]] = []

    def span(
        self,
        track: str,
        name: str,
        begin_ns: int,
        end_ns: int | None = None,
        flows: Flows = (),
        detail: Detail = "",
    ) -> None:
        """Record an event from begin_ns to end_ns, None = now."""
        end_ns = self.now_ns() if end_ns is None else end_ns
        self._write((begin_ns, end_ns, track, name, flows, detail))

    def instant(self, track: str, name: str, flows: Flows = (), detail: Detail = "") -> None:
        """Record an event that happens now."""
        now_ns = self.now_ns()
        self._write((now_ns, now_ns, track, name, flows, detail))

    def add_source(self, source: Callable[[], Iterable[Event]]) -> None:
        """Add a method that returns new events whenever a page is read, such as those of a GPU. It is held by
        a weak reference."""
        self._sources.append(weakref.WeakMethod(source))

    def events(self, since_ns: int = 0) -> list[Event]:
        """Return the events that ended at since_ns or later, in the order of writing."""
        position, events = 0, list[Event]()
        while True:
            page = self.page(since_ns, position)
            events += page.events
            if not page.more:
                return events
            position = page.next

    def page(self, since_ns: int = 0, position: int = 0) -> Page:
        """Return the next events from a position on that ended at since_ns or later; position 0 = the
        oldest."""
        grown = self._ask_sources()
        entries = list(self._ring)  # atomic: one operation of the interpreter
        if not entries:
            return Page((), 0, position, False)
        (_, oldest_ns, *_), oldest = entries[0]
        newest = entries[-1][1]
        first = max(0, position - oldest)
        scanned = entries[first : first + MOST_SCANNED]
        matching = [(entry, number) for entry, number in scanned if entry[1] >= since_ns]
        sent = matching[:MOST_TOLD]
        last = sent[-1][1] if len(matching) > len(sent) else scanned[-1][1] if scanned else newest
        events = tuple(Event(e[2], e[3], e[0], e[1], e[4], _words(e[5])) for e, _ in sent)
        return Page(events, oldest_ns, last + 1, grown or last < newest)

    def clear(self) -> None:
        """Drop all events."""
        self._ring.clear()

    def _write(self, entry: _Entry) -> None:
        """Number and append an entry in one operation of the interpreter, so that numbers follow the ring's
        order."""
        self._ring.extend(zip((entry,), self._numbers))

    def _ask_sources(self) -> bool:
        """Collect events from the sources. Returns whether there were any, so there may be more."""
        grown = False
        for reference in tuple(self._sources):
            source = reference()
            if source is None:
                self._sources.remove(reference)
                continue
            try:
                events = tuple(source())
            except Exception:
                _LOG.exception("a part of the timeline cannot be read")
                continue
            for event in events:
                self.span(event.track, event.name, event.begin_ns, event.end_ns, event.flows, event.detail)
            grown |= bool(events)
        return grown


def _words(detail: Detail) -> str:
    return " ".join(str(word) for word in detail if word != "") if isinstance(detail, tuple) else str(detail)


TIMELINE = Timeline()
"""The ring of this process."""


def flow(stamp_ns: int, robot: str = "") -> int:
    """Return a frame's number: its capture time in nanoseconds of the ROS clock, combined with the robot's
    name if several robots share an engine."""
    return stamp_ns ^ _number_of(robot) if robot else stamp_ns


@cache
def _number_of(robot: str) -> int:
    return zlib.crc32(robot.encode()) << 16


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


@cache
def _token(pid: int) -> str:
    return uuid.uuid4().hex[:8]


def process_name() -> str:
    """Return this process's name: "<boot of the machine> <pid> <token>". Processes of one boot share one
    monotonic clock; processes of two containers may have the same pid."""
    pid = os.getpid()
    return f"{_boot()} {pid} {_token(pid)}"


def merged(records: Sequence[Recorded]) -> list[Recorded]:
    """Return each process once, with all its nodes, up to the time of the first query, in the first record's
    clock.

    Clocks of other machines are aligned by ROS time, which is only as accurate as their ROS times agree.
    """
    processes: dict[str, Recorded] = {}
    for record in records:
        earlier = processes.get(record.process)
        if earlier is not None and len(earlier.events) >= len(record.events):
            record = earlier if set(record.nodes) <= set(earlier.nodes) else _with_nodes(earlier, record)
        elif earlier is not None:
            record = _with_nodes(record, earlier)
        processes[record.process] = record
    shifted = [_shifted(record, records[0]) for record in processes.values()]
    end_ns = min((record.monotonic_ns for record in shifted), default=0)
    return [
        replace(record, events=tuple(event for event in record.events if event.begin_ns <= end_ns))
        for record in shifted
    ]


def _with_nodes(record: Recorded, other: Recorded) -> Recorded:
    return replace(record, nodes=tuple(dict.fromkeys((*record.nodes, *other.nodes))))


def _shifted(record: Recorded, reference: Recorded) -> Recorded:
    if record.process.split()[0] == reference.process.split()[0]:
        return record
    by_ns = (record.ros_ns - record.monotonic_ns) - (reference.ros_ns - reference.monotonic_ns)
    events = tuple(e._replace(begin_ns=e.begin_ns + by_ns, end_ns=e.end_ns + by_ns) for e in record.events)
    monotonic_ns, oldest_ns = record.monotonic_ns + by_ns, record.oldest_ns + by_ns
    return replace(record, events=events, monotonic_ns=monotonic_ns, oldest_ns=oldest_ns)
