"""Frames in shared memory: the camera's process writes each frame once, other processes read it in place.

A ring is one segment: a header, a record for each slot, and the slots, page-aligned. The writer goes round
the slots and waits for nobody, so a reader may be overtaken and must detect it. The sequence number is for
that: odd while the slot is being written, and a new even number for every frame; readers compare it before
and after use. A frame's slot is written again only when the `slots`-th frame after it begins. At a steady
rate the newest frame therefore stays whole for at least (slots - 1) / rate after a reader took it, less the
time of one write: about 100 ms with 4 slots at 30 Hz. A ring never changes its size. A camera that does makes
a new ring of the same name, and readers notice.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from vla_accel_ros.sensing.segment import Segment, View, segment_path

ENCODING = "rgb8"
VERSION = 1
_MAGIC = b"VLARING\n"
_HEADER = struct.Struct("=8sIIIIQQ")  # magic, version, slots, height, width, total bytes, writer's process
_CHECK = struct.Struct("=I")
_WORD = struct.Struct("=Q")
_RECORD = struct.Struct("=QqQI")  # sequence, stamp_ns, bytes of the frame, checksum over these and the slot
RECORD_BYTES = _RECORD.size
_RECORDS_AT = 128
_RECORD_STEP = 64  # one cache line each


@dataclass(frozen=True)
class Handle:
    """Where a frame lies: the message that travels beside the ring (vla_accel_msgs/FrameHandle).

    ring: its name. sequence: the slot's while it holds this frame, even, growing from frame to frame and from
    writer to writer. stamp_ns: the frame's capture time. encoding: always rgb8.
    """

    ring: str
    slot: int
    sequence: int
    stamp_ns: int
    height: int
    width: int
    encoding: str = ENCODING


@dataclass(frozen=True)
class Record:
    """What a slot's record says; damaged: no writer wrote it like this."""

    slot: int
    sequence: int
    stamp_ns: int
    damaged: bool = False


@dataclass(frozen=True)
class Geometry:
    """The layout of a ring with this many slots for frames uint8 [height, width, 3]."""

    slots: int
    height: int
    width: int

    @property
    def frame_bytes(self) -> int:
        return 3 * self.height * self.width

    @property
    def size(self) -> int:
        """Bytes of the whole ring."""
        return self.pixels_at(self.slots)

    def image(self, memory: mmap.mmap, slot: int) -> np.ndarray:
        """A slot's pixels in the mapped ring, uint8 [height, width, 3], read-only."""
        shape = (self.height, self.width, 3)
        pixels = np.frombuffer(memory, np.uint8, self.frame_bytes, self.pixels_at(slot)).reshape(shape)
        pixels.setflags(write=False)
        return pixels

    @property
    def records_bytes(self) -> int:
        """Bytes from the first record to the end of the last."""
        return self.record_at(self.slots) - _RECORDS_AT

    def record_at(self, slot: int) -> int:
        """Byte offset of the slot's record; its first 8 bytes are the sequence."""
        return _RECORDS_AT + slot * _RECORD_STEP

    def pixels_at(self, slot: int) -> int:
        """Byte offset of the slot's pixels; for slot = slots, the size of the ring."""
        first = _pages(self.record_at(self.slots))
        return first + slot * _pages(self.frame_bytes)


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def pack_header(geometry: Geometry) -> bytes:
    """The header of a ring that this process writes."""
    header = _HEADER.pack(
        _MAGIC, VERSION, geometry.slots, geometry.height, geometry.width, geometry.size, os.getpid()
    )
    return header + _CHECK.pack(zlib.crc32(header))


def read_header(name: str, head: bytes, size: int) -> tuple[Geometry, int]:
    """The geometry and the writer's process id of a ring of `size` bytes that begins with `head`.

    Raises ValueError, one sentence, if it is not a ring, has another version, or is damaged.
    """
    if len(head) < _HEADER.size + _CHECK.size or head[: len(_MAGIC)] != _MAGIC:
        raise ValueError(f"ring {name!r} is not a ring: remove {segment_path(name)} and restart its camera")
    _, version, slots, height, width, whole, pid = _HEADER.unpack_from(head)
    if version != VERSION:
        raise ValueError(
            f"ring {name!r} has version {version}, this program reads version {VERSION}: run the camera and "
            "the engine from one release"
        )
    geometry = Geometry(slots, height, width)
    (check,) = _CHECK.unpack_from(head, _HEADER.size)
    if check != zlib.crc32(head[: _HEADER.size]) or not (slots and height and width):
        raise ValueError(f"ring {name!r} has a damaged header: restart its camera")
    if not size == whole == geometry.size:
        raise ValueError(
            f"ring {name!r} has {size} bytes, {slots} slots of {height} x {width} need {geometry.size}: "
            "restart its camera"
        )
    return geometry, pid


def pack_record(slot: int, sequence: int, stamp_ns: int, frame_bytes: int) -> bytes:
    """A slot's record for a complete frame."""
    record = _RECORD.pack(sequence, stamp_ns, frame_bytes, 0)[: -_CHECK.size]
    return record + _CHECK.pack(_check(slot, record))


def read_record(raw: bytes, slot: int, geometry: Geometry) -> Record | None:
    """Decode a slot's record; None if it holds no complete frame. raw: a copy of at least its bytes."""
    sequence, stamp_ns, frame_bytes, check = _RECORD.unpack_from(raw)
    if not sequence or sequence % 2:
        return None
    right = check == _check(slot, raw[: RECORD_BYTES - _CHECK.size])
    return Record(slot, sequence, stamp_ns, damaged=not right or frame_bytes != geometry.frame_bytes)


