"""Fast stages of a pi0-FAST: its recorded tokens, whatever shares their forwards.

Frames are the recording's three samples; each has tokens and actions of its own.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle_agreement import in_half
from pi_fast_oracle import SAMPLES, PiFastOracle, pi_fast_names

from vla_accel_ros.engine.actors.continued import AT_ONCE
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.request import ACT, Act, MicroBatch, Observe, Pace, Request
from vla_accel_ros.engine.streaming.ports import Ports
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.models.pi_fast.policy import PiFastPolicy
from vla_accel_ros.types import Chunk, Observation

pytestmark = pytest.mark.skipif("pi0_fast" not in pi_fast_names(), reason="VLA_ORACLES has no such recording")
ROBOTS = ("ann", "ben", "cid")
WAIT_S = 60.0


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PiFastOracle:
    place = tmp_path_factory.mktemp("pi_fast") / "folder"
    return PiFastOracle.load("pi0_fast", place, device=request.param)


class Written:
    """An engine, and the micro-batches that it computed."""

    def __init__(self, policy: PiFastPolicy, **options: Any) -> None:
        self.engine = Engine(policy, **{"fast": True, "slots": 6, **options})
        self.batches = list[MicroBatch]()
        rules = self.engine.scheduler.rules
        ran = rules.ran

        def noted(batch: MicroBatch, took_s: float) -> None:
            self.batches.append(batch)
            ran(batch, took_s)

        rules.ran = noted  # type: ignore[method-assign]

    @property
    def actor(self) -> Any:
        return self.engine.runner.actor

    def act(self, prefix: Prefix) -> Request:
        return self.engine.scheduler.submit(Request(Act(), prefix.robot, prefix))

    def see(self, observation: Observation) -> Request:
        return self.engine.scheduler.submit(Request(Observe(observation), observation.robot))

    def step(self) -> tuple[Request, ...]:
        return self.engine.scheduler.step()

    def assert_nothing_is_left(self) -> None:
        pages = self.actor._pages
        assert not self.engine.scheduler.requests and pages.unpromised == pages.pages


@pytest.fixture
def written(oracle: PiFastOracle) -> Iterator[Written]:
    made = Written(oracle.policy)
    yield made
    made.assert_nothing_is_left()


def frame(oracle: PiFastOracle, index: int, robot: str = "") -> Observation:
    return replace(oracle.observation(SAMPLES[index]), robot=robot)


def tokens(oracle: PiFastOracle) -> list[list[int]]:
    return [oracle.written(sample) for sample in SAMPLES]


@pytest.mark.parametrize("index", range(len(SAMPLES)))
def test_tokens_are_those_recorded_each_time(oracle: PiFastOracle, written: Written, index: int) -> None:
    written.engine.prepare((2,), (40,))
    with written.engine.observe(frame(oracle, index)) as prefix:
        requests = [written.engine.scheduler.wait(written.act(prefix)) for _ in range(2)]
    assert [request.tokens for request in requests] == [tokens(oracle)[index]] * 2
    chunk, again = (request.result for request in requests)
    assert isinstance(chunk, Chunk) and isinstance(again, Chunk)
    assert np.abs(chunk.actions - oracle[f"{SAMPLES[index]}actions"][0].numpy()).max() < 1e-5
    np.testing.assert_array_equal(again.actions, chunk.actions)


def test_actions_of_several_robots_share_their_forwards(oracle: PiFastOracle, written: Written) -> None:
    prefixes = [written.engine.observe(frame(oracle, index, robot)) for index, robot in enumerate(ROBOTS)]
    requests = [written.act(prefix) for prefix in prefixes]
    while written.step():
        pass
    assert [request.tokens for request in requests] == tokens(oracle)
    forwards = [len(batch.requests) for batch in written.batches if batch.requests[0].want == ACT]
    longest, shortest = max(map(len, tokens(oracle))), min(map(len, tokens(oracle)))
    assert len(forwards) == -(-longest // AT_ONCE) and forwards.count(3) == -(-shortest // AT_ONCE)
    for prefix in prefixes:
        prefix.release()


@pytest.mark.parametrize("mode", ["sequential", "pipelined"])
def test_frames_take_turns_with_tokens_of_other_robots_and_pipelined_of_their_own(
    oracle: PiFastOracle, mode: str
) -> None:
    written = Written(oracle.policy, token_mode=mode, slots=7)
    with written.engine.observe(frame(oracle, 0, "ann")) as prefix:
        first = written.act(prefix)
        written.step()
    own, other = (written.see(frame(oracle, index, robot)) for index, robot in ((1, "ann"), (2, "ben")))
    actions = dict[Request, Request]()
    while written.step():
        for seen in (own, other):
            if isinstance(seen.result, Prefix) and seen not in actions:
                actions[seen] = written.act(seen.result)
    assert [request.tokens for request in (first, actions[own], actions[other])] == tokens(oracle)
    order = [batch.requests for batch in written.batches]
    ends = max(index for index, requests in enumerate(order) if first in requests)
    assert order.index((other,)) < ends
    assert (order.index((own,)) < ends) == (mode == "pipelined")
    shared = {len(requests) for requests in order if first in requests}
    assert shared == ({1, 2, 3} if mode == "pipelined" else {1, 2})
    for seen in (own, other):
        assert isinstance(seen.result, Prefix)
        seen.result.release()
    written.assert_nothing_is_left()


def test_cancelled_action_frees_its_room_and_others_are_written_on(
    oracle: PiFastOracle, written: Written
) -> None:
    prefixes = [written.engine.observe(frame(oracle, index, robot)) for index, robot in enumerate(ROBOTS)]
    requests = [written.act(prefix) for prefix in prefixes]
    written.step()
    written.engine.scheduler.cancel(requests[1])
    again = written.act(prefixes[1])
    while written.step():
        pass
    assert requests[1].cancelled and requests[1].result is None and len(requests[1].tokens) == AT_ONCE
    assert [request.tokens for request in (requests[0], again, requests[2])] == tokens(oracle)
    for prefix in prefixes:
        prefix.release()


@dataclass(frozen=True)
class Endless(PiFastPolicy):
    """Nothing ends its actions, and any tokens are one."""

    @property
    def end_token(self) -> int:
        return -1

    def actions(self, raw: torch.Tensor, state: np.ndarray) -> np.ndarray:
        return np.zeros((self.config.horizon, self.joints), np.float32)


def test_action_without_an_end_has_as_many_tokens_as_it_may(oracle: PiFastOracle) -> None:
    policy = Endless(**vars(oracle.policy))
    requests = []
    for fast in (False, True):
        engine = Engine(policy, fast=fast)
        with engine.observe(frame(oracle, 0)) as prefix:
            request = Request(Act(), prefix=prefix)
            requests.append(engine.scheduler.wait(engine.scheduler.submit(request)))
    assert len(requests[0].tokens) == policy.most_tokens and policy.most_tokens % AT_ONCE
    assert requests[1].tokens == requests[0].tokens


class Streams:
    """A stream of each robot's own sample, all on one engine. chunks: of each robot."""

    def __init__(self, oracle: PiFastOracle, engine: Engine) -> None:
        self.chunks: dict[str, list[Chunk]] = {robot: [] for robot in ROBOTS}
        self.errors, self._told = list[Any](), threading.Condition()
        self._streams = [self._stream(oracle, engine, index) for index in range(len(ROBOTS))]

    def run(self, chunks: int) -> None:
        """Until each has so many."""
        for stream in self._streams:
            stream.start()
        try:
            with self._told:
                assert self._told.wait_for(lambda: self._enough(chunks), WAIT_S)
        finally:
            for stream in self._streams:
                stream.stop()

    def _enough(self, chunks: int) -> bool:
        return bool(self.errors) or min(map(len, self.chunks.values())) >= chunks

    def _stream(self, oracle: PiFastOracle, engine: Engine, index: int) -> Streaming:
        stamps, robot = itertools.count(), ROBOTS[index]

        def note(record: list[Any], what: object) -> None:
            with self._told:
                record.append(what)
                self._told.notify_all()

        ports = Ports(
            lambda: replace(frame(oracle, index, robot), stamp_ns=next(stamps)),
            lambda: None,
            lambda: None,
            lambda chunk, _: note(self.chunks[robot], chunk),
            lambda text: None,
            lambda *error: note(self.errors, error),
        )
        return Streaming(engine, ports, Pace(500.0), Pace(500.0), robot=robot)


