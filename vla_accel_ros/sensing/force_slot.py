"""A force sensor's samples in a slot of shared memory, from a driver to the trajectory node.

A value is a row of numbers, little-endian float64: for a wrench fx, fy, fz [N], tx, ty, tz [Nm], 48 bytes;
for efforts one for each joint, in the order of the contract's `force.effort.joints`. Its stamp is the time of
the measurement on the ROS clock (nanoseconds since the epoch). A slot has room for at least 64 bytes per
value.

A driver in another language writes the same format (native byte order, here little-endian). The file is
/dev/shm/vla_accel_ros.ring.NAME, mode 0600. It is complete before it gets its name, and locked (flock,
exclusive) as long as its writer lives. Bytes 0 to 31: "VLASLOT\\n", uint32 version 1, uint32 places, uint32
greatest bytes of a value, uint64 process (packed), and uint32 crc32 of these 28 bytes. Byte 64: uint64, the
number of the newest value. From byte 128: the places, each ceil((24 + greatest) / 64) * 64 bytes long. Value
n is in place n % places: uint64 n, int64 stamp, uint32 bytes, uint32 crc32 of these 20 bytes and the value,
then the value. Write a value first and its number after it. Numbers go up by one; the first is the time in
nanoseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from vla_accel_ros.sensing.slot import SlotReader, SlotWriter

WRENCH = 6
_LEAST_BYTES = 64


class ForceWriter:
    """The only writer of a force sensor's slot; see SlotWriter for the errors. width: numbers in a sample."""

    def __init__(self, name: str, width: int = WRENCH) -> None:
        self._format = struct.Struct(f"<{width}d")
        self._slot = SlotWriter(name, max(self._format.size, _LEAST_BYTES), places=32)

    def write(self, sample: Sequence[float], stamp_ns: int) -> None:
        """Write a sample: fx, fy, fz, tx, ty, tz, or the efforts. stamp_ns: time of the measurement, ROS
        clock."""
        self._slot.write(self._format.pack(*sample), stamp_ns)

    def close(self) -> None:
        """Remove the slot. A second call does nothing."""
        self._slot.close()


class ForceReader:
    """New samples of a slot, which need not exist yet and may be recreated at any time."""

    def __init__(self, name: str) -> None:
        self._slot, self._number = SlotReader(name), 0
        self._came = False

    def read(self) -> list[tuple[int, tuple[float, ...]]]:
        """(stamp_ns, sample) of all values that were written since the last call and are still there, oldest
        first.

        A value whose length is not a multiple of 8 bytes gives an empty sample.
        """
        entries = self._slot.since(self._number)
        if not entries:
            return []
        self._number, self._came = entries[-1].number, True
        return [(entry.stamp_ns, _numbers(entry.data)) for entry in entries]

    @property
    def problem(self) -> str:
        """Why there is nothing to read, if that is known, else empty."""
        if self._slot.refused:
            return self._slot.refused
        if self._came and not self._slot.is_open:
            return "its writer has ended: start it again"
        return ""

    def close(self) -> None:
        """Release the slot."""
        self._slot.close()


def _numbers(data: bytes) -> tuple[float, ...]:
    return () if len(data) % 8 else struct.unpack(f"<{len(data) // 8}d", data)
