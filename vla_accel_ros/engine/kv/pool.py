"""All keys and values there will ever be, allocated once: slots of prefixes, and pages of what follows them.

A prefix lives in one slot. Whoever reads it holds a reference, so that a newer frame can never overwrite what
an action or an answer is still reading. A slot is reused when its count is zero; on a GPU its next writer
waits, in its stream, for the work that was submitted before each release. What is in one stream is in order
by itself: there are events only once slots are used in several. Running out is an error and not a wait:
vision that waited for a slow reader would make every camera frame old.

What continues a prefix (a tail) has a length that is not known when it begins, and a long one must not take
its space from short ones: so it is a list of pages. Pages that it may come to need are promised to it when it
begins, so that an answer that was admitted can always be finished; the promise is a number, the page itself
is taken when it is written. A page belongs to one tail, and a tail is read where it lies.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.models.config import GemmaConfig
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.layers.packed import Span

GIB = 1 << 30


class PoolExhausted(RuntimeError):
    """Every slot is held by somebody, or every page promised."""


class KVPool:
    """`slots` sequences of up to `max_tokens` tokens each.

    k, v: [slots, layers, kv_heads, max_tokens, head_dim]. Safe to use from several threads, and from what
    the garbage collector calls: it may release a slot in the middle of any method.
    Raises ValueError if the pool does not fit into the device's free memory.
    """

    def __init__(
        self, config: GemmaConfig, slots: int, max_tokens: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        if slots < 1 or max_tokens < 1:
            raise ValueError(
                f"slots is {slots} and max_tokens {max_tokens}; a pool needs at least 1 of each."
            )
        shape = (slots, config.depth, config.kv_heads, max_tokens, config.head_dim)
        _check_memory(shape, device, dtype)
        self.max_tokens, self._cuda = max_tokens, device.type == "cuda"
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self._counts = [0] * slots
        # By stream, which it is and what was recorded at its last release there; None: nothing yet.
        self._read: list[dict[int, tuple[torch.cuda.Stream, torch.cuda.Event | None]]] = [
            {} for _ in range(slots)
        ]
        self._streams = set[int]()  # in which slots were used
        self._lock = threading.RLock()

    @property
    def slots(self) -> int:
        """How many sequences fit."""
        return len(self._counts)

    @property
    def free(self) -> int:
        """Slots nobody holds."""
        with self._lock:
            return self._counts.count(0)

    def acquire(self) -> int:
        """A free slot, held once. Raises PoolExhausted if there is none."""
        with self._lock:
            if 0 not in self._counts:
                raise PoolExhausted(
                    f"all {self.slots} KV slots are held; release them earlier or give the engine more."
                )
            slot = self._counts.index(0)
            self._counts[slot] = 1
            read, self._read[slot] = self._read[slot], {}
        if self._cuda:
            now = current_stream(self.k.device)
            self._streams.add(now.cuda_stream)
            for number, (stream, event) in read.items():
                if number != now.cuda_stream:
                    now.wait_event(event or stream.record_event())
        return slot

    @contextmanager
    def filling(self) -> Iterator[int]:
        """A free slot for a block that fills it, and keeps it unless it fails. Raises as acquire does."""
        slot = self.acquire()
        with self.keeping(slot):
            yield slot

    @contextmanager
    def keeping(self, slot: int) -> Iterator[None]:
        """A slot that is held for a block, which keeps it unless it fails."""
        try:
            yield
        except BaseException:
            self.release(slot)
            raise

    @contextmanager
    def holding(self, count: int) -> Iterator[list[int]]:
        """Free slots for a block, given back after it. Raises as acquire does."""
        slots: list[int] = []
        try:
            for _ in range(count):
                slots.append(self.acquire())
            yield slots
        finally:
            for slot in slots:
                self.release(slot)

    def retain(self, slot: int) -> None:
        """Hold a slot that is already held once more."""
        with self._lock:
            self._held(slot)
            self._counts[slot] += 1

    def release(self, slot: int) -> None:
        """Give one reference back; the last one frees the slot. Raises ValueError if nobody holds it."""
        with self._lock:
            self._held(slot)
            self._counts[slot] -= 1
            if self._cuda:
                # While there is no other stream nobody waits for this one. Who writes from another one after
                # all waits for what this one has been given by then.
                stream = current_stream(self.k.device)
                number = stream.cuda_stream
                self._streams.add(number)
                self._read[slot][number] = stream, stream.record_event() if len(self._streams) > 1 else None

    def view(self, slot: int, tokens: int) -> KV:
        """The first tokens of a slot, as a batch of one: [layers, 1, kv_heads, tokens, head_dim]."""
        return KV(self.k[slot, :, None, :, :tokens], self.v[slot, :, None, :, :tokens])

    def span(self, slot: int, start: int, end: int) -> Span:
        """Tokens start to end of a slot."""
        return Span(self.k, self.v, slot, start, end)

    def _held(self, slot: int) -> None:
        if not 0 <= slot < self.slots or not self._counts[slot]:
            raise ValueError(f"KV slot {slot} is held by nobody; it was released too often.")


class PagePool:
    """`pages` pages of `page_tokens` tokens each. Safe to use as a KVPool is.

    k, v: [pages, layers, kv_heads, page_tokens, head_dim].
    Raises ValueError if the pool does not fit into the device's free memory.
    """

    def __init__(
        self, config: GemmaConfig, pages: int, page_tokens: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        if pages < 1 or page_tokens < 1:
            raise ValueError(
                f"pages is {pages} and page_tokens {page_tokens}; a pool needs at least 1 of each."
            )
        shape = (pages, config.depth, config.kv_heads, page_tokens, config.head_dim)
        _check_memory(shape, device, dtype)
        self.page_tokens = page_tokens
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self._free = list(range(pages))
        self._promised = 0
        self._lock = threading.RLock()

    @property
    def pages(self) -> int:
        """How many there are."""
        return self.k.shape[0]

    @property
    def unpromised(self) -> int:
        """Pages that are neither written nor promised."""
        with self._lock:
            return len(self._free) - self._promised

    def needed(self, tokens: int) -> int:
        """Pages for a tail of that many tokens."""
        return math.ceil(tokens / self.page_tokens)

    def begin(self, max_tokens: int) -> Tail:
        """An empty tail that may grow to max_tokens. Raises PoolExhausted if that many pages are not left."""
        promised = self.needed(max_tokens)
        with self._lock:
            left = len(self._free) - self._promised
            if promised > left:
                raise PoolExhausted(
                    f"a tail of {max_tokens} tokens needs {promised} KV pages but {max(left, 0)} of "
                    f"{self.pages} are left; end answers earlier or give the engine more pages."
                )
            self._promised += promised
        return Tail(self, max_tokens, promised)

    def span(self, page: int, start: int, end: int) -> Span:
        """Tokens start to end of a page."""
        return Span(self.k, self.v, page, start, end)

    def _take(self) -> int:
        with self._lock:
            self._promised -= 1
            return self._free.pop(0)

    def _give(self, pages: list[int], promised: int) -> None:
        with self._lock:
            self._free += pages
            self._promised -= promised


@dataclass
class Tail:
    """A request's own tokens. length: written so far; at most max_tokens. Made by PagePool.begin."""

    pool: PagePool = field(repr=False)
    max_tokens: int
    _promised: int
    length: int = 0
    pages: list[int] = field(default_factory=list)
    closed: bool = False

    @property
    def parts(self) -> tuple[Span, ...]:
        """What is written, in order."""
        size = self.pool.page_tokens
        ends = [min(size, self.length - first) for first in range(0, self.length, size)]
        return tuple(self.pool.span(page, 0, end) for page, end in zip(self.pages, ends, strict=False))

    def grow(self) -> Span:
        """The place of the next token, which is part of it from now on.

        Raises ValueError for a tail that is full or closed.
        """
        if self.closed or self.length == self.max_tokens:
            why = "is closed" if self.closed else f"is full with {self.max_tokens} tokens"
            raise ValueError(f"the tail {why} and cannot grow")
        page, place = divmod(self.length, self.pool.page_tokens)
        if page == len(self.pages):
            self.pages.append(self.pool._take())
            self._promised -= 1
        self.length += 1
        return self.pool.span(self.pages[page], place, place + 1)

    def cut(self, length: int) -> None:
        """Keep the first tokens alone; the places of the others are for those that come next."""
        self.length = min(self.length, length)

    def close(self) -> None:
        """Give everything back. Doing so twice is harmless."""
        if not self.closed:
            self.closed = True
            self.pool._give(self.pages, self._promised)
            self.pages, self._promised, self.length = [], 0, 0


def _check_memory(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
    """Raise ValueError, in one sentence, if two tensors [slots, .., .., tokens, ..] do not fit."""
    needed = 2 * dtype.itemsize
    for size in shape:
        needed *= size
    free = _free_bytes(device)
    if free is not None and needed > free:
        raise ValueError(
            f"a KV pool of {shape[0]} slots of {shape[3]} tokens needs {needed / GIB:.2f} GiB but "
            f"{device} has {free / GIB:.2f} GiB free; use fewer slots, fewer cameras or a shorter prompt."
        )


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "cpu" and os.path.exists("/proc/meminfo"):
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    return None
