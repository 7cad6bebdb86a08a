"""One queue of requests: what runs next, what becomes of it, and who may wait, cancel and forget meanwhile.

The policies are real; the runner computes nothing, and writes down what it was to compute.
"""

from __future__ import annotations

import gc
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from builders import JOINTS, NOBODY, make_config
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vla_accel_ros.engine.kv.pool import KVPool, PoolExhausted, Prefix, Prefixes
from vla_accel_ros.engine.lanes.lane import Lane, Stream
from vla_accel_ros.engine.policies.chunks import StaggeredChunks, WholeChunks
from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.policies.text import TextInSlack
from vla_accel_ros.engine.policies.tokens import TokenFrames
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import (
    ACT,
    ASK,
    DECODE,
    DENOISE,
    OBSERVE,
    PREFILL,
    REWORD,
    WHOLE,
    Cancelled,
    MicroBatch,
    Request,
)
from vla_accel_ros.engine.scheduling.readiness import SENSE_AGAIN_S
from vla_accel_ros.engine.scheduling.scheduler import Scheduler
from vla_accel_ros.types import Observation

WAIT_S = 20.0
PLACES = 2
SLOTS = 8


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class FakeRunner:
    """Computes nothing: an answer has three tokens, a chunk under a policy that says so `steps` steps.

    ran: the stage of each micro-batch and what is in it. during: called in each, and may raise; after: where
    it is waited for what was launched. fails: those that cannot begin. held: those that have begun and were
    not dropped.
    seats: whole chunks are of a kind of their own. ahead: what a step of chunks in seats, or a group of a
    frame or of a token, comes to is known later, as with a GPU. groups: micro-batches of a frame, which holds
    its slot; text_groups: of a token.
    """

    def __init__(self, steps: int = 1, first: str = DENOISE) -> None:
        self.seats = self.ahead = False
        self.groups = self.text_groups = 1
        self._text = 0  # groups of a token that are computed
        self.pool = KVPool(make_config().prefix, SLOTS, 2, torch.device("cpu"), torch.float32)
        self.prefixes = Prefixes(self.pool)
        self.steps, self.first = steps, first
        self.ran: list[tuple[str, tuple[Request, ...]]] = []
        self.during: Callable[[MicroBatch], object] = lambda batch: None
        self.after: Callable[[MicroBatch], object] = lambda batch: None
        self.fails: set[Request] = set()
        self.held: set[Request] = set()
        self.running = Counter[str]()

    @property
    def at_once(self) -> int:
        """Micro-batches that run now."""
        return self.running.total()

    def first_stage(self, request: Request) -> str:
        if request.want == ACT:
            return self.first
        if request.question == "unknown":
            raise ValueError("this policy answers nothing")
        return request.stage

    def kind(self, request: Request) -> str:
        return WHOLE if self.seats and request.whole else request.kind

    def room(self, request: Request) -> bool:
        return request.want != ASK or sum(one.want == ASK for one in self.held) < PLACES

    def begin(self, request: Request) -> None:
        if request in self.fails:
            raise ValueError("it cannot begin")
        if not self.room(request):
            raise PoolExhausted("no place")
        self.held.add(request)

    def run(self, batch: MicroBatch) -> Callable[[], None] | None:
        kind = batch.requests[0].kind
        assert self.running[kind] == 0 and batch.requests
        self.running[kind] += 1
        try:
            assert not any(request.released or request.awaited for request in batch.requests)
            self.ran.append((batch.stage, batch.requests))
            self.during(batch)
            if self.ahead and batch.stage == DENOISE and (batch.steps == 1 or kind == WHOLE):
                return self.launch(batch)
            if batch.stage == DECODE and batch.requests[0].want == ASK:
                self._text = (self._text + 1) % self.text_groups
                for request in batch.requests:
                    request.partial = self._text > 0
                if self.ahead:
                    return self.write(batch)
                if self._text:
                    return None
            for request in batch.requests:
                self.advance(request, batch)
            frames = [request for request in batch.requests if request.want == OBSERVE]
            if not (self.ahead and frames and self.groups > 1):
                return None
            for request in frames:
                request.awaited = request.finished
            return partial(self.after, batch)
        finally:
            self.running[kind] -= 1

    def launch(self, batch: MicroBatch) -> Callable[[], None]:
        """A step of each, whose results are there later."""
        for request in batch.requests:
            request.progress = (request.progress or 0) + (batch.steps or self.steps)
            request.awaited = request.progress >= self.steps
        last = [request for request in batch.requests if request.awaited]

        def wait() -> None:
            self.after(batch)
            for request in last:
                if not request.released:
                    request.result, request.finished = f"{request.want} {request.number}", True

        return wait

    def write(self, batch: MicroBatch) -> Callable[[], None]:
        """A group of a token, which is said later."""
        last = self._text == 0
        for request in batch.requests:
            request.awaited = last

        def wait() -> None:
            try:
                self.after(batch)
                for request in batch.requests:
                    if last and not request.released:
                        self.advance(request, batch)
            finally:
                for request in batch.requests:
                    request.awaited = False

        return wait if last else partial(self.after, batch)

    def advance(self, request: Request, batch: MicroBatch) -> None:
        if request.want == OBSERVE:
            assert request.observation is not None
            slot, computed = request.progress or (self.pool.acquire(), 0)
            request.progress = slot, computed + 1
            request.stage = PREFILL
            if computed + 1 == self.groups:
                request.result = self.prefixes.publish(slot, request.observation, NOBODY, 2, 1)
                request.progress, request.finished = None, True
        elif request.want == REWORD:
            assert request.prefix is not None
            request.result, request.finished = self.prefixes.hold(request.prefix), True
        else:
            request.progress = self.steps if batch.steps == 0 else (request.progress or 0) + 1
            request.tokens.append(len(request.tokens))
            if request.want == ASK:
                request.stage, request.pieces = DECODE, type(request.pieces)(["word"])
            elif batch.stage == PREFILL:
                request.stage = DECODE
            if request.progress >= (3 if request.want == ASK else self.steps):
                request.result, request.finished = f"{request.want} {request.number}", True

    def drop(self, request: Request) -> None:
        self.held.discard(request)
        if request.partial:
            self._text = 0
        if request.want == OBSERVE and request.progress is not None:
            self.pool.release(request.progress[0])
            request.progress = None

    @property
    def wants(self) -> list[str]:
        return ["+".join(request.want for request in requests) for _, requests in self.ran]

    @property
    def slots_held(self) -> int:
        return self.pool.slots - self.pool.free


