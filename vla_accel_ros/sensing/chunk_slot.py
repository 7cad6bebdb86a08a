"""New chunks in a slot of shared memory, for a process that polls it before each of its commands.

If there are several new chunks, only the newest is followed. Following a chunk takes time that commands need
too: if it took longer than half a command period, the slot is not polled again for as long.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from vla_accel_ros.control.chunking.chunk_record import ChunkReader
from vla_accel_ros.sensing.slot import SlotReader
from vla_accel_ros.timeline import TIMELINE, flow
from vla_accel_ros.types import Chunk

Take = Callable[[Callable[[], Chunk]], bool]
"""Calls the function for a chunk and follows it, or refuses it if that raises ValueError; returns whether it
was followed."""


class ChunkSlot:
    """The chunks in the slot of a name, which need not exist yet and may be recreated at any time.

    joints: of the columns. looks_hz: how often `poll` is called. most_hz: greatest number of chunks followed
    a second; 0 for no limit. counts: where overtaken chunks are counted. track: of the timeline. clock:
    monotonic seconds. Use it from one thread at a time.

    Attributes: `name` of the slot; `came_s`, when the last chunk was followed; `last`, its stamp and request.
    A refused chunk is neither: with a stamp in the future it would be newer than every later one.
    """

    def __init__(
        self,
        name: str,
        joints: tuple[str, ...],
        looks_hz: float,
        most_hz: float = 0.0,
        counts: Counter[str] | None = None,
        track: str = "chunk slot",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self._track, self._clock = name, track, clock
        self._slot, self._reader = SlotReader(name, clock), ChunkReader(joints)
        self._long_s = 0.5 / looks_hz
        self._least_s = 1.0 / most_hz if most_hz else 0.0
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.begin()

    def begin(self) -> None:
        """Ignore the chunk that is there now."""
        entry = self._slot.newest()
        self._number = 0 if entry is None else entry.number
        self.last = self._read_last = (0, 0)
        self.came_s = self._free_s = -float("inf")

    def poll(self, take: Take) -> bool:
        """Follow a new chunk if there is one, and time for it. Returns whether a chunk was followed."""
        if self._clock() < self._free_s:
            return False
        entry = self._slot.newest()
        if entry is None or entry.number == self._number:
            return False
        self.counts["overtaken"] += max(0, min(entry.number - self._number, 1000) - 1) if self._number else 0
        self._number = entry.number
        began_s, begin_ns = self._clock(), TIMELINE.now_ns()
        is_followed = take(partial(self._read, entry.data))
        TIMELINE.span(self._track, "read", begin_ns, flows=(flow(entry.stamp_ns),), detail="slot")
        if is_followed:
            self.came_s, self.last = began_s, self._read_last
        ended_s = self._clock()
        if self._least_s:
            self._free_s = began_s + self._least_s
        if ended_s - began_s > self._long_s:
            self._free_s = max(self._free_s, 2.0 * ended_s - began_s)
        return is_followed

    @property
    def is_open(self) -> bool:
        """Whether there was a slot with a living writer at the last look."""
        return self._slot.is_open

    @property
    def is_empty(self) -> bool:
        """Whether the slot has no complete chunk."""
        return self._slot.newest() is None

    @property
    def refused(self) -> str:
        """One sentence that says why an existing slot is not read; empty if it is, or if there is none."""
        return self._slot.refused

    @property
    def writer(self) -> str:
        """The node that writes the slot; empty while there is none, or it has written nothing."""
        return self._reader.writer if self._slot.is_open else ""

    def close(self) -> None:
        """Release the slot."""
        self._slot.close()

    def _read(self, data: bytes) -> Chunk:
        chunk = self._reader.chunk(data)
        self._read_last = (chunk.stamp_ns, chunk.request_id)
        return chunk
