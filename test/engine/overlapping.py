"""A scheduler whose micro-batches overlap, as on a GPU: they are launched, and finished later."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

from scheduled import Clock, System

from vla_accel_ros.engine.lanes.lane import Lane
from vla_accel_ros.engine.request import OBSERVE, MicroBatch
from vla_accel_ros.engine.rules.rule import Plan, Rule
from vla_accel_ros.engine.rules.rules import LANES, Rules
from vla_accel_ros.engine.scheduler import Scheduler


class SimulatedTime:
    """The time of a micro-batch on a GPU. over_s: when it is computed."""

    def __init__(self, clock: Clock, took_s: float) -> None:
        self._clock, self._took_s, self.over_s = clock, took_s, math.inf

    def over(self) -> bool:
        return self._clock.now_s >= self.over_s

    def seconds(self) -> float:
        return self._took_s


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
        text_groups: int = 1,
        text_share: float = 0.0,
    ) -> None:
        super().__init__(steps=steps)
        kinds_of = lanes or LANES[word]
        made = [Lane(name, kinds=kinds) for name, kinds in kinds_of.items()]
        self.runner.ahead = ahead
        self.rules = Rules(rule, Plan(self.profile), kinds_of, text_groups=text_groups, text_share=text_share)
        self.scheduler = Scheduler(self.runner, self.rules, self.clock, made)
        self.scheduler.runs_ahead = ahead
        if not ahead:  # what is launched is over when the test says so
            self.scheduler._worker = threading.Thread()
        self.lanes = {lane.name: lane for lane in made}
        self.running: dict[str, tuple[MicroBatch, float]] = {}

    def seen(self, robot: str = "", words: str = "reach") -> None:
        """A frame is seen in the lane of frames, beside what runs; nobody holds it but the pool."""
        frame = self.frame(robot, words, priority=99)
        (lane,) = [name for name, lane in self.lanes.items() if OBSERVE in lane.kinds]
        while frame in self.scheduler.requests:
            self.begin(lane)
            if lane in self.running:
                self.end(lane)
            elif not self.scheduler._moved:
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
