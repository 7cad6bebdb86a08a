"""What requests remember between forwards: the resumable states of all answers, over one KV memory.

OxyGen's manager (section 3.2) as bookkeeping: Store gives a request an id, a promise of pages and a reference
to its prefix; Retrieve finds it again; Update is done in place, by the tail that grows; Remove gives it all
back. Batch and UnBatch are nothing at all: a forward reads every state where it lies (models.layers.packed),
so the keys and values are never copied, stacked or padded. Memory is fixed. A finished state stays readable
until its space is needed; then the oldest finished goes first, and if that is not enough the newcomer is
refused. What is being written, acted on or published is never evicted.

A tail's length is not known when it begins, and a long tail must not take its space from short ones: so the
pool is pages, and a tail is a list of them. Pages a tail may come to need are promised to it when it begins,
so that an answer that was admitted can always be finished; the promise is a number, the page itself is taken
when it is written. A page belongs to one tail, and a tail is read where it lies.
"""

from __future__ import annotations

import itertools
import math
import threading
from dataclasses import dataclass, field

import torch

from vla_accel_ros.engine.kv.pool import KVPool, PoolExhausted, check_memory
from vla_accel_ros.models.config import GemmaConfig
from vla_accel_ros.models.layers.packed import Span


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
        check_memory(shape, device, dtype)
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
        place = self.length % self.pool.page_tokens
        if self.length == len(self.pages) * self.pool.page_tokens:
            self.pages.append(self.pool._take())
            self._promised -= 1
        self.length += 1
        return self.pool.span(self.pages[-1], place, place + 1)

    def cut(self, length: int) -> None:
        """Keep the first tokens alone; the places of the others are for those that come next."""
        self.length = min(self.length, length)

    def close(self) -> None:
        """Give everything back. Doing so twice is harmless."""
        if not self.closed:
            self.closed = True
            self.pool._give(self.pages, self._promised)
            self.pages, self._promised, self.length = [], 0, 0


@dataclass
class State:
    """A request over a prefix. tokens: its ids so far; tail: keys and values of all of them but the last."""

    request: int
    slot: int
    n_tokens: int
    tail: Tail
    tokens: list[int] = field(default_factory=list)
    finished: bool = False


class KVStore:
    """The states over a pool of prefixes and a pool of pages. Safe to use from several threads.

    Slots and pages that only states hold are theirs to evict; `prefixes` may be used directly beside it.
    """

    def __init__(self, prefixes: KVPool, pages: PagePool) -> None:
        self.prefixes, self.pages = prefixes, pages
        self.evicted = 0
        self._states: dict[int, State] = {}
        self._finished: list[int] = []
        self._requests = itertools.count()
        self._lock = threading.RLock()

    def acquire(self) -> int:
        """A free prefix slot, held once; finished states are dropped for it. Raises PoolExhausted if that is
        not enough."""
        with self._lock:
            while True:
                try:
                    return self.prefixes.acquire()
                except PoolExhausted:
                    if not self._evict():
                        raise

    def store(self, slot: int, n_tokens: int, max_tokens: int) -> State:
        """A new request over the first n_tokens of a held slot, which may come to max_tokens of its own.

        The first of those needs no page, and the last is never read: max_tokens - 1 are promised.
        Raises PoolExhausted if they cannot be, ValueError if nobody holds the slot.
        """
        with self._lock:
            while True:
                try:
                    tail = self.pages.begin(max_tokens - 1)
                    break
                except PoolExhausted:
                    if not self._evict():
                        raise
            try:
                self.prefixes.retain(slot)
            except ValueError:
                tail.close()
                raise
            state = State(next(self._requests), slot, n_tokens, tail)
            self._states[state.request] = state
            return state

    def retrieve(self, request: int) -> State:
        """The state of a request. Raises KeyError if it was removed, evicted or never there."""
        with self._lock:
            if request not in self._states:
                raise KeyError(f"request {request} has no state: it was removed or had to make way")
            return self._states[request]

    def active(self) -> list[State]:
        """States that are not finished, oldest first."""
        with self._lock:
            return [state for state in self._states.values() if not state.finished]

    def past(self, state: State) -> tuple[Span, ...]:
        """What a state's next token looks at: its prefix and its tail, where they lie."""
        return (self.prefixes.span(state.slot, 0, state.n_tokens), *state.tail.parts)

    def finish(self, request: int) -> None:
        """It needs no more space than it has; its state may be evicted from now on. Raises KeyError."""
        with self._lock:
            state = self.retrieve(request)
            if not state.finished:
                state.finished = True
                self._finished.append(request)

    def remove(self, request: int) -> None:
        """Give back what a request holds, finished or not. Raises KeyError if it is not there."""
        with self._lock:
            state = self.retrieve(request)
            del self._states[request]
            if state.finished:
                self._finished.remove(request)
            state.tail.close()
            self.prefixes.release(state.slot)

    def _evict(self) -> bool:
        """Remove the oldest finished state; False if there is none."""
        if not self._finished:
            return False
        self.remove(self._finished[0])
        self.evicted += 1
        return True
