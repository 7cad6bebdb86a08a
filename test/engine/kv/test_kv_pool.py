"""The KV pool: counted slots, against a model that is a dictionary."""

from __future__ import annotations

import threading

import pytest
import torch
from builders import make_config
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import PoolExhausted

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
        with pytest.raises(PoolExhausted, match="all 3 KV slots"):
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

    @rule(fails=st.booleans())
    def fill(self, fails: bool) -> None:
        """A block that fills a slot keeps it, unless it fails."""
        if len(self.counts) == SLOTS:
            with pytest.raises(PoolExhausted), self.pool.filling():
                raise AssertionError("there is no slot to fill")
        elif fails:
            with pytest.raises(KeyError), self.pool.filling():
                raise KeyError("it failed")
        else:
            with self.pool.filling() as slot:
                assert slot not in self.counts
            self.pool.release(slot)

    @invariant()
    def free_slots_are_those_nobody_holds(self) -> None:
        assert self.pool.free == SLOTS - len(self.counts)

    @invariant()
    def a_free_slot_cannot_be_used(self) -> None:
        for slot in set(range(SLOTS)) - set(self.counts):
            for use in (self.pool.retain, self.pool.release):
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
    with pytest.raises(ValueError, match=r"10000000 slots .*100000 tokens .* GiB .* GiB"):
        make_pool(slots=10_000_000, max_tokens=100_000)


def test_a_pool_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="slots is 0"):
        make_pool(slots=0)


@pytest.mark.gpu
def test_a_slot_that_one_stream_alone_has_used_is_written_after_that_by_another() -> None:
    pool = KVPool(make_config().prefix, 1, 3, torch.device("cuda"), torch.float32)
    slot = pool.acquire()
    pool.k[slot].fill_(1.0)
    torch.cuda._sleep(1_000_000_000)
    read = pool.k[slot].clone()
    pool.release(slot)
    with torch.cuda.stream(torch.cuda.Stream()):
        pool.k[pool.acquire()].fill_(2.0)
    torch.cuda.synchronize()
    assert read.unique().tolist() == [1.0] and pool.k.unique().tolist() == [2.0]
