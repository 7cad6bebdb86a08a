"""Writes messages to a bag in the background: receivers put them into a queue, one thread writes.

The robot must never wait for a disk, so the queue is bounded; what does not fit is dropped, counted and
reported. Free space is checked early: below a reserve the bag is closed properly, which is impossible on a
full disk. Whatever the disk does, the thread ends with the bag as readable as possible, and with a sentence
that says why.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from vla_accel_ros.recording.mcap_writer import McapBag
from vla_accel_ros.recording.topic import Topic

FLUSH_S = 0.5
LOOK_BYTES = 32 << 20
_Item = Topic | tuple[str, int, bytes | bytearray]


def free_bytes(path: Path) -> int:
    """Free space on the disk of a folder."""
    return shutil.disk_usage(path).free


class Recording:
    """One bag being written. `put` and `add` may be called from any thread.

    limit_bytes: of messages that wait to be written. keep_bytes: recording ends when the disk has less free.
    free: gives the free bytes on a folder's disk. begin: start the thread now; a test may want to fill the
    queue first.

    Attributes for diagnostics: `written` and `dropped` messages by topic, `waiting_bytes`, `bytes_written`,
    `trouble` (why it ended by itself; empty while it goes on), `path`.
    """

    def __init__(
        self,
        bag: McapBag,
        limit_bytes: int,
        keep_bytes: int,
        free: Callable[[Path], int] = free_bytes,
        begin: bool = True,
    ) -> None:
        self.path, self.trouble = bag.path, ""
        self.written: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.waiting_bytes = self.bytes_written = 0
        self._bag, self._limit, self._keep, self._free = bag, limit_bytes, keep_bytes, free
        self._items: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._looked_at = -LOOK_BYTES
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        if begin:
            self.begin()

    @property
    def ended(self) -> bool:
        """Whether nothing more is written: closed, or ended by trouble."""
        return self._closing or bool(self.trouble)

    def begin(self) -> None:
        """Start the writing thread."""
        self._thread.start()

    def add(self, topic: Topic) -> None:
        """Announce a topic before its first message."""
        with self._changed:
            self._items.append(topic)
            self._changed.notify()

    def put(self, topic: str, log_ns: int, data: bytes | bytearray) -> bool:
        """Queue a serialized message. Returns False if the queue is full or recording has ended."""
        with self._changed:
            if self.ended:
                return False
            if self.waiting_bytes + len(data) > self._limit:
                self.dropped[topic] += 1
                return False
            self.waiting_bytes += len(data)
            self._items.append((topic, log_ns, data))
            self._changed.notify()
            return True

    def close(self, patience_s: float) -> None:
        """Write what is queued and end the bag; what is not written within patience_s is dropped and
        counted."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(patience_s)
        if not self._thread.is_alive():
            return
        with self._changed:
            for item in self._items:
                if not isinstance(item, Topic):
                    self.dropped[item[0]] += 1
            self._items.clear()
        self._thread.join(patience_s)

    def _run(self) -> None:
        try:
            while self._write_some():
                pass
            self._bag.close()
        except _DiskFull as full:
            self._end(str(full), self._bag.close)
        except Exception as error:  # a C++ writer may raise anything; the robot goes on
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self._end(f"the bag {self.path} cannot be written any more: {reason}", self._bag.abandon)

    def _write_some(self) -> bool:
        """Write queued messages for FLUSH_S, then flush; False when recording is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closing)
        until_s = time.monotonic() + FLUSH_S
        while (left_s := until_s - time.monotonic()) > 0.0:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._closing, left_s)
                if not self._items:
                    break
                item = self._items.popleft()
            self._write(item)
        self._bag.flush()
        return bool(self._items) or not self._closing

    def _write(self, item: _Item) -> None:
        if isinstance(item, Topic):
            self._bag.add(item)
            return
        topic, log_ns, data = item
        self._bag.write(topic, log_ns, data)
        with self._changed:
            self.waiting_bytes -= len(data)
        self.bytes_written += len(data)
        self.written[topic] += 1
        self._watch_space()

    def _watch_space(self) -> None:
        if self.bytes_written - self._looked_at < LOOK_BYTES:
            return
        self._looked_at = self.bytes_written
        free = self._free(self.path)
        if free < self._keep:
            raise _DiskFull(
                f"recording has ended: the disk of {self.path} has {free >> 20} MB left, and "
                f"{self._keep >> 20} MB are kept free (keep_free_mb)"
            )

    def _end(self, sentence: str, end: Callable[[], None]) -> None:
        with self._changed:
            self.trouble = sentence
            self._items.clear()
            self.waiting_bytes = 0
        try:
            end()
        except Exception:
            self._bag.abandon()


class _DiskFull(Exception):
    """The disk has less free space than the reserve."""
