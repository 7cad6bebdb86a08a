"""Named shared memory that a crash on either side neither breaks nor leaks.

A segment is a file in /dev/shm, where Linux keeps POSIX shared memory. It is created without a name, filled,
locked, and only then linked to its name, so nobody ever opens an incomplete segment. The lock shows that the
writer lives: the kernel drops it however the writer ends, while a process id may be reused or mean nothing in
another container. A process that creates a segment first removes those that nobody locks. Readers lock
nothing and own nothing; what they have opened stays readable after the name is gone.

/dev/shm is open to everybody. A segment counts only if it is a plain file of this user or root that nobody
else may write. Any process of this user may truncate it, which makes every access to the missing part of its
mapping a SIGBUS. So both sides read and write it by system calls, which return a short count instead. It is
mapped only for CUDA, whose page-lock keeps the pages whatever becomes of the file.

multiprocessing.shared_memory is not used: before Python 3.13 its resource tracker unlinks the writer's
segment when a reader ends, it shows a segment before it is filled, and has no descriptor to lock.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import stat
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np

from vla_accel_ros.engine.stages.memory.host_memory import PageLock, Registration

T = TypeVar("T")
FOLDER = Path("/dev/shm")
PREFIX = "vla_accel_ros.ring."
_AGAIN = os.O_CLOEXEC | os.O_NONBLOCK
_OPEN = _AGAIN | os.O_NOFOLLOW
_TRIES = 100


class Mapping(mmap.mmap):
    """Shared memory that stays mapped, and page-locked, until the last array over it is gone."""

    _registration: Registration | None = None

    def page_lock(self) -> PageLock:
        """Page-lock it for CUDA if possible; returns the outcome."""
        if self._registration is None:
            self._registration = Registration(np.frombuffer(self, np.uint8).ctypes.data, len(self))
        return self._registration.lock

    def __del__(self) -> None:
        if self._registration is not None:  # still mapped here; in a weakref's callback it is not
            self._registration.end()


class Segment:
    """A segment that this process writes, from construction to `close` or the end of the process.

    name: letters, digits, '_', '-' and '.'. size: bytes, allocated at once. head: its first bytes, written
    before it gets its name; the rest is zero. Raises ValueError for a bad name or too little memory,
    FileExistsError if a living writer has the name.
    """

    def __init__(self, name: str, size: int, head: bytes):
        self.path = segment_path(name)
        self._size = size
        nameless = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            _allocate(nameless, size, self.path)
            os.pwrite(nameless, head, 0)
            # A descriptor apart from the linked one: a forked child must not keep the lock.
            self._file = os.open(f"/proc/self/fd/{nameless}", os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._finalizer = weakref.finalize(self, _remove, self.path, self._file)
            try:
                _publish(nameless, self.path)
            except BaseException:
                self.close()
                raise
        finally:
            os.close(nameless)
        _SEGMENTS.add(self)

    def write(self, offset: int, data: bytes | np.ndarray) -> None:
        """Write bytes at an offset."""
        unwritten = memoryview(cast(Any, data)).cast("B")
        while len(unwritten):
            written = os.pwrite(self._file, unwritten, offset)
            offset, unwritten = offset + written, unwritten[written:]

    def is_whole(self) -> bool:
        """Whether no other process has truncated it or freed a part of its memory."""
        return _is_whole(os.fstat(self._file), self._size)

    def close(self) -> None:
        """Remove the name; processes that have it open may read on. A second call does nothing."""
        self._finalizer()

    def disown(self) -> None:
        """Leave name and lock to the process from which this one was forked."""
        if self._finalizer.detach() is not None:
            os.close(self._file)


class View(Generic[T]):
    """A segment at the reader, found by name.

    accept: gets the first bytes (at most a page) and the size of the file, returns their meaning, and raises
    if the segment must not be read. layout: the result of accept. what, writer: the segment and its writer,
    as error messages name them. Raises FileNotFoundError if the name does not exist, OSError if it may not be
    read, ValueError, one sentence, if another user owns it or may write it, or if it is truncated.
    """

    def __init__(
        self, name: str, accept: Callable[[bytes, int], T], what: str = "ring", writer: str = "camera"
    ):
        self._name, self._path = name, segment_path(name)
        self._file = os.open(self._path, os.O_RDONLY | _OPEN)
        weakref.finalize(self, os.close, self._file)
        self._status = os.fstat(self._file)
        _refuse_foreign(name, self._status, what, writer)
        self.layout = accept(os.pread(self._file, mmap.PAGESIZE, 0), self._status.st_size)
        if not _is_whole(self._status, self._status.st_size):
            raise ValueError(f"{what} {name!r} was cut short by another process: restart its {writer}")

    def read(self, at: int, size: int) -> bytes:
        """A copy of `size` bytes; fewer if the file is truncated."""
        return os.pread(self._file, size, at)

    def read_into(self, offset: int, place: np.ndarray) -> bool:
        """Copy into a contiguous array; False if the file is truncated."""
        unread = memoryview(cast(Any, place)).cast("B")
        while len(unread):
            read = os.preadv(self._file, [unread], offset)
            if not read:
                return False
            offset, unread = offset + read, unread[read:]
        return True

    def map(self, writable: bool = False) -> Mapping:
        """Map the memory itself, to be page-locked, or for a caller who is sure that nobody truncates it.

        Read-only unless `writable`, which is for page-locking: CUDA does not take read-only memory
        everywhere.
        """
        descriptor = os.open(f"/proc/self/fd/{self._file}", (os.O_RDWR if writable else os.O_RDONLY) | _AGAIN)
        try:
            protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            return Mapping(descriptor, self._status.st_size, flags=flags, prot=protection)
        finally:
            os.close(descriptor)

    def has_writer(self) -> bool:
        """Whether the process that created it lives and has not closed it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return False

    def is_current(self) -> bool:
        """Whether the name still leads to this memory, all of it. False after the writer has closed it, a new
        one was created, or another process truncated it."""
        try:
            status = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(status, self._status) and _is_whole(status, self._status.st_size)


