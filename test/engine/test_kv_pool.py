"""The KV pool: counted slots, against a model that is a dictionary."""

from __future__ import annotations

import threading

import pytest
import torch
from builders import make_config
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from vla_accel_ros.engine.kv_pool import KVPool, PoolExhausted

CPU = torch.device("cpu")
SLOTS = 3


def make_pool(slots: int = SLOTS, max_tokens: int = 5) -> KVPool:
    return KVPool(make_config().prefix, slots, max_tokens, CPU, torch.float32)


class PoolMachine(RuleBasedStateMachine):
    """Every legal sequence of calls; references are what callers hold."""

    references = Bundle("references")

    def __init__(self) -> None:
        super().__init__()
        self.pool = make_pool()
        self.counts: dict[int, int] = {}
        self.newest: tuple[int, int] | None = None  # version, slot
        self.versions = 0

    @precondition(lambda self: len(self.counts) < SLOTS)
    @rule(target=references)
    def acquire(self) -> int:
        slot = self.pool.acquire()
        assert slot not in self.counts
        self.counts[slot] = 1
        return slot

    @precondition(lambda self: len(self.counts) == SLOTS)
    @rule()
    def acquire_from_a_full_pool(self) -> None:
        with pytest.raises(PoolExhausted, match="all 3 KV slots are held"):
            self.pool.acquire()

    @rule(target=references, slot=references)
    def retain(self, slot: int) -> int:
        self.pool.retain(slot)
        self.counts[slot] += 1
        return slot

    @rule(slot=consumes(references))
    def release(self, slot: int) -> None:
        self.pool.release(slot)
        self.drop(slot)

    @rule(slot=references, back=st.integers(0, 2))
    def publish(self, slot: int, back: int) -> None:
        """Now and then with a version that is already old."""
        self.versions += 1
        version = self.versions - back
        self.pool.publish(slot, version)
        if self.newest is None or version > self.newest[0]:
            self.counts[slot] += 1
            if self.newest is not None:
                self.drop(self.newest[1])
            self.newest = (version, slot)

    @precondition(lambda self: self.newest is not None)
    @rule(target=references)
    def take_the_newest(self) -> int:
        assert self.newest is not None
        slot = self.pool.newest()
        assert slot == self.newest[1]
        self.counts[slot] += 1
        return slot

    @precondition(lambda self: self.newest is None)
    @rule()
    def there_is_no_newest(self) -> None:
        assert self.pool.newest() is None

    @invariant()
    def free_slots_are_those_nobody_holds(self) -> None:
        assert self.pool.free == SLOTS - len(self.counts)

    @invariant()
    def a_free_slot_cannot_be_used(self) -> None:
        for slot in set(range(SLOTS)) - set(self.counts):
            for use in (self.pool.retain, self.pool.release, lambda slot: self.pool.publish(slot, 10**9)):
                with pytest.raises(ValueError, match=f"KV slot {slot} is held by nobody"):
                    use(slot)

    def drop(self, slot: int) -> None:
        self.counts[slot] -= 1
        if not self.counts[slot]:
            del self.counts[slot]


TestPoolMachine = PoolMachine.TestCase


def test_slots_are_separate_and_views_are_windows() -> None:
    pool = make_pool()
    first, second = pool.acquire(), pool.acquire()
    pool.view(first, 5).k.fill_(1.0)
    view = pool.view(second, 3)
    assert view.k.shape == view.v.shape == (2, 1, 1, 3, 8)
    view.k.fill_(2.0)
    view.v.fill_(3.0)
    assert (pool.k[first] == 1).all()
    assert (pool.k[second, :, :, :3] == 2).all()
    assert (pool.v[second, :, :, :3] == 3).all()
    assert (pool.k[second, :, :, 3:] == 0).all()
    assert (pool.v[first] == 0).all()


def test_a_slot_that_does_not_exist() -> None:
    pool = make_pool()
    for slot in (-1, SLOTS):
        with pytest.raises(ValueError, match=f"KV slot {slot} is held by nobody"):
            pool.release(slot)


def test_threads_never_share_a_slot() -> None:
    pool, owners, shared = make_pool(slots=4), [0] * 4, []
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        for _ in range(500):
            slot = pool.acquire()
            owners[slot] += 1
            shared.append(owners[slot] != 1)
            owners[slot] -= 1
            pool.release(slot)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(shared) == 2000
    assert not any(shared)
    assert pool.free == 4


def test_a_pool_that_does_not_fit_is_refused_with_its_size() -> None:
    with pytest.raises(
        ValueError, match=r"10000000 slots of 100000 tokens needs .* GiB but cpu has .* GiB free"
    ):
        make_pool(slots=10_000_000, max_tokens=100_000)


def test_a_pool_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="slots is 0"):
        make_pool(slots=0)
