"""Callers and streams come to their turn, whatever streams and other callers want without end.

A scheduler over a runner that computes nothing, in time that the test moves.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builders import JOINTS
from scheduled import System

from vla_accel_ros.engine.request import ACT, ASK, DENOISE, OBSERVE, PREFILL, MicroBatch, Request, Waits
from vla_accel_ros.engine.rules.batches import Batches
from vla_accel_ros.engine.rules.chunks import StaggeredChunks
from vla_accel_ros.engine.rules.rule import Rule
from vla_accel_ros.engine.rules.throughput import Throughput
from vla_accel_ros.engine.rules.tokens import TokenFrames

SEATS, STEPS, MOST = 4, 4, 100
"""Seats, denoising steps, and micro-batches within which everybody has had a turn."""
POLICIES: dict[str, Callable[[], Rule]] = {
    "batches": lambda: Batches(SEATS),
    "throughput": lambda: Throughput(SEATS, begins=2),
    "staggered": lambda: StaggeredChunks(SEATS),
    "tokens": lambda: TokenFrames("pipelined", "rate", STEPS),
    "tokens, one after another": lambda: TokenFrames("sequential", "rate", STEPS),
}


class Busy(System):
    """A robot "seen" has a frame; every micro-batch takes 20 ms."""

    def __init__(self, policy: Rule) -> None:
        first = PREFILL if isinstance(policy, TokenFrames) else DENOISE
        super().__init__(policy, steps=STEPS, first=first)
        self.runner.during = self._passes
        self.prefix = self.scheduler.wait(self.frame("seen")).result

    def again(self, want: str, **given: object) -> None:
        """Somebody who wants this again as soon as it is there."""

        def over(request: Request) -> None:
            if request.finished:
                if want == OBSERVE:
                    request.result.release()
                self.again(want, **given)

        if want == OBSERVE:
            self.frame("looking", on_progress=over, waits=Waits.ROOM)
        else:
            self.submit(want, on_progress=over, **given)

    def streams(self, robots: int) -> None:
        """Streams of chunks for joints that are always newer."""
        state = np.zeros(JOINTS, np.float32)
        names = [f"stream {number}" for number in range(robots)]
        for robot in names:
            self.seen(robot)
        for robot in names:
            for _ in range(SEATS):
                sense = lambda: (state, round(1e9 * self.clock.now_s))  # noqa: E731
                self.again(ACT, robot=robot, waits=Waits.NEWS, sense=sense)

    def callers(self, steps: int | None = None) -> None:
        """More threads than seats that act on one frame again and again."""
        for _ in range(2 * SEATS):
            self.again(ACT, robot="seen", prefix=self.prefix, waits=Waits.ROOM, steps=steps)

    def observers(self) -> None:
        """Threads that observe again and again, and never act."""
        for _ in range(2):
            self.again(OBSERVE)

    def askers(self) -> None:
        """Threads that ask again and again, and give their answers up as soon as they have begun."""

        def over(request: Request) -> None:
            if request.finished:
                self.submit(ASK, robot="seen", prefix=self.prefix, waits=Waits.ROOM, on_progress=over)
            else:
                self.scheduler.cancel(request)

        for _ in range(3):
            self.submit(ASK, robot="seen", prefix=self.prefix, waits=Waits.ROOM, on_progress=over)

    def served(self, request: Request) -> bool:
        """Whether it is finished within MOST micro-batches, after others have worked for a while."""
        for _ in range(MOST):
            self.scheduler.step()
        return request.finished

    def _passes(self, batch: MicroBatch) -> None:
        self.clock.now_s += 0.02


@pytest.fixture(params=POLICIES)
def busy(request: pytest.FixtureRequest) -> Busy:
    return Busy(POLICIES[request.param]())


def everybody(busy: Busy) -> None:
    busy.streams(1)
    busy.callers()
    busy.callers(steps=3)
    busy.observers()


OTHERS: dict[str, Callable[[Busy], None]] = {
    "streams": lambda busy: busy.streams(2),
    "callers in seats": Busy.callers,
    "callers of whole chunks": lambda busy: busy.callers(steps=3),
    "observers": Busy.observers,
    "everybody": everybody,
}


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("want", [OBSERVE, ACT, "whole", ASK])
def test_a_direct_call_is_served_beside_others_without_end(busy: Busy, others: str, want: str) -> None:
    OTHERS[others](busy)
    for _ in range(10):
        busy.scheduler.step()
    if want == OBSERVE:
        asked = busy.frame("new", waits=Waits.ROOM)
    elif want == ASK:
        asked = busy.submit(ASK, robot="seen", prefix=busy.prefix, waits=Waits.ROOM)
    else:
        steps = 3 if want == "whole" else None
        asked = busy.submit(ACT, robot="seen", prefix=busy.prefix, waits=Waits.ROOM, steps=steps)
    assert busy.served(asked)


@pytest.mark.parametrize("others", OTHERS)
def test_the_new_frame_of_a_stream_is_acted_on_beside_others_without_end(busy: Busy, others: str) -> None:
    OTHERS[others](busy)
    for _ in range(10):
        busy.scheduler.step()
    busy.frame("new")
    acting = busy.acting("new")
    busy.served(acting)
    assert acting.begun


def test_an_answer_goes_on_beside_callers_that_give_theirs_up_without_end(busy: Busy) -> None:
    answer = busy.submit(ASK, robot="seen", prefix=busy.prefix, waits=Waits.ROOM)
    busy.askers()
    assert busy.served(answer)
