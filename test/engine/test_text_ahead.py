"""Tokens of text that are launched behind what the GPU computes, and said when somebody waits for them.

On a CPU, where tokens are there at once, an event stands in for a GPU's: who looks too early is seen by what
is said before the event was waited for.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_observation
from current_streams import computing_in
from frame_stream import held_slots
from overlapping import Hurrying
from running_stream import Running
from text_engine import LAYERS, WORDS, alone, asking, make_engine, policy_of

from shared.decoding import decode
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.lanes.lane import GROUPS_AHEAD
from vla_accel_ros.engine.request import Ask, Request, Waits
from vla_accel_ros.engine.runner.text import TextDecoder
from vla_accel_ros.models.text.decoding import Sampling

GROUPS = 3


class Event:
    """Of a stream that computes until it is waited for. during: called then, and may raise."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def synchronize(self) -> None:
        self.device.waited += 1
        self.device.during()


class Device:
    """recorded, waited: events."""

    def __init__(self) -> None:
        self.recorded = self.waited = 0
        self.during: Callable[[], object] = lambda: None

    def record_event(self) -> Event:
        self.recorded += 1
        return Event(self)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    computing_in(monkeypatch, lambda: device)
    return device


def ahead(groups: int = GROUPS, **options: Any) -> Engine:
    """An engine on a CPU whose lane runs ahead of the text that it launches, and waits where there is nothing
    else to launch."""
    engine = make_engine(groups, **options)
    runner = engine.runner
    given = runner.policy, runner.config, runner.pool, runner.packed_forward
    runner.text = TextDecoder(*given, ahead=True)
    engine.scheduler.runs_ahead = True
    engine.scheduler.lanes[0].__class__ = Hurrying
    return engine


def launched(engine: Engine, request: Request) -> None:
    """Step until a token of it was launched that nobody has waited for."""
    for _ in range(4 * LAYERS):
        if not request.launched:
            engine.scheduler.step()
    assert request.launched is True


def assert_nothing_is_left(engine: Engine) -> None:
    text, runner = engine.runner.text, engine.runner
    assert text is not None and text.places == 3 and held_slots(engine) == 0
    assert text._pages.unpromised == text._pages.pages and not engine.scheduler.requests
    assert runner.prefixes.newest_version("") is not None


def test_a_token_is_said_when_it_is_waited_for_and_groups_are_launched_behind_each_other(
    device: Device,
) -> None:
    engine = ahead()
    request = asking(engine, 0)
    for _ in range(2):
        engine.scheduler.step()
    assert len(request.tokens) == 1 and device.recorded == device.waited, "one that the prefix gave it"
    for group in range(GROUPS):
        first = device.recorded
        engine.scheduler.step()
        assert device.recorded == first + 1 and device.recorded - device.waited <= GROUPS_AHEAD + 1
        assert request.partial == (group < GROUPS - 1) and request.launched == (group == GROUPS - 1)
        assert len(request.tokens) == 1
    *_, before, last = engine.scheduler.lanes[0].ahead
    assert last.batch.requests == (request,) and request not in last.reported and request in before.reported
    for count in (1, 1, 2):
        assert engine.scheduler.step() == (request,) and len(request.tokens) == count, "nothing to launch"
    assert not request.launched and not engine.scheduler.lanes[0].ahead
    assert engine.scheduler.wait(request).tokens == alone(0, "cpu")
    assert device.waited == device.recorded
    assert_nothing_is_left(engine)


def test_a_token_at_once_is_waited_for_at_once(device: Device) -> None:
    engine = ahead(1)
    request = asking(engine, 0)
    for count in range(1, WORDS + 1):
        engine.scheduler.step()
        assert request.launched and engine.scheduler.step() == (request,)
        assert len(request.tokens) == count == device.waited and not request.launched
        assert not engine.scheduler.lanes[0].ahead
    assert request.tokens == alone(0, "cpu")


def test_who_is_cancelled_while_a_token_is_waited_for_is_taken_out_afterwards(device: Device) -> None:
    """By another thread, or by the garbage collector in the middle of what says the token."""
    engine = ahead()
    first, second = asking(engine, 0), asking(engine, 1)
    launched(engine, first)
    found = list[bool]()

    def cancel() -> None:
        engine.scheduler.cancel(first)
        found.append(first.finished)

    device.during = cancel
    engine.scheduler.step()
    device.during = lambda: None
    assert found == [False] and first.finished and first.cancelled and first.result is None
    assert engine.scheduler.wait(second).tokens == alone(1, "cpu")
    assert_nothing_is_left(engine)


def test_what_the_device_fails_with_is_the_error_of_all_that_waited(device: Device) -> None:
    engine = ahead()
    first, second = asking(engine, 0), asking(engine, 1)
    launched(engine, first)

    def fail() -> None:
        raise RuntimeError("an illegal address")

    device.during = fail
    engine.scheduler.step()
    device.during = lambda: None
    for request in (first, second):
        assert str(request.error) == "an illegal address" and request.finished
    assert engine.scheduler.wait(asking(engine, 2)).tokens == alone(2, "cpu")
    assert_nothing_is_left(engine)


def test_what_ran_ahead_of_a_lane_that_stopped_is_said_by_nobody(device: Device) -> None:
    engine = ahead()
    request = asking(engine, 0)
    launched(engine, request)
    engine.scheduler.stop()
    assert request.finished and request.cancelled
    assert engine.scheduler.wait(asking(engine, 1)).tokens == alone(1, "cpu")
    assert_nothing_is_left(engine)


