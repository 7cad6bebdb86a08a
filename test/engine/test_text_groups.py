"""Tokens of text in groups of layers: the same words, whatever comes between two groups of one."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from builders import make_observation
from frame_stream import held_slots
from text_engine import LAYERS, alone, asking, make_engine

from vla_accel_ros.engine.request import Request
from vla_accel_ros.engine.runner.text import layers_of_groups
from vla_accel_ros.models.config import PI05
from vla_accel_ros.models.policies import AnyPolicy


@pytest.mark.parametrize("groups", range(2, LAYERS + 1))
def test_tokens_are_those_of_a_forward_at_once(groups: int, device: str) -> None:
    engine = make_engine(groups, device)
    engine.prepare((2,), (20,))
    request = asking(engine, 0)
    partial = []
    while not request.finished:
        assert engine.scheduler.step() == (request,)
        partial.append(request.partial)
    assert request.tokens == alone(0, device) and len(set(request.tokens)) > 1
    token = [True] * (groups - 1) + [False]
    # It says a token that the prefix gave it, and reads all but the last.
    assert partial == [False, *token * (len(request.tokens) - 1)]
    assert held_slots(engine) == 0 and engine.runner.text.places == 3


def test_a_token_of_nobody_is_not_gone_on_with() -> None:
    engine = make_engine()
    first = asking(engine, 0)
    while not first.partial:
        engine.scheduler.step()
    engine.scheduler.cancel(first)
    second, partial = asking(engine, 1), list[bool]()
    while len(partial) <= LAYERS:
        engine.scheduler.step()
        partial.append(second.partial)
    assert partial == [False, *[True] * (LAYERS - 1), False]
    assert engine.scheduler.wait(second).tokens == alone(1, "cpu")


def test_what_fails_between_two_groups_is_the_error_of_all_and_the_next_is_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    first = asking(engine, 0)
    while not first.partial:
        engine.scheduler.step()
    forward = engine.runner.packed_forward
    assert forward is not None and forward.last is not None
    with monkeypatch.context() as broken:
        broken.setattr(forward.last, "run", lambda: 1 / 0)
        engine.scheduler.step()
    assert isinstance(first.error, ZeroDivisionError) and first.finished
    assert engine.scheduler.wait(asking(engine, 1)).tokens == alone(1, "cpu")


def test_any_order_of_frames_actions_and_answers(device: str) -> None:
    draw, engine = random.Random(4), make_engine(device=device)
    open_answers: dict[Request, int] = {}
    said = 0
    for number in range(400):
        what = draw.random()
        for request in [one for one in open_answers if one.finished]:
            seed = open_answers.pop(request)
            assert request.cancelled or request.tokens == alone(seed, device)
            said += not request.cancelled
        if what < 0.1 and len(open_answers) < 3:
            open_answers[asking(engine, number % 5)] = number % 5
        elif what < 0.13 and open_answers:
            engine.scheduler.cancel(draw.choice(list(open_answers)))
        elif what < 0.2:
            with engine.observe(make_observation(number)) as prefix:
                noise = np.zeros((engine.policy.config.horizon, engine.policy.config.action_dim), np.float32)
                assert np.isfinite(engine.act(prefix, noise=noise).actions).all()
        else:
            engine.scheduler.step()
    assert said > 5


def test_groups_have_about_the_same_weights_and_the_head_belongs_to_the_last() -> None:
    full = cast(AnyPolicy, SimpleNamespace(config=PI05))
    assert layers_of_groups(full, 4) == [6, 6, 5, 1]
    assert layers_of_groups(full, 18) == [1] * 18
