"""The reading end of the rings: the frames of several cameras' processes as one FrameSource.

A frame is copied into this process, checked again, and only then handed out, so its lease is as good as any.
A frame that was overwritten during the copy is counted and the copy is tried again. Where CUDA has
page-locked the ring, a lease may be the shared memory itself, for an upload straight from there. The rule is
then to use it, to call `lease.intact()`, and to discard the result if that returns False. Whatever a reader
does or however it dies, the ring stays whole; whatever happens to the ring, the reader goes on. A ring that
is missing, damaged, truncated, another user's, or of another version gives a reason, not an exception, since
its camera may be restarted at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial

from vla_accel_ros.engine.stages.memory.host_memory import PageLock
from vla_accel_ros.sensing.cameras.frames import Frame, FramePool, Lease, NotReady, together
from vla_accel_ros.sensing.cameras.history import nearest_of
from vla_accel_ros.sensing.cameras.ring import ENCODING, Handle, Record, fence
from vla_accel_ros.sensing.cameras.ring_view import OpenRing
from vla_accel_ros.sensing.segment import segment_path
from vla_accel_ros.types import Torn

Choice = Callable[[Mapping[str, Sequence[Record]]], "dict[str, Record] | NotReady"]

_TRIES = 3
_COPIES = 4
_OVERTAKEN = NotReady("frames are overwritten while they are copied: give the ring more slots")


@dataclass(frozen=True)
class RingCounts:
    """overtaken: frames overwritten before they were used. damaged: invalid records. opened: rings; more than
    one if the camera was restarted."""

    overtaken: int = 0
    damaged: int = 0
    opened: int = 0


class RingLease(Lease):
    """Frames that lie in the rings. A result made from them is valid only if they are `intact` afterwards.

    frames: those of the cameras whose rings are mapped.
    """

    def __init__(self, reader: RingReader, rings: Mapping[str, OpenRing], chosen: Mapping[str, Record]):
        fence()
        self.frames = {
            camera: Frame(camera, record.stamp_ns, rings[camera].images[record.slot])
            for camera, record in chosen.items()
            if rings[camera].images
        }
        self.records = dict(chosen)
        self.rings = dict(rings)
        self._reader, self._intact = reader, True

    def intact(self) -> bool:
        """Whether the writers have left the frames alone so far; once False, always False."""
        if self._intact:
            fence()
            lost = [name for name, record in self.records.items() if not self.rings[name].holds(record)]
            self._intact = not lost
            self._reader._overtaken(lost)
        return self._intact

    def release(self) -> None:
        """Does nothing: the writers never wait for this lease."""


class RingReader:
    """A FrameSource over rings of other processes. Safe to use from several threads.

    rings: camera -> the name of its ring, which need not exist yet; empty until `hear` gives it. copy: None
    copies unless CUDA has page-locked the ring. False never copies; the caller must then be sure that nobody
    truncates a ring, which would raise SIGBUS here. page_lock: use page-locked memory where CUDA is
    available.
    """

    def __init__(self, rings: Mapping[str, str], copy: bool | None = None, page_lock: bool = True):
        self._names = dict(rings)
        self._cameras = {name: camera for camera, name in rings.items() if name}
        self._copy, self._page_lock = copy, page_lock
        self._pool = FramePool(rings, _COPIES, page_lock=page_lock)
        self._copied: dict[str, Record] = {}
        self._rings: dict[str, OpenRing] = {}
        self._counts = dict.fromkeys(rings, RingCounts())
        self._lock = threading.RLock()

    @property
    def cameras(self) -> Collection[str]:
        """The cameras whose frames it reads."""
        return self._names.keys()

    def follow(self, camera: str, name: str) -> None:
        """Read the camera's frames from this ring from now on. Raises ValueError, one sentence, for an
        invalid name or another camera's ring."""
        if self._names[camera] == name:
            return
        segment_path(name)
        with self._lock:
            owner = self._cameras.get(name, camera)
            if owner != camera:
                raise ValueError(f"ring {name!r} is camera {owner}'s already: give each camera its own")
            self._cameras.pop(self._names[camera], None)
            self._rings.pop(camera, None)
            self._names[camera], self._cameras[name] = name, camera

    def newest(self, camera: str) -> Lease | None:
        """The newest frame of one camera; None if there is none (`newest_set` says why)."""
        lease = self.newest_set((camera,), 0.0)
        return None if isinstance(lease, NotReady) else lease

    def nearest(self, camera: str, stamp_ns: int) -> Lease | None:
        """The frame taken nearest to that time; None if there is none."""

        def choose(published: Mapping[str, Sequence[Record]]) -> dict[str, Record] | NotReady:
            frames = published[camera]
            return {camera: nearest_of(frames, stamp_ns)} if frames else NotReady("no frame yet")

        lease = self._lease((camera,), choose)
        return None if isinstance(lease, NotReady) else lease

    def newest_set(self, cameras: Sequence[str], max_skew_s: float) -> Lease | NotReady:
        """The newest frames of all these cameras, with stamps at most max_skew_s apart.

        NotReady also if a ring is missing or unusable, or if frames are overwritten faster than they are
        copied.
        """
        return self._lease(cameras, partial(together, max_skew_s=max_skew_s))

    def hear(self, camera: str, handle: Handle) -> bool:
        """A handle has arrived: follow its ring. Returns whether its frame is there; if it is already gone,
        it is counted as overtaken.

        Raises ValueError, one sentence, for a handle whose ring cannot be read here.
        """
        self.follow(camera, handle.ring)
        with self._lock:
            return self._find(camera, handle) is not None

    def keep(self, camera: str, handle: Handle, pool: FramePool) -> None:
        """`hear`, and copy the frame into a pool, unless it is overwritten meanwhile."""
        lease = self.take(handle) if self.hear(camera, handle) else _OVERTAKEN
        if isinstance(lease, NotReady):
            return
        pixels = lease.frames[camera].image
        with suppress(Torn), lease, pool.write(camera, handle.stamp_ns, *pixels.shape[:2]) as slot:
            if slot is not None:
                slot[:] = pixels
                if not lease.intact():
                    raise Torn

    def take(self, handle: Handle) -> Lease | NotReady:
        """The frame of this handle, or why it is not available (any more)."""
        with self._lock:
            camera = self._cameras.get(handle.ring)
            if camera is None:
                return NotReady(f"a handle names ring {handle.ring!r}, which belongs to no camera here")
            try:
                lease = self._find(camera, handle)
            except ValueError as reason:
                return NotReady(str(reason))
            if lease is not None:
                return self._copy_of(lease) if self._copies(lease) else lease
        return NotReady(f"a handle's frame is no longer in ring {handle.ring!r}: it was taken too late")

    def page_lock(self, camera: str) -> PageLock:
        """Whether CUDA has page-locked the camera's ring, or why not."""
        with self._lock:
            ring = self._rings.get(camera)
        return PageLock("no ring yet") if ring is None else ring.page_lock

    def counts(self, camera: str) -> RingCounts:
        """The counts of this camera's frames so far."""
        return self._counts[camera]

    def dropped(self, camera: str) -> int:
        """Number of a camera's frames that were found but could not be used."""
        counts = self._counts[camera]
        return counts.overtaken + counts.damaged + self._pool.dropped(camera)

    def clear(self) -> None:
        """Forget all frames, as after a clock jump. Leases stay valid."""
        with self._lock:
            for camera in self._names:
                ring = self._ring(camera)
                if isinstance(ring, OpenRing):
                    ring.clear()

    def close(self) -> None:
        """Release the rings; each is unmapped with the last lease of its frames."""
        with self._lock:
            self._rings.clear()

    def __enter__(self) -> RingReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lease(self, cameras: Sequence[str], choose: Choice) -> Lease | NotReady:
        """The chosen frames, copied if necessary."""
        with self._lock:
            for _ in range(_TRIES):
                lease = self._in_place(cameras, choose)
                if isinstance(lease, NotReady) or not self._copies(lease):
                    return lease
                copied = self._copy_of(lease)
                if copied is not _OVERTAKEN:
                    return copied
        return _OVERTAKEN

    def _copies(self, lease: RingLease) -> bool:
        """Whether to copy a lease's frames: because it was asked for, or because a ring is not
        page-locked."""
        if self._copy is not None:
            return self._copy
        return not all(ring.page_lock.locked for ring in lease.rings.values())

    def _in_place(self, cameras: Sequence[str], choose: Choice) -> RingLease | NotReady:
        rings = {}
        for camera in cameras:
            ring = self._ring(camera)
            if isinstance(ring, NotReady):
                return ring
            rings[camera] = ring
        published = {camera: ring.published() for camera, ring in rings.items()}
        for camera, ring in rings.items():
            self._count(camera, damaged=ring.take_damaged())
        record_of = choose(published)
        return record_of if isinstance(record_of, NotReady) else RingLease(self, rings, record_of)

    def _ring(self, camera: str) -> OpenRing | NotReady:
        """The ring that has the camera's name now; opened again if it is another one than last time."""
        ring = self._rings.get(camera)
        if ring is not None and ring.is_current():
            return ring
        self._rings.pop(camera, None)
        name = self._names[camera]
        if not name:
            return NotReady(f"no frame handle of camera {camera} yet")
        try:
            ring = self._rings[camera] = OpenRing(
                name, self._page_lock and self._copy is not True, self._copy is False
            )
        except FileNotFoundError:
            return NotReady(f"camera {camera}: ring {name!r} does not exist: start its camera")
        except OSError as error:
            return NotReady(
                f"camera {camera}: ring {name!r} cannot be read ({error.strerror}): run the camera and the "
                "engine as one user"
            )
        except ValueError as error:
            return NotReady(f"camera {camera}: {error}")
        self._count(camera, opened=1)
        return ring

    def _find(self, camera: str, handle: Handle) -> RingLease | None:
        """The handle's frame in place; None, and counted, if it is gone. Raises ValueError, see `hear`."""
        ring = self._ring(camera)
        if isinstance(ring, NotReady):
            raise ValueError(ring.reason.removeprefix(f"camera {camera}: "))
        size = (ring.geometry.height, ring.geometry.width, ENCODING)
        if (handle.height, handle.width, handle.encoding) != size:
            raise ValueError(
                f"a handle describes a {handle.height} x {handle.width} {handle.encoding} frame, ring "
                f"{handle.ring!r} holds {size[0]} x {size[1]} {ENCODING}: the camera was restarted"
            )
        record = Record(handle.slot, handle.sequence, handle.stamp_ns)
        if 0 <= handle.slot < ring.geometry.slots and ring.record(handle.slot) == record:
            return RingLease(self, {camera: ring}, {camera: record})
        self._overtaken([camera])
        return None

    def _copy_of(self, lease: RingLease) -> Lease | NotReady:
        """The frames of a lease in this process's memory; _OVERTAKEN if they were overwritten meanwhile."""
        cameras = tuple(lease.records)
        new = {
            camera: record for camera, record in lease.records.items() if self._copied.get(camera) != record
        }
        try:
            with ExitStack() as writing:
                for camera, record in new.items():
                    ring = lease.rings[camera]
                    size = (ring.geometry.height, ring.geometry.width)
                    pixels = writing.enter_context(self._pool.write(camera, record.stamp_ns, *size))
                    if pixels is None:
                        raise _NotCopied(
                            NotReady(f"camera {camera}: {_COPIES} leases are open: release some")
                        )
                    if not ring.copy(record.slot, pixels):
                        raise _NotCopied(NotReady(f"camera {camera}: {self._cut(camera)}"))
                if not lease.intact():
                    raise _NotCopied(_OVERTAKEN)
        except _NotCopied as why:
            return why.reason
        self._copied.update(new)
        return self._pool.newest_set(cameras, float("inf"))

    def _cut(self, camera: str) -> str:
        return f"ring {self._names[camera]!r} was cut short by another process: restart its camera"

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
