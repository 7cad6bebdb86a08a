"""Newly committed points are something new to act on: of a guided stream, one whole action at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from builders import JOINTS, make_observation, make_policy
from frame_stream import FrameStream
from scheduled import System
from wishes import due

from vla_accel_ros.control.chunking.rtc import RealTimeChunking
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.readiness import SENSE_AGAIN_S
from vla_accel_ros.engine.request import ACT, Request
from vla_accel_ros.types import Agreement

MS = 1_000_000


def agreeing(delay: int) -> Callable[[Request], None]:
    """What makes a chunk agree with so many actions."""

    def begin(request: Request) -> None:
        actions = np.zeros((delay, JOINTS), np.float32)
        agreement = Agreement("guidance", actions, delay, delay, "ONES", "identity", 1.0, 0)
        request.wish = replace(request.act, agreement=agreement)

    return begin


def test_a_frame_is_acted_on_again_when_one_whole_action_more_is_committed() -> None:
    system, committed = System(), [3]
    system.seen()
    system.acting(commits=lambda stamp_ns: committed[0], on_begin=agreeing(3))
    assert system.run() == [ACT]
    again = system.acting(commits=lambda stamp_ns: committed[0], on_begin=agreeing(4))
    assert system.run() == []  # the same points
    committed[0] = 4
    assert system.run() == [ACT] and again.finished and not again.fresh
    system.acting(commits=lambda stamp_ns: committed[0])
    assert system.run() == []


def test_points_that_no_chunk_agreed_with_are_new() -> None:
    system = System()
    system.seen()
    system.acting(commits=lambda stamp_ns: None)
    assert system.run() == [ACT]
    system.acting(commits=lambda stamp_ns: 1, on_begin=agreeing(1))
    assert system.run() == [ACT]


def test_where_nothing_is_guided_a_frame_is_acted_on_once_and_nobody_looks_again() -> None:
    system = System()
    system.seen()
    for _ in range(2):
        system.acting(commits=lambda stamp_ns: None)
    assert system.run() == [ACT]
    assert system.scheduler.lanes[0].again_s == np.inf


def test_a_lane_looks_again_whether_more_is_committed_and_not_before_its_time() -> None:
    system = System()
    system.seen()
    system.acting(commits=lambda stamp_ns: 2, on_begin=agreeing(2))
    system.run()
    waits = system.acting(commits=lambda stamp_ns: 2, grid=due(1.0))
    assert system.run() == []
    assert system.scheduler.lanes[0].again_s == 1.0
    system.clock.now_s = 1.0
    assert system.run() == [] and not waits.begun
    assert system.scheduler.lanes[0].again_s == pytest.approx(1.0 + SENSE_AGAIN_S)


def test_it_is_asked_about_the_frame_that_was_acted_on() -> None:
    system, asked = System(), list[int]()
    system.seen()
    for _ in range(2):
        system.acting(commits=lambda stamp_ns: asked.append(stamp_ns))
    assert system.run() == [ACT] and set(asked) == {1}


class Guided:
    """A guided stream over an engine: actions 100 ms apart, chunks that take 20 ms, delivered in 60 ms."""

    def __init__(self, kind: str = "pi05") -> None:
        self.engine, self.now_ns = Engine(make_policy(kind), steps=2, step_dt_s=0.1), 0
        self.rtc = RealTimeChunking(self.engine, lambda: self.now_ns)
        self.stream = FrameStream(self.engine)

    def want(self) -> Request:
        return self.stream.want(commits=self.rtc.committed, on_begin=self.rtc.begin)

    def step(self) -> Request | None:
        """One micro-batch, of one chunk, which takes its time."""
        if not (ran := self.engine.scheduler.step()):
            return None
        self.now_ns += 20 * MS
        self.rtc.made(ran[0])
        return ran[0]


def test_a_guided_frame_has_a_chunk_for_each_action_that_is_committed(kind: str) -> None:
    guided = Guided(kind)
    guided.stream.see(make_observation(stamp_ns=0))
    delays = []
    for _ in range(40):
        if not guided.stream.waiting:
            guided.want()
        if (made := guided.step()) is not None:
            delays.append(None if made.act.agreement is None else made.act.agreement.delay)
        guided.now_ns += 10 * MS
    # Past when one that begins at t comes: t + 80 ms, in actions of 100 ms, rounded up.
    assert delays == [None, 2, 3, 4, 5, 6]
    assert [chunk.kv_version for chunk in guided.stream.chunks] == [0] * 6


def test_further_chunks_of_a_frame_do_not_count_for_the_delay_of_new_ones() -> None:
    guided = Guided()
    guided.stream.see(make_observation(stamp_ns=0))
    guided.want()
    guided.step()
    guided.now_ns += 300 * MS
    guided.want()
    again = guided.step()
    assert again is not None and again.act.agreement is not None and again.act.agreement.delay == 4
    assert guided.rtc.delay_s == pytest.approx(0.08)  # of the first chunk
    guided.stream.see(make_observation(1, stamp_ns=guided.now_ns))
    guided.want()
    fresh = guided.step()
    assert fresh is not None and fresh.act.agreement is not None and fresh.act.agreement.delay == 1


def test_a_pause_ends_it_and_so_does_the_end_of_the_chunk() -> None:
    guided = Guided()
    assert guided.rtc.committed(0) is None
    guided.stream.see(make_observation(stamp_ns=0))
    guided.want()
    guided.step()
    assert guided.rtc.committed(0) == 1
    guided.now_ns = -1
    assert guided.rtc.committed(0) is None  # the clock was set back
    guided.now_ns = 5_000 * MS
    assert guided.rtc.committed(0) is None  # nothing of the chunk is left
    guided.now_ns = 20 * MS
    guided.rtc.pause()
    assert guided.rtc.committed(0) is None