def segment_path(name: str) -> Path:
    """The file of the segment with that name. Raises ValueError for an invalid name."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name):
        raise ValueError(
            f"ring name {name!r} is invalid: use up to 128 letters, digits, '_', '-' and '.', such as "
            "'robot1.front'"
        )
    return FOLDER / f"{PREFIX}{name}"


def _refuse_foreign(name: str, status: os.stat_result, what: str, writer: str) -> None:
    """Raises ValueError unless only this user and root can have written the file."""
    remedy = f"remove {segment_path(name)} and restart its {writer}"
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{what} {name!r} is not a plain file: {remedy}")
    if status.st_uid not in (os.geteuid(), 0):
        raise ValueError(
            f"{what} {name!r} belongs to user {status.st_uid} and not to us, user {os.geteuid()}: run the "
            f"{writer} and the engine as one user"
        )
    if status.st_mode & 0o022:
        raise ValueError(
            f"{what} {name!r} may be written by other users (mode {status.st_mode & 0o777:o}): {remedy}"
        )


def _is_whole(status: os.stat_result, size: int) -> bool:
    """Whether the file has its size and memory behind all of it; one that was truncated and extended has
    not."""
    return status.st_size == size and 512 * status.st_blocks >= size


def remove_abandoned() -> list[Path]:
    """Remove this user's segments whose writers are dead; returns their paths."""
    removed = []
    for path in FOLDER.glob(f"{PREFIX}*"):
        try:
            descriptor = os.open(path, os.O_RDWR | _OPEN)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(descriptor)
            ours = status.st_uid == os.geteuid()
            if ours and stat.S_ISREG(status.st_mode) and status.st_nlink:
                path.unlink()
                removed.append(path)
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return removed


def _allocate(descriptor: int, size: int, path: Path) -> None:
    """Allocate the memory now: a page that cannot be had later would be missing in the middle of a frame.
    Raises ValueError if there is too little."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.ENOMEM):
            raise
        status = os.statvfs(FOLDER)
        free = status.f_bavail * status.f_frsize
        raise ValueError(
            f"{path} needs {size / 1e6:.1f} MB, {FOLDER} has {free / 1e6:.1f} MB left: give fewer slots, or "
            "the container a larger --shm-size"
        ) from error


def _publish(nameless: int, path: Path) -> None:
    """Link the file to its name. Tries again, because another process may be removing a dead writer's file
    there. Raises FileExistsError if the name stays taken."""
    # With a folder's descriptor os.link becomes linkat with AT_SYMLINK_FOLLOW, which this needs.
    descriptors = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for trial in range(_TRIES):
            remove_abandoned()
            try:
                os.link(str(nameless), path, src_dir_fd=descriptors, follow_symlinks=True)
                return
            except FileExistsError:
                if trial == _TRIES - 1:
                    raise
                time.sleep(0.001)
    finally:
        os.close(descriptors)


def _remove(path: Path, lock: int) -> None:
    try:
        if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(lock)):
            path.unlink()
    except FileNotFoundError:
        pass
    finally:
        os.close(lock)


_SEGMENTS: weakref.WeakSet[Segment] = weakref.WeakSet()


def _after_fork() -> None:
    for segment in list(_SEGMENTS):
        segment.disown()


os.register_at_fork(after_in_child=_after_fork)
