"""A scheduler over a fake runner, which computes nothing and writes down what it was to compute. The policies
are real."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from builders import JOINTS, NOBODY, make_config
from wishes import make_request

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import PoolExhausted, Prefix, Prefixes
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
    Ask,
    Cancelled,
    MicroBatch,
    Request,
    Status,
    Waits,
)
from vla_accel_ros.engine.rules.chunks import WholeChunks
from vla_accel_ros.engine.rules.rule import Plan, Rule
from vla_accel_ros.engine.rules.rules import Rules
from vla_accel_ros.engine.scheduler import Scheduler
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
        self.after: Callable[[MicroBatch], Any] = lambda batch: None
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
        if request.want == ASK and request.ask.question == "unknown":
            raise ValueError("this policy answers nothing")
        return request.stage

    def kind(self, request: Request) -> str:
        return WHOLE if self.seats and request.whole else request.kind

    def idle(self) -> None:
        """Does nothing."""

    def is_captured(self, batch: MicroBatch) -> bool:
        return self.ahead

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
            assert not any(request.finished or request.launched for request in batch.requests)
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
            return partial(self.after, batch)
        finally:
            self.running[kind] -= 1

    def launch(self, batch: MicroBatch) -> Callable[[], None]:
        """A step of each, whose results are there later."""
        for request in batch.requests:
            request.progress = (request.progress or 0) + (batch.steps or self.steps)
            if request.progress >= self.steps:
                request.status = Status.LAUNCHED
        last = [request for request in batch.requests if request.launched]

        def wait() -> None:
            self.after(batch)
            for request in last:
                if not request.finished:
                    request.finish(f"{request.want} {request.number}")

        return wait

    def write(self, batch: MicroBatch) -> Callable[[], None]:
        """A group of a token, which is said later."""
        last = self._text == 0
        for request in batch.requests:
            if last:
                request.status = Status.LAUNCHED

        def wait() -> None:
            try:
                self.after(batch)
                for request in batch.requests:
                    if last and not request.finished:
                        self.advance(request, batch)
            finally:
                for request in batch.requests:
                    if request.launched:
                        request.status = Status.RUNNING

        return wait if last else partial(self.after, batch)

    def advance(self, request: Request, batch: MicroBatch) -> None:
        if request.want == OBSERVE:
            assert request.observation is not None
            slot, computed = request.progress or (self.pool.acquire(), 0)
            request.progress = slot, computed + 1
            request.stage = PREFILL
            if computed + 1 == self.groups:
                request.finish(self.prefixes.publish(slot, request.observation, NOBODY, 2, 1))
                request.progress = None
        elif request.want == REWORD:
            assert request.prefix is not None
            request.finish(self.prefixes.hold(request.prefix))
        else:
            request.progress = self.steps if batch.steps == 0 else (request.progress or 0) + 1
            request.tokens.append(len(request.tokens))
            if request.want == ASK:
                request.stage, request.result = DECODE, "word" * len(request.tokens)
            elif batch.stage == PREFILL:
                request.stage = DECODE
            if request.progress >= (3 if request.want == ASK else self.steps):
                request.finish(f"{request.want} {request.number}")

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

    def __init__(self, rule: Rule | None = None, steps: int = 1, first: str = DENOISE) -> None:
        self.runner, self.clock, self.profile = FakeRunner(steps, first), Clock(), Profile()
        self.rules = Rules(rule or WholeChunks(), Plan(self.profile))
        self.scheduler = Scheduler(self.runner, self.rules, clock=self.clock)

    def submit(self, want: str, **given: Any) -> Request:
        return self.scheduler.submit(make_request(want, **given))

    def frame(self, robot: str = "", words: str = "reach", **given: Any) -> Request:
        seen = Observation({}, np.zeros(JOINTS, np.float32), words, 1, robot=robot)
        return self.submit(OBSERVE, robot=robot, observation=seen, **given)

    def acting(self, robot: str = "", **given: Any) -> Request:
        return self.submit(ACT, robot=robot, waits=Waits.NEWS, **given)

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


def asked(submitted_s: float = 0.0, begun: bool = False, priority: int = 0) -> Request:
    """A question as the scheduler would hand it to the policy."""
    request = Request(Ask(), priority=priority)
    request.submitted_s = request.begun_s = submitted_s
    if begun:
        request.status, request.stage = Status.RUNNING, DECODE
    return request
