"""The other end of the rings: the frames of several cameras' processes as one FrameSource.

By default a frame is copied into this process, looked at again, and only then handed out, so its lease is as
good as any: what was overwritten during the copy is counted, tried again, and never seen. With copy=False the
leases are the shared memory itself, for whoever uploads or resizes straight from there; then the rule is to
use it, to ask `lease.intact()`, and to throw away what came of it when that says no. Whatever a reader does
or however it dies, the ring stays whole. A ring that is not there, is damaged, or is of another version is a
reason, not an exception, since its camera may be restarted at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

from vla_accel_ros.sensing.frames import Frame, FramePool, Lease, NotReady, together
from vla_accel_ros.sensing.ring import (
    ENCODING,
    RECORD_BYTES,
    Handle,
    Record,
    fence,
    read_header,
    read_record,
)
from vla_accel_ros.sensing.segment import View, has_cuda

_TRIES = 3
_COPIES = 4
_OVERTAKEN = NotReady("frames are overwritten while they are copied: give the ring more slots")


@dataclass(frozen=True)
class RingCounts:
    """overtaken: frames overwritten before they were used. damaged: records that no writer wrote.
    opened: rings; more than one when the camera was restarted."""

    overtaken: int = 0
    damaged: int = 0
    opened: int = 0


class RingLease(Lease):
    """Frames that lie in the rings. What is made of them counts only if they are `intact` afterwards."""

    def __init__(self, reader: RingReader, rings: Mapping[str, _Ring], chosen: Mapping[str, Record]):
        fence()
        self.frames = {
            camera: Frame(camera, record.stamp_ns, rings[camera].images[record.slot])
            for camera, record in chosen.items()
        }
        self.records = dict(chosen)
        self._reader, self._rings, self._intact = reader, dict(rings), True

    def intact(self) -> bool:
        """Whether the writers have left the frames alone so far; once False, always False."""
        if self._intact:
            fence()
            lost = [name for name, record in self.records.items() if not self._rings[name].holds(record)]
            self._intact = not lost
            self._reader._overtaken(lost)
        return self._intact

    def release(self) -> None:
        """Nothing: the writers never waited for this lease."""


class RingReader:
    """A FrameSource over rings of other processes. Any threads.

    rings: camera -> the name of its ring, which need not be there yet. copy: see the module. page_lock: have,
    where there is CUDA, page-locked memory under the leases.
    """

    def __init__(self, rings: Mapping[str, str], copy: bool = True, page_lock: bool = True):
        self._names = dict(rings)
        self._cameras = {name: camera for camera, name in rings.items()}
        self._copy, self._page_lock = copy, page_lock
        self._pool = FramePool(rings, _COPIES, page_lock=page_lock)
        self._copied: dict[str, Record] = {}
        self._rings: dict[str, _Ring] = {}
        self._counts = dict.fromkeys(rings, RingCounts())
        self._lock = threading.RLock()

    def newest(self, camera: str) -> Lease | None:
        """The newest frame of one camera, None when there is none; `newest_set` says why."""
        lease = self.newest_set((camera,), 0.0)
        return None if isinstance(lease, NotReady) else lease

    def newest_set(self, cameras: Sequence[str], max_skew_s: float) -> Lease | NotReady:
        """The newest frames of all the cameras whose stamps are at most max_skew_s apart.

        NotReady, too, when a ring is missing or unusable, and when frames are overwritten faster than copied.
        """
        with self._lock:
            for _ in range(_TRIES):
                lease = self._newest_set(cameras, max_skew_s)
                if isinstance(lease, NotReady) or not self._copy:
                    return lease
                copied = self._copy_of(lease)
                if copied is not _OVERTAKEN:
                    return copied
        return _OVERTAKEN

    def take(self, handle: Handle) -> Lease | NotReady:
        """The very frame of a handle, or why it cannot be had (any more)."""
        with self._lock:
            camera = self._cameras.get(handle.ring)
            if camera is None:
                return NotReady(f"a handle is of ring {handle.ring!r}, which no camera here has")
            ring = self._ring(camera)
            if isinstance(ring, NotReady):
                return ring
            size = (ring.geometry.height, ring.geometry.width, ENCODING)
            if (handle.height, handle.width, handle.encoding) != size:
                return NotReady(
                    f"a handle is of a {handle.height} x {handle.width} {handle.encoding} frame, ring "
                    f"{handle.ring!r} holds {size[0]} x {size[1]} {ENCODING}: the camera was restarted"
                )
            record = Record(handle.slot, handle.sequence, handle.stamp_ns)
            if 0 <= handle.slot < ring.geometry.slots and ring.record(handle.slot) == record:
                lease = RingLease(self, {camera: ring}, {camera: record})
                return self._copy_of(lease) if self._copy else lease
            self._overtaken([camera])
        return NotReady(f"a handle's frame is no longer in ring {handle.ring!r}: it was taken too late")

    def counts(self, camera: str) -> RingCounts:
        """What has become of this camera's frames so far."""
        return self._counts[camera]

    def dropped(self, camera: str) -> int:
        """How many of a camera's frames were found but could not be used."""
        counts = self._counts[camera]
        return counts.overtaken + counts.damaged + self._pool.dropped(camera)

    def clear(self) -> None:
        """Forget all frames, as after a clock jump. Leases stay good."""
        with self._lock:
            for camera in self._names:
                ring = self._ring(camera)
                if isinstance(ring, _Ring):
                    ring.clear()

    def close(self) -> None:
        """Let go of the rings; each is unmapped with the last lease of its frames."""
        with self._lock:
            self._rings.clear()

    def __enter__(self) -> RingReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _newest_set(self, cameras: Sequence[str], max_skew_s: float) -> RingLease | NotReady:
        rings = {}
        for camera in cameras:
            ring = self._ring(camera)
            if isinstance(ring, NotReady):
                return ring
            rings[camera] = ring
        published = {camera: ring.published() for camera, ring in rings.items()}
        for camera, ring in rings.items():
            self._count(camera, damaged=ring.take_damaged())
        chosen = together(published, max_skew_s)
        return chosen if isinstance(chosen, NotReady) else RingLease(self, rings, chosen)

    def _ring(self, camera: str) -> _Ring | NotReady:
        """The ring that now has the camera's name; opened again when that is another than last time."""
        ring = self._rings.get(camera)
        if ring is not None and ring.is_current():
            return ring
        self._rings.pop(camera, None)
        name = self._names[camera]
        try:
            ring = self._rings[camera] = _Ring(name, self._page_lock)
        except FileNotFoundError:
            return NotReady(f"camera {camera}: ring {name!r} is not there: start its camera")
        except OSError as error:
            return NotReady(
                f"camera {camera}: ring {name!r} cannot be read ({error.strerror}): run the camera and the "
                "engine as one user"
            )
        except ValueError as error:
            return NotReady(f"camera {camera}: {error}")
        self._count(camera, opened=1)
        return ring

    def _copy_of(self, lease: RingLease) -> Lease | NotReady:
        """The frames of a lease in memory of our own; _OVERTAKEN when they were overwritten meanwhile."""
        cameras = tuple(lease.frames)
        new = {
            camera: record for camera, record in lease.records.items() if self._copied.get(camera) != record
        }
        try:
            with ExitStack() as writing:
                for camera in new:
                    frame = lease.frames[camera]
                    height, width, _ = frame.image.shape
                    place = writing.enter_context(self._pool.write(camera, frame.stamp_ns, height, width))
                    if place is None:
                        raise _NotCopied(
                            NotReady(f"camera {camera}: {_COPIES} leases are open: release some")
                        )
                    np.copyto(place, frame.image)
                if not lease.intact():
                    raise _NotCopied(_OVERTAKEN)
        except _NotCopied as why:
            return why.reason
        self._copied.update(new)
        return self._pool.newest_set(cameras, float("inf"))

    def _overtaken(self, cameras: Iterable[str]) -> None:
        for camera in cameras:
            self._count(camera, overtaken=1)

    def _count(self, camera: str, overtaken: int = 0, damaged: int = 0, opened: int = 0) -> None:
        if not (overtaken or damaged or opened):
            return
        with self._lock:
            old = self._counts[camera]
            self._counts[camera] = RingCounts(
                old.overtaken + overtaken, old.damaged + damaged, old.opened + opened
            )


class _NotCopied(Exception):
    """Ends the writing of copies, so that none of them is published."""

    def __init__(self, reason: NotReady):
        self.reason = reason


class _Ring:
    """One ring, mapped. Raises as View and read_header do."""

    def __init__(self, name: str, page_lock: bool):
        self._view = View(name, partial(read_header, name), writable=page_lock and has_cuda())
        self.geometry, _ = self._view.layout
        self._memory = self._view.mapping
        self.page_locked = page_lock and self._memory.page_lock()
        self._words = memoryview(self._memory).cast("Q")  # a word is loaded by one instruction
        self.images = [self.geometry.image(self._memory, slot) for slot in range(self.geometry.slots)]
        for image in self.images:
            image.setflags(write=False)
        self._cleared = 0
        self._damage: dict[int, bytes] = {}
        self._new_damage = 0

    def is_current(self) -> bool:
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
