"""The newest value of something small and fast, in shared memory: one writer, any number of readers, no lock.

A slot is one segment: a header, the newest value's number, and the last few values, each with its number, its
stamp and a checksum over all that. The writer goes round these places and writes a value first and its number
last. A reader reads the number, then that value, and the checksum shows whether it was overtaken meanwhile.
So nobody waits, no torn value is ever returned, and a value stays for as many writes as there are places. The
users of a slot define what a value means and how old it may be: a writer that stalls leaves its last value
there. A writer that ends, however it ends, leaves a slot that its readers find closed; they find the next
writer's slot by themselves.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from vla_accel_ros.sensing.segment import Segment, View, segment_path

VERSION = 1
_MAGIC = b"VLASLOT\n"
_HEADER = struct.Struct("=8sIIIQ")  # magic, version, places, greatest bytes of a value, writer's process
_NUMBER = struct.Struct("=Q")
_ENTRY = struct.Struct("=QqII")  # number, stamp_ns, bytes, checksum over these and the value
_CHECK = struct.Struct("=I")
_NUMBER_AT = 64
_FIRST_AT = 128
_TRIES = 8
_LOOK_S = 0.1
"""How often a reader checks whether its slot is still the one of that name."""


@dataclass(frozen=True)
class Entry:
    """A value as it was written. number: one more than that of the value before; a new writer starts at a
    higher number. stamp_ns: given by the writer."""

    number: int
    stamp_ns: int
    data: bytes


@dataclass(frozen=True)
class _Geometry:
    places: int
    most_bytes: int

    @property
    def step(self) -> int:
        """Bytes from one value to the next, whole cache lines."""
        return -(-(_ENTRY.size + self.most_bytes) // 64) * 64

    @property
    def size(self) -> int:
        return _FIRST_AT + self.places * self.step

    def at(self, number: int) -> int:
        return _FIRST_AT + (number % self.places) * self.step


class SlotWriter:
    """The only writer of a slot. It creates the slot, and removes it at `close` or when the process ends.

    name: letters, digits, '_', '-' and '.'. most_bytes: greatest size of a value. places: number of values
    kept, at least 2. clock: nanoseconds since the epoch; numbers the first value. Use it from one thread at a
    time. Raises ValueError, one sentence, for an invalid name or number, a living writer of that name, or too
    little shared memory.
    """

    def __init__(
        self, name: str, most_bytes: int, places: int = 8, clock: Callable[[], int] = time.time_ns
    ) -> None:
        if places < 2 or most_bytes < 1:
            raise ValueError(
                f"slot {name!r} has {places} places of {most_bytes} bytes: give at least 2 of at least 1"
            )
        self.name = name
        self._geometry = geometry = _Geometry(places, most_bytes)
        header = _HEADER.pack(_MAGIC, VERSION, places, most_bytes, os.getpid())
        try:
            self._segment = Segment(name, geometry.size, header + _CHECK.pack(zlib.crc32(header)))
        except FileExistsError as error:
            raise ValueError(
                f"slot {name!r} is written by a process that runs: stop that, or choose another name"
            ) from error
        self._number = clock()

    def write(self, data: bytes, stamp_ns: int) -> int:
        """Make this the newest value; returns its number. Raises ValueError if it is too long."""
        if len(data) > self._geometry.most_bytes:
            raise ValueError(
                f"a value of {len(data)} bytes is too long for slot {self.name!r}, which has "
                f"{self._geometry.most_bytes}: make it larger"
            )
        number = self._number
        start = _ENTRY.pack(number, stamp_ns, len(data), 0)[: -_CHECK.size]
        check = zlib.crc32(data, zlib.crc32(start))
        self._segment.write(self._geometry.at(number), start + _CHECK.pack(check) + data)
        self._segment.write(_NUMBER_AT, _NUMBER.pack(number))
        self._number = number + 1
        return number

    def is_whole(self) -> bool:
        """Whether readers can still read it. False after another process has truncated it: make a new one."""
        return self._segment.is_whole()

    def close(self) -> None:
        """Remove the slot. A second call does nothing."""
        self._segment.close()


class SlotReader:
    """Values of the slot of a name, which need not exist yet and may be recreated at any time.

    clock: monotonic seconds. Use it from one thread at a time. Attribute `refused`: one sentence that says
    why an existing slot is not read; empty if it is, or if there is none. Raises ValueError for an invalid
    name.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        segment_path(name)  # a bad name is an error, not a slot that does not exist yet
        self.name, self.refused = name, ""
        self._clock = clock
        self._view: View[_Geometry] | None = None
        self._look_s = -float("inf")

    @property
    def is_open(self) -> bool:
        """Whether there was a slot with a living writer at the last look, every 0.1 s of reading."""
        return self._view is not None

    def newest(self) -> Entry | None:
        """The newest value; None if there is no slot, or no value in it."""
        for _ in range(_TRIES):  # if overtaken, read the newer one
            view = self._opened()
            if view is None:
                return None
            number = self._newest_number(view)
            if number == 0:
                return None
            entry = self._read(view, number)
            if entry is not None:
                return entry
        return None

    def since(self, number: int) -> list[Entry]:
        """The values after the one with that number, oldest first: all that are still there. Missing numbers
        were overwritten. For a number of another writer, all values that are there."""
        view = self._opened()
        newest = 0 if view is None else self._newest_number(view)
        if view is None or newest == 0:
            return []
        oldest = newest - view.layout.places + 1
        first = max(number + 1, oldest) if oldest - 1 <= number <= newest else oldest
        read = (self._read(view, number) for number in range(first, newest + 1))
        return [entry for entry in read if entry is not None]

    def close(self) -> None:
        """Release the slot; the next read opens it again."""
        self._view = None

    def _opened(self) -> View[_Geometry] | None:
        """The slot of that name, opened again if it has another writer."""
        now_s = self._clock()
        if now_s - self._look_s < _LOOK_S:
            return self._view
        self._look_s = now_s
        if self._view is not None and self._view.is_current() and self._view.has_writer():
            return self._view
        self._view, self.refused = None, ""
        try:
            with suppress(FileNotFoundError):
                view = View(self.name, self._accept, "slot", "writer")
                self._view = view if view.has_writer() else None
        except (OSError, ValueError) as error:
            self.refused = str(error)
        return self._view

    def _accept(self, head: bytes, size: int) -> _Geometry:
        remedy = f"remove {segment_path(self.name)} and restart its writer"
        if len(head) < _FIRST_AT or head[: len(_MAGIC)] != _MAGIC:
            raise ValueError(f"slot {self.name!r} is not a slot: {remedy}")
        _, version, places, most_bytes, _ = _HEADER.unpack_from(head)
        if version != VERSION:
            raise ValueError(
                f"slot {self.name!r} has version {version}, this program reads version {VERSION}: run all "
                "nodes from one release"
            )
        (check,) = _CHECK.unpack_from(head, _HEADER.size)
        geometry = _Geometry(places, most_bytes)
        if check != zlib.crc32(head[: _HEADER.size]) or places < 2 or size != geometry.size:
            raise ValueError(f"slot {self.name!r} is damaged: {remedy}")
        return geometry

    def _newest_number(self, view: View[_Geometry]) -> int:
        raw = view.read(_NUMBER_AT, _NUMBER.size)
        return int(_NUMBER.unpack(raw)[0]) if len(raw) == _NUMBER.size else 0

    def _read(self, view: View[_Geometry], number: int) -> Entry | None:
        """The value with that number; None if it is, or is being, overwritten."""
        geometry = view.layout
        raw = view.read(geometry.at(number), _ENTRY.size + geometry.most_bytes)
        if len(raw) < _ENTRY.size:
            return None
        entry_number, stamp_ns, size, check = _ENTRY.unpack_from(raw)
        data = raw[_ENTRY.size : _ENTRY.size + size]
        is_whole = check == zlib.crc32(data, zlib.crc32(raw[: _ENTRY.size - _CHECK.size]))
        if entry_number != number or size > geometry.most_bytes or not is_whole:
            return None
        return Entry(number, stamp_ns, data)
