"""Overload degrades in a stated order, for every setting of lanes, and all that is given up is counted."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Mapping
from weakref import ref

import pytest
from scheduled import System
from simulated_lanes import CHUNK_S, FRAME_S, Streams, profile
from wishes import make_request

from vla_accel_ros.engine.config import LANES
from vla_accel_ros.engine.request import (
    ACT,
    ASK,
    DENOISE,
    OBSERVE,
    WHOLE,
    Act,
    MicroBatch,
    Observe,
    Pace,
    Request,
    Status,
    Waits,
)
from vla_accel_ros.engine.rules.chunks import StaggeredChunks, WholeChunks
from vla_accel_ros.engine.rules.overload import (
    ACTIONS,
    CALM_S,
    LADDER,
    LANGUAGE,
    LEVELS,
    NONE,
    OF,
    VISION,
    Degradation,
)
from vla_accel_ros.engine.rules.rule import Rule
from vla_accel_ros.engine.rules.rules import Rules
from vla_accel_ros.engine.rules.text import PATIENCE_S, SHARE
from vla_accel_ros.engine.scheduler import MOST_QUEUED, QueueFull

EASY = {OBSERVE: 0.006, ACT: 0.004, WHOLE: 0.004, ASK: 0.002}
TALKATIVE = {**EASY, OBSERVE: 0.014, ASK: 0.03}
"""With text, which always runs, frames are late; with a token now and then they are not."""
SETTINGS = [("one", 4, True), ("text", 0, False), ("two", 4, False), ("three", 0, False), ("three", 4, True)]
assert {word for word, _, _ in SETTINGS} == set(LANES)


def make_streams(word: str, seats: int, fresh: bool, takes_s: Mapping[str, float]) -> Streams:
    policy: Rule = StaggeredChunks(seats) if seats else WholeChunks()
    return Streams(word, policy, takes_s, steps=seats or 1, fresh=fresh)


def scaled(times: float) -> dict[str, float]:
    return {kind: takes_s * times for kind, takes_s in EASY.items()}


@pytest.mark.parametrize(("word", "seats", "fresh"), SETTINGS)
def test_what_fits_is_not_given_up(word: str, seats: int, fresh: bool) -> None:
    streams = make_streams(word, seats, fresh, scaled(0.4))
    streams.run_for(2.0)
    assert streams.levels == [(0.0, NONE)]
    assert streams.rules.overload.degradation == Degradation()
    assert streams.rate_hz() > 50 and len(streams.tokens) > 25


@pytest.mark.parametrize(("word", "seats", "fresh"), SETTINGS)
def test_levels_are_taken_in_order_and_given_back_in_order(word: str, seats: int, fresh: bool) -> None:
    streams = make_streams(word, seats, fresh, scaled(0.5))
    streams.run_for(1.0)
    streams.runner.profile = profile(scaled(12.0))  # a chunk takes longer than a frame comes
    streams.run_for(8.0)
    raised = [level for _, level in streams.levels]
    assert raised == list(LEVELS)
    streams.runner.profile = profile(scaled(0.5))
    streams.run_for(10 * CALM_S, asking=False)
    assert [level for _, level in streams.levels] == [*LEVELS, *reversed(LEVELS[:-1])]
    now = streams.rules.overload.degradation
    assert now.level == NONE and now.raised == len(LADDER) - 1
    assert now.paused_s > 1.0 and now.chunks[""] > 0
    before, at_s = now, streams.clock.now_s
    streams.run_for(2.0)
    assert streams.rules.overload.degradation == before and streams.rate_hz(since_s=at_s) > 50


@pytest.mark.parametrize(("word", "seats", "fresh"), SETTINGS)
def test_under_any_load_every_frame_has_its_first_chunk_and_text_its_share(
    word: str, seats: int, fresh: bool
) -> None:
    streams = make_streams(word, seats, fresh, scaled(12.0))
    streams.run_for(12.0)
    assert streams.rules.overload.degradation.level == VISION
    late_s = streams.clock.now_s - 5.0
    seen = {version for end_s, version in streams.frames_seen[""] if end_s > late_s}
    acted = [version for end_s, version, _ in streams.made[""] if end_s > late_s]
    assert len(acted) == len(set(acted)), "no further chunks of a frame"
    assert len(seen - set(acted)) <= 2 and len(acted) > 5
    tokens = [at_s for at_s in streams.tokens if at_s > late_s]
    assert tokens, "a token now and then"
    gaps = [after - before for before, after in itertools.pairwise(tokens)]
    took_s = EASY[ASK] * 12.0
    assert min(gaps) >= max(PATIENCE_S, took_s / SHARE) - 1e-9
    versions = [version for _, version, _ in streams.made[""]]
    assert versions == sorted(versions)


def test_language_is_enough_where_text_is_what_is_too_much() -> None:
    streams = make_streams("three", 0, False, TALKATIVE)
    streams.run_for(20.0)
    assert {level for _, level in streams.levels} == {NONE, LANGUAGE}


def test_actions_are_thinned_before_frames_are_skipped() -> None:
    """Vision is late because of further chunks: frames are not skipped for that."""
    streams = make_streams("two", 4, True, {**EASY, OBSERVE: 0.018, ACT: 0.015})
    streams.run_for(20.0, asking=False)
    now = streams.rules.overload.degradation
    assert VISION not in {level for _, level in streams.levels} and now.chunks[""] > 0 and not now.frames
    late_s = streams.clock.now_s - 5.0
    assert sum(end_s > late_s for end_s, _ in streams.frames_seen[""]) >= 0.85 * 5.0 / FRAME_S


def test_frames_are_not_skipped_where_only_frames_are_late() -> None:
    streams = make_streams("three", 0, False, {**scaled(0.1), OBSERVE: 0.05})
    streams.run_for(10.0)
    assert (
        streams.rules.overload.degradation.level == ACTIONS and not streams.rules.overload.degradation.frames
    )


class Planned:
    """Rules of whole chunks, given requests by hand."""

    def __init__(self, rung: int = 0) -> None:
        self.rules, self.now_s = Rules(WholeChunks()), 0.0
        self.policy = self.rules.overload
        for _ in range(rung):
            self.late(ACT)

    def late(self, want: str, took_s: float = 1.0, times: int = 4) -> None:
        for _ in range(times):
            waits = Waits.NEWS if want == ACT else Waits.NOTHING
            request = make_request(want, waits=waits, pace=Pace(math.inf, 0.1))
            request.fresh = True
            batch = self.rules.next("main", [request], self.now_s)
            assert batch is not None
            request.submitted_s = request.begun_s = self.now_s
            request.status = Status.FINISHED
            request.result = "done"
            self.policy.ran(batch, took_s)
            self.now_s += 1e-3

    def next(self, *ready: Request) -> MicroBatch | None:
        return self.rules.next("main", ready, self.now_s)


def again(robot: str = "", period_s: float = 0.01) -> Request:
    request = Request(Act(), robot, waits=Waits.NEWS, pace=Pace(1 / period_s, math.inf))
    request.fresh = False
    return request


def test_each_rung_needs_new_evidence() -> None:
    planned, rungs = Planned(), []
    for _ in range(12):
        planned.late(ACT, times=1)
        rungs.append(LADDER.index(planned.policy.rung))
    assert rungs == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_what_is_on_time_or_has_no_deadline_is_no_evidence() -> None:
    planned = Planned()
    planned.late(ACT, took_s=0.05, times=20)
    assert planned.policy.rung.level == NONE
    endless = Request(Observe())
    batch = planned.next(endless)
    assert batch is not None
    endless.finish("done")
    for _ in range(9):
        planned.policy.ran(batch, 100.0)
    assert planned.policy.rung.level == NONE


def test_further_chunks_are_thinned_and_the_periods_without_one_are_counted() -> None:
    planned = Planned(rung=2)
    assert planned.policy.rung.every == 2.0
    planned.policy._acted_s[""] = planned.now_s
    request, begins_s = again(), planned.now_s
    while planned.next(request) is None:
        assert planned.policy.wake_s([request], planned.now_s) > planned.now_s
        planned.now_s += 0.001
    assert planned.now_s - begins_s == pytest.approx(0.02, abs=0.0011)
    assert planned.policy.degradation.chunks == {"": 2}


def test_the_first_chunk_of_a_frame_and_who_waits_for_one_are_never_held_back() -> None:
    planned = Planned(rung=5)
    fresh, alone = again(), again()
    fresh.fresh, alone.waits = True, Waits.ROOM
    for request in (fresh, alone):
        assert planned.next(request) == MicroBatch(DENOISE, (request,), steps=0)
    assert planned.next(again()) is None


def test_a_frame_waits_for_the_chunk_of_the_one_before_and_not_for_ever() -> None:
    for ends in (True, False):
        planned, acting = Planned(rung=5), again()
        acting.fresh = True
        planned.next(acting)
        acting.status = Status.RUNNING
        frame = Request(Observe(), pace=Pace(1 / 0.03, math.inf))
        assert planned.next(frame) is None and planned.next(Request(Observe(), "other")) is not None
        planned.now_s += 0.1
        assert planned.next(frame) is None
        acting.status = Status.FINISHED if ends else Status.RUNNING
        planned.now_s += 0.0 if ends else 1.0
        assert planned.next(frame) is not None and planned.next(frame) is not None
        assert planned.policy.degradation.frames == {"": 3 if ends else 36}


def test_a_frame_of_which_some_groups_are_computed_is_finished() -> None:
    planned, acting, frame = Planned(rung=5), again(), Request(Observe())
    acting.fresh = True
    planned.next(acting)
    acting.status = Status.RUNNING
    assert planned.next(frame) is None
    frame.status = Status.RUNNING
    assert planned.next(frame) is not None


def test_a_load_at_the_edge_does_not_swing() -> None:
    """On the first rung nothing is late, without it everything is: each try to go back comes later."""
    planned, downs = Planned(), list[float]()
    while planned.now_s < 200.0:
        before = planned.policy.rung.level
        planned.late(OBSERVE, took_s=0.2 if before == NONE else 0.01, times=1)
        planned.now_s += 1 / 30
        if before != NONE and planned.policy.rung.level == NONE:
            downs.append(planned.now_s)
    assert planned.policy.degradation.raised - len(downs) in (0, 1)
    gaps = [round(after - before) for before, after in itertools.pairwise(downs)]
    assert gaps[:4] == [4, 8, 16, 32] and set(gaps[4:]) == {32}, gaps


def test_now_and_then_a_late_one_keeps_no_rung() -> None:
    planned = Planned(rung=1)
    planned.now_s += 1.0
    for number in range(200):
        planned.late(OBSERVE, took_s=0.2 if number % OF == 0 else 0.01, times=1)
        planned.now_s += 1 / 30
    assert planned.policy.rung.level == NONE


def test_nothing_at_all_is_calm_too() -> None:
    planned = Planned(rung=5)
    planned.now_s += 1.0  # what was late ended then
    for level in (ACTIONS, ACTIONS, ACTIONS, LANGUAGE, NONE):
        planned.now_s += CALM_S
        planned.next()
        assert planned.policy.rung.level == level


def test_requests_that_nobody_waits_for_do_not_pile_up() -> None:
    system = System()
    for _ in range(MOST_QUEUED):
        system.submit(ACT)
    with pytest.raises(QueueFull, match="256 requests"):
        system.submit(ACT)
    system.acting()  # a stream's are few, and go on
    assert len(system.scheduler.requests) == MOST_QUEUED + 1


def test_a_chunk_comes_at_its_period_while_nothing_is_given_up() -> None:
    streams = make_streams("one", 0, False, scaled(0.1))
    streams.run_for(2.0, asking=False)
    assert streams.rate_hz() >= 0.8 / CHUNK_S


def test_requests_of_a_robot_that_has_left_are_not_kept() -> None:
    """They have images, and callbacks of whoever wanted them."""
    rules, now_s = Rules(WholeChunks()), 0.0
    while rules.overload.rung.level != VISION:
        late = Request(Act(), waits=Waits.NEWS, pace=Pace(math.inf, 0.01))
        late.finish("a chunk")
        rules.ran(MicroBatch(DENOISE, (late,)), took_s=now_s + 1.0)
    acts, frame = (
        Request(Act(), waits=Waits.NEWS, pace=Pace(1 / 0.01, math.inf)),
        Request(Observe(), waits=Waits.NEWS, pace=Pace(1 / 0.01, math.inf)),
    )
    acts.fresh = True
    assert rules.next("main", [acts], now_s) is not None
    acts.status = Status.RUNNING
    assert rules.next("main", [frame], now_s) is None  # held back: its robot's chunk is not finished
    acts.status = Status.FINISHED
    assert rules.next("main", [frame], now_s + 0.1) is not None
    left = [ref(acts), ref(frame)]
    del acts, frame, late
    gc.collect()
    assert [one() for one in left] == [None, None]
