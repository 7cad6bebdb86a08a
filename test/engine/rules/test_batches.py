"""A few frames, then all steps of their chunks: decided on plain requests, and in simulated time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from planned import make_act, make_frame, make_waiting
from simulated_fleet import SEATS, STEPS, Fleet, chunks_hz, p99_s, periodic

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import DENOISE, ENCODE, Act, MicroBatch, Request, Status
from vla_accel_ros.engine.rules.batches import FEW, SOON, Batches
from vla_accel_ros.engine.rules.chunks import StaggeredChunks, WholeChunks, joins_of
from vla_accel_ros.engine.rules.rule import Rule, Setup
from vla_accel_ros.engine.rules.throughput import Throughput
from vla_accel_ros.extensions import POLICIES, find


def make_frames(count: int) -> list[Request]:
    return [make_frame(str(number)) for number in range(count)]


def begin(policy: Rule, chunks: int, steps: int) -> list[Request]:
    """A batch of so many that has made so many steps."""
    batch = [make_waiting(str(number)) for number in range(chunks)]
    for _ in range(steps):
        assert policy.next("main", batch, 0.0) == MicroBatch(DENOISE, tuple(batch))
        for request in batch:
            request.status = Status.RUNNING
    return batch


def test_a_few_frames_go_before_the_steps_of_their_chunks() -> None:
    policy, frames = Batches(SEATS), make_frames(3)
    waiting = [make_waiting(str(number)) for number in range(FEW)]
    assert policy.next("main", (*waiting[:-1], *frames), 0.0) == MicroBatch(ENCODE, (frames[0],))
    step = policy.next("main", (*waiting, *frames), 0.0)
    assert step == MicroBatch(DENOISE, tuple(waiting))


@pytest.mark.parametrize(
    ("frames", "size"), [(1, FEW), (7, FEW), (8, 8), (SEATS, 8), (SEATS + 1, SEATS), (40, SEATS)]
)
def test_a_batch_is_the_larger_the_more_are_there(frames: int, size: int) -> None:
    policy, left, waiting = Batches(SEATS), make_frames(frames), list[Request]()
    while (batch := policy.next("main", (*waiting, *left), 0.0)) and batch.stage == ENCODE:
        left.remove(batch.requests[0])
        waiting.append(make_waiting())
    assert len(waiting) == min(frames, size)


def test_who_comes_soon_joins_and_who_comes_later_waits_for_the_batch() -> None:
    for steps in range(1, STEPS):
        policy, frame = Batches(SEATS), make_frame("late")
        batch = begin(policy, 2, steps)
        chosen = policy.next("main", (*batch, frame), 0.0)
        assert chosen is not None and (chosen.stage == ENCODE) == (steps < SOON)


def test_nobody_joins_a_batch_that_is_large_enough() -> None:
    policy = Batches(SEATS)
    batch = begin(policy, FEW, 1)
    assert policy.next("main", (*batch, make_frame("late")), 0.0) == MicroBatch(DENOISE, tuple(batch))


def test_frames_share_a_forward_but_no_more_than_the_batch_takes() -> None:
    policy, frames = Batches(SEATS, together=4), make_frames(4)
    assert policy.next("main", frames, 0.0) == MicroBatch(ENCODE, tuple(frames))
    assert policy.next("main", (make_waiting(), *frames), 0.0) == MicroBatch(ENCODE, tuple(frames[:2]))
    assert policy.next("main", (), 0.0) is None and policy.wake_s((), 0.0) == math.inf


def test_what_is_whole_goes_first_and_the_highest_priority_before_others() -> None:
    policy, whole, urgent = Batches(SEATS), make_act(), make_frame("urgent", priority=1)
    whole.wish = Act(steps=3)
    assert policy.next("main", (*make_frames(2), whole), 0.0) == MicroBatch(DENOISE, (whole,), steps=0)
    assert policy.next("main", (*make_frames(2), urgent), 0.0) == MicroBatch(ENCODE, (urgent,))


def test_it_is_made_of_the_engines_options() -> None:
    make, frames = find(POLICIES, "batches"), make_frames(4)
    policy = make(Setup(EngineConfig(staggered=SEATS), Profile()))
    assert policy.next("main", frames, 0.0) == MicroBatch(ENCODE, (frames[0],)), "each alone, to the bit"
    assert isinstance(make(Setup(EngineConfig(), Profile())), WholeChunks)


def staggered() -> Rule:
    return StaggeredChunks(SEATS, joins=joins_of(SEATS, STEPS))


def test_forty_robots_wait_less_than_with_steps_between_frames() -> None:
    asked_s = periodic(40, 3.0, 5.0, 0)
    before_s = p99_s(staggered(), asked_s)
    assert p99_s(Batches(SEATS), asked_s) < 0.95 * before_s
    together_s = p99_s(Batches(SEATS, together=4), asked_s)
    assert together_s < 0.85 * before_s and together_s < 0.09
    assert together_s < 0.85 * p99_s(Throughput(SEATS, 2, 4), asked_s)


def test_a_few_robots_wait_no_longer_either() -> None:
    for robots in (1, 8, 24):
        asked_s = periodic(robots, 3.0, 5.0, 0)
        assert p99_s(Batches(SEATS), asked_s) <= 1.001 * p99_s(staggered(), asked_s)


def test_as_many_chunks_are_made_where_requests_are_always_there() -> None:
    assert chunks_hz(Batches(SEATS)) > chunks_hz(staggered())
    assert chunks_hz(Batches(SEATS, together=4)) > 0.96 * chunks_hz(Throughput(SEATS, 2, 4))


def test_every_request_comes_to_a_chunk_and_seats_are_never_overfilled() -> None:
    fleet = Fleet(Batches(SEATS, together=4), SEATS + 8)
    asked_s = np.sort(np.random.default_rng(3).uniform(0.0, 1.0, 200)).tolist()
    fleet.play(asked_s)
    assert sorted(at for at, _ in fleet.took_s) == asked_s and fleet.runner.slots_held == 0
    assert max(len(batch) for stage, batch in fleet.runner.ran if stage == DENOISE) <= SEATS
