"""Micro-batches that are launched before the last one is finished."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from builders import JOINTS
from overlapping import Overlapping

from vla_accel_ros.engine.config import ONE, TEXT_APART
from vla_accel_ros.engine.lanes.lane import EARLY_S
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import ACT, ASK, MicroBatch, Request
from vla_accel_ros.engine.rules.chunks import StaggeredChunks


def seated(ahead: bool = True) -> Overlapping:
    """Staggered chunks in lanes that run ahead, and what happens in which order."""
    system = Overlapping(TEXT_APART, StaggeredChunks(2), 2, ahead=ahead)
    system.seen()
    return system


def turn(system: Overlapping, lane: str = "main") -> None:
    system.begin(lane)
    if lane in system.running:
        system.end(lane)
    elif not system.scheduler.moved:
        system.clock.now_s = max(system.clock.now_s, min(system.scheduler.again_s, system.clock.now_s + 1.0))
        system.begin(lane)


def first_chunks() -> tuple[Overlapping, list[str]]:
    """Whole first chunks of 4 ms and steps of 1 ms in a lane that runs ahead, and what happens in which
    order."""
    system, order = Overlapping(ONE, StaggeredChunks(2), steps=2, ahead=True, whole_apart=True), list[str]()
    system.runner.profile = Profile({("whole.denoise", 1): 0.004, ("act.denoise", 1): 0.001})

    def launched(batch: MicroBatch) -> None:
        if batch.requests[0].want == ACT:
            order.append(f"launch {batch.requests[0].kind}")

    system.runner.during = launched
    system.runner.after = lambda batch: order.append(f"wait for {batch.requests[0].kind}")
    system.seen()
    for first in (True, False):  # how long they take is known then
        joints = np.zeros(JOINTS, np.float32), 1 if first else 2
        before = system.acting(first=first, sense=lambda joints=joints: joints)
        go_on(system, partial(getattr, before, "finished"))
    order.clear()
    return system, order


def go_on(system: Overlapping, until: Callable[[], bool]) -> None:
    """Let the lane step, and time pass where it has nothing to do."""
    lane = system.lanes["main"]
    system.scheduler.step(lane)
    for _ in range(1000):
        if until():
            return
        if not system.scheduler.step(lane):
            again_s = system.scheduler.again_s
            assert again_s > system.clock.now_s, "it asks again at once, and again"
            system.clock.now_s = again_s
    raise AssertionError("it does not come to an end")


def test_the_next_step_is_launched_before_the_last_one_is_waited_for() -> None:
    system = seated()
    order: list[str] = []
    system.runner.during = lambda batch: order.append(f"launch {len(batch.requests)}")
    system.runner.after = lambda batch: order.append("wait")
    first, second = system.submit(ACT), system.submit(ACT)
    for _ in range(8):
        turn(system)
    # The first has both its steps after two, the second after three; then there is nothing to launch.
    assert order == ["launch 1", "launch 2", "wait", "launch 1", "wait", "wait"]
    assert first.result and second.result and not system.runner.open


def test_without_a_thread_what_is_launched_is_waited_for() -> None:
    system = seated()
    system.scheduler.runs_ahead = False
    request = system.submit(ACT)
    for _ in range(2):
        turn(system)
    assert request.finished and request.result and not system.lanes["main"].ahead


def test_a_lane_looks_out_for_what_it_can_launch_behind_what_runs_until_that_is_about_to_be_over() -> None:
    system = Overlapping(ONE, StaggeredChunks(2), steps=1, ahead=True)
    system.seen()
    lane, step, clock = system.lanes["main"], system.scheduler.step, system.clock
    first = system.submit(ACT)
    assert step(lane) == (first,) and lane.ahead
    clock.now_s += 0.002
    assert step(lane) == (first,) and first.finished, "how long it takes was not known: it was waited for"
    second = system.submit(ACT)
    assert step(lane) == (second,)
    over_s = clock.now_s + 0.002 - EARLY_S
    assert step(lane) == () and not second.finished
    assert system.scheduler.again_s == pytest.approx(over_s)
    third = system.submit(ACT)
    clock.now_s += 0.0015
    assert step(lane) == (third,) and step(lane) == () and not second.finished
    clock.now_s = system.scheduler.again_s
    assert step(lane) == (second,) and second.finished and lane.ahead[0].batch.requests == (third,)
    assert step(lane) == () and system.scheduler.again_s < float("inf")
    clock.now_s = system.scheduler.again_s + 1e-6
    assert step(lane) == (third,) and third.finished and not lane.ahead


def test_behind_a_first_chunk_a_step_is_chosen_when_that_is_nearly_over() -> None:
    system, order = first_chunks()
    began_s, begun_s = system.clock.now_s, list[float]()
    system.seen()
    first = system.acting(first=True)
    further = [
        system.acting(
            first=False,
            sense=lambda: (np.zeros(JOINTS, np.float32), round(1e6 * system.clock.now_s)),
            on_begin=lambda request: begun_s.append(system.clock.now_s),
        )
        for _ in range(2)
    ]
    go_on(system, lambda: first.finished)
    assert begun_s == pytest.approx([began_s + 0.004 - EARLY_S], abs=1e-5), "with joints as new as can be"
    assert order == ["launch whole", "launch act", "wait for whole"], "no second step before it is handed on"
    go_on(system, lambda: all(request.finished for request in further))
    assert first.result and all(request.result for request in further)


def test_chunks_of_the_frame_before_make_way_when_a_first_chunk_is_launched() -> None:
    system, order = first_chunks()
    newer = itertools.count(3)

    def further() -> Request:
        return system.acting(first=False, sense=lambda: (np.zeros(JOINTS, np.float32), next(newer)))

    system.runner.steps, old = 3, further()
    assert system.scheduler.step() == (old,)
    assert order.pop() == "launch act"
    system.seen()
    first = system.acting(first=True)
    assert system.scheduler.step() == (first,) and first.launched
    assert old.cancelled and old.finished and old.result is None
    order.clear()
    new = further()
    go_on(system, lambda: new.finished)
    assert order.count("launch act") == 3 and first.result and new.result, "no step was for the old one"


def test_a_first_chunk_with_which_others_must_agree_is_waited_for_before_any_begins() -> None:
    system, order = first_chunks()
    system.seen()
    first = system.acting(first=True, commits=lambda stamp_ns: None)
    further = system.acting(first=False, sense=lambda: (np.zeros(JOINTS, np.float32), 3))
    go_on(system, lambda: further.finished)
    assert order[:3] == ["launch whole", "wait for whole", "launch act"] and first.result


def test_a_step_and_groups_are_ahead_when_the_next_is_chosen_but_no_two_steps() -> None:
    system = Overlapping(ONE, StaggeredChunks(4, groups=4), steps=4, ahead=True)
    system.seen()
    system.runner.groups, order = 4, list[str]()
    system.runner.during = lambda batch: order.append(f"launch {batch.requests[-1].want}")
    system.runner.after = lambda batch: order.append(f"wait for {batch.requests[-1].want}")
    system.frame()
    system.submit(ACT)
    while len(order) < 12:
        turn(system)
    assert order[:3] == ["launch act", "launch observe", "launch act"], "nothing was waited for"
    assert order[3:6] == ["wait for act", "launch observe", "launch act"], "nor for a group"
    assert order[6:12] == [*["wait for observe", "wait for act"], "launch observe", "launch act", *order[6:8]]


def test_what_ran_ahead_took_what_the_device_says_however_late_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = Overlapping(ONE, StaggeredChunks(2), steps=2, ahead=True)
    system.seen()
    system.runner.profile, counted_s = Profile({("act.denoise", 1): 0.002}), list[float]()
    system.lanes["main"].timing = system.runner.timing

    def ran(batch: MicroBatch, took_s: float) -> None:
        counted_s.append(took_s)

    monkeypatch.setattr(system.rules, "ran", ran)
    system.submit(ACT)
    for _ in range(6):
        turn(system)
        system.clock.now_s += 1.0
    assert counted_s == pytest.approx([0.002, 0.002])


def test_what_the_device_has_computed_is_handed_on_before_more_is_launched() -> None:
    system = Overlapping(ONE, StaggeredChunks(4, groups=4), steps=1, ahead=True)
    system.seen()
    system.runner.groups, order = 4, list[str]()
    system.runner.during = lambda batch: order.append(f"launch {batch.requests[-1].want}")
    system.runner.after = lambda batch: order.append(f"wait for {batch.requests[-1].want}")
    lane = system.lanes["main"]
    lane.timing = system.runner.timing
    system.runner.profile = Profile({("act.denoise", 1): 0.002, ("observe.encode", 1): 0.1})
    chunk, frame = system.submit(ACT), system.frame()
    for _ in range(2):
        system.scheduler.step(lane)
    assert order == ["launch act", "launch observe"] and not chunk.finished
    system.clock.now_s += 0.003
    system.scheduler.step(lane)
    assert order == ["launch act", "launch observe", "wait for act", "launch observe"]
    assert chunk.finished and chunk.result and not frame.finished


def test_what_a_device_fails_with_later_is_the_error_of_all_in_that_micro_batch() -> None:
    system = seated()
    first, second, third = (system.submit(ACT) for _ in range(3))

    def fail(batch: MicroBatch) -> None:
        if first in batch.requests and second in batch.requests:
            raise RuntimeError("the device failed")

    system.runner.after = fail
    for _ in range(12):
        turn(system)
    assert [str(request.error) for request in (first, second)] == ["the device failed"] * 2
    assert first.finished and second.finished and not system.runner.open
    assert third.error is None and third.result


def test_who_is_cancelled_while_its_last_step_runs_ahead_comes_to_nothing() -> None:
    system = seated()
    told: list[Request] = []
    request = system.submit(ACT, on_progress=told.append)
    for _ in range(2):
        turn(system)
    assert request.launched and not request.finished
    system.scheduler.cancel(request)
    assert request.finished and not system.runner.open
    turn(system)
    assert request.result is None and request.cancelled and told.count(request) == 2  # launched, cancelled


def test_text_apart_leaves_the_gpu_to_a_frame_until_its_first_chunk_is_there() -> None:
    system = seated(ahead=False)
    asked = system.submit(ASK)
    turn(system, "language")
    assert system.begin("language") == [ASK], "nothing is more urgent"
    system.end("language")
    frame = system.frame()
    assert system.begin("language") == [], "a frame is to be computed"
    turn(system)
    acting = system.acting()
    assert frame.finished and system.begin("language") == [], "its chunk is to come"
    turn(system)
    assert system.begin("language") == [] and not acting.finished
    turn(system)
    assert acting.finished and system.begin("language") == [ASK]
    system.end("language")
    assert len(asked.tokens) == 3
    frame.result.release()
