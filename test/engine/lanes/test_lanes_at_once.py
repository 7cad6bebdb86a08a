"""Several lanes of one scheduler: what runs at once, and what never does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from overlapping import Overlapping
from scheduled import WAIT_S, in_thread, joined

from vla_accel_ros.engine.config import ACTIONS_APART, ALL_APART, ONE
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, MicroBatch, Request
from vla_accel_ros.engine.rules.chunks import WholeChunks
from vla_accel_ros.engine.scheduling.streams import Stream


@pytest.fixture
def apart() -> Overlapping:
    return Overlapping(ALL_APART, WholeChunks())


def test_an_action_does_not_wait_for_a_frame_nor_text_for_either(apart: Overlapping) -> None:
    apart.seen()
    acting, asked, next_frame = apart.acting(), apart.submit(ASK), apart.frame()
    begun = {lane: apart.begin(lane) for lane in ("vision", "action", "language")}
    assert begun == {"vision": [OBSERVE], "action": [ACT], "language": [ASK]}
    for lane in ("action", "language", "vision"):
        apart.end(lane)
    assert acting.released and next_frame.released and asked.done == 1


def test_who_is_cancelled_while_its_kind_runs_is_taken_out_when_that_is_over(apart: Overlapping) -> None:
    apart.seen()
    first, second = apart.submit(ASK), apart.submit(ASK)
    for _ in range(2):
        apart.begin("language")
        apart.end("language")
    assert apart.begin("language") == [ASK, ASK]
    told: list[Request] = []
    first.on_progress = told.append
    apart.scheduler.cancel(first)
    assert not first.released and first in apart.runner.held  # a token of it is being computed
    apart.end("language")
    assert first.released and first.cancelled and told == [first] and not second.cancelled
    assert apart.runner.held == {second}


def test_who_is_cancelled_while_another_kind_runs_is_taken_out_at_once(apart: Overlapping) -> None:
    apart.seen()
    asked = apart.submit(ASK)
    apart.begin("language")
    apart.end("language")
    apart.frame()
    apart.begin("vision")
    apart.scheduler.cancel(asked)
    assert asked.released and asked not in apart.runner.held
    apart.end("vision")


def test_a_release_is_in_the_order_of_the_lane_that_has_read(
    apart: Overlapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a slot could be written while a lane's stream still reads it."""
    inside: list[str] = []

    @contextmanager
    def computing(name: str) -> Iterator[None]:
        inside.append(name)
        yield
        inside.pop()

    for name, lane in apart.lanes.items():
        lane.computing = partial(computing, name)
    where: dict[Request, list[str]] = {}

    def drop(request: Request) -> None:
        where[request] = list(inside)

    monkeypatch.setattr(apart.scheduler._queue, "_drop", drop)
    apart.seen()
    asked, act = apart.submit(ASK), apart.acting()
    for word in ("language", "action"):
        apart.begin(word)
        apart.end(word)
    apart.scheduler.cancel(asked)  # by a thread that is no lane's
    assert where[act] == ["action"] and where[asked] == ["language"]


@pytest.mark.parametrize("word", [ACTIONS_APART, ALL_APART])
def test_lanes_with_threads_see_act_and_answer_at_once(word: str) -> None:
    """Three kinds at once, and nobody waits for ever: each is in its micro-batch until all are."""
    system = Overlapping(word, WholeChunks())
    system.seen()
    together = threading.Barrier(2)

    def during(batch: MicroBatch) -> None:
        together.wait(WAIT_S)

    system.runner.during = during
    act, frame = system.submit(ACT), system.frame()
    system.scheduler.start()
    with system.scheduler.wait(frame).result:
        assert system.scheduler.wait(act).result == "act 0"
    system.scheduler.stop()


def test_who_changes_something_asks_whether_a_caller_waits_for_that() -> None:
    """So that a caller's thread sleeps until its request is finished, and does not disturb the lanes."""
    system, asked, waits = Overlapping(ONE, WholeChunks()), list[int](), threading.Event()
    scheduler, act, changes = system.scheduler, system.acting(), 200

    def until(request: Request) -> bool:
        asked.append(threading.get_ident())
        if asked.count(threading.get_ident()) == 2:  # with the queue locked: from now on it waits
            waits.set()
        return False

    scheduler.start()
    caller = in_thread(lambda: scheduler.wait(act, until))
    assert waits.wait(WAIT_S)
    for _ in range(changes):
        scheduler.wake()
    assert asked.count(threading.get_ident()) == changes
    assert asked.count(caller.ident or 0) < changes / 2  # it looks by itself now and then
    scheduler.wait(system.frame()).result.release()
    joined(caller)
    scheduler.stop()
    assert act.result == "act 0"


@pytest.mark.parametrize("word", [ONE, ACTIONS_APART, ALL_APART])
def test_streams_of_several_robots_begin_and_end_by_themselves(word: str) -> None:
    system = Overlapping(word, WholeChunks())
    scheduler = system.scheduler
    scheduler.join("a", Stream(due_s=lambda: 7.0))
    scheduler.join("b", Stream(due_s=lambda: 3.0))
    with pytest.raises(ValueError, match=r"robot 'a' .*already"):
        scheduler.join("a", Stream())
    waits = {robot: system.acting(robot) for robot in "ab"}
    scheduler.leave("a")
    assert waits["a"].cancelled and not waits["b"].cancelled
    assert all(lane.running for lane in scheduler.lanes)
    with scheduler.wait(system.frame("b")).result:
        assert scheduler.wait(waits["b"]).result
    scheduler.leave("b")
    scheduler.leave("b")
    assert not any(lane.running for lane in scheduler.lanes) and not scheduler.requests
    scheduler.join("a", Stream())
    scheduler.leave("a")
