"""The KV store against a dictionary: nothing leaks, nothing is freed twice, nothing is anybody else's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from vla_accel_ros.engine.kv.pool import KVPool, PoolExhausted
from vla_accel_ros.engine.kv.store import KVStore, PagePool, State
from vla_accel_ros.models.config import GemmaConfig

TINY = GemmaConfig(width=4, depth=1, mlp=4, heads=1, kv_heads=1, head_dim=2)
SLOTS, PAGES, PAGE = 4, 6, 3
CPU = torch.device("cpu")


def make_store(slots: int = SLOTS, pages: int = PAGES, page_tokens: int = PAGE) -> KVStore:
    return KVStore(
        KVPool(TINY, slots, 5, CPU, torch.float32), PagePool(TINY, pages, page_tokens, CPU, torch.float32)
    )


def write(state: State, number: float) -> None:
    place = state.tail.grow()
    place.k.fill_(number)
    place.v.fill_(-number)


def read(state: State) -> list[float]:
    """What the first feature of each written token says, keys and values agreeing."""
    keys = [float(x) for part in state.tail.parts for x in part.k[0, 0, 0, :, 0]]
    values = [float(x) for part in state.tail.parts for x in part.v[0, 0, 0, :, 0]]
    assert keys == [-value for value in values]
    return keys


class Model:
    """What the store should hold, in dictionaries: references to slots, promises, what was written."""

    def __init__(self, store: KVStore) -> None:
        self.store = store
        self.held: list[int] = []
        self.states: dict[int, State] = {}
        self.written: dict[int, list[float]] = {}
        self.finished: list[int] = []
        self.count = 0

    def promised(self) -> int:
        return sum(self.store.pages.needed(state.tail.max_tokens) for state in self.states.values())

    def counts(self) -> list[int]:
        held = self.held + [state.slot for state in self.states.values()]
        return [held.count(slot) for slot in range(SLOTS)]

    def evict(self) -> None:
        gone = self.finished.pop(0)
        del self.states[gone], self.written[gone]

    def acquire(self) -> None:
        while 0 not in self.counts() and self.finished:
            self.evict()
        if 0 in self.counts():
            free = self.counts().index(0)
            assert self.store.acquire() == free
            self.held.append(free)
        else:
            with pytest.raises(PoolExhausted):
                self.store.acquire()

    def release(self, slot: int) -> None:
        self.store.prefixes.release(slot)
        self.held.remove(slot)

    def begin(self, slot: int, max_tokens: int) -> None:
        need = self.store.pages.needed(max_tokens - 1)
        while self.promised() + need > PAGES and self.finished:
            self.evict()
        if self.promised() + need > PAGES:
            with pytest.raises(PoolExhausted):
                self.store.store(slot, 1, max_tokens)
        elif not self.counts()[slot]:
            with pytest.raises(ValueError, match="held by nobody"):
                self.store.store(slot, 1, max_tokens)
        else:
            state = self.store.store(slot, 1, max_tokens)
            self.states[state.request], self.written[state.request] = state, []

    def grow(self, request: int) -> None:
        state = self.states[request]
        if len(self.written[request]) == state.tail.max_tokens:
            with pytest.raises(ValueError, match="is full"):
                state.tail.grow()
        else:
            self.count += 1
            write(state, self.count)
            self.written[request].append(self.count)

    def finish(self, request: int) -> None:
        self.store.finish(request)
        if request not in self.finished:
            self.finished.append(request)

    def remove(self, request: int) -> None:
        self.store.remove(request)
        del self.states[request], self.written[request]
        if request in self.finished:
            self.finished.remove(request)

    def check(self) -> None:
        assert self.store.prefixes.free == self.counts().count(0)
        assert self.store.pages.unpromised == PAGES - self.promised()
        assert [state.request for state in self.store.active()] == [
            request for request in self.states if request not in self.finished
        ]
        for request, state in self.states.items():
            assert self.store.retrieve(request) is state
            assert read(state) == self.written[request]

    def do(self, operation: str, choose: np.random.Generator) -> None:
        """One operation on whatever there is; nothing if there is nothing."""
        some = list(self.states)
        if operation == "acquire":
            self.acquire()
        elif operation == "release" and self.held:
            self.release(int(choose.choice(self.held)))
        elif operation == "begin":
            self.begin(int(choose.integers(SLOTS)), int(choose.integers(1, 12)))
        elif operation in ("grow", "finish", "remove") and some:
            getattr(self, operation)(int(choose.choice(some)))


class AgainstDictionaries(RuleBasedStateMachine):
    """Hypothesis looks for the shortest sequence that the two disagree about."""

    slots = Bundle("slots")

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(make_store())

    @rule(seed=st.integers(0, 99), name=st.sampled_from(["begin", "grow", "grow", "finish", "remove"]))
    def on_a_state(self, seed: int, name: str) -> None:
        self.model.do(name, np.random.default_rng(seed))

    @rule(target=slots)
    def acquire(self) -> None:
        self.model.acquire()

    @rule(seed=st.integers(0, 99), _slot=consumes(slots))
    def release(self, seed: int, _slot: None) -> None:
        self.model.do("release", np.random.default_rng(seed))

    @invariant()
    def they_agree(self) -> None:
        self.model.check()


TestAgainstDictionaries = AgainstDictionaries.TestCase
TestAgainstDictionaries.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_hundred_thousand_operations_leak_nothing() -> None:
    model, choose = Model(make_store()), np.random.default_rng(0)
    names = ["acquire", "release", "begin", "grow", "grow", "grow", "finish", "remove"]
    for number, name in enumerate(choose.choice(names, 100_000)):
        model.do(str(name), choose)
        if number % 50 == 0:
            model.check()
    for request in list(model.states):
        model.remove(request)
    for slot in list(model.held):
        model.release(slot)
    model.check()
    assert model.store.prefixes.free == SLOTS and model.store.pages.unpromised == PAGES
    assert model.count > 5_000 and model.store.evicted > 500, "the walk did not get anywhere"


def test_a_refused_request_says_what_is_missing() -> None:
    store = make_store(pages=2, page_tokens=4)
    slot = store.acquire()
    store.store(slot, 3, max_tokens=6)
    with pytest.raises(PoolExhausted, match="a tail of 4 tokens needs 1 KV pages but 0 of 2 are left"):
        store.store(slot, 3, max_tokens=5)


def test_an_admitted_tail_can_always_be_written_to_its_end() -> None:
    store = make_store(pages=3, page_tokens=2)
    slot = store.acquire()
    long, short = store.store(slot, 1, max_tokens=5), store.store(slot, 1, max_tokens=3)
    for number in range(2):
        write(short, number)
    for number in range(4):
        write(long, 10 + number)
    assert (read(long), read(short)) == ([10, 11, 12, 13], [0, 1])


def test_what_is_under_way_is_never_evicted() -> None:
    store = make_store(slots=2)
    states = []
    for _ in range(2):
        slot = store.acquire()
        states.append(store.store(slot, 1, max_tokens=2))
        store.prefixes.release(slot)
    with pytest.raises(PoolExhausted):
        store.acquire()
    store.finish(states[1].request)
    assert store.acquire() == states[1].slot
    assert store.retrieve(states[0].request) is states[0]
    with pytest.raises(KeyError, match="request 1 has no state"):
        store.retrieve(states[1].request)


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="pages is 0 and page_tokens 3"):
        make_store(pages=0)
    store = make_store()
    with pytest.raises(ValueError, match="slot 0 is held by nobody"):
        store.store(0, 1, 4)
    assert store.pages.unpromised == PAGES
    state = store.store(store.acquire(), 1, 4)
    state.tail.close()
    state.tail.close()
    with pytest.raises(ValueError, match="is closed"):
        state.tail.grow()
