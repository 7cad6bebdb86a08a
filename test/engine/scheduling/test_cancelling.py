"""Requests that are cancelled or forgotten, at any time and from any thread."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
from scheduled import WAIT_S, System, broken_off, in_thread, joined

from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.request import ASK, OBSERVE, Cancelled, MicroBatch, Request, Waits
from vla_accel_ros.engine.rules.chunks import StaggeredChunks
from vla_accel_ros.engine.scheduler import Scheduler


class Wish:
    """Cancels its request when nobody refers to it any longer."""

    def __init__(self, scheduler: Scheduler, request: Request) -> None:
        self.scheduler, self.request, self.itself = scheduler, request, self

    def __del__(self) -> None:
        self.scheduler.cancel(self.request)


def test_a_cancelled_request_is_told_so_once_and_holds_nothing(system: System) -> None:
    told: list[tuple[bool, bool]] = []
    system.seen()
    ask = system.submit(ASK, on_progress=lambda request: told.append((request.cancelled, request.finished)))
    waiting = system.submit(
        ASK, waits=Waits.ROOM, on_progress=lambda request: told.append((True, request.prefix is not None))
    )
    system.scheduler.step()
    system.scheduler.cancel(ask, waiting, ask)
    assert told == [(False, False), (True, True), (True, False)]
    assert not system.scheduler.requests and not system.runner.open and system.runner.slots_held == 1
    for request in (ask, waiting):
        assert request.finished and request.result is None
        with pytest.raises(Cancelled, match="cancelled"):
            system.scheduler.wait(request)


def test_what_is_finished_cannot_be_cancelled(system: System) -> None:
    frame = system.scheduler.wait(system.frame())
    system.scheduler.cancel(frame)
    assert not frame.cancelled
    with system.scheduler.wait(frame).result as prefix:
        assert prefix.version == 0


def test_the_prefix_of_a_frame_that_is_cancelled_while_it_is_computed_is_released(system: System) -> None:
    frame = system.frame()
    system.runner.during = lambda batch: system.scheduler.cancel(frame)
    assert system.run() == [OBSERVE]
    assert frame.cancelled and frame.result is None
    system.runner.during = lambda batch: None
    system.seen()
    assert system.runner.slots_held == 1  # the newest, for the next reader
    with pytest.raises(Cancelled):
        system.scheduler.wait(frame)


def test_a_request_cancelled_in_its_micro_batch_stays_in_it_to_its_end_and_its_chunk_goes_nowhere(
    system: System,
) -> None:
    system.seen()
    told: list[Request] = []
    act = system.acting(on_progress=told.append)

    def meanwhile(batch: MicroBatch) -> None:
        system.scheduler.cancel(act)
        assert act in system.runner.open and not act.finished

    system.runner.during = meanwhile
    system.run()
    assert told == [act] and act.result is None and not system.runner.open


def test_a_request_may_be_cancelled_by_what_is_told_of_another(system: System) -> None:
    system.seen()
    asks = [system.submit(ASK, waits=Waits.ROOM) for _ in range(2)]
    system.submit(
        ASK, waits=Waits.ROOM, on_progress=lambda request: system.scheduler.cancel(*asks), priority=1
    )
    system.run()
    assert all(ask.cancelled and len(ask.tokens) < 3 for ask in asks)
    assert not system.runner.open and not system.scheduler.requests


def test_a_request_is_cancelled_from_another_thread_while_its_micro_batch_runs(system: System) -> None:
    system.seen()
    asked, goes_on = threading.Event(), threading.Event()
    ask = system.submit(ASK)

    def meanwhile(batch: MicroBatch) -> None:
        asked.set()
        assert goes_on.wait(WAIT_S)

    system.runner.during = meanwhile
    thread = in_thread(lambda: broken_off(system, ask))
    assert asked.wait(WAIT_S)
    system.scheduler.cancel(ask)  # does not wait for it
    assert not ask.finished
    goes_on.set()
    joined(thread)
    assert ask.cancelled and not system.runner.open


@pytest.mark.parametrize("when", ["idle", "run", "pool"])
def test_the_garbage_collector_may_cancel_in_the_middle_of_anything(system: System, when: str) -> None:
    system.seen()
    ask = system.submit(ASK)
    system.scheduler.step()
    wishes = [Wish(system.scheduler, ask)]
    gc.disable()

    def collect(*_: object) -> None:
        wishes.clear()
        gc.collect()

    def work() -> None:
        if when == "idle":
            collect()
        elif when == "run":
            system.runner.during = collect
            system.scheduler.step()
        else:
            with system.runner.pool.lock:
                collect()

    try:
        joined(in_thread(work))
    finally:
        gc.enable()
    assert ask.cancelled and ask.finished and not system.runner.open and system.runner.slots_held == 1


def test_a_pool_that_is_held_by_who_collects_is_not_waited_for_by_who_holds_the_queue(system: System) -> None:
    """One thread asks the policy, whose runner looks into the pool; another's garbage holds that pool."""
    system.seen()
    ask = system.submit(ASK)
    system.scheduler.step()
    looks, holds = threading.Event(), threading.Event()
    room = system.runner.room

    def looked(request: Request) -> bool:
        looks.set()
        assert holds.wait(WAIT_S)
        return room(request) and system.runner.pool.free > 0

    runner: Any = system.runner
    runner.room = looked
    system.submit(ASK, waits=Waits.ROOM)

    def collects() -> None:
        assert looks.wait(WAIT_S)
        with system.runner.pool.lock:
            holds.set()
            system.scheduler.cancel(ask)

    joined(in_thread(collects), in_thread(system.scheduler.step))
    assert ask.cancelled


def test_forget_breaks_off_what_has_begun_of_a_robot_and_leaves_what_waits() -> None:
    system = System(StaggeredChunks(4), steps=9)
    begun = {}
    for robot in "ab":
        system.seen(robot)
        begun[robot] = system.acting(robot)
        system.scheduler.step()
    waits, frame = system.acting("a"), system.frame("a")
    system.scheduler.forget("a")
    assert [begun[robot].cancelled for robot in "ab"] == [True, False]
    assert set(system.scheduler.requests) == {begun["b"], waits, frame}
    system.scheduler.forget()
    assert begun["b"].cancelled and not waits.cancelled and not system.runner.open
    system.run()
    assert waits.result is not None  # of the frame that was seen afterwards


# Threads.


def test_what_is_cancelled_as_it_begins_takes_nothing(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread, after it was chosen."""
    system.seen()
    held, request = system.runner.prefixes.newest, system.acting()

    def newest(robot: str) -> Prefix | None:
        prefix = held(robot)
        system.scheduler.cancel(request)
        return prefix

    monkeypatch.setattr(system.runner.prefixes, "newest", newest)
    assert system.run() == [] and request.cancelled
    assert not system.scheduler.requests and not system.runner.open and system.runner.slots_held == 1