class System:
    """A scheduler over a fake runner, with time that the test moves."""

    def __init__(self, policy: Policy | None = None, steps: int = 1, first: str = DENOISE) -> None:
        self.runner, self.clock, self.profile = FakeRunner(steps, first), Clock(), Profile()
        policy = TextInSlack(WholeChunks(), self.profile) if policy is None else policy
        self.scheduler = Scheduler(self.runner, policy, self.profile, clock=self.clock)

    def submit(self, want: str, **given: Any) -> Request:
        return self.scheduler.submit(Request(want, **given))

    def frame(self, robot: str = "", words: str = "reach", **given: Any) -> Request:
        seen = Observation({}, np.zeros(JOINTS, np.float32), words, 1, robot=robot)
        return self.submit(OBSERVE, robot=robot, observation=seen, **given)

    def acting(self, robot: str = "", **given: Any) -> Request:
        return self.submit(ACT, robot=robot, stream=True, waits=True, **given)

    def seen(self, robot: str = "", words: str = "reach") -> None:
        """A frame is there, which nobody holds but the pool."""
        request = self.scheduler.wait(self.frame(robot, words, priority=99))
        assert isinstance(request.result, Prefix)
        request.result.release()
        self.runner.ran.clear()

    def run(self, most: int = 100) -> list[str]:
        """Step until nothing may run; what ran."""
        self.runner.ran.clear()
        for _ in range(most):
            if not self.scheduler.step():
                break
        else:
            raise AssertionError("it never comes to rest")
        return self.runner.wants


@pytest.fixture
def system() -> System:
    return System()


def broken_off(system: System, request: Request) -> None:
    with pytest.raises(Cancelled):
        system.scheduler.wait(request)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def joined(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads), "somebody waits for nothing"


# What runs next.


def test_nothing_runs_of_an_empty_queue(system: System) -> None:
    assert system.scheduler.step() == () and system.scheduler.requests == ()