@pytest.mark.parametrize("lanes", ["one", "two"])
@pytest.mark.parametrize("mode", ["sequential", "pipelined"])
@pytest.mark.parametrize("fast", [True, False])
def test_streams_act_on_their_own_frames_oldest_first(
    oracle: PiFastOracle, mode: str, lanes: str, fast: bool
) -> None:
    """In threads, with cameras that are faster than actions."""
    written = Written(oracle.policy, token_mode=mode, lanes=lanes, fast=fast, slots=10)
    streams = Streams(oracle, written.engine)
    streams.run(4)
    assert not streams.errors
    for sample, chunks in zip(SAMPLES, streams.chunks.values(), strict=True):
        stamps = [chunk.stamp_ns for chunk in chunks]
        assert stamps == sorted(set(stamps))
        for chunk in chunks:
            assert np.abs(chunk.actions - oracle[f"{sample}actions"][0].numpy()).max() < 1e-5
    most = max(sum(r.robot == "ann" for r in batch.requests) for batch in written.batches)
    assert (most > 1) == (mode == "pipelined")
    written.assert_nothing_is_left()
    pool = written.engine.runner.pool
    assert pool.free == pool.slots - len(ROBOTS)


@pytest.mark.gpu
@pytest.mark.parametrize("sample", SAMPLES)
def test_in_bfloat16_a_frame_is_as_near_as_rounding_lets_it_be(tmp_path: Path, sample: str) -> None:
    exact = PiFastOracle.load("pi0_fast", tmp_path / "exact")
    half = PiFastOracle.load("pi0_fast", tmp_path / "half", "bfloat16", "cuda")
    inputs = exact.policy.inputs(exact.observation(sample))
    with torch.inference_mode():
        expected = exact.policy.prefill(exact.policy.encode(inputs.images)["seen"], inputs.tokens)["hidden"]
    engine = Engine(half.policy, fast=True)
    with engine.observe(half.observation(sample)) as prefix, torch.inference_mode():
        hidden = engine.runner.prefill.last_hidden(prefix.slot, prefix.n_tokens)
        in_half(hidden.cpu().float(), expected, exact.layers)
        actions = [engine.act(prefix).actions for _ in range(2)]
    np.testing.assert_array_equal(actions[0], actions[1])