def _check(slot: int, record: bytes) -> int:
    """Checksum over the slot's number and its record, so that a record is valid only in its own slot."""
    return zlib.crc32(record, zlib.crc32(slot.to_bytes(4, "little")))


def ring_name(domain: int, namespace: str, camera: str) -> str:
    """The name of a camera's ring, such as d42.robot1.front; robots and domains of one host get different
    names."""
    return ".".join((f"d{domain}", *filter(None, namespace.split("/")), camera))


def fence() -> None:
    """A full memory fence: no memory access of this thread moves across it, as other threads see it.

    Taking and releasing a lock twice orders everything before the first release with everything after the
    second acquire: on x86 each is a locked instruction, on 64-bit Arm a later acquire never passes a release.
    The lock is a fresh one, so that neither another thread nor a fork can hold it.
    """
    lock = threading.Lock()
    for _ in range(2):
        lock.acquire()
        lock.release()


class RingWriter:
    """The only writer of a ring. It creates the ring, and removes it at `close` or when the process ends.

    name: letters, digits, '_', '-' and '.'. height, width: of every frame. slots: at least 2, see the module.
    clock: nanoseconds since the epoch; numbers the first frame, so that a handle of an earlier writer fits no
        frame of this one. Rings of dead writers, of this name or another, are removed; their readers find
        this ring by themselves. It writes by system calls, so that another process that truncates the ring
        cannot crash this one. Raises ValueError, one sentence, for an invalid name, size or number of slots,
        a living writer of that name, or too little shared memory.
    """

    def __init__(
        self, name: str, height: int, width: int, slots: int = 4, clock: Callable[[], int] = time.time_ns
    ):
        if slots < 2:
            raise ValueError(f"slots = {slots} leaves no room to write while one is read: give at least 2")
        if height < 1 or width < 1:
            raise ValueError(f"ring {name!r} is for frames of {height} x {width}: give at least one pixel")
        self.name = name
        self.geometry = geometry = Geometry(slots, height, width)
        try:
            self._segment = Segment(name, geometry.size, pack_header(geometry))
        except FileExistsError as error:
            raise ValueError(f"ring {name!r} {_holder(name)}: stop that, or choose another name") from error
        self._place = np.zeros((height, width, 3), np.uint8)
        self._writing = threading.Lock()
        self._number = clock()
        self._closed = False
        self.handle: Handle | None = None

    @contextmanager
    def slot(self, stamp_ns: int) -> Iterator[np.ndarray]:
        """A place to fill, uint8 [height, width, 3], published when the block ends without an exception.

        Do not touch it after the block, as the next frame uses the same memory. If the block raises, nothing
        is published. `handle` is then the published frame's. Raises RuntimeError if a slot is already being
        written.
        """
        with self._next(stamp_ns) as offset:
            yield self._place
            self._segment.write(offset, self._place)

    def write(self, image: np.ndarray, stamp_ns: int) -> Handle:
        """Copy a frame into the ring. image: uint8 [height, width, 3], RGB. Raises ValueError for any
        other."""
        height, width = self.geometry.height, self.geometry.width
        if image.shape != (height, width, 3) or image.dtype != np.uint8:
            raise ValueError(
                f"image is {image.dtype} {list(image.shape)}, ring {self.name!r} holds uint8 "
                f"[{height}, {width}, 3]: make a new ring for another size"
            )
        with self._next(stamp_ns) as offset:
            self._segment.write(offset, np.ascontiguousarray(image))
        assert self.handle is not None
        return self.handle

    def is_whole(self) -> bool:
        """Whether readers can still read it. False after another process has truncated it: make a new one."""
        return self._segment.is_whole()

    @contextmanager
    def _next(self, stamp_ns: int) -> Iterator[int]:
        """Byte offset of the next slot's pixels; the slot is published when the block ends without an
        exception."""
        if self._closed:
            raise ValueError(f"ring {self.name!r} is closed: make a new RingWriter")
        if not self._writing.acquire(blocking=False):
            raise RuntimeError(f"ring {self.name!r} is written by two threads: give each its own ring")
        try:
            # Writing would extend a truncated file again, but with other pages than the readers have mapped.
            if not self.is_whole():
                raise ValueError(
                    f"ring {self.name!r} was cut short by another process: make a new RingWriter"
                )
            slot = self._number % self.geometry.slots
            sequence = 2 * self._number + 2
            record = pack_record(slot, sequence, stamp_ns, self.geometry.frame_bytes)
            offset = self.geometry.record_at(slot)
            self._segment.write(offset, _WORD.pack(sequence - 1))
            fence()
            try:
                yield self.geometry.pixels_at(slot)
            except BaseException:
                self._segment.write(offset, _WORD.pack(0))
                raise
            self._segment.write(offset + _WORD.size, record[_WORD.size :])
            fence()
            self._segment.write(offset, _WORD.pack(sequence))
            self._number += 1
            self.handle = Handle(
                self.name, slot, sequence, stamp_ns, self.geometry.height, self.geometry.width
            )
        finally:
            self._writing.release()

    def close(self) -> None:
        """Remove the ring. Readers keep the frames that they have leased. A second call does nothing."""
        self._closed = True
        self._segment.close()

    def __enter__(self) -> RingWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _holder(name: str) -> str:
    """What is known about the process that holds the name."""
    try:
        _, pid = View(name, partial(read_header, name)).layout
        return f"is being written by process {pid}"
    except (OSError, ValueError):
        return f"cannot be made because {segment_path(name)} exists and is not ours"
