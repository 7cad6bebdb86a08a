"""One ring as a reader has it: mapped, its records read by the rules of the sequence.

Nothing here waits, copies pixels or believes the writer: a record that no writer wrote is damage and counted
once, one that is being written is simply not there yet.
"""

from __future__ import annotations

from functools import partial

from vla_accel_ros.engine.host_memory import PageLock, has_cuda
from vla_accel_ros.sensing.ring import RECORD_BYTES, Record, read_header, read_record
from vla_accel_ros.sensing.segment import View


class MappedRing:
    """One ring, for as long as its object lives. Raises as View and read_header do.

    images: uint8 [height, width, 3] of each slot, read-only. page_lock: how the memory lies.
    """

    def __init__(self, name: str, page_lock: bool):
        self._view = View(name, partial(read_header, name), writable=page_lock and has_cuda())
        self.geometry, _ = self._view.layout
        self._memory = self._view.mapping
        self.page_lock = self._memory.page_lock() if page_lock else PageLock("not asked for")
        self._words = memoryview(self._memory).cast("Q")  # a word is loaded by one instruction
        self.images = [self.geometry.image(self._memory, slot) for slot in range(self.geometry.slots)]
        for image in self.images:
            image.setflags(write=False)
        self._cleared = 0
        self._damage: dict[int, bytes] = {}
        self._new_damage = 0

    def is_current(self) -> bool:
        """Whether this is still the ring of its name."""
        return self._view.is_current()

    def published(self) -> list[Record]:
        """Complete frames since `clear`, newest arrival first."""
        records = (self.record(slot) for slot in range(self.geometry.slots))
        whole = [record for record in records if record is not None and record.sequence > self._cleared]
        return sorted(whole, key=lambda record: -record.sequence)

    def clear(self) -> None:
        """Forget the frames that are there."""
        self._cleared = max((record.sequence for record in self.published()), default=self._cleared)

    def holds(self, record: Record) -> bool:
        """Whether the slot still has this frame, and nobody is writing it."""
        return self._words[self.geometry.record_at(record.slot) // 8] == record.sequence

    def record(self, slot: int) -> Record | None:
        """The slot's complete frame, if it has one."""
        raw = self._raw(slot)
        record = read_record(raw, slot, self.geometry)
        if record is None or not record.damaged:
            return record
        # A record that is being written looks damaged, too, but not twice the same.
        if self._raw(slot) == raw and self._damage.get(slot) != raw:
            self._damage[slot] = raw
            self._new_damage += 1
        return None

    def take_damaged(self) -> int:
        """How many records were newly found damaged since the last call."""
        found, self._new_damage = self._new_damage, 0
        return found

    def _raw(self, slot: int) -> bytes:
        at = self.geometry.record_at(slot)
        return self._memory[at : at + RECORD_BYTES]
