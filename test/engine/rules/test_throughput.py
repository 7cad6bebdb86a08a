"""Frames go first until a step is worth it: decided on plain requests, without a network."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import make_act, make_frame, make_observe, make_waiting

from vla_accel_ros.engine.config import ACTIONS_APART, EngineConfig
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import ACT, DENOISE, ENCODE, MicroBatch, Request, Status
from vla_accel_ros.engine.rules.chunks import StaggeredChunks
from vla_accel_ros.engine.rules.rule import Setup
from vla_accel_ros.engine.rules.rules import LANES, Rules
from vla_accel_ros.engine.rules.throughput import Throughput, throughput

STEPS = 4


def test_frames_go_before_a_step_until_as_many_chunks_wait_as_keep_the_seats_full() -> None:
    policy, frame = Throughput(8, begins=2), make_frame()
    begun, first, second = make_act(begun=True), make_waiting(), make_waiting()
    assert policy.next("main", (begun, first, frame), 0.0) == MicroBatch(ENCODE, (frame,))
    step = policy.next("main", (begun, first, second, frame), 0.0)
    assert step == MicroBatch(DENOISE, (begun, first, second))
    assert policy.next("main", (begun, first), 0.0) == MicroBatch(DENOISE, (begun, first)), "no frame waits"


def test_no_more_begin_than_there_are_seats_and_a_full_step_is_run_while_others_wait() -> None:
    begun, waiting = [make_act(begun=True) for _ in range(3)], [make_waiting() for _ in range(4)]
    batch = Throughput(4, begins=2).next("main", (*begun, *waiting, make_frame()), 0.0)
    assert batch == MicroBatch(DENOISE, (*begun, waiting[0]))


def test_frames_of_as_many_images_are_computed_together_by_powers_of_two() -> None:
    policy = Throughput(8, together=4)
    alike, other = [make_frame(str(number)) for number in range(6)], make_frame("other", images=1)
    for number, together in [(1, 1), (2, 2), (3, 2), (4, 4), (6, 4)]:
        batch = policy.next("main", alike[:number], 0.0)
        assert batch == MicroBatch(ENCODE, tuple(alike[:together]))
    assert policy.next("main", (alike[0], other, alike[1]), 0.0) == MicroBatch(ENCODE, (alike[0],))
    urgent = make_frame("urgent", images=1, priority=1)
    assert policy.next("main", (*alike, urgent), 0.0) == MicroBatch(ENCODE, (urgent,))
    unknown = [make_observe(), make_observe()]
    assert policy.next("main", unknown, 0.0) == MicroBatch(ENCODE, (unknown[0],)), "observed as it begins"


def test_in_a_lane_of_its_own_a_step_waits_for_the_frame_that_is_computed_beside() -> None:
    policy = Rules(Throughput(8, begins=1), lanes=LANES[ACTIONS_APART])
    frame, begun = make_frame(), make_act(begun=True)
    assert policy.next("vision", (frame, begun), 0.0) == MicroBatch(ENCODE, (frame,))
    frame.status = Status.RUNNING
    assert policy.next("action", (begun,), 0.0) is None and policy.wake_s("action", (begun,), 0.0) < 0.01
    joins = make_waiting()
    assert policy.next("action", (begun, joins), 0.0) == MicroBatch(DENOISE, (begun, joins))
    frame.status = Status.FINISHED
    assert policy.next("action", (begun,), 0.0) == MicroBatch(DENOISE, (begun,))


@pytest.mark.parametrize(("seats", "steps", "begins"), [(8, 10, 1), (10, 10, 1), (16, 10, 2), (32, 10, 4)])
def test_it_is_made_of_the_engines_options(seats: int, steps: int, begins: int) -> None:
    config = EngineConfig(staggered=seats, steps=steps)
    policy = throughput(Setup(config, Profile()))
    waiting, frame = [make_waiting() for _ in range(begins)], make_frame()
    assert policy.next("main", (*waiting[1:], frame), 0.0) == MicroBatch(ENCODE, (frame,))
    assert policy.next("main", (*waiting, frame), 0.0) == MicroBatch(DENOISE, tuple(waiting))
    whole = throughput(Setup(EngineConfig(), Profile()))
    assert whole.next("main", waiting, 0.0) == MicroBatch(DENOISE, (waiting[0],), steps=0)


def test_with_more_seats_than_steps_several_begin_in_a_step_of_the_usual_policy_too() -> None:
    begun, waiting = [make_act(begun=True) for _ in range(3)], [make_waiting() for _ in range(3)]
    policy = StaggeredChunks(8, joins=2)
    assert policy.next("main", (*begun, *waiting), 0.0) == MicroBatch(DENOISE, (*begun, *waiting[:2]))
    full = StaggeredChunks(4, joins=2)
    assert full.next("main", (*begun, *waiting), 0.0) == MicroBatch(DENOISE, (*begun, waiting[0]))


@given(
    seats=st.integers(2, 12),
    together=st.sampled_from([1, 2, 4]),
    arrivals=st.lists(st.integers(0, 3), max_size=30),
)
def test_every_frame_comes_to_a_chunk_in_its_own_steps(
    seats: int, together: int, arrivals: list[int]
) -> None:
    """What a runner does, without its network: a frame becomes a chunk that waits and takes STEPS."""
    policy, queue, chunks = Rules(Throughput(seats, -(-seats // STEPS), together)), list[Request](), 0
    total = sum(arrivals)
    for arrived in [*arrivals, *[0] * total * (STEPS + 2)]:
        queue += [make_frame(str(len(queue))) for _ in range(arrived)]
        batch = policy.next("main", queue, 0.0, math.inf)
        for request in () if batch is None else batch.requests:
            request.status = Status.RUNNING
            request.progress = (request.progress or 0) + 1
            if request.want != ACT:
                queue.remove(request)
                queue.append(make_waiting(request.robot))
            elif request.progress == STEPS:
                queue.remove(request)
                chunks += 1
        assert sum(request.begun for request in queue) <= seats
    assert chunks == total and not queue
