"""Scheduling policies by name: each serves an engine with any options, or is refused in one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_observation, make_policy
from openvla_builders import make_openvla_folder, make_openvla_observation
from planned import make_act, make_again
from scheduled import in_thread, joined

from vla_accel_ros import extensions
from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import PoolExhausted
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import ACT, DENOISE, OBSERVE, Act, MicroBatch, Request
from vla_accel_ros.engine.rules.batches import batches
from vla_accel_ros.engine.rules.chunks import staggered, whole
from vla_accel_ros.engine.rules.rule import Rule, Setup
from vla_accel_ros.engine.rules.throughput import throughput
from vla_accel_ros.engine.rules.tokens import TokenFrames
from vla_accel_ros.extensions import BUILT_IN, POLICIES
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.types import Chunk

NAMES = [name for name in BUILT_IN[POLICIES] if name != "tokens"]


def act(engine: Engine, observation: Any) -> np.ndarray:
    """The actions of a frame. Fails if the scheduler never chooses them."""
    chunks: list[Chunk] = []

    def serve() -> None:
        with engine.observe(observation) as prefix:
            chunks.append(engine.act(prefix, noise=7 if engine.policy.chain.acts == "denoise" else None))

    joined(in_thread(serve))
    return chunks[0].actions


@pytest.mark.parametrize("staggered", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_flow_policy_acts_whatever_the_scheduling(name: str, staggered: int) -> None:
    policy, frame = make_policy("pi0"), make_observation()
    engine = Engine(policy, scheduling=name, staggered=staggered, slots=8, steps=3)
    np.testing.assert_array_equal(act(engine, frame), act(Engine(policy, steps=3), frame))


@pytest.mark.parametrize("mode", ["sequential", "pipelined"])
@pytest.mark.parametrize("name", NAMES)
def test_a_policy_that_acts_by_tokens_does_too(name: str, mode: str, tmp_path: Path) -> None:
    policy, frame = load_policy(make_openvla_folder(tmp_path, seed=4)), make_openvla_observation(0)
    engine = Engine(policy, scheduling=name, token_mode=mode)
    np.testing.assert_array_equal(act(engine, frame), act(Engine(policy), frame))


def test_tokens_are_refused_for_a_policy_that_denoises() -> None:
    with pytest.raises(ValueError, match="scheduling is 'tokens'"):
        Engine(make_policy("pi0"), scheduling="tokens")


class EveryChunk(Rule):
    """Begins every chunk at once, whether there are seats or not."""

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        frames = [request for request in ready if request.want == OBSERVE]
        acts = tuple(request for request in ready if request.want == ACT)
        return (
            MicroBatch(frames[0].stage, (frames[0],)) if frames else MicroBatch(DENOISE, acts or (ready[0],))
        )


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Adds a policy "added", as another package would."""

    def add(make: object) -> None:
        names = {**BUILT_IN[POLICIES], "added": make}
        monkeypatch.setattr(extensions, "BUILT_IN", {**BUILT_IN, POLICIES: names})

    return add


@pytest.mark.parametrize("made", [None, MicroBatch(DENOISE, ())])
def test_what_is_no_policy_is_refused_when_the_engine_is_made(
    added: Callable[[object], None], made: object
) -> None:
    def make(setup: Setup) -> object:
        return made

    added(make)
    with pytest.raises(
        ValueError, match=f"'added', which made a {type(made).__name__} without admitted and urgent and"
    ):
        Engine(make_policy("pi0"), scheduling="added")


def test_a_policy_that_begins_more_chunks_than_there_are_seats_is_told_so(
    added: Callable[[object], None],
) -> None:
    added(lambda setup: EveryChunk())
    engine = Engine(make_policy("pi0"), scheduling="added", staggered=2, slots=8, steps=3)
    with engine.observe(make_observation()) as prefix:
        acts = [engine.scheduler.submit(Request(Act(), prefix=prefix)) for _ in range(3)]
        for request in acts[:2]:
            assert isinstance(engine.scheduler.wait(request).result, Chunk)
        with pytest.raises(PoolExhausted, match="all 2 seats"):
            engine.scheduler.wait(acts[2])


def test_a_policy_that_raises_once_a_frame_is_finished_costs_no_slot(added: Callable[[object], None]) -> None:
    class Broken(EveryChunk):
        def ran(self, batch: MicroBatch, took_s: float) -> None:
            raise RuntimeError("this policy is broken")

    added(lambda setup: Broken())
    engine = Engine(make_policy("pi0"), scheduling="added")
    for number in range(2 * engine.config.slots):
        with pytest.raises(RuntimeError, match="this policy is broken"):
            engine.observe(make_observation(number))
    assert engine.runner.pool.free == engine.config.slots - 1, "the newest frame's is held"


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("make", [whole, staggered, throughput, batches])
def test_the_chunk_with_the_highest_priority_begins_first(make: Callable[[Setup], Rule], again: bool) -> None:
    acts = [(make_again if again else make_act)(robot) for robot in "abc"]
    acts[1].priority = 1
    policy = make(Setup(EngineConfig(staggered=0 if make is whole else 4), Profile()))
    batch = policy.next("main", acts, 0.0)
    assert batch is not None and batch.requests[0] is acts[1]


def test_the_frame_with_the_highest_priority_is_prefilled_first() -> None:
    acts = [make_act(robot) for robot in "abc"]
    acts[1].priority = 1
    batch = TokenFrames("pipelined", "rate", 7).next("main", acts, 0.0)
    assert batch is not None and batch.requests == (acts[1],)
