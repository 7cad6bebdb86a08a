"""A scheduler whose micro-batches overlap, as on a GPU: they are launched, and finished later."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any

from scheduled import System

from vla_accel_ros.engine.lanes.lane import Lane
from vla_accel_ros.engine.request import OBSERVE, MicroBatch
from vla_accel_ros.engine.rules.rule import Rule
from vla_accel_ros.engine.rules.rules import LANES


class Hurrying(Lane):
    """What is ahead is waited for at once where there is nothing else to launch."""

    due_s = -math.inf


class Overlapping(System):
    """Lanes whose micro-batches begin and end when the test says so, without threads."""

    def __init__(
        self,
        word: str,
        rule: Rule,
        steps: int = 1,
        lanes: Mapping[str, tuple[str, ...]] | None = None,
        ahead: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(rule, steps, lanes=lanes or LANES[word], captured=ahead, **options)
        for lane in self.lanes.values():  # what is launched is over when the test says so
            lane.timing = Lane().timing
        if not ahead:
            self.scheduler._worker = threading.Thread()
        self.running: dict[str, tuple[MicroBatch, float]] = {}

    def seen(self, robot: str = "", words: str = "reach") -> None:
        """A frame is seen in the lane of frames, beside what runs; nobody holds it but the pool."""
        frame = self.frame(robot, words, priority=99)
        (lane,) = [name for name, lane in self.lanes.items() if OBSERVE in lane.kinds]
        while frame in self.scheduler.requests:
            self.begin(lane)
            if lane in self.running:
                self.end(lane)
            elif not self.scheduler.moved:
                self.clock.now_s = max(self.clock.now_s, self.scheduler.again_s)
        frame.result.release()
        self.runner.ran.clear()

    def begin(self, lane: str) -> list[str]:
        """Have a lane choose; what it runs from now on."""
        before = len(self.runner.ran)
        self.scheduler.step(self.lanes[lane])
        if self.scheduler._jobs.empty():
            return [request.want for _, requests in self.runner.ran[before:] for request in requests]
        job = self.scheduler._jobs.get()
        assert job is not None
        batch = job[1]
        self.running[lane] = batch, self.clock.now_s
        return [request.want for request in batch.requests]

    def end(self, lane: str) -> None:
        """The micro-batch that it runs is over."""
        one, (batch, _) = self.lanes[lane], self.running.pop(lane)
        self.scheduler._inbox.put((one, self.scheduler._computed(one, batch)))
        with self.scheduler._leads:
            self.scheduler._take_in()
