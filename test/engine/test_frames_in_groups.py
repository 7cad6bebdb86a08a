"""Requests to observe in groups of layers: what runs between two groups, and what becomes of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import JOINTS, make_observation, make_policy
from frame_stream import FrameStream, held_slots
from openvla_builders import make_openvla_folder

from vla_accel_ros.engine.config import LANES
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.lanes.lane import Launched
from vla_accel_ros.engine.request import (
    ACT,
    ASK,
    OBSERVE,
    Act,
    Ask,
    MicroBatch,
    Observe,
    Request,
    Waits,
)
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.types import Chunk, Observation, Torn

LAYERS = 4
"""Of the image encoder and the prefix stack together."""
STEPS = 4
WORDS = ("reach the red block", "reach the green block")
QUESTION = "what is there"


def make_engine(kind: str = "pi0", count: int = LAYERS, device: str = "cpu", **options: Any) -> Engine:
    given = {"slots": 10, "steps": STEPS, "staggered": 2, "fast": True, **options}
    return Engine(policy_of(kind, device), prefill_groups=count, **given)


@cache
def policy_of(kind: str, device: str) -> Policy:
    return make_policy(kind, device=device)


def seen(number: int, robot: str = "", words: str = WORDS[0]) -> Observation:
    made = make_observation(number, instruction=words, stamp_ns=1000 + number)
    return replace(made, robot=robot)


def observing(engine: Engine, number: int, robot: str = "", **given: Any) -> Request:
    return engine.scheduler.submit(Request(Observe(seen(number, robot)), robot, **given))


@pytest.mark.parametrize("count", [2, LAYERS])
@pytest.mark.parametrize("threads", [False, True])
def test_a_torn_frame_is_never_published(threads: bool, count: int, device: str) -> None:
    """The pixels are copied while other work runs, and nobody knows before that they were overwritten."""
    engine = make_engine(count=count, device=device, staggered=0)
    torn = replace(seen(0), intact=lambda: False)
    if threads:
        engine.scheduler.start()
    try:
        for _ in range(3):
            with pytest.raises(Torn):
                engine.observe(torn)
            assert engine.runner.prefixes.newest() is None and held_slots(engine, robots=0) == 0
        with engine.observe(seen(1)) as prefix:
            assert prefix.stamp_ns == 1001
    finally:
        engine.scheduler.stop()


def test_a_request_takes_a_micro_batch_for_each_group_and_is_published_after_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, told, kinds, waits = make_engine(), list[bool](), list[str](), list[bool]()
    run = engine.runner.run

    def noted(batch: MicroBatch) -> Callable[[], None] | None:
        wait = run(batch)
        kinds.append(batch.kind)
        waits.append(wait is not None)
        assert Launched(batch, 0.0, wait=wait).is_followed, "a step may be launched behind a group"
        assert batch.requests[0].finished == (len(kinds) == LAYERS)
        return wait

    monkeypatch.setattr(engine.runner, "run", noted)
    request = observing(engine, 0, on_progress=lambda one: told.append(one.finished))
    for number in range(LAYERS):
        assert engine.runner.prefixes.newest() is None and held_slots(engine, 0) == bool(number)
        assert engine.scheduler.step() == (request,)
    assert kinds == ["observe.encode"] * 2 + ["observe.prefill"] * 2
    assert waits == [True] * LAYERS, "so that it is known how long each takes"
    assert told == [False] * (LAYERS - 1) + [True]
    assert request.result is not None
    request.result.release()
    assert held_slots(engine) == 0


@pytest.mark.gpu
def test_a_group_is_computed_when_its_micro_batch_is_over() -> None:
    """Else what is chosen next would wait for all that was put before it."""
    engine = make_engine(device="cuda")
    engine.scheduler.lanes[0].timing = lambda batch: nullcontext()  # its event comes after the group's
    engine.observe(seen(0)).release()
    request = observing(engine, 1)
    for _ in range(LAYERS - 1):
        engine.scheduler.step()
        assert torch.cuda.current_stream().query() and not request.finished
    engine.scheduler.wait(request).result.release()


def test_the_frame_in_progress_goes_on_before_a_more_urgent_one_begins() -> None:
    engine = make_engine()
    first = observing(engine, 0, "a")
    engine.scheduler.step()
    second = observing(engine, 1, "b", priority=9)
    batches = [engine.scheduler.step() for _ in range(2 * LAYERS - 1)]
    assert batches == [(first,)] * (LAYERS - 1) + [(second,)] * LAYERS


def test_a_step_waits_for_one_group_and_a_frame_for_the_steps_between() -> None:
    engine = make_engine(steps=4 * LAYERS)
    stream = FrameStream(engine)
    stream.frame(seen(0))
    (acting,) = stream.under_way
    frames = observing(engine, 1), observing(engine, 2, "b")
    ran = [engine.scheduler.step() for _ in range(4 * LAYERS)]
    assert ran == [(frames[0],), (acting,)] * LAYERS + [(frames[1],), (acting,)] * LAYERS
    assert all(frame.finished for frame in frames) and stream.under_way == [acting]


def test_at_once_frames_of_all_robots_go_before_steps() -> None:
    engine = make_engine(count=1)
    FrameStream(engine).frame(seen(0))
    frames = [observing(engine, 1), observing(engine, 2, "b")]
    assert [engine.scheduler.step() for _ in range(2)] == [(frames[0],), (frames[1],)]


def test_whole_chunks_do_not_alternate_with_groups() -> None:
    """A further chunk waits for the frame; a first chunk, which goes before frames, for a group."""
    engine = make_engine(staggered=0)
    with engine.observe(seen(0)) as prefix:
        frame = observing(engine, 1)
        engine.scheduler.step()
        first = engine.scheduler.submit(Request(Act(), prefix=prefix))
        assert engine.scheduler.step() == (first,)
        assert [engine.scheduler.step() for _ in range(LAYERS - 1)] == [(frame,)] * (LAYERS - 1)


@pytest.mark.parametrize("staggered", [0, 2])
def test_a_question_in_other_words_waits_for_the_frame_in_progress(
    monkeypatch: pytest.MonkeyPatch, staggered: int
) -> None:
    engine = make_engine(staggered=staggered)
    engine.observe(seen(0)).release()
    asked = engine.scheduler.submit(Request(Ask(question="what is there?"), waits=Waits.NEWS))
    frame = observing(engine, 1)
    engine.scheduler.step()
    assert frame.begun and not asked.begun
    late_s = engine.scheduler.clock() + 10.0
    monkeypatch.setattr(engine.scheduler, "clock", lambda: late_s)
    assert [engine.scheduler.step() for _ in range(LAYERS)] == [(frame,)] * (LAYERS - 1) + [(asked,)]


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fast"])
def test_a_family_whose_frames_are_computed_whole_says_so(tmp_path: Path, fast: bool) -> None:
    sentence = "prefill_groups is 3, but frames of a openvla policy are computed whole; use 1."
    with pytest.raises(ValueError, match=sentence):
        Engine(load_policy(make_openvla_folder(tmp_path / "model")), prefill_groups=3, fast=fast)


def released(request: Request) -> None:
    if isinstance(request.result, Prefix):
        request.result.release()


class Schedule:
    """Frames of two robots, chunks, questions, cancellations and failures between two groups of layers, in
    any order of the lanes' micro-batches."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self.draw = engine, random.Random(seed)
        self.streams = {robot: FrameStream(engine, robot) for robot in "ab"}
        self.frames: dict[int, Observation] = {}
        self.failed, self.cancelled = list[Request](), list[Request]()
        self.asked: dict[Request, int] = {}  # and the stamp of its frame
        self._number = 0
        engine.scheduler.clock = lambda: self._number / 100

    def event(self) -> None:
        draw, scheduler = self.draw, self.engine.scheduler
        robot, what = draw.choice("ab"), draw.random()
        mine = {r.want for r in scheduler.requests if r.robot == robot and not (r.want == ACT and r.begun)}
        self._number += 1
        if what < 0.15:
            if OBSERVE not in mine:
                self.see(robot)
        elif what < 0.3:
            if ACT not in mine:
                felt = np.full(JOINTS, draw.random() / 10, np.float32), self._number
                self.streams[robot].want(sense=lambda: felt)
        elif what < 0.4:
            if ASK not in mine:
                self.ask(robot)
        elif what < 0.44 and self.in_progress:
            self.cancelled += self.in_progress
            scheduler.cancel(*self.in_progress)
        elif what < 0.48 and self.in_progress:
            self.failed += self.in_progress
            self.in_progress[0].progress.frame.groups[0] = [(object(), (0, 1))]
        else:
            scheduler.step(draw.choice(scheduler.lanes))
        assert len(self.in_progress) <= 1, "the buffers are one frame's"

    @property
    def busy(self) -> bool:
        """Whether there is anything but what waits for something new."""
        return any(request.begun or request.want != ACT for request in self.engine.scheduler.requests)

    @property
    def in_progress(self) -> list[Request]:
        """Frames that are between two groups."""
        begun = [r for r in self.engine.scheduler.requests if r.want == OBSERVE and r.progress is not None]
        return [request for request in begun if request.progress.frame.groups]

    def see(self, robot: str) -> None:
        made = seen(self._number, robot, self.draw.choice(WORDS))
        self.frames[made.stamp_ns] = made
        self.engine.scheduler.submit(Request(Observe(made), robot, on_progress=released))

    def ask(self, robot: str) -> None:
        prefix = self.engine.runner.prefixes.newest(robot)
        if prefix is None:
            return
        # The request holds it from its beginning on, until which it is held here.
        request = Request(
            Ask(QUESTION, max_tokens=2), robot, prefix, on_progress=lambda request: prefix.release()
        )
        self.asked[self.engine.scheduler.submit(request)] = prefix.stamp_ns

    def finish(self) -> None:
        """All that may run does; what waits for something new is broken off."""
        scheduler = self.engine.scheduler
        while any(scheduler.step(lane) for lane in scheduler.lanes) or any(
            r.begun for r in scheduler.requests
        ):
            pass
        scheduler.stop()