def test_a_fresh_frame_is_acted_on_before_the_next_is_seen_and_text_comes_last(system: System) -> None:
    ask = system.submit(ASK, stream=True, waits=True)
    frames = [system.frame() for _ in range(2)]
    act = system.acting(on_progress=lambda request: request is act and system.acting())
    assert system.run() == [OBSERVE, ACT, OBSERVE, ACT, ASK, ASK, ASK]
    assert ask.released and all(frame.released for frame in frames) and act.result == "act 0"


def test_newer_joints_are_acted_on_after_a_fresh_frame_and_after_the_next_is_seen(system: System) -> None:
    felt = [(np.zeros(JOINTS), 1)]
    system.seen()
    system.acting(sense=lambda: felt[-1])
    assert system.run() == [ACT]
    again = system.acting(sense=lambda: felt[-1])
    assert system.run() == []  # neither frame nor joints are new
    felt.append((np.ones(JOINTS), 2))
    system.frame()
    assert system.run() == [OBSERVE, ACT]  # of the new frame, with the new joints
    assert again.sensed_ns == 2 and again.fresh
    newer = system.acting(sense=lambda: felt[-1])
    felt.append((np.ones(JOINTS), 3))
    assert system.run() == [ACT] and not newer.fresh and np.array_equal(newer.state, np.ones(JOINTS))


def test_the_same_frame_is_not_acted_on_before_its_time_and_another_is_at_once(system: System) -> None:
    stamps = itertools.count(1)
    system.seen()
    system.acting(sense=lambda: (np.zeros(JOINTS), next(stamps)))
    assert system.run() == [ACT]
    waiting = system.acting(sense=lambda: (np.zeros(JOINTS), next(stamps)), not_before_s=1.0)
    assert system.run() == []
    system.clock.now_s = 1.0
    assert system.run() == [ACT] and waiting.released
    system.acting(not_before_s=9.0)
    system.frame()
    assert system.run() == [OBSERVE, ACT]


def test_a_lane_looks_again_when_it_is_time_or_joints_may_have_come(system: System) -> None:
    """Nobody tells the scheduler of joints, and of no time that has come."""
    system.seen()
    system.acting(sense=lambda: (np.zeros(JOINTS), 1))
    system.run()
    system.acting(sense=lambda: (np.zeros(JOINTS), 1), not_before_s=0.004)
    system.run()
    assert system.scheduler.lanes[0].again_s == 0.004
    system.clock.now_s = 0.004
    system.run()
    assert system.scheduler.lanes[0].again_s == pytest.approx(0.004 + SENSE_AGAIN_S)


def test_frames_of_a_stream_never_queue_and_the_newest_wins(system: System) -> None:
    for words in ("first", "second", "third"):
        system.seen(words=words)
    act = system.acting()
    assert system.run() == [ACT]
    assert act.instruction == "third" and act.prefix is not None and act.prefix.version == 2
    system.acting()
    assert system.run() == []


def test_what_is_no_stream_runs_at_once_on_the_prefix_that_it_was_given(system: System) -> None:
    first = system.scheduler.wait(system.frame(words="first")).result
    system.seen(words="second")
    acts = [system.submit(ACT, prefix=first) for _ in range(2)]
    assert system.run() == [ACT, ACT]
    assert [act.instruction for act in acts] == ["first"] * 2 and [act.number for act in acts] == [0, 1]


def test_several_robots_have_their_own_frames_and_the_highest_priority_goes_first(system: System) -> None:
    robots = ("low", "high", "middle")
    priorities = {"low": 0, "high": 2, "middle": 1}
    for robot in robots:
        system.seen(robot, words=robot)
    acts = [system.acting(robot, priority=priorities[robot]) for robot in robots]
    frames = [system.frame(robot, priority=priorities[robot]) for robot in robots]
    system.run()
    order = [(request.want, request.robot) for _, (request,) in system.runner.ran]
    assert order == [(want, robot) for want in (ACT, OBSERVE) for robot in ("high", "middle", "low")]
    assert all(act.instruction == act.robot for act in acts)
    for robot, frame in zip(robots, frames, strict=True):
        with system.scheduler.newest(robot) as newest:
            assert newest.robot == robot and newest.version == frame.result.version
    assert system.scheduler.newest("none") is None


