"""Answers written together are the answers that each would be alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from builders import make_config, make_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shared.decoding import decode
from vla_accel_ros.engine.kv.pages import PagePool
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import PoolExhausted
from vla_accel_ros.engine.runner.answers import Answer, Answers, Said
from vla_accel_ros.models.layers import packed
from vla_accel_ros.models.layers.packed import Forward
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.text.decoding import Sampling

MODEL: Pi = make_model(make_config("pi05"))
CONFIG = MODEL.config.prefix


def make_pools(pages: int = 40) -> tuple[KVPool, PagePool]:
    device = torch.device("cpu")
    return KVPool(CONFIG, 16, 32, device, torch.float32), PagePool(CONFIG, pages, 3, device, torch.float32)


@torch.inference_mode()
def observe(pool: KVPool, scene: int) -> tuple[int, int, Tensor]:
    """A prefix in the pool: slot, tokens, last hidden state. Scenes differ in length."""
    tokens = 4 + scene % 5
    made = torch.Generator().manual_seed(scene)
    embeddings = torch.randn(1, tokens, CONFIG.width, generator=made)
    slot = pool.acquire()
    hidden, _ = MODEL.prefix(embeddings, out=pool.view(slot, tokens))
    return slot, tokens, hidden[0, -1]


@torch.inference_mode()
def alone(scene: int, count: int, stop: int | None, temperature: float = 0.0, seed: int = 0) -> list[int]:
    """The same answer by models.text.decoding, without pool, pages or company."""
    pool, _ = make_pools()
    slot, tokens, hidden = observe(pool, scene)
    rng = np.random.default_rng(seed)
    past = pool.view(slot, tokens)
    said = [int(s.tokens) for s in decode(MODEL, past, hidden[None], count, temperature=temperature, rng=rng)]
    return said[: said.index(stop)] if stop in said else said


def ids(said: list[Said], number: int) -> list[int]:
    return [one.token for one in said if one.answer.number == number and one.token is not None]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), together=st.booleans())
def test_any_schedule_says_the_same(data: st.DataObject, together: bool) -> None:
    """Any lengths, stops, temperatures, arrivals and cancellations."""
    pool, pages = make_pools(pages=200)
    stop = data.draw(st.sampled_from([None, *alone(1, 4, None)]), label="stop")
    answers = Answers(MODEL, pool, pages, stop, together)
    wanted: dict[Answer, list[int]] = {}
    said: list[Said] = []
    for _ in range(data.draw(st.integers(1, 12), label="ticks")):
        event = data.draw(st.sampled_from(["ask", "advance", "advance", "cancel"]), label="event")
        if event == "ask":
            scene, seed = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 5))
            count = data.draw(st.integers(1, 9), label="count")
            temperature = data.draw(st.sampled_from([0.0, 0.7]), label="temperature")
            slot, tokens, hidden = observe(pool, scene)
            answer = answers.begin(
                slot, tokens, hidden, count, sampling=Sampling(temperature), rng=np.random.default_rng(seed)
            )
            pool.release(slot)
            wanted[answer] = alone(scene, count, stop, temperature, seed)
        elif event == "cancel" and wanted:
            dropped = data.draw(st.sampled_from(list(wanted)), label="cancelled")
            answers.drop(dropped)
            del wanted[dropped]
        else:
            said += answers.advance()
    while answers.open:
        said += answers.advance()

    assert {answer.number: ids(said, answer.number) for answer in wanted} == {
        answer.number: tokens for answer, tokens in wanted.items()
    }
    for answer in wanted:
        answers.drop(answer)
    assert pool.free == 16 and pages.unpromised == 200


@pytest.mark.parametrize("fails", ["forward", "logits"])
def test_a_forward_that_fails_costs_no_answer_anything(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token is computed a second time, also the first and the last of a page."""
    (pool, pages), calls = make_pools(), itertools.count()

    def every_other(compute: Callable[..., Any]) -> Callable[..., Any]:
        def failing(*given: Any) -> Any:
            if next(calls) % 2:
                raise RuntimeError("out of memory")
            return compute(*given)

        return failing

    plain: Forward = partial(packed.forward, MODEL.stack)
    forward = every_other(plain) if fails == "forward" else plain
    answers = Answers(MODEL, pool, pages, None, forward=forward)
    if fails == "logits":
        monkeypatch.setattr(MODEL, "logits", every_other(MODEL.logits))
    for scene in range(2):
        answers.begin(*observe(pool, scene), max_tokens=9 - scene)
    said, failed = [], 0
    while answers.open:
        try:
            said += answers.advance()
        except RuntimeError:
            failed += 1
    monkeypatch.undo()
    assert [ids(said, scene) for scene in range(2)] == [alone(scene, 9 - scene, None) for scene in range(2)]
    assert failed >= 7


def test_what_cannot_be() -> None:
    pool, pages = make_pools(pages=2)
    answers = Answers(MODEL, pool, pages, stop=None)
    slot, tokens, hidden = observe(pool, 0)
    assert answers.advance() == []
    with pytest.raises(ValueError, match="max_tokens is 0"):
        answers.begin(slot, tokens, hidden, max_tokens=0)
    with pytest.raises(ValueError, match="slot 1"):
        answers.begin(1, tokens, hidden, max_tokens=7)
    assert pages.unpromised == 2
    answers.begin(slot, tokens, hidden, max_tokens=7)
    with pytest.raises(PoolExhausted, match=r"1 tokens .* 0 of 2"):
        answers.begin(slot, tokens, hidden, max_tokens=2)


def test_an_answer_that_cannot_begin_holds_nothing() -> None:
    class Full:
        """A tensor of which a device has no room for a copy."""

        def clone(self) -> Tensor:
            raise RuntimeError("out of memory")

    prefixes, pages = make_pools()
    answers, slot = Answers(MODEL, prefixes, pages, None), prefixes.acquire()
    with pytest.raises(RuntimeError, match="out of memory"):
        answers.begin(slot, 4, cast(Tensor, Full()), 9)
    prefixes.release(slot)
    assert prefixes.free == prefixes.slots and pages.unpromised == pages.pages and not answers.open
