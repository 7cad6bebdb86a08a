"""Several chunks in progress through the front door: each the one that act would have made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from builders import JOINTS, make_observation, make_policy
from frame_stream import FrameStream, held_slots
from guiding import guidance_to
from hypothesis import given, settings
from hypothesis import strategies as st
from openvla_builders import make_openvla_folder

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.request import DENOISE, Act, MicroBatch, Request, Waits
from vla_accel_ros.engine.rules.chunks import next_frame
from vla_accel_ros.engine.rules.rule import Rule as SchedulingPolicy
from vla_accel_ros.engine.rules.rules import Rules
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.types import Chunk, Observation

STEPS, COUNT = 4, 3
RED, GREEN = "reach the red block", "reach the green block"


@pytest.fixture(scope="module", params=["pi0", "pi05"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return make_policy(request.param)


def make_engine(policy: Policy, staggered: int = COUNT, fast: bool = False) -> Engine:
    return Engine(policy, slots=staggered + 5, steps=STEPS, seed=3, fast=fast, staggered=staggered)


def observation(number: int, words: str = RED) -> Observation:
    return make_observation(number, instruction=words, stamp_ns=1000 + number)


def state_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).uniform(-0.5, 0.5, JOINTS).astype(np.float32)


def assert_made_by_act(engine: Engine, chunk: Chunk, seen: Observation) -> None:
    """To the bit what a request for one chunk makes of the same observation, state and noise."""
    with engine.observe(seen) as prefix:
        again = engine.act(prefix, chunk.state, chunk.request_id)
    np.testing.assert_array_equal(chunk.actions, again.actions)
    np.testing.assert_array_equal(chunk.update_magnitudes, again.update_magnitudes)
    assert chunk.stamp_ns == again.stamp_ns == seen.stamp_ns


def stamps(stream: FrameStream) -> list[int]:
    return [chunk.stamp_ns - 1000 for chunk in stream.chunks]


@settings(max_examples=8)
@given(data=st.data(), count=st.integers(2, STEPS), fast=st.booleans())
def test_any_schedule_gives_the_chunks_of_act_to_the_bit(
    policy: Policy, data: st.DataObject, count: int, fast: bool
) -> None:
    """Frames of two robots come or do not, joints are newer, and pauses and other words drop what is under
    way of the same robot alone."""
    engine = make_engine(policy, count, fast)
    streams = {robot: FrameStream(engine, robot) for robot in "ab"}
    words, seen = {"a": RED, "b": GREEN}, dict[int, Observation]()
    events = st.sampled_from(["frame", "frame", "frame", "wait", "words", "pause"])
    for number, event in enumerate(data.draw(st.lists(events, min_size=1, max_size=14), label="events")):
        robot = data.draw(st.sampled_from("aab"), label="robot")
        stream, other = streams[robot], streams["b" if robot == "a" else "a"]
        before = list(other.dropped)
        if event == "pause":
            engine.scheduler.forget(robot)
            assert not stream.under_way
        if event == "words":
            words[robot] += " now"
        if event in ("frame", "words"):
            frame = observation(number, words[robot])
            stream.see(frame)
            seen[engine.runner.prefixes.newest_version(robot)] = frame
            if not stream.waiting:
                stream.want(state=state_of(number))
        under_way = [*streams["a"].under_way, *streams["b"].under_way]
        before_this = {request: stream.counts[request] for request in under_way}
        batch = engine.scheduler.step()
        assert len(batch) <= count
        for request, steps in before_this.items():
            assert request.cancelled or stream.counts[request] == steps + 1, "a step advances all"
        assert other.dropped == before
        assert {one.instruction for one in stream.under_way} <= {words[robot]} or event == "wait"
        robots = sum(engine.runner.prefixes.newest_version(one) >= 0 for one in streams)
        assert held_slots(engine, robots) <= sum(len(one.under_way) for one in streams.values()) <= count
    while engine.scheduler.step():
        pass
    assert not any(stream.under_way for stream in streams.values())
    assert engine.runner.pool.free >= engine.runner.pool.slots - len(streams)
    alone = engine if fast else make_engine(policy, 0)
    for stream in streams.values():
        assert not stream.errors
        assert [stream.counts[request] for request in stream.finished] == [STEPS] * len(stream.finished)
        assert stamps(stream) == sorted(stamps(stream))
        for chunk in stream.chunks:
            assert (chunk.state is not None) == policy.chain.takes_state
            assert_made_by_act(alone, chunk, seen[chunk.kv_version])


class AnyStep(SchedulingPolicy):
    """A policy that advances whichever chunks it likes, and begins one when there is a seat."""

    def __init__(self, data: st.DataObject, seats: int) -> None:
        self._data, self._seats = data, seats

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        if (frame := next_frame(ready)) or not ready:
            return frame
        draw, under_way = self._data.draw, [one for one in ready if one.begun]
        chosen = [one for one in under_way if draw(st.booleans(), label="advances")]
        if len(under_way) < self._seats and len(under_way) < len(ready):
            chosen += draw(st.sampled_from([[one] for one in ready if not one.begun] + [[]]), label="begins")
        steps = draw(st.integers(0, 2), label="steps")
        return MicroBatch(DENOISE, tuple(chosen), steps) if chosen else None


@settings(max_examples=10)
@given(data=st.data(), fast=st.booleans())
def test_any_policy_gives_the_chunks_of_act_to_the_bit(
    policy: Policy, data: st.DataObject, fast: bool
) -> None:
    engine = make_engine(policy, COUNT, fast)
    own, engine.scheduler.rules = engine.scheduler.rules, Rules(AnyStep(data, COUNT), text=False)
    with engine.observe(observation(0)) as first, engine.observe(observation(1, GREEN)) as second:
        requests = [
            Request(Act(state=state_of(n)), prefix=(first, second)[n % 2], waits=Waits.ROOM) for n in range(5)
        ]
        for request in requests:
            engine.scheduler.submit(request)
        for _ in range(data.draw(st.integers(0, 12), label="micro-batches")):
            engine.scheduler.step()
        dropped = data.draw(st.sampled_from(requests), label="dropped")
        engine.scheduler.cancel(dropped)
        engine.scheduler.rules = own
        while engine.scheduler.requests:
            assert engine.scheduler.step()
    assert held_slots(engine) == 0
    alone = engine if fast else make_engine(policy, 0)
    for number, request in enumerate(requests):
        assert request.error is None and (request.result is not None or request is dropped)
        if isinstance(request.result, Chunk):
            assert_made_by_act(alone, request.result, observation(number % 2, (RED, GREEN)[number % 2]))


def test_once_full_every_step_finishes_the_chunk_of_its_own_frame(policy: Policy) -> None:
    engine, brought = make_engine(policy, STEPS), []
    stream = FrameStream(engine)
    for number in range(9):
        before = len(stream.finished)
        stream.frame(observation(number), state_of(number))
        brought.append(stamps(stream)[before:])
    assert brought == [[]] * (STEPS - 1) + [[number] for number in range(9 - STEPS + 1)]
    assert [chunk.kv_version for chunk in stream.chunks] == list(range(9 - STEPS + 1))
    assert [one.prefix.version for one in stream.under_way] == list(range(9 - STEPS + 1, 9))


def test_without_room_none_is_begun(policy: Policy) -> None:
    engine = make_engine(policy, STEPS - 1)
    stream = FrameStream(engine)
    for number in range(STEPS - 1):
        stream.frame(observation(number))
    assert len(stream.under_way) == STEPS - 1
    with engine.observe(observation(9)) as prefix:
        waits = engine.scheduler.submit(Request(Act(), prefix=prefix, waits=Waits.ROOM))
        asked = engine.scheduler.submit(Request(Act(), prefix=prefix))
        assert len(engine.scheduler.step()) == STEPS - 1 and stamps(stream) == [0]
        assert not waits.begun and not asked.begun
        for request in (waits, asked):
            chunk = engine.scheduler.wait(request).result
            assert isinstance(chunk, Chunk)
            assert_made_by_act(make_engine(policy, 0), chunk, observation(9))
    assert stamps(stream) == [0, 1, 2]


def test_guidance_is_for_chunks_one_at_a_time_and_goes_on_beside(policy: Policy) -> None:
    engine, plain = make_engine(policy), make_engine(policy, 0)
    stream = FrameStream(engine)
    stream.frame(observation(0))
    with held(engine) as prefix, plain.observe(observation(0)) as other:
        first = engine.act(prefix)
        before = [stream.counts[request] for request in stream.under_way]
        guided = engine.act(prefix, guidance=guidance_to(engine, prefix, first, delay=2), noise=7)
        assert [stream.counts[request] for request in stream.under_way] == before
        want = plain.act(other, guidance=guidance_to(plain, other, first, delay=2), noise=7)
    np.testing.assert_array_equal(guided.actions, want.actions)
    assert_made_by_act(plain, first, observation(0))


def held(engine: Engine, robot: str = "") -> Prefix:
    newest = engine.runner.prefixes.newest(robot)
    assert newest is not None
    return newest


def test_who_acts_otherwise_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="openvla"):
        Engine(load_policy(make_openvla_folder(tmp_path)), slots=9, staggered=2)


def test_newer_joints_begin_a_chunk_on_the_same_frame(policy: Policy) -> None:
    stream = FrameStream(make_engine(policy, STEPS))
    stream.see(observation(0))
    for number in range(3):
        felt = state_of(number), number + 1
        stream.want(sense=(lambda felt=felt: felt) if policy.chain.takes_state else None)
        assert stream.engine.scheduler.step()
    assert len(stream.under_way) == (3 if policy.chain.takes_state else 1)
    again = stream.want(sense=(lambda: felt) if policy.chain.takes_state else None)
    stream.run()
    assert not again.begun, "there are no newer joints"
    for number, chunk in enumerate(stream.chunks):
        assert chunk.state is None or np.array_equal(chunk.state, state_of(number))
        assert_made_by_act(stream.engine, chunk, observation(0))