def test_equals_go_in_order_of_submission(system: System) -> None:
    frames = [system.frame(robot) for robot in "abc"]
    system.run()
    assert [requests for _, requests in system.runner.ran] == [(frame,) for frame in frames]


def test_a_request_waits_for_room_or_fails_without_it(system: System) -> None:
    system.seen()
    asks = [system.submit(ASK, waits=True) for _ in range(PLACES + 1)]
    for _ in range(PLACES):
        system.scheduler.step()
    assert [ask.begun for ask in asks] == [True, True, False]
    refused = system.submit(ASK)
    with pytest.raises(PoolExhausted, match="no place"):
        system.scheduler.wait(refused)
    system.run()
    assert all(ask.result for ask in asks) and not system.runner.held


def test_skip_leaves_every_frame_alone_that_there_is(system: System) -> None:
    system.seen("a")
    system.seen("b")
    system.scheduler.skip("a")
    acts = {robot: system.acting(robot) for robot in "ab"}
    asks = {robot: system.submit(ASK, robot=robot, stream=True, waits=True) for robot in "ab"}
    system.run()
    assert [acts[robot].released for robot in "ab"] == [False, True] == [asks[r].released for r in "ab"]
    system.frame("a")
    system.run()
    assert acts["a"].released and asks["a"].released


def test_other_words_drop_what_is_under_way_of_that_robot_alone() -> None:
    system = System(StaggeredChunks(4), steps=3)
    told: list[tuple[Request, bool]] = []
    for robot in "ab":
        system.seen(robot, words="reach")
        system.acting(robot, on_progress=lambda request: told.append((request, request.cancelled)))
        system.scheduler.step()
    system.seen("a", words="put")
    new = system.acting("a")
    system.run()
    old, other = told[0][0], next(request for request, _ in told if request.robot == "b")
    assert old.cancelled and old.result is None and not other.cancelled and new.result == "act 2"
    assert [cancelled for request, cancelled in told if request is old] == [False, False, True]
    assert not system.runner.held


def test_riders_share_the_forward_of_the_newest_frame() -> None:
    system = System(TokenFrames("pipelined", "freshness", 3), steps=3, first=PREFILL)
    acts = []
    for _ in range(3):
        system.seen()
        acts.append(system.acting())
        system.scheduler.step()
    assert system.runner.ran[-1] == (PREFILL, tuple(acts))
    assert [act.released for act in acts] == [True, False, False]


# What becomes of a request.


def test_what_a_runner_cannot_do_is_refused_and_not_queued(system: System) -> None:
    with pytest.raises(ValueError, match="answers nothing"):
        system.submit(ASK, question="unknown")
    assert not system.scheduler.requests


def test_without_a_frame_there_is_nothing_to_act_on(system: System) -> None:
    with pytest.raises(ValueError, match="nothing was observed yet"):
        system.scheduler.wait(system.submit(ACT))
    assert not system.scheduler.requests


def test_a_request_that_cannot_begin_fails_alone() -> None:
    system = System(StaggeredChunks(3), steps=2)
    system.seen()
    under_way = system.submit(ACT)
    system.scheduler.step()
    broken = system.submit(ACT)
    system.runner.fails.add(broken)
    system.run()
    assert under_way.result == "act 0" and under_way.error is None
    assert broken.released and broken.result is None and not broken.done > 1
    with pytest.raises(ValueError, match="it cannot begin"):
        system.scheduler.wait(broken)
    assert system.runner.slots_held == 1 and not system.runner.held  # the newest


def test_a_panic_where_a_request_begins_goes_through_and_is_what_its_waiter_is_told() -> None:
    class Panic(BaseException):
        """No Exception."""

    def panic() -> Observation:
        raise Panic("the camera's library is gone")

    system = System()
    request = system.submit(OBSERVE, observe=panic)
    with pytest.raises(Panic):
        system.scheduler.step()
    with pytest.raises(Cancelled, match="the camera's library is gone"):
        system.scheduler.wait(request)
    assert not system.runner.ran and not system.scheduler.requests
    system.seen()


