"""Frames in one forward say what each would say alone, whatever comes, fails or is dropped meanwhile."""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from frame_stream import held_slots
from hypothesis import given, settings
from hypothesis import strategies as st
from openvla_builders import make_openvla_folder, make_openvla_observation
from torch import Tensor

from shared.decoding import decode
from vla_accel_ros.engine.actors import tokens as token_actor
from vla_accel_ros.engine.actors.tokens import PackedTokenActor
from vla_accel_ros.engine.config import PIPELINED
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import PoolExhausted, Prefix
from vla_accel_ros.engine.request import DECODE, PREFILL, Act, MicroBatch, Request, Waits
from vla_accel_ros.engine.rules.chunks import next_frame
from vla_accel_ros.engine.rules.rule import Rule
from vla_accel_ros.engine.rules.rules import Rules
from vla_accel_ros.engine.runner.frames import EncodeOnly
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.layers import packed
from vla_accel_ros.models.layers.packed import Segment
from vla_accel_ros.models.openvla.policy import ActionStats, OpenVLAPolicy
from vla_accel_ros.models.policies import WordedPolicy
from vla_accel_ros.types import Observation

MOST = 9
WORDS = ("lift", "lift the cup", "lift the red cup and take the red cup to the red cup")
SEGMENTS = ("together", "apart", "captured")


@functools.cache
def make_policy(tokens: int) -> OpenVLAPolicy:
    """One whose actions are so many numbers, which makes as many tokens."""
    with tempfile.TemporaryDirectory() as folder:
        policy: Any = load_policy(make_openvla_folder(Path(folder), seed=4))
    stats = ActionStats(-np.ones(tokens), np.ones(tokens), np.ones(tokens, bool))
    return replace(policy, stats=stats, delta_mask=np.zeros(tokens, bool))


def make_engine(tokens: int, segments: str = "together", slots: int = 5) -> Engine:
    """segments: whether rows of several frames are computed together, each frame's apart, or captured."""
    engine = Engine(make_policy(tokens), token_mode=PIPELINED, slots=slots, fast=segments == "captured")
    runner = engine.runner
    if segments == "apart":
        assert isinstance(runner.prefill, EncodeOnly)
        given = cast(WordedPolicy, engine.policy), engine.config, runner.pool, runner.prefill
        runner.actor = PackedTokenActor(*given, together=False)
    return engine


def frame(scene: int, words: str = WORDS[0]) -> Observation:
    return make_openvla_observation(scene, words)


@functools.cache
def _greedy(scene: int, words: str) -> tuple[int, ...]:
    policy = make_policy(MOST)
    with torch.inference_mode():
        hidden, past = policy.model.prefix(policy.embed(policy.inputs(frame(scene, words))))
        return tuple(int(step.tokens) for step in decode(policy.model, past, hidden[:, -1], count=MOST))


def greedy(scene: int, tokens: int, words: str = WORDS[0]) -> tuple[int, ...]:
    """Prefill, then token by token: what the model says by itself."""
    return _greedy(scene, words)[:tokens]


def begun(engine: Engine, prefix: Prefix) -> Request:
    request = Request(Act(), prefix=prefix)
    request.stage = engine.runner.first_stage(request)
    engine.runner.begin(request)
    return request


def run(engine: Engine, *requests: Request, draft: tuple[int, ...] = ()) -> None:
    """One forward."""
    stage = PREFILL if any(request.stage == PREFILL for request in requests) else DECODE
    engine.runner.run(MicroBatch(stage, requests, draft=draft))


@pytest.mark.parametrize("right", range(5))
def test_a_draft_finishes_in_the_prefill_as_much_as_is_right_and_costs_nothing_but_its_rows(
    right: int,
) -> None:
    engine, said = make_engine(5), greedy(2, 5)
    draft = list(said[:4])
    if right < 4:
        draft[right] = (said[right] + 1) % engine.policy.config.vocab
    with engine.observe(frame(2)) as prefix:
        request = begun(engine, prefix)
        run(engine, request, draft=tuple(draft))
        assert tuple(request.tokens) == said[: right + 1]
        for _ in range(4 - right):
            assert not request.finished
            run(engine, request)
    assert request.finished and tuple(request.tokens) == said


class AnyForwards(Rule):
    """A policy that puts whatever may share a forward into one, with any draft."""

    def __init__(self, data: st.DataObject, tokens: int, truth: dict[Request, tuple[int, ...]]) -> None:
        self._data, self._tokens, self._truth = data, tokens, truth

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        if (frame := next_frame(ready)) or not ready:
            return frame
        draw, under_way = self._data.draw, [one for one in ready if one.begun]
        new = [one for one in ready if not one.begun][: draw(st.integers(0, 2), label="new")]
        riding = [one for one in under_way if draw(st.booleans(), label="rides")]
        chosen = tuple(draw(st.permutations([*riding, *new]), label="order"))
        if not new:
            return MicroBatch(DECODE, chosen) if chosen else None
        right = draw(st.integers(0, self._tokens), label="right")
        noise = draw(st.lists(st.integers(0, 55), max_size=10), label="noise")
        draft = (*self._truth[new[0]][:right], *noise)[: self._tokens - 1]
        return MicroBatch(PREFILL, (*(r for r in chosen if r.begun), *new), draft=draft)


