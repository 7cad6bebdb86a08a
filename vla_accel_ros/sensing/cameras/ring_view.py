"""One open ring at the reader: reads its records by the rules of the sequence, copies or maps its pixels.

It never waits and does not trust the writer. An invalid record is damage and is counted once; one that is
being written is not there yet. Records and copies are read by system calls, which do not raise SIGBUS if
another process truncates the ring. The ring is mapped only for CUDA, which keeps its pages, and on request.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from vla_accel_ros.engine.stages.memory.host_memory import PageLock, has_cuda
from vla_accel_ros.sensing.cameras.ring import RECORD_BYTES, Record, read_header, read_record
from vla_accel_ros.sensing.segment import View


class OpenRing:
    """One ring, open as long as this object lives. Raises as View and read_header do.

    page_lock: have CUDA page-lock its memory. in_place: map it even without CUDA. Attributes: `page_lock`
    says whether the memory is page-locked; `images`, uint8 [height, width, 3] of each slot, read-only, empty
    if it is not mapped.
    """

    def __init__(self, name: str, page_lock: bool, in_place: bool = False):
        self._view = View(name, partial(read_header, name))
        self.geometry, _ = self._view.layout
        self.page_lock = PageLock("no CUDA device" if page_lock else "copied")
        self.images: list[np.ndarray] = []
        lock = page_lock and has_cuda()
        if lock or in_place:
            memory = self._view.map(writable=lock)
            if lock:
                self.page_lock = memory.page_lock()
            if in_place or self.page_lock.locked:
                self.images = [self.geometry.image(memory, slot) for slot in range(self.geometry.slots)]
        self._cleared: list[Record] = []
        self._damage: dict[int, bytes] = {}
        self._new_damage = 0

    def is_current(self) -> bool:
        """Whether this is still the ring of its name, and not truncated."""
        return self._view.is_current()

    def published(self) -> list[Record]:
        """Complete frames since `clear`, newest arrival first."""
        return [record for record in self._complete() if record not in self._cleared]

    def clear(self) -> None:
        """Forget the frames that are there now, and no later one, whatever their numbers."""
        self._cleared = self._complete()

    def _complete(self) -> list[Record]:
        first = self.geometry.record_at(0)
        raw = self._view.read(first, self.geometry.records_bytes)
        starts = (self.geometry.record_at(slot) - first for slot in range(self.geometry.slots))
        records = (self._record(slot, raw[start : start + RECORD_BYTES]) for slot, start in enumerate(starts))
        whole = [record for record in records if record is not None]
        return sorted(whole, key=lambda record: -record.sequence)

    def holds(self, record: Record) -> bool:
        """Whether the slot still has this frame, and nobody is writing it."""
        return self.record(record.slot) == record

    def record(self, slot: int) -> Record | None:
        """The slot's complete frame, if there is one."""
        return self._record(slot, self._raw(slot))

    def copy(self, slot: int, place: np.ndarray) -> bool:
        """Copy a slot's pixels to uint8 [height, width, 3], contiguous; False if the ring was truncated."""
        return self._view.read_into(self.geometry.pixels_at(slot), place)

    def take_damaged(self) -> int:
        """Number of records newly found damaged since the last call."""
        count, self._new_damage = self._new_damage, 0
        return count

    def _record(self, slot: int, raw: bytes) -> Record | None:
        record = read_record(raw, slot, self.geometry) if len(raw) == RECORD_BYTES else None
        if record is None or not record.damaged:
            return record
        # A record that is being written looks damaged too, but differs when it is read again.
        if self._raw(slot) == raw and self._damage.get(slot) != raw:
            self._damage[slot] = raw
            self._new_damage += 1
        return None

    def _raw(self, slot: int) -> bytes:
        return self._view.read(self.geometry.record_at(slot), RECORD_BYTES)
