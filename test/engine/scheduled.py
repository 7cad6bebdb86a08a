"""A scheduler over a simulated runner whose micro-batches tests look into. The rules are real."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from builders import JOINTS
from wishes import make_request

from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.request import (
    ACT,
    ASK,
    DECODE,
    DENOISE,
    OBSERVE,
    Ask,
    Cancelled,
    MicroBatch,
    Request,
    Status,
    Waits,
)
from vla_accel_ros.engine.rules.chunks import WholeChunks
from vla_accel_ros.engine.rules.rule import Rule
from vla_accel_ros.engine.simulated import SimulatedEngine, SimulatedRunner
from vla_accel_ros.types import Observation

WAIT_S = 20.0


class WatchedRunner(SimulatedRunner):
    """ran: the stage of each micro-batch and what is in it. during: called in each, and may raise; after:
    where it is waited for what was launched. fails: requests that cannot begin."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ran: list[tuple[str, tuple[Request, ...]]] = []
        self.during: Callable[[MicroBatch], object] = lambda batch: None
        self.after: Callable[[MicroBatch], object] = lambda batch: None
        self.fails: set[Request] = set()
        self.running = Counter[str]()

    def first_stage(self, request: Request) -> str:
        if request.want == ASK and request.ask.question == "unknown":
            raise ValueError("this policy answers nothing")
        return super().first_stage(request)

    def begin(self, request: Request) -> None:
        if request in self.fails:
            raise ValueError("it cannot begin")
        super().begin(request)

    def run(self, batch: MicroBatch) -> Callable[[], None] | None:
        kind = batch.requests[0].kind
        assert self.running[kind] == 0 and batch.requests
        assert not any(request.finished or request.launched for request in batch.requests)
        self.running[kind] += 1
        try:
            self.ran.append((batch.stage, batch.requests))
            self.during(batch)
            wait = super().run(batch)
        finally:
            self.running[kind] -= 1
        return None if wait is None else partial(self._wait, batch, wait)

    def _wait(self, batch: MicroBatch, wait: Callable[[], None]) -> None:
        self.after(batch)
        wait()

    @property
    def wants(self) -> list[str]:
        return ["+".join(request.want for request in requests) for _, requests in self.ran]

    @property
    def slots_held(self) -> int:
        return self.pool.slots - self.pool.free


class System(SimulatedEngine):
    """A scheduler over such a runner. options: of the runner."""

    runner: WatchedRunner

    def __init__(
        self,
        rule: Rule | None = None,
        steps: int = 1,
        first: str = DENOISE,
        text_share: float = 0.0,
        **options: Any,
    ) -> None:
        runner = WatchedRunner(steps=steps, first=first, **options)
        super().__init__(runner, rule or WholeChunks(), text_share)
        self.profile = self.rules.plan.profile

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