@settings(max_examples=30)
@given(data=st.data(), tokens=st.sampled_from([1, 2, 4, 9]), segments=st.sampled_from(SEGMENTS))
def test_any_policy_says_the_same(data: st.DataObject, tokens: int, segments: str) -> None:
    """Frames come or not, are drafted rightly, wrongly or not at all, are dropped, and have any length; some
    are acted on more than once."""
    engine, truth = make_engine(tokens, segments, slots=16), dict[Request, tuple[int, ...]]()
    own, engine.scheduler.rules = engine.scheduler.rules, Rules(AnyForwards(data, tokens, truth), text=False)
    prefixes: list[Prefix] = []
    scenes = st.tuples(st.integers(0, 3), st.sampled_from(WORDS))
    events = st.sampled_from(["frame", "frame", "again", "step", "step", "drop"])
    for event in data.draw(st.lists(events, min_size=1, max_size=12), label="events"):
        waiting = [request for request in engine.scheduler.requests if not request.cancelled]
        if event == "frame" and len(prefixes) < 8:
            scene, words = data.draw(scenes, label="scene")
            prefixes.append(engine.observe(frame(scene, words)))
            said = greedy(scene, tokens, words)
        if event in ("frame", "again") and prefixes and len(waiting) < 7:
            request = Request(Act(), prefix=prefixes[-1], waits=Waits.ROOM)
            truth[request] = said
            engine.scheduler.submit(request)
        elif event == "drop" and waiting:
            engine.scheduler.cancel(data.draw(st.sampled_from(waiting), label="dropped"))
        else:
            engine.scheduler.step()
    engine.scheduler.rules = own
    while engine.scheduler.requests:
        assert engine.scheduler.step()
    for request, said in truth.items():
        assert request.error is None and request.finished
        assert request.cancelled or tuple(request.tokens) == said
    for prefix in prefixes:
        prefix.release()
    assert engine.runner.pool.free == engine.runner.pool.slots - bool(prefixes)


def test_a_full_pool_refuses_the_new_frame_and_keeps_the_others() -> None:
    engine = make_engine(3)
    held = [engine.observe(frame(scene)) for scene in range(engine.runner.pool.slots)]
    requests = [begun(engine, prefix) for prefix in held]
    run(engine, *requests)
    with pytest.raises(PoolExhausted, match=f"all {len(held)} KV slots are held"):
        engine.observe(frame(0))
    run(engine, *requests)
    run(engine, *requests)
    assert [tuple(request.tokens) for request in requests] == [greedy(n, 3) for n in range(len(held))]


def test_of_a_full_pool_a_second_action_on_one_frame_waits_or_fails() -> None:
    engine = make_engine(3)
    held = [engine.observe(frame(0)) for _ in range(engine.runner.pool.slots)]
    first = begun(engine, held[0])
    waits = engine.scheduler.submit(Request(Act(), prefix=held[0], waits=Waits.ROOM))
    assert engine.scheduler.step() == () and not waits.begun
    with pytest.raises(PoolExhausted):
        engine.act(held[0])
    engine.runner.drop(first)
    assert engine.scheduler.wait(waits).tokens == list(greedy(0, 3))


def test_a_slot_has_room_for_the_longest_prompt_and_a_whole_draft() -> None:
    engine, most = make_engine(4), make_policy(4).config
    words = " ".join(["red"] * (most.max_prompt - len(make_policy(4).prompt(""))))
    with engine.observe(frame(1, words)) as prefix:
        assert prefix.n_tokens == most.max_tokens
        said = greedy(1, 4, words)
        for draft in ((), said[:3]):
            request = begun(engine, prefix)
            run(engine, request, draft=draft)
            while not request.finished:
                run(engine, request)
            engine.runner.drop(request)
            assert tuple(request.tokens) == said


@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_times_are_measured_one_kind_of_forward_each(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine whose forward takes a second and a hundredth for each row."""
    now, policy = [0.0], make_policy(tokens)

    def forward(segments: Sequence[Segment]) -> list[Tensor]:
        now[0] += 1.0 + 0.01 * sum(segment.x.shape[1] for segment in segments)
        return packed.forward(policy.model.language_model.model, segments)

    engine = make_engine(tokens)
    assert isinstance(engine.runner.prefill, EncodeOnly)
    monkeypatch.setattr(token_actor, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    given = cast(WordedPolicy, policy), engine.config, engine.runner.pool, engine.runner.prefill
    actor = PackedTokenActor(*given, forward)
    rows = policy.config.max_tokens - policy.config.max_prompt + token_actor.MEASURED_WORDS
    rest, prefill = tokens - 1, 1.0 + 0.01 * rows
    wanted = (prefill, prefill + 0.01 * rest, prefill + 0.01 * rest, 1.01 if rest else prefill)
    assert tuple(vars(actor.measure()).values()) == pytest.approx(wanted)
    assert held_slots(engine, robots=0) == 0
