"""Pages of tails against a dictionary: nothing leaks, nothing is freed twice, nothing is anybody else's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from vla_accel_ros.engine.kv.pages import PagePool, Tail
from vla_accel_ros.engine.kv.prefixes import PoolExhausted
from vla_accel_ros.models.config import GemmaConfig

TINY = GemmaConfig(width=4, depth=1, mlp=4, heads=1, kv_heads=1, head_dim=2)
PAGES, PAGE = 6, 3


def make_pool(pages: int = PAGES, page_tokens: int = PAGE) -> PagePool:
    return PagePool(TINY, pages, page_tokens, torch.device("cpu"), torch.float32)


def write(tail: Tail, number: float) -> None:
    place = tail.grow()
    place.k.fill_(number)
    place.v.fill_(-number)


def read(tail: Tail) -> list[float]:
    """What the first feature of each written token says, keys and values agreeing."""
    keys = [float(x) for part in tail.parts for x in part.k[0, 0, 0, :, 0]]
    values = [float(x) for part in tail.parts for x in part.v[0, 0, 0, :, 0]]
    assert keys == [-value for value in values]
    return keys


class Model:
    """What the pool should hold, in a list: the tails and what was written to each."""

    def __init__(self) -> None:
        self.pool = make_pool()
        self.tails: list[tuple[Tail, list[float]]] = []
        self.count = 0

    @property
    def promised(self) -> int:
        return sum(self.pool.needed(tail.max_tokens) for tail, _ in self.tails)

    def begin(self, max_tokens: int) -> None:
        if self.promised + self.pool.needed(max_tokens) > PAGES:
            with pytest.raises(PoolExhausted):
                self.pool.begin(max_tokens)
        else:
            self.tails.append((self.pool.begin(max_tokens), []))

    def grow(self, place: int) -> None:
        tail, written = self.tails[place]
        if len(written) == tail.max_tokens:
            with pytest.raises(ValueError, match="is full"):
                tail.grow()
        else:
            self.count += 1
            write(tail, self.count)
            written.append(self.count)

    def cut(self, place: int) -> None:
        tail, written = self.tails[place]
        del written[-2:]
        tail.cut(len(written))

    def close(self, place: int) -> None:
        self.tails.pop(place)[0].close()

    def check(self) -> None:
        assert self.pool.unpromised == PAGES - self.promised
        for tail, written in self.tails:
            assert read(tail) == written

    def do(self, operation: str, choose: np.random.Generator) -> None:
        """One operation on whatever there is; nothing if there is nothing."""
        if operation == "begin":
            self.begin(int(choose.integers(12)))
        elif self.tails:
            getattr(self, operation)(int(choose.integers(len(self.tails))))


class AgainstAList(RuleBasedStateMachine):
    """Hypothesis looks for the shortest sequence that the two disagree about."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    @rule(seed=st.integers(0, 99), name=st.sampled_from(["begin", "grow", "grow", "cut", "close"]))
    def on_a_tail(self, seed: int, name: str) -> None:
        self.model.do(name, np.random.default_rng(seed))

    @invariant()
    def they_agree(self) -> None:
        self.model.check()


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_an_admitted_tail_can_always_be_written_to_its_end() -> None:
    pool = make_pool(pages=3, page_tokens=2)
    long, short = pool.begin(4), pool.begin(2)
    with pytest.raises(PoolExhausted, match=r"1 tokens .* 0 of 3"):
        pool.begin(1)
    for number in range(2):
        write(short, number)
    for number in range(4):
        write(long, 10 + number)
    assert (read(long), read(short)) == ([10, 11, 12, 13], [0, 1])


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="pages is 0 and page_tokens 3"):
        make_pool(pages=0)
    tail = make_pool().begin(3)
    tail.close()
    tail.close()
    with pytest.raises(ValueError, match="is closed"):
        tail.grow()