@pytest.mark.parametrize("where", ["sense", "on_begin"])
def test_an_error_of_what_a_request_brings_is_its_own(system: System, where: str) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no joints")

    system.seen()
    system.scheduler.wait(system.acting())
    other = system.submit(ACT)
    broken = system.acting(**{where: fails})
    if where == "on_begin":
        system.seen()
    system.run()
    assert other.result is not None and system.runner.slots_held == 1
    with pytest.raises(RuntimeError, match="no joints"):
        system.scheduler.wait(broken)


def test_the_error_of_a_micro_batch_is_that_of_all_in_it_and_reaches_who_waits() -> None:
    system = System(StaggeredChunks(2), steps=2)
    system.seen()
    acts = [system.submit(ACT) for _ in range(2)]

    def fails(batch: MicroBatch) -> None:
        if len(batch.requests) == 2:
            raise RuntimeError("out of memory")

    system.runner.during = fails
    for act in acts:
        with pytest.raises(RuntimeError, match="out of memory"):
            system.scheduler.wait(act)
    assert not system.runner.held and system.runner.slots_held == 1
    assert ("act.denoise", 2) not in system.profile.known()  # what failed says nothing of durations


def test_a_failed_frame_is_not_tried_again_and_the_next_is(system: System) -> None:
    system.seen()
    broken = system.acting()
    system.runner.fails.add(broken)
    system.run()
    waiting = system.acting()
    assert broken.error is not None and system.run() == []
    system.frame()
    assert system.run() == [OBSERVE, ACT] and waiting.error is None