@pytest.mark.parametrize("groups", [1, GROUPS])
def test_drawn_answers_read_what_was_drawn_and_not_the_likeliest(groups: int, device: Device) -> None:
    engine = ahead(groups)
    beside, temperature = asking(engine, 1), 1.5
    prefix, model = beside.frame, engine.policy.model
    with torch.inference_mode():
        past = engine.runner.pool.view(prefix.slot, prefix.n_tokens)
        hidden = engine.runner.prefill.last_hidden(prefix.slot, prefix.n_tokens)[None]
        rng = np.random.default_rng(7)
        steps = decode(model, past, hidden, WORDS, temperature=temperature, rng=rng)
        expected = [int(step.tokens) for step in steps]
    wish = Ask(max_tokens=WORDS, sampling=Sampling(temperature), seed=7)
    request = engine.scheduler.submit(Request(wish, prefix=prefix))
    assert engine.scheduler.wait(request).tokens == expected != alone(1, "cpu")
    assert engine.scheduler.wait(beside).tokens == alone(1, "cpu")


@pytest.mark.parametrize("groups", [1, LAYERS])
def test_any_order_of_answers_and_cancellations(groups: int, device: Device) -> None:
    draw, engine = random.Random(groups), ahead(groups)
    open_answers: dict[Request, int] = {}
    said = 0
    for number in range(400):
        what = draw.random()
        for request in [one for one in open_answers if one.finished]:
            seed = open_answers.pop(request)
            assert request.cancelled or request.tokens == alone(seed, "cpu")
            said += not request.cancelled
        if what < 0.1 and len(open_answers) < 3:
            open_answers[asking(engine, number % 5)] = number % 5
        elif what < 0.14 and open_answers:
            device.during = partial(engine.scheduler.cancel, draw.choice(list(open_answers)))
            if draw.random() < 0.5:
                device.during()
                device.during = lambda: None
        else:
            engine.scheduler.step()
            device.during = lambda: None
    engine.scheduler.cancel(*open_answers)
    engine.scheduler.step()
    assert said > 5
    assert_nothing_is_left(engine)


@cache
def plain(seed: int, device: str) -> list[int]:
    """An answer by the plain network."""
    engine = Engine(policy_of(device), slots=4)
    return engine.scheduler.wait(asking(engine, seed)).tokens


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("lanes", "groups"), [("one", 1), ("text", LAYERS)])
def test_beside_frames_and_steps_answers_are_those_of_the_plain_network(
    lanes: str, groups: int, device: str
) -> None:
    """With threads: questions about frames of their own, while a stream acts and narrates."""
    expected = [plain(seed, device) for seed in range(6)]
    engine = make_engine(groups, device, slots=16, staggered=3, lanes=lanes)
    engine.prepare((2,), (5, 6, 7, 8))
    running = Running(engine, 1_000_000)
    running.stream.start()
    try:
        for first in range(0, 6, 2):
            running.wait_for_chunks(3)
            asked = list[Request]()
            for seed in (first, first + 1):
                with engine.observe(make_observation(seed)) as prefix:
                    ask = Request(Ask(max_tokens=WORDS), prefix=prefix, waits=Waits.ROOM)
                    asked.append(engine.scheduler.submit(ask))
                    engine.scheduler.wait(asked[-1], lambda one: one.begun)
            for seed, request in enumerate(asked, first):
                assert engine.scheduler.wait(request).tokens == expected[seed]
    finally:
        running.stream.stop()
    assert not running.errors and engine.runner.text.places == 3
    assert engine.runner.pool.free == engine.runner.pool.slots - 1


@pytest.mark.gpu
@pytest.mark.parametrize("groups", [1, LAYERS])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_on_a_gpu_whoever_launches_a_token_waits_for_nothing(groups: int, temperature: float) -> None:
    """Nothing in the stream is over when all of it is launched, and torch finds nothing that waits."""
    engine = make_engine(groups, "cuda")
    engine.prepare((2,), (20,))
    text = engine.runner.text
    assert text is not None
    with engine.observe(make_observation(0)) as prefix:
        wish = Ask(max_tokens=WORDS, sampling=Sampling(temperature), seed=7)
        request = engine.scheduler.submit(Request(wish, prefix=prefix))
        engine.scheduler.wait(request, lambda one: len(one.tokens) == 2)
    for said in range(2, WORDS - 1):
        torch.cuda.synchronize()
        torch.cuda._sleep(400_000_000)
        torch.cuda.set_sync_debug_mode("error")
        try:
            waits = [text.advance() for _ in range(groups)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert not torch.cuda.current_stream().query()
        assert request.launched and not request.partial and len(request.tokens) == said
        for wait in waits:
            assert wait is not None
            wait()
        assert len(request.tokens) == said + 1 and not request.launched
    tokens = engine.scheduler.wait(request).tokens
    if not temperature:
        assert tokens == plain(0, "cuda")


@pytest.mark.gpu
def test_on_a_gpu_who_is_cancelled_between_launch_and_wait_leaves_nothing_behind() -> None:
    engine = make_engine(GROUPS, "cuda")
    engine.prepare((2,), (20,))
    engine.scheduler.runs_ahead = True
    for seed in range(4):
        first, second = asking(engine, seed), asking(engine, seed + 1)
        torch.cuda._sleep(50_000_000)
        launched(engine, first)
        engine.scheduler.cancel(first)
        assert first.finished and first.result is None
        third = asking(engine, seed + 2)  # is given the pages of the first, behind what is computed
        assert engine.scheduler.wait(second).tokens == plain(seed + 1, "cuda")
        assert engine.scheduler.wait(third).tokens == plain(seed + 2, "cuda")
        assert_nothing_is_left(engine)
