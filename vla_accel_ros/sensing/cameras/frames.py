"""Where camera frames live between the subscription and the engine.

Every camera has a few slots that are allocated once and, with a GPU, page-locked, so that the upload is one
DMA without a staging copy. A writer fills a slot that nobody reads and then publishes it. Readers lease the
newest frame, and the writer leaves leased slots alone, so no reader sees parts of two frames. When all slots
are leased the frame is dropped and counted: the camera never waits. A shared-memory ring is also a
`FrameSource`, and so is a combination of several sources. If all cameras that are asked for are in one
source, that source chooses the set. Across sources the rule is the same: the newest frame of each camera, or
else the frames taken nearest to the slowest camera's newest.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np

from vla_accel_ros.sensing.cameras.history import Past, S, Stamped, nearest_of

JUMP_NS = 500_000_000
"""A stamp that is earlier by this is of a clock that was set back; by less, of a late frame."""


@dataclass(frozen=True)
class Frame:
    """One picture. image: uint8 [H, W, 3], RGB, read-only. stamp_ns: its capture time."""

    camera: str
    stamp_ns: int
    image: np.ndarray


@dataclass(frozen=True)
class NotReady:
    """One sentence that says why there is nothing to work on."""

    reason: str


class Lease:
    """Frames that are not overwritten before `release`, which the end of a `with` block calls."""

    def __init__(self, frames: Mapping[str, Frame], slots: Sequence[_Slot], lock: threading.Lock):
        self.frames = frames
        self._slots, self._lock = tuple(slots), lock

    def intact(self) -> bool:
        """Whether the frames are still those that were leased: always true, unless a subclass says
        otherwise."""
        return True

    def release(self) -> None:
        """Give the slots back to the writer. A second call does nothing."""
        with self._lock:
            for slot in self._slots:
                slot.readers -= 1
            self._slots = ()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class FrameSource(Protocol):
    """A source of frames: this process's pool, or a ring shared with the camera's process."""

    def newest(self, camera: str) -> Lease | None:
        """The newest frame of one camera, None before the first."""
        ...

    def nearest(self, camera: str, stamp_ns: int) -> Lease | None:
        """The camera's frame taken nearest to that time; None before the first."""
        ...

    def newest_set(self, cameras: Sequence[str], max_skew_s: float) -> Lease | NotReady:
        """The newest frames of all these cameras that belong together, or why there are none."""
        ...


@dataclass(eq=False)
class _Slot:
    image: np.ndarray
    stamp_ns: int = 0
    number: int = 0
    readers: int = 0
    writing: bool = False


@dataclass
class _Camera:
    slots: list[_Slot] = field(default_factory=list)
    dropped: int = 0

    def published(self) -> list[_Slot]:
        """Complete frames, newest arrival first."""
        done = (slot for slot in self.slots if slot.number and not slot.writing)
        return sorted(done, key=lambda slot: -slot.number)


class FramePool:
    """Slots of several cameras. One writer per camera, any number of readers, from any threads.

    slots: per camera; 2 + the number of simultaneous leases never drops a frame. page_lock: page-lock them
    where CUDA is available. past: by camera; a lease of its frame has the earlier ones by image, or none.
    """

    def __init__(
        self,
        cameras: Iterable[str],
        slots: int = 4,
        page_lock: bool = True,
        past: Mapping[str, Past] = MappingProxyType({}),
    ):
        self._cameras = {name: _Camera() for name in cameras}
        self._slots, self._page_lock, self._past = slots, page_lock, past
        self._lock = threading.Lock()
        self._written = 0

    @contextmanager
    def write(self, camera: str, stamp_ns: int, height: int, width: int) -> Iterator[np.ndarray | None]:
        """A slot to fill, uint8 [height, width, 3], published when the block ends without an exception.

        None if every slot is leased: the frame must be dropped, and is counted. If the block raises, nothing
        is published. A camera's first frame, and one of another size, allocates that camera's slots.
        """
        slot = self._acquire(camera, height, width)
        try:
            yield None if slot is None else slot.image
        except BaseException:
            if slot is not None:
                with self._lock:
                    slot.number, slot.writing = 0, False
            raise
        if slot is not None:
            with self._lock:
                self._written += 1
                slot.stamp_ns, slot.number, slot.writing = stamp_ns, self._written, False
                if camera in self._past:
                    self._forget_before_jump(camera, stamp_ns)

    def newest(self, camera: str) -> Lease | None:
        """The newest frame of one camera, None before the first."""
        with self._lock:
            published = self._cameras[camera].published()
            return self._lease({camera: published[0]}) if published else None

    def nearest(self, camera: str, stamp_ns: int) -> Lease | None:
        """The frame taken nearest to that time; None before the first."""
        with self._lock:
            published = self._cameras[camera].published()
            return self._lease({camera: nearest_of(published, stamp_ns)}) if published else None

    def newest_set(self, cameras: Sequence[str], max_skew_s: float) -> Lease | NotReady:
        """The newest frames of all these cameras, with stamps at most max_skew_s apart.

        If the newest frames are further apart, those nearest to the slowest camera's newest are tried.
        """
        with self._lock:
            published = {camera: self._cameras[camera].published() for camera in cameras}
            frame_set = together(published, max_skew_s)
            return frame_set if isinstance(frame_set, NotReady) else self._lease(frame_set)

    def dropped(self, camera: str) -> int:
        """Number of a camera's frames that were dropped because all slots were leased."""
        return self._cameras[camera].dropped

    def clear(self) -> None:
        """Forget all frames, as after a clock jump. Leases stay valid."""
        with self._lock:
            for camera in self._cameras.values():
                for slot in camera.slots:
                    slot.number = 0

    def _acquire(self, camera: str, height: int, width: int) -> _Slot | None:
        """The slot of the oldest frame without readers, but never the newest complete one; None, and counted,
        if there is no such slot."""
        slots_of = self._cameras[camera]
        if not slots_of.slots or slots_of.slots[0].image.shape != (height, width, 3):
            count = self._slots + (self._past[camera].kept if camera in self._past else 0)
            slots = [_Slot(_allocate((height, width, 3), self._page_lock)) for _ in range(count)]
            with self._lock:
                slots_of.slots = slots
        with self._lock:
            newest = slots_of.published()[:1]
            free = [s for s in slots_of.slots if not s.readers and not s.writing and s not in newest]
            if not free:
                slots_of.dropped += 1
                return None
            slot = min(free, key=lambda slot: slot.number)
            slot.writing = True
            return slot

    def _forget_before_jump(self, camera: str, stamp_ns: int) -> None:
        """Forget all but the newest arrival, of this stamp, if the camera's clock was set back before it."""
        _, *others = self._cameras[camera].published()
        if any(slot.stamp_ns - stamp_ns >= JUMP_NS for slot in others):
            for slot in others:
                slot.number = 0

    def _lease(self, chosen: Mapping[str, _Slot]) -> Lease:
        slots = dict(chosen)
        for camera in self._past.keys() & chosen.keys():
            published = self._cameras[camera].published()
            slots |= self._past[camera].of_frames(published, chosen[camera].stamp_ns)
        for slot in slots.values():
            slot.readers += 1
        frames = {}
        for name, slot in slots.items():
            image = slot.image.view()
            image.setflags(write=False)
            frames[name] = Frame(name, slot.stamp_ns, image)
        return Lease(frames, list(slots.values()), self._lock)