@pytest.mark.parametrize(
    ("device", "events"), [("cpu", 400), pytest.param("cuda", 1000, marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize(
    ("lanes", "kind", "count"),
    zip(LANES, ("pi0", "pi05", "pi05", "pi0"), (LAYERS, 3, 3, LAYERS), strict=True),
)
def test_random_schedules_tear_no_prefix(device: str, events: int, kind: str, count: int, lanes: str) -> None:
    """What is finished is what an engine without groups makes, to the bit."""
    engine, alone = (make_engine(kind, n, device, lanes=lanes, slots=160) for n in (count, 1))
    schedule = Schedule(engine, seed=1)
    for _ in range(events):
        schedule.event()
    schedule.finish()
    assert all(isinstance(r.error, AttributeError) or r.cancelled for r in schedule.failed)
    assert all(r.cancelled or r.error for r in schedule.cancelled)
    assert min(map(len, (schedule.failed, schedule.cancelled, schedule.asked))) > 0
    for request, stamp_ns in schedule.asked.items():
        with alone.observe(schedule.frames[stamp_ns]) as other:
            answer = "".join(alone.ask(other, QUESTION, max_tokens=2))
        assert request.error is None and not request.cancelled and (request.result or "") == answer
    assert not engine.scheduler.requests and held_slots(engine, 2) == 0
    for robot, stream in schedule.streams.items():
        assert not stream.errors and stream.chunks
        for chunk in stream.chunks[::4]:
            assert_made_by(alone, chunk, schedule.frames[chunk.stamp_ns])
        newest = engine.runner.prefixes.newest(robot)
        assert newest is not None
        with newest, alone.observe(schedule.frames[newest.stamp_ns]) as other:
            assert_same_prefix(engine, newest, alone, other)


def assert_same_prefix(engine: Engine, prefix: Any, alone: Engine, other: Any) -> None:
    assert (prefix.n_tokens, prefix.n_images) == (other.n_tokens, other.n_images)
    for held in (prefix, other):  # computed in streams of lanes
        if held.ready is not None:
            held.ready.synchronize()
    ours, theirs = (
        one.runner.pool.view(held.slot, held.n_tokens) for one, held in ((engine, prefix), (alone, other))
    )
    assert (ours.k == theirs.k).all() and (ours.v == theirs.v).all()


def assert_made_by(alone: Engine, chunk: Chunk, frame: Observation) -> None:
    with alone.observe(frame) as prefix:
        again = alone.act(prefix, chunk.state, chunk.request_id)
    np.testing.assert_array_equal(chunk.actions, again.actions)
