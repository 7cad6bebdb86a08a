"""What requests remember between forwards: the resumable states of all answers, over one KV memory.

OxyGen's manager (section 3.2) as bookkeeping: Store gives a request an id, a promise of pages and a reference
to its prefix; Retrieve finds it again; Update is done in place, by the tail that grows; Remove gives it all
back. Batch and UnBatch are nothing at all: a forward reads every state where it lies (models.layers.packed),
so the keys and values are never copied, stacked or padded. Memory is fixed. A finished state stays readable
until its space is needed; then the oldest finished goes first, and if that is not enough the newcomer is
refused. What is being written, acted on or published is never evicted.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

from vla_accel_ros.engine.kv.pages import PagePool, Tail
from vla_accel_ros.engine.kv.pool import KVPool, PoolExhausted
from vla_accel_ros.models.layers.packed import Span


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
