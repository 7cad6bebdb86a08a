"""Lanes with threads, and the threads that wait for requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest
from scheduled import WAIT_S, System, broken_off, in_thread, joined

from vla_accel_ros.engine.request import (
    ACT,
    ASK,
    Cancelled,
    MicroBatch,
    Request,
)
from vla_accel_ros.engine.rules.chunks import StaggeredChunks, WholeChunks
from vla_accel_ros.engine.scheduler import Scheduler, Stream


class Waits:
    """Counts how long a scheduler means to wait, and waits for ever: a lost wake-up never ends.
    before: called before each wait."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.inbox: SimpleQueue[Any] = scheduler._inbox
        self.count, self.before = 0, lambda: None
        scheduler._inbox = self  # type: ignore[assignment]

    def put(self, message: object) -> None:
        self.inbox.put(message)

    def get_nowait(self) -> object:
        return self.inbox.get_nowait()

    def get(self, timeout: float | None = None) -> object:
        self.count += 1
        self.before()
        return self.inbox.get()


class Looks(WholeChunks):
    """Calls `found_nothing` whenever it was asked and nothing may run, before anybody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.found_nothing: Callable[[], object] = lambda: None

    def wake_s(self, ready: Sequence[Request], now_s: float) -> float:
        self.found_nothing()
        return super().wake_s(ready, now_s)


def test_a_policy_that_raises_reaches_who_steps_and_does_not_end_the_lanes_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(WholeChunks):
        fails = 2

        def next(
            self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = 0.0
        ) -> MicroBatch | None:
            if ready and self.fails:
                self.fails -= 1
                raise RuntimeError("this policy is broken")
            return super().next(lane, ready, now_s)

    system = System(Broken())
    frame = system.frame()
    with pytest.raises(RuntimeError, match="this policy is broken"):
        system.scheduler.wait(frame)
    system.scheduler.start()
    other = system.frame("other")
    with system.scheduler.wait(frame).result, system.scheduler.wait(other).result:
        assert "this policy is broken" in caplog.text
    system.scheduler.stop()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_step_that_raises_leaves_stepping_to_others(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch, system: System
) -> None:
    system.seen()
    acting = system.submit(ACT)

    def broken(*given: Any) -> MicroBatch | None:
        raise error

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(system.rules, "next", broken)
        system.scheduler.wait(acting)
    system.scheduler.wait(system.frame()).result.release()
    system.scheduler.wait(acting)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_tells_its_callers_why_and_they_step_themselves(
    monkeypatch: pytest.MonkeyPatch, system: System
) -> None:
    class Panic(BaseException):
        """No Exception."""

    def broken(lane: str, ready: Sequence[Request], *given: Any) -> MicroBatch | None:
        if ready:
            raise Panic("a library is gone")
        return None

    with monkeypatch.context() as patch:
        patch.setattr(system.rules, "next", broken)
        system.scheduler.start()
        frame = system.frame()
        with pytest.raises(Cancelled, match="a library is gone"):
            system.scheduler.wait(frame)
    system.scheduler.wait(system.frame()).result.release()
    assert not system.scheduler.running and system.runner.slots_held == 1


def test_what_panics_in_the_worker_ends_its_requests_alone(system: System) -> None:
    class Panic(BaseException):
        """No Exception."""

    def panic(batch: MicroBatch) -> None:
        system.runner.during = lambda batch: None
        raise Panic("a library is gone")

    system.runner.during = panic
    system.scheduler.start()
    with pytest.raises(Cancelled, match="a library is gone"):
        system.scheduler.wait(system.frame())
    system.scheduler.wait(system.frame()).result.release()
    system.scheduler.stop()
    assert system.runner.slots_held == 1


def test_the_loop_has_a_thread_from_start_to_stop_and_again(system: System) -> None:
    for _ in range(3):
        assert not system.scheduler.running
        system.scheduler.start()
        with pytest.raises(RuntimeError, match="the engine's thread runs already"):
            system.scheduler.start()
        with system.scheduler.wait(system.frame()).result:
            waiting = system.acting()
        system.scheduler.wait(waiting)
        pending = system.acting()
        system.scheduler.stop()
        assert pending.cancelled and not system.scheduler.requests
    system.scheduler.stop()
    with system.scheduler.wait(system.frame()).result:  # whoever waits steps it again
        assert system.runner.slots_held == 1


def test_stop_ends_a_thread_that_waits_and_whoever_waits_for_a_request(system: System) -> None:
    system.scheduler.start()
    act = system.acting()
    threads = [in_thread(lambda: broken_off(system, act)) for _ in range(2)]
    system.scheduler.stop()
    joined(*threads)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("want", [ACT, ASK])
@pytest.mark.parametrize("ahead", [False, True])
def test_callers_are_served_although_the_last_stream_ends_meanwhile(
    want: str, ahead: bool, again: bool
) -> None:
    system = System(StaggeredChunks(2) if want == ACT else None, steps=3)
    system.runner.captured = ahead
    scheduler = system.scheduler
    prefix = scheduler.wait(system.frame()).result
    scheduler.join("", Stream())

    def ends(batch: MicroBatch) -> None:
        if batch.requests[0].want == want and not batch.requests[0].progress:
            scheduler.leave("")

    system.runner.during = ends
    thread = scheduler._thread
    assert thread is not None
    request = system.submit(want, prefix=prefix)
    joined(thread)
    assert not scheduler.running and not request.finished
    system.runner.during = lambda batch: None
    if again:
        scheduler.join("", Stream())
    joined(in_thread(lambda: scheduler.wait(request)))
    assert request.result == f"{want} 0"
    scheduler.stop()


@pytest.mark.parametrize("threaded", [False, True])
def test_what_comes_after_a_look_and_before_the_wait_is_looked_at(threaded: bool) -> None:
    policy = Looks()
    system = System(policy)
    Waits(system.scheduler)
    seen = threading.Event()

    def late() -> None:
        policy.found_nothing = lambda: None

        def done(request: Any) -> None:
            request.result.release()
            seen.set()

        system.frame(on_progress=done)

    policy.found_nothing = late
    if threaded:
        system.scheduler.start()
        assert seen.wait(WAIT_S), "nobody looked"
        system.scheduler.stop()
    else:
        joined(in_thread(lambda: system.scheduler.wait(system.acting())))
        assert seen.is_set()


def test_many_threads_wait_at_once_and_no_wake_up_is_lost() -> None:
    """Each waits for requests of its own, in no order, while nobody may wait for time to pass."""
    system, frames, threads = System(), 200, 4
    waits = Waits(system.scheduler)
    barrier = threading.Barrier(threads)
    together: list[int] = []
    system.runner.during = lambda batch: together.append(system.runner.running.total())

    def work(robot: str) -> None:
        barrier.wait()
        for _ in range(frames):
            with system.scheduler.wait(system.frame(robot)).result as prefix:
                system.scheduler.wait(system.submit(ACT, prefix=prefix))

    joined(*(in_thread(partial(work, str(i))) for i in range(threads)))
    assert len(together) == 2 * frames * threads and set(together) == {1}
    assert system.runner.slots_held == threads and not system.scheduler.requests
    assert waits.count < 20 * frames * threads  # nobody asks again and again


def test_requests_that_nobody_waits_for_wake_the_lanes_thread() -> None:
    system, done = System(), threading.Semaphore(0)

    def seen(request: Any) -> None:
        request.result.release()
        done.release()

    Waits(system.scheduler)
    system.scheduler.start()
    for _ in range(200):
        system.frame(on_progress=seen)
        assert done.acquire(timeout=WAIT_S)
    system.scheduler.stop()
    assert system.runner.slots_held == 1


def test_two_who_wait_for_what_cannot_run_do_not_keep_each_other_awake(system: System) -> None:
    """And both return when it can."""
    looked = threading.Semaphore(0)
    waits = Waits(system.scheduler)
    waits.before = looked.release
    acts = [system.acting(robot) for robot in "ab"]
    threads = [in_thread(partial(system.scheduler.wait, act)) for act in acts]
    assert looked.acquire(timeout=WAIT_S)
    before = waits.count
    system.scheduler.wake()
    assert looked.acquire(timeout=WAIT_S)
    assert waits.count - before <= 2 * len(acts)
    for robot in "ab":
        system.frame(robot)
    joined(*threads)
    assert all(act.result for act in acts)


def test_a_step_beside_the_thread_that_steps_returns(system: System) -> None:
    system.scheduler.start()
    with system.scheduler.wait(system.frame()).result:
        stepping = in_thread(system.scheduler.step)
        joined(stepping)
    system.scheduler.stop()