class JoinedLease(Lease):
    """Leases of several cameras as one."""

    def __init__(self, leases: Sequence[Lease]):
        self.frames = {camera: frame for lease in leases for camera, frame in lease.frames.items()}
        self._leases = tuple(leases)

    def intact(self) -> bool:
        """Whether all leases are intact; asks each of them, because each counts its own losses."""
        answers = [lease.intact() for lease in self._leases]
        return all(answers)

    def release(self) -> None:
        """Release all leases."""
        for lease in self._leases:
            lease.release()


class Sources:
    """Several FrameSources as one. source_of: camera -> its source."""

    def __init__(self, source_of: Mapping[str, FrameSource]):
        self._of = dict(source_of)

    def newest(self, camera: str) -> Lease | None:
        """The newest frame of one camera; None if there is none."""
        return self._of[camera].newest(camera)

    def nearest(self, camera: str, stamp_ns: int) -> Lease | None:
        """The camera's frame taken nearest to that time; None if there is none."""
        return self._of[camera].nearest(camera, stamp_ns)

    def newest_set(self, cameras: Sequence[str], max_skew_s: float) -> Lease | NotReady:
        """The newest frames of all these cameras, with stamps at most max_skew_s apart, or why there are
        none."""
        first = self._of[cameras[0]]
        if all(self._of[camera] is first for camera in cameras):
            return first.newest_set(cameras, max_skew_s)
        leases: dict[str, Lease] = {}
        for camera in cameras:
            newest = self._of[camera].newest_set((camera,), max_skew_s)
            if isinstance(newest, NotReady):
                JoinedLease(list(leases.values())).release()
                return newest
            leases[camera] = newest
        if isinstance(_chosen(leases, max_skew_s), NotReady):
            slowest_ns = min(lease.frames[camera].stamp_ns for camera, lease in leases.items())
            for camera, newest in leases.items():
                leases[camera] = self.nearest(camera, slowest_ns) or newest
                if leases[camera] is not newest:
                    newest.release()
        joined, frame_set = JoinedLease(list(leases.values())), _chosen(leases, max_skew_s)
        if isinstance(frame_set, NotReady):
            joined.release()
            return frame_set
        return joined


def together(published: Mapping[str, Sequence[S]], max_skew_s: float) -> dict[str, S] | NotReady:
    """Choose one frame of each camera, at most max_skew_s apart. published: camera -> frames, newest
    first."""
    missing = [camera for camera, frames in published.items() if not frames]
    if missing:
        return NotReady(f"no frame of camera {', '.join(missing)} yet")
    frame_of = {camera: frames[0] for camera, frames in published.items()}
    if _skew_s(frame_of) > max_skew_s:
        slowest = min(frame.stamp_ns for frame in frame_of.values())
        frame_of = {camera: nearest_of(frames, slowest) for camera, frames in published.items()}
    skew_s = _skew_s(frame_of)
    if skew_s > max_skew_s:
        first = min(frame_of, key=lambda camera: frame_of[camera].stamp_ns)
        last = max(frame_of, key=lambda camera: frame_of[camera].stamp_ns)
        return NotReady(
            f"camera {first} is {skew_s:.3f} s behind camera {last}, max_skew_s allows {max_skew_s:g}"
        )
    return frame_of


def _chosen(leases: Mapping[str, Lease], max_skew_s: float) -> dict[str, Frame] | NotReady:
    return together({camera: (lease.frames[camera],) for camera, lease in leases.items()}, max_skew_s)


def _skew_s(chosen: Mapping[str, Stamped]) -> float:
    stamps = [frame.stamp_ns for frame in chosen.values()]
    return (max(stamps) - min(stamps)) * 1e-9


def _allocate(shape: tuple[int, int, int], page_lock: bool) -> np.ndarray:
    """uint8 memory, page-locked if that is wanted and there is a CUDA device."""
    if page_lock:
        try:
            import torch
        except ImportError:
            return np.zeros(shape, np.uint8)
        if torch.cuda.is_available():
            return torch.zeros(shape, dtype=torch.uint8, pin_memory=True).numpy()
    return np.zeros(shape, np.uint8)
