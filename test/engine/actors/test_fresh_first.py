"""Staggering "fresh": the first chunk of a frame is whole and before all steps, further ones are in seats."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from builders import JOINTS, make_observation, make_policy
from frame_stream import FrameStream
from overlapping import Overlapping

from vla_accel_ros.engine.config import ALL_APART, FRESH_FIRST, LANES, EngineConfig
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import ACT, OBSERVE, WHOLE, Pace, Request
from vla_accel_ros.engine.rules.chunks import StaggeredChunks
from vla_accel_ros.engine.rules.rules import FIRST_APART, lanes_of
from vla_accel_ros.engine.streaming.ports import Ports
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.types import Chunk, Observation

STEPS = 4
WAIT_S = 60.0
DEVICES = [("cpu", 20), pytest.param("cuda", 200, marks=pytest.mark.gpu)]


def joints(number: int) -> tuple[np.ndarray, int]:
    return np.full(JOINTS, number / 100, np.float32), number


class Stepped(Overlapping):
    """Seats and whole chunks over a fake runner, in the lanes of a word."""

    def __init__(self, word: str, steps: int = STEPS) -> None:
        super().__init__(
            word, StaggeredChunks(3), steps=steps, lanes=FIRST_APART if word == ALL_APART else None
        )
        self.runner.whole_apart = True
        self.felt = 0

    def wants(self, first: bool) -> Request:
        def sense() -> tuple[np.ndarray, int]:
            return joints(self.felt)

        return self.acting(first=first, sense=sense)

    def ran(self, lane: str) -> list[str]:
        """One micro-batch of a lane; the kinds in it."""
        begun = self.begin(lane)
        kinds = [request.kind for request in self.running[lane][0].requests] if begun else []
        if begun:
            self.end(lane)
        return kinds


def test_further_chunks_wait_for_the_first_and_for_newer_joints() -> None:
    system = Stepped("one")
    first, further = system.wants(True), system.wants(False)
    assert system.ran("main") == []
    system.seen()
    assert system.ran("main") == [WHOLE] and first.finished and first.result is not None
    assert system.ran("main") == [] and not further.begun  # the joints are those of the first
    system.felt += 1
    assert system.ran("main") == [ACT] and further.begun


def test_the_first_chunk_of_a_frame_goes_before_the_steps_of_the_one_before() -> None:
    system = Stepped("one")
    system.wants(True)
    system.seen()
    assert system.ran("main") == [WHOLE]
    system.felt += 1
    further = system.wants(False)
    assert system.ran("main") == [ACT]
    system.frame()
    newer = system.wants(True)
    assert [system.ran("main") for _ in range(2)] == [[OBSERVE], [WHOLE]]
    assert newer.result is not None and further.cancelled, "nobody wants an older frame's chunk any more"


def test_with_three_lanes_first_chunks_have_one_of_their_own_above_the_seats() -> None:
    assert list(lanes_of(EngineConfig(lanes=ALL_APART, staggered=3, staggering=FRESH_FIRST))) == [
        "first", "action", "vision", "language",
    ]  # fmt: skip
    for word in LANES:
        assert lanes_of(EngineConfig(lanes=word, staggered=3)) == LANES_OF[word]
    system = Stepped(ALL_APART)
    system.wants(True)
    system.seen()
    assert system.ran("action") == [] and system.ran("first") == [WHOLE]
    system.felt += 1
    system.wants(False)
    assert system.begin("action") == [ACT]
    system.seen()
    newer = system.wants(True)
    assert system.begin("first") == [ACT]  # beside the seats
    system.end("first")
    assert newer.finished
    system.end("action")


def test_a_seat_that_is_finished_after_a_newer_frames_chunk_comes_to_nothing() -> None:
    """Both lanes run at once: versions never go backwards for who gets the chunks."""
    system, told = Stepped(ALL_APART, steps=1), list[Request]()
    system.wants(True)
    system.seen()
    system.ran("first")
    system.felt += 1
    late = system.wants(False)
    late.on_progress = told.append
    assert system.begin("action") == [ACT]
    system.seen()
    system.wants(True)
    assert system.begin("first") == [ACT]
    system.end("first")
    system.end("action")  # it is finished in this step
    assert late.cancelled and late.result is None and late.finished
    assert [request.cancelled for request in told] == [True]


LANES_OF = {word: lanes_of(EngineConfig(lanes=word)) for word in LANES}


def test_what_is_whole_and_what_is_in_seats(kind: str) -> None:
    engine = make_engine("cpu", kind, "one")
    stream = FrameStream(engine)
    first, further = (
        stream.want(first=first, sense=sense if kind == "pi0" else None)
        for first, sense in ((True, lambda: joints(1)), (False, lambda: joints(2)))
    )
    stream.see(make_observation(stamp_ns=1))
    stream.run()
    assert stream.counts[first] == 1 and first.kind == WHOLE and further.kind == ACT
    assert stream.counts[further] == (STEPS if kind == "pi0" else 0)  # pi0.5 is given no joints
    assert len(stream.chunks) == (2 if kind == "pi0" else 1)
    for chunk in stream.chunks:
        assert_made_again(engine, chunk, make_observation(stamp_ns=1))


def make_engine(device: str, kind: str, lanes: str) -> Engine:
    policy, fast = make_policy(kind, device=device), device == "cuda"
    options: dict[str, Any] = {"slots": 16, "steps": STEPS, "fast": fast, "staggered": STEPS}
    engine = Engine(policy, lanes=lanes, staggering=FRESH_FIRST, **options)
    engine.prepare([2], [5, 6, 7, 8] if fast else [])
    return engine


def assert_made_again(engine: Engine, chunk: Chunk, seen: Observation) -> None:
    """To the bit by a request of its own, in a seat or whole."""
    with engine.observe(seen) as prefix:
        made = [
            engine.act(prefix, chunk.state, chunk.request_id, steps=steps)
            for steps in (None, engine.config.steps)
        ]
    assert any(np.array_equal(one.actions, chunk.actions) for one in made)


@pytest.mark.parametrize(("device", "frames"), DEVICES)
@pytest.mark.parametrize("lanes", LANES)
def test_a_running_stream_with_newer_joints(device: str, frames: int, lanes: str) -> None:
    """All threads: versions never go backwards, each frame's chunks are its own to the bit."""
    engine = make_engine(device, "pi0", lanes)
    chunks, errors, seen, told = [], [], dict[int, Observation](), threading.Condition()
    numbers, sensed = iter(range(frames)), iter(range(1, 1_000_000))

    def observe() -> Observation | None:
        number = next(numbers, None)
        if number is None:
            return None
        seen[1000 + number] = made = make_observation(number, stamp_ns=1000 + number)
        return made

    def note(chunk: Chunk, took_s: float) -> None:
        with told:
            chunks.append(chunk)
            told.notify_all()

    ports = Ports(
        observe, lambda: None, lambda: joints(next(sensed)), note, lambda text: None,
        lambda *error: errors.append(error),
    )  # fmt: skip
    stream = Streaming(engine, ports, Pace(100.0), Pace(200.0))
    stream.start()
    with told:
        assert told.wait_for(lambda: sum(c.stamp_ns == 999 + frames for c in chunks) > 3 or errors, WAIT_S)
    stream.stop()
    assert not errors and not engine.scheduler.requests
    versions = [chunk.kv_version for chunk in chunks]
    assert versions == sorted(versions)
    assert engine.runner.pool.free == engine.runner.pool.slots - 1
    for chunk in chunks[:: len(chunks) // 10 + 1]:
        assert_made_again(engine, chunk, seen[chunk.stamp_ns])


def test_a_chunk_that_is_told_after_a_newer_one_is_not_handed_over() -> None:
    """Two lanes may tell at once, in any order."""
    engine = make_engine("cpu", "pi05", "one")

    def nothing(*what: object) -> Any:
        return None

    stream = Streaming(
        engine, Ports(nothing, nothing, nothing, nothing, nothing, nothing), Pace(100.0), Pace(200.0)
    )
    chunks = [
        Chunk(np.zeros((2, JOINTS)), 1, 0.1, 0, number, np.zeros(2, np.float32)) for number in (3, 2, 4)
    ]
    for chunk in chunks:
        stream._results.give(nothing, chunk, 0.01)
    assert [what[0] for _, what in stream._results.waiting] == [chunks[0], chunks[2]]
    assert stream.stats()[1].misses == 1
