"""A scheduler whose micro-batches overlap, as on a GPU: they are launched, and finished later."""

from __future__ import annotations

import math
from collections.abc import Mapping

from scheduled import Clock, System

from vla_accel_ros.engine.lanes.lane import Lane
from vla_accel_ros.engine.request import MicroBatch
from vla_accel_ros.engine.rules.rule import Plan, Rule
from vla_accel_ros.engine.rules.rules import LANES, Rules
from vla_accel_ros.engine.scheduling.scheduler import Scheduler


class SimulatedTime:
    """The time of a micro-batch on a GPU. over_s: when it is computed."""

    def __init__(self, clock: Clock, took_s: float) -> None:
        self._clock, self._took_s, self.over_s = clock, took_s, math.inf

    def over(self) -> bool:
        return self._clock.now_s >= self.over_s

    def seconds(self) -> float:
        return self._took_s


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
        kinds = lanes or LANES[word]
        made = [Lane(name) for name in kinds]
        self.runner.ahead = ahead
        for lane in made:
            lane.runs_ahead = ahead
        self.rules = Rules(rule, Plan(self.profile), kinds, text_groups=text_groups, text_share=text_share)
        self.scheduler = Scheduler(self.runner, self.rules, self.clock, made)
        self.lanes = {lane.name: lane for lane in made}
        self.running: dict[str, tuple[MicroBatch, float]] = {}

    def seen_beside(self) -> None:
        """A frame is seen in the lane of vision, beside what runs."""
        frame = self.frame()
        self.begin("vision")
        self.end("vision")
        frame.result.release()

    def begin(self, lane: str) -> list[str]:
        """Have a lane choose; what it runs from now on. Where that is nothing, what it ran ahead is over."""
        one = self.lanes[lane]
        self.scheduler._hand_on(one)
        batch = None if self.scheduler._holds_off(one) else self.scheduler._schedule(one)
        if batch is not None:
            self.running[lane] = batch, self.clock.now_s
        elif one.ahead:
            self._advance(lane, None)
        return [] if batch is None else [request.want for request in batch.requests]

    def end(self, lane: str) -> None:
        """The micro-batch that it runs is over, or is launched where lanes run ahead."""
        self._advance(lane, self.running.pop(lane)[0])

    def _advance(self, lane: str, batch: MicroBatch | None) -> None:
        one = self.lanes[lane]
        self.scheduler._postprocess(one, self.scheduler._run(one, batch))
        self.scheduler._end(one)
        self.scheduler._queue.settle()
