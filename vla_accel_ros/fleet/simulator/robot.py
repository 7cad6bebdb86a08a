"""One robot's motion through one task: which actions of which chunk it executes, and when it stands still.

The actions of a task are numbered, and each is executed once. A chunk observed when action p was next holds
the actions p to p + C - 1. From its head the actions that the previous chunk still has before its horizon are
discarded; of the rest the horizon H is executed (Kairos, Figure 2b). If no chunk has arrived by then the
robot stops, or, with an elastic horizon, continues to the end of the chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from vla_accel_ros.fleet.simulator.workloads import Script
from vla_accel_ros.fleet.task import Task


@dataclass(frozen=True)
class Span:
    """Actions `first` to `end` - 1 were executed from a chunk whose first action is `observed`."""

    first: int
    end: int
    observed: int


@dataclass(eq=False)
class Robot:
    """task: as the scheduler knows it. began_s: time of the first request. first_wait_s: from then until the
    first chunk came. stalled_s: stalled time between its first and last action. beyond: actions executed
    beyond the horizon. ages_s: age of each observation when its chunk arrived."""

    name: str
    script: Script
    task: Task
    began_s: float
    step_s: float
    lead_s: float
    elastic: bool = False
    observed: int = 0
    observed_s: float = 0.0
    moved_s: float = math.nan
    first_wait_s: float = 0.0
    stalled_s: float = 0.0
    beyond: int = 0
    rounds: int = 0
    spans: list[Span] = field(default_factory=list)
    ages_s: list[float] = field(default_factory=list)
    _since_s: float = -math.inf  # start of the present motion without a stop, at action _from
    _from: int = 0
    _until: int = 0  # end of the horizon
    _last: int = 0  # action at which it stops
    _chunk: int = 0  # first executed action of the newest chunk
    _chunk_s: float = math.nan  # and its time

    def observe(self, now_s: float) -> None:
        """Take an observation."""
        self.observed, self.observed_s = self.next_action(now_s), now_s

    def next_action(self, now_s: float) -> int:
        """Return the number of the first action that has not begun."""
        if now_s >= self.stops_s:
            return self._last
        return min(self._last, self._from + math.ceil((now_s - self._since_s) / self.step_s - 1e-9))

    @property
    def stops_s(self) -> float:
        """When it has executed all that it may."""
        return self._since_s + (self._last - self._from) * self.step_s

    @property
    def done(self) -> bool:
        """Whether all actions of the task are planned; stops_s is then the task's end."""
        return self._until >= self.script.actions

    def asks_s(self, now_s: float) -> float:
        """Return when it asks for its next chunk: when lead_s of motion is left before the horizon."""
        runs_out_s = self._since_s + (self._until - self._from) * self.step_s
        return max(now_s, runs_out_s - self.lead_s)

    def told(self, now_s: float) -> tuple[float, float]:
        """Return how long it has executed the newest chunk, negative if it does not, and how much motion is
        left [s]."""
        left_s = self._since_s + (self._until - self._from) * self.step_s - now_s
        return (now_s - self._chunk_s if self.rounds else -1.0), max(0.0, left_s)

    def receive(self, now_s: float) -> float:
        """Take the chunk of the last observation. Returns the motion that it adds [s]."""
        script, moves = self.script, now_s < self.stops_s
        begin = max(self._until, self.next_action(now_s))
        self.beyond += begin - self._until
        if self.spans:
            last = self.spans[-1]
            self.spans[-1] = Span(last.first, begin, last.observed)
        horizon, end = script.horizon(self.rounds), min(self.observed + script.chunk, script.actions)
        stop = max(begin, min(begin + horizon, end))
        if moves:
            begins_s = self._since_s + (begin - self._from) * self.step_s
        else:
            begins_s = now_s
            if self.rounds:
                self.stalled_s += now_s - self.stops_s
            else:
                self.first_wait_s = now_s - self.began_s
            self._since_s, self._from = now_s, begin
        self._chunk, self._chunk_s, self._until = begin, begins_s, stop
        self._last = stop
        if self.elastic and stop < script.actions:
            self._last = max(stop, min(end, script.actions - 1))
        self.spans.append(Span(begin, stop, self.observed))
        self.ages_s.append(now_s - self.observed_s)
        self.rounds += 1
        return (stop - begin) * self.step_s