def test_who_cannot_hear_of_progress_keeps_nobody_else_from_it(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    def deaf(request: Request) -> None:
        raise RuntimeError("deaf")

    heard: list[int] = []
    system.seen()
    asks = [system.submit(ASK, waits=True, on_progress=deaf)]
    asks.append(system.submit(ASK, waits=True, on_progress=lambda request: heard.append(request.done)))
    system.run()
    assert heard == [1, 2, 3] and all(ask.result for ask in asks) and "deaf" in caplog.text


def test_durations_are_noted_by_kind_and_number() -> None:
    system = System(StaggeredChunks(2), steps=2)
    ran: list[tuple[str, float]] = []
    on_ran = lambda batch, began_s: ran.append((batch.kind, began_s))  # noqa: E731
    system.scheduler.streams.running[""] = Stream(on_ran=on_ran)
    system.seen()
    ran.clear()

    def takes(batch: MicroBatch) -> None:
        system.clock.now_s += len(batch.requests)

    system.runner.during = takes
    for _ in range(2):
        system.submit(ACT)
    system.run()
    assert ran == [("act.denoise", 0.0), ("act.denoise", 1.0), ("act.denoise", 3.0)]
    known = system.profile.known()
    assert known["act.denoise", 1] == 1.0 and known["act.denoise", 2] == 2.0


# Cancelling and forgetting.


def test_a_cancelled_request_is_told_so_once_and_holds_nothing(system: System) -> None:
    told: list[tuple[bool, bool]] = []
    system.seen()
    ask = system.submit(ASK, on_progress=lambda request: told.append((request.cancelled, request.released)))
    waiting = system.submit(ASK, waits=True, on_progress=lambda request: told.append((True, request.begun)))
    system.scheduler.step()
    system.scheduler.cancel(ask, waiting, ask)
    assert told == [(False, False), (True, True), (True, False)]
    assert not system.scheduler.requests and not system.runner.held and system.runner.slots_held == 1
    for request in (ask, waiting):
        assert request.finished and request.result is None
        with pytest.raises(Cancelled, match="the request to ask was cancelled"):
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
    with system.scheduler.newest() as prefix:
        words = system.submit(REWORD, prefix=prefix)
        system.runner.during = lambda batch: system.scheduler.cancel(words)
        system.run()
    system.runner.during = lambda batch: None
    system.seen()
    assert words.result is None and system.runner.slots_held == 1


def test_a_request_cancelled_in_its_micro_batch_stays_in_it_to_its_end_and_its_chunk_goes_nowhere(
    system: System,
) -> None:
    system.seen()
    told: list[Request] = []
    act = system.acting(on_progress=told.append)

    def meanwhile(batch: MicroBatch) -> None:
        system.scheduler.cancel(act)
        assert act in system.runner.held and act.cancelled and not act.released

    system.runner.during = meanwhile
    system.run()
    assert told == [act] and act.result is None and not system.runner.held


def test_a_request_may_be_cancelled_by_what_is_told_of_another(system: System) -> None:
    system.seen()
    asks = [system.submit(ASK, waits=True) for _ in range(2)]
    system.submit(ASK, waits=True, on_progress=lambda request: system.scheduler.cancel(*asks), priority=1)
    system.run()
    assert all(ask.cancelled and ask.done < 3 for ask in asks)
    assert not system.runner.held and not system.scheduler.requests


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
    assert ask.cancelled and not ask.released
    goes_on.set()
    joined(thread)
    assert ask.released and not system.runner.held


class Wish:
    """Cancels its request when nobody refers to it any longer."""

    def __init__(self, scheduler: Scheduler, request: Request) -> None:
        self.scheduler, self.request, self.itself = scheduler, request, self

    def __del__(self) -> None:
        self.scheduler.cancel(self.request)


@pytest.mark.parametrize("when", ["idle", "run", "changed", "pool"])
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
        elif when == "changed":
            with system.scheduler._queue._changed:
                collect()
        else:
            with system.runner.pool._lock:
                collect()

    try:
        joined(in_thread(work))
    finally:
        gc.enable()
    assert ask.cancelled and ask.released and not system.runner.held and system.runner.slots_held == 1


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

    system.runner.room = looked
    system.submit(ASK, waits=True)

    def collects() -> None:
        assert looks.wait(WAIT_S)
        with system.runner.pool._lock:
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
    assert begun["b"].cancelled and not waits.cancelled and not system.runner.held
    system.run()
    assert waits.result is not None  # of the frame that was seen afterwards


# Threads.


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


def test_lanes_have_threads_from_start_to_stop_and_again(system: System) -> None:
    lane = system.scheduler.lanes[0]
    for _ in range(3):
        assert not lane.running
        system.scheduler.start()
        with pytest.raises(RuntimeError, match="lane 'main' runs already"):
            system.scheduler.start()
        with system.scheduler.wait(system.frame()).result:
            waiting = system.acting()
        system.scheduler.wait(waiting)
        left = system.acting()
        system.scheduler.stop()
        assert left.cancelled and not system.scheduler.requests
    system.scheduler.stop()
    with system.scheduler.wait(system.frame()).result:  # whoever waits steps it again
        assert system.runner.slots_held == 1


def test_stop_ends_a_thread_that_waits_and_whoever_waits_for_a_request(system: System) -> None:
    system.scheduler.start()
    act = system.acting()
    threads = [in_thread(lambda: broken_off(system, act)) for _ in range(2)]
    system.scheduler.stop()
    joined(*threads)


def test_a_lane_that_is_stopped_by_what_it_runs_begins_anew() -> None:
    lane, threads = Lane(), []
    ended = threading.Semaphore(0)

    def turn(given_up: Callable[[], bool]) -> None:
        threads.append(threading.current_thread())
        lane.stop(lambda: None)
        ended.release()

    for _ in range(2):
        lane.start(turn)
        assert ended.acquire(timeout=WAIT_S)
    joined(*threads)
    assert len(set(threads)) == len(threads) == 2


class Waits:
    """Counts how long a scheduler means to wait, and waits for ever: a lost wake-up never ends."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.condition, self.count = scheduler._queue._changed, 0
        self._wait = scheduler._queue._changed.wait
        scheduler._queue._changed.wait = self.wait

    def wait(self, timeout: float | None = None) -> bool:
        self.count += 1
        return self._wait(None)


class Looks(WholeChunks):
    """Calls `found_nothing` whenever it was asked and nothing may run, before anybody waits."""

    def __init__(self) -> None:
        self.found_nothing: Callable[[], object] = lambda: None

    def wake_s(self, ready: Sequence[Request], now_s: float) -> float:
        self.found_nothing()
        return super().wake_s(ready, now_s)


@pytest.mark.parametrize("threaded", [False, True])
def test_what_comes_after_a_look_and_before_the_wait_is_looked_at(threaded: bool) -> None:
    policy = Looks()
    system = System(policy)
    Waits(system.scheduler)
    seen = threading.Event()

    def late() -> None:
        policy.found_nothing = lambda: None
        system.frame(on_progress=lambda request: (request.result.release(), seen.set()))

    policy.found_nothing = late
    if threaded:
        system.scheduler.start()
        assert seen.wait(WAIT_S), "nobody looked"
        system.scheduler.stop()
    else:
        joined(in_thread(lambda: system.scheduler.wait(system.acting())))
        assert seen.is_set()


def test_who_finds_the_lane_taken_by_one_that_has_looked_before_is_not_left_waiting() -> None:
    """Nobody waits beside it, who would look again."""
    policy = Looks()
    system = System(policy)
    waits = Waits(system.scheduler)
    looked, idles = threading.Event(), threading.Event()
    wait = waits.wait
    system.scheduler._queue._changed.wait = lambda timeout=None: (idles.set(), wait(timeout))[1]

    def holds_the_lane() -> None:
        policy.found_nothing = lambda: None
        looked.set()
        assert idles.wait(WAIT_S)

    policy.found_nothing = holds_the_lane
    steps = in_thread(system.scheduler.step)
    assert looked.wait(WAIT_S)
    waiting = in_thread(lambda: system.scheduler.wait(system.frame()).result.release())
    joined(steps, waiting)


def test_many_threads_wait_at_once_and_no_wake_up_is_lost() -> None:
    """Each waits for requests of its own, in no order, while nobody may wait for time to pass."""
    system, frames, threads = System(), 200, 4
    waits = Waits(system.scheduler)
    barrier = threading.Barrier(threads)
    together: list[int] = []
    system.runner.during = lambda batch: together.append(system.runner.at_once)

    def work(robot: str) -> None:
        barrier.wait()
        for _ in range(frames):
            with system.scheduler.wait(system.frame(robot)).result as prefix:
                system.scheduler.wait(system.submit(ACT, prefix=prefix))

    joined(*(in_thread(lambda robot=str(i): work(robot)) for i in range(threads)))
    assert len(together) == 2 * frames * threads and set(together) == {1}
    assert system.runner.slots_held == threads and not system.scheduler.requests
    assert waits.count < 20 * frames * threads  # nobody asks again and again


def test_requests_that_nobody_waits_for_wake_the_lanes_thread() -> None:
    system, done = System(), threading.Semaphore(0)
    Waits(system.scheduler)
    system.scheduler.start()
    for _ in range(200):
        system.frame(on_progress=lambda request: (request.result.release(), done.release()))
        assert done.acquire(timeout=WAIT_S)
    system.scheduler.stop()
    assert system.runner.slots_held == 1


def test_two_who_wait_for_what_cannot_run_do_not_keep_each_other_awake(system: System) -> None:
    """And both return when it can."""
    looked = threading.Semaphore(0)
    waits = Waits(system.scheduler)
    wait = waits.wait
    system.scheduler._queue._changed.wait = lambda timeout=None: (looked.release(), wait(timeout))[1]
    acts = [system.acting(robot) for robot in "ab"]
    threads = [in_thread(lambda act=act: system.scheduler.wait(act)) for act in acts]
    for _ in acts:
        assert looked.acquire(timeout=WAIT_S)
    before = waits.count
    system.scheduler.wake()
    for _ in acts:
        assert looked.acquire(timeout=WAIT_S)
    assert waits.count - before <= 2 * len(acts)
    for robot in "ab":
        system.frame(robot)
    joined(*threads)
    assert all(act.result for act in acts)


# Any order of events.


class SchedulerMachine(RuleBasedStateMachine):
    """Any sequence of submit, step, cancel, forget, skip and errors leaves nothing that is finished in the
    queue, and holds nothing for it."""

    def __init__(self) -> None:
        super().__init__()
        self.system = System(self.policy(), steps=3, first=self.first)
        self.requests: list[Request] = []
        self.told: dict[Request, list[tuple[int, bool]]] = {}
        self.taken: set[Request] = set()

    first = DENOISE

    def policy(self) -> Policy:
        return TextInSlack(StaggeredChunks(2), Profile())

    def keep(self, request: Request) -> None:
        self.requests.append(request)

    def progress(self, request: Request) -> None:
        self.told.setdefault(request, []).append((request.done, request.released))

    @rule(robot=st.sampled_from("ab"), words=st.sampled_from(("reach", "put")))
    def see(self, robot: str, words: str) -> None:
        self.keep(self.system.frame(robot, words, on_progress=self.progress))

    @rule(robot=st.sampled_from("ab"), stream=st.booleans(), fails=st.booleans())
    def act(self, robot: str, stream: bool, fails: bool) -> None:
        request = Request(ACT, robot, stream=stream, waits=stream, on_progress=self.progress)
        if fails:
            self.system.runner.fails.add(request)
        self.keep(self.system.scheduler.submit(request))

    @rule(robot=st.sampled_from("ab"), waits=st.booleans())
    def ask(self, robot: str, waits: bool) -> None:
        self.keep(self.system.submit(ASK, robot=robot, waits=waits, on_progress=self.progress))

    @rule(robot=st.sampled_from("ab"))
    def reword(self, robot: str) -> None:
        self.keep(self.system.submit(REWORD, robot=robot, question="put", on_progress=self.progress))

    @rule(times=st.integers(1, 4), later_s=st.sampled_from((0.0, 0.3)))
    def step(self, times: int, later_s: float) -> None:
        self.system.clock.now_s += later_s
        for _ in range(times):
            self.system.scheduler.step()

    @rule()
    def step_that_fails(self) -> None:
        def fails(batch: MicroBatch) -> None:
            raise RuntimeError("out of memory")

        self.system.runner.during = fails
        self.system.scheduler.step()
        self.system.runner.during = lambda batch: None

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(range(len(self.requests))), max_size=3))
        self.system.scheduler.cancel(*(self.requests[number] for number in some))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel_while_a_micro_batch_runs(self, data: st.DataObject) -> None:
        request = self.requests[data.draw(st.sampled_from(range(len(self.requests))))]
        self.system.runner.during = lambda batch: self.system.scheduler.cancel(request)
        self.system.scheduler.step()
        self.system.runner.during = lambda batch: None

    @rule(robot=st.sampled_from((None, "a", "b")))
    def forget(self, robot: str | None) -> None:
        self.system.scheduler.forget(robot)
        assert not any(
            r.want == ACT and r.begun and robot in (None, r.robot) for r in self.system.scheduler.requests
        )

    @rule(robot=st.sampled_from("ab"))
    def skip(self, robot: str) -> None:
        self.system.scheduler.skip(robot)

    @precondition(lambda self: any(isinstance(request.result, Prefix) for request in self.requests))
    @rule()
    def release_what_came(self) -> None:
        for request in self.requests:
            if isinstance(request.result, Prefix):
                request.result.release()
                self.taken.add(request)

    @invariant()
    def what_is_finished_is_not_queued(self) -> None:
        queue = self.system.scheduler.requests
        assert len(set(queue)) == len(queue)
        assert set(queue) == {request for request in self.requests if not request.released}
        assert not any(request.finished or request.cancelled for request in queue)

    @invariant()
    def nothing_is_held_for_what_is_finished(self) -> None:
        runner = self.system.runner
        assert runner.held == {request for request in self.system.scheduler.requests if request.begun}
        results = [r for r in self.requests if isinstance(r.result, Prefix) and r not in self.taken]
        frames = {request.prefix.slot for request in self.system.scheduler.requests if request.begun}
        frames |= {request.result.slot for request in results}
        newest = [runner.prefixes._newest[robot].slot for robot in "ab" if robot in runner.prefixes._newest]
        assert runner.slots_held == len(frames | set(newest))

    @invariant()
    def nobody_is_told_after_the_end(self) -> None:
        for request, told in self.told.items():
            ends = [released for _, released in told]
            assert sum(ends) == (request.released and bool(told)) and (not any(ends) or ends[-1])

    def teardown(self) -> None:
        self.system.scheduler.stop()
        self.what_is_finished_is_not_queued()
        for request in self.requests:
            if isinstance(request.result, Prefix):
                request.result.release()
        assert self.system.runner.slots_held == len(self.system.runner.prefixes._newest)
        assert not self.system.runner.held


class TokenSchedulerMachine(SchedulerMachine):
    """The same of frames that share forwards."""

    first = PREFILL

    def policy(self) -> Policy:
        return TextInSlack(TokenFrames("pipelined", "freshness", 3), Profile())


SchedulerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TokenSchedulerMachine.TestCase.settings = SchedulerMachine.TestCase.settings
TestScheduler = SchedulerMachine.TestCase
TestTokenScheduler = TokenSchedulerMachine.TestCase
