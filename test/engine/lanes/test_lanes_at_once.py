"""Several lanes of one scheduler: what runs at once, and what never does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from overlapping import Overlapping
from scheduled import WAIT_S, System, in_thread, joined

from vla_accel_ros.engine.config import ACTIONS_APART, ALL_APART, ONE
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, MicroBatch, Request
from vla_accel_ros.engine.rules.chunks import StaggeredChunks, WholeChunks
from vla_accel_ros.engine.scheduler import Stream


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
    assert acting.finished and next_frame.finished and len(asked.tokens) == 1


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
    assert not first.finished and first in apart.runner.open  # a token of it is being computed
    apart.end("language")
    assert first.finished and first.cancelled and told == [first] and not second.cancelled
    assert apart.runner.open == {second}


def test_who_is_cancelled_while_another_kind_runs_is_taken_out_at_once(apart: Overlapping) -> None:
    apart.seen()
    asked = apart.submit(ASK)
    apart.begin("language")
    apart.end("language")
    apart.frame()
    apart.begin("vision")
    apart.scheduler.cancel(asked)
    assert asked.finished and asked not in apart.runner.open
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

    monkeypatch.setattr(apart.runner, "drop", drop)
    apart.seen()
    asked, act = apart.submit(ASK), apart.acting()
    for word in ("language", "action"):
        apart.begin(word)
        apart.end(word)
    apart.scheduler.cancel(asked)  # by a thread that is no lane's
    assert where[act] == ["action"] and where[asked] == ["language"]


@pytest.mark.parametrize("word", [ACTIONS_APART, ALL_APART])
def test_work_of_several_lanes_is_launched_before_any_is_waited_for(word: str) -> None:
    system, order = Overlapping(word, StaggeredChunks(2), ahead=True), list[str]()
    system.runner.whole_apart = True
    system.seen()
    system.runner.during = lambda batch: order.append(f"launch {batch.requests[0].want}")
    system.runner.after = lambda batch: order.append(f"wait for {batch.requests[0].want}")
    asked, act = system.submit(ASK), system.submit(ACT)
    while not (asked.finished and act.finished):
        system.scheduler.step()
        system.clock.now_s = max(system.clock.now_s, min(system.scheduler.again_s, system.clock.now_s + 1.0))
    assert act.result == "act 0" and asked.result == "ask 0"
    assert order.index("wait for act") > order.index("launch ask")


def test_what_is_not_captured_is_computed_by_the_worker_and_the_loop_goes_on() -> None:
    system, computes, goes_on = Overlapping(ALL_APART, WholeChunks()), threading.Event(), threading.Event()
    system.seen()
    system.scheduler._worker = None
    system.runner.is_captured = lambda batch: batch.requests[0].want == ACT  # type: ignore[method-assign]

    def during(batch: MicroBatch) -> None:
        if batch.requests[0].want == OBSERVE:
            computes.set()
            assert goes_on.wait(WAIT_S)

    system.runner.during = during
    system.scheduler.start()
    frame, act = system.frame(), system.submit(ACT)
    assert computes.wait(WAIT_S)
    assert system.scheduler.wait(act).result == "act 0" and not frame.finished
    goes_on.set()
    system.scheduler.wait(frame).result.release()
    system.scheduler.stop()


def test_who_steps_asks_whether_a_caller_waits_for_what_changed() -> None:
    """So that a caller's thread sleeps until its request is finished, and does not disturb the loop."""
    system, asked, waits = System(), list[int](), threading.Event()
    scheduler, act, changes = system.scheduler, system.acting(), 200

    def until(request: Request) -> bool:
        asked.append(threading.get_ident())
        if asked.count(threading.get_ident()) == 2:  # from now on it waits
            waits.set()
        return False

    scheduler.start()
    caller = in_thread(lambda: scheduler.wait(act, until))
    assert waits.wait(WAIT_S)
    for _ in range(changes):
        scheduler.wake()
    assert asked.count(caller.ident or 0) < changes / 2  # it looks by itself now and then
    scheduler.wait(system.frame()).result.release()
    joined(caller)
    scheduler.stop()
    assert act.result == "act 0"


@pytest.mark.parametrize("word", [ONE, ACTIONS_APART, ALL_APART])
def test_streams_of_several_robots_begin_and_end_by_themselves(word: str) -> None:
    system = Overlapping(word, WholeChunks())
    scheduler = system.scheduler
    scheduler._worker = None
    scheduler.join("a", Stream(due_s=lambda: 7.0))
    scheduler.join("b", Stream(due_s=lambda: 3.0))
    with pytest.raises(ValueError, match=r"robot 'a' .*already"):
        scheduler.join("a", Stream())
    waits = {robot: system.acting(robot) for robot in "ab"}
    scheduler.leave("a")
    assert waits["a"].cancelled and not waits["b"].cancelled
    assert scheduler.running
    with scheduler.wait(system.frame("b")).result:
        assert scheduler.wait(waits["b"]).result
    scheduler.leave("b")
    scheduler.leave("b")
    assert not scheduler.running and not scheduler.requests
    scheduler.join("a", Stream())
    scheduler.leave("a")
