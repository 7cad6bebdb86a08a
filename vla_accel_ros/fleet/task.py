"""What a scheduler knows of one robot's task: rounds of generation and execution, and how long it waited.

A round is the generation of a chunk (from dispatch to answer) and its execution. If execution takes longer
than generation, the wait is the gap between two executions; otherwise it is the gap between two generations
(Kairos, section 3.2.1). All times are seconds of the scheduler's clock; a robot reports only durations, so
that clocks are never compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from vla_accel_ros.engine.request import Request


@dataclass
class Interval:
    """A time span; end_s is inf while it is open."""

    start_s: float
    end_s: float = math.inf

    @property
    def length_s(self) -> float:
        """Its duration."""
        return self.end_s - self.start_s


@dataclass(eq=False)
class Task:
    """One task of one robot, from its first request on.

    robot: its name. number: of the task. kind: what similar tasks share, such as the instruction; estimates
    come from earlier tasks of the kind. began_s: arrival of its first request. priority: higher goes first.
    rounds: answered chunks. generated_s: replica time spent on it so far (attained service). moved_s: motion
    sent to it [s]. waited_s: as the module says, over finished rounds. first_waited_s: from its first request
    to the first dispatch. stalled_s: how long the arm stood for lack of a chunk, as the robot reports.
    asked_s: arrival of the first request for its next chunk, inf while it has none; a request that failed or
    was replaced keeps it. runs_out_s: when the arm has executed all its motion, -inf before the first chunk.
    last_execution_s: execution time of the last chunk, None before the first.
    """

    robot: str
    number: int
    kind: str
    began_s: float
    priority: int = 0
    rounds: int = field(default=0, init=False)
    generated_s: float = field(default=0.0, init=False)
    moved_s: float = field(default=0.0, init=False)
    waited_s: float = field(default=0.0, init=False)
    first_waited_s: float = field(default=0.0, init=False)
    stalled_s: float = field(default=0.0, init=False)
    asked_s: float = field(default=math.inf, init=False)
    runs_out_s: float = field(default=-math.inf, init=False)
    last_execution_s: float | None = field(default=None, init=False)
    _generations: list[Interval] = field(default_factory=list, init=False)  # of unfinished rounds
    _executions: list[Interval] = field(default_factory=list, init=False)

    def told(self, now_s: float, executed_s: float, left_s: float, stalled_s: float = 0.0) -> None:
        """Update the task from a request. executed_s: how long ago the last chunk began to be executed,
        negative if it is not. left_s: how long its execution goes on."""
        self.stalled_s = stalled_s
        if self.asked_s == math.inf:
            self.asked_s = now_s
        if executed_s >= 0.0 and self._executions:
            start_s, end_s = now_s - executed_s, now_s + left_s
            if left_s <= 0.0:  # it has ended; the robot does not say when
                end_s = max(start_s, min(now_s, self._executions[-1].end_s))
            self._executed(Interval(start_s, end_s))
        elif self._executions and self.runs_out_s > now_s:  # abandoned: the robot was held
            self._executed(Interval(min(now_s, self._executions[-1].start_s), now_s))
        self._settle()

    def dispatched(self, now_s: float) -> None:
        """Record that a chunk for it is being computed."""
        if not self.rounds:
            self.first_waited_s = max(0.0, now_s - self.began_s)
        self._generations.append(Interval(now_s))
        self._settle()

    def answered(self, now_s: float, execution_s: float) -> None:
        """Record a chunk that was sent, to be executed for execution_s after the present motion."""
        generation = self._generations[-1]
        generation.end_s = now_s
        self.rounds += 1
        self.asked_s = math.inf
        self.moved_s += execution_s
        self.generated_s += generation.length_s
        start_s = max(now_s, self.runs_out_s)
        self._executions.append(Interval(start_s))
        self._executed(Interval(start_s, start_s + execution_s))
        self._settle()

    def failed(self) -> None:
        """Discard the last dispatch, which produced no chunk."""
        if self._generations and math.isinf(self._generations[-1].end_s):
            self._generations.pop()

    def slack_s(self, now_s: float) -> float:
        """Return how long the arm still moves; 0 while it stands."""
        return max(0.0, self.runs_out_s - now_s)

    def wait_ratio(self, now_s: float) -> float:
        """Return the share of its life that it has waited, 0 to 1 (Kairos, equation 1)."""
        life_s = now_s - self.began_s
        return min(1.0, self.waited_s / life_s) if life_s > 0.0 else 0.0

    def _executed(self, last: Interval) -> None:
        self._executions[-1] = last
        self.runs_out_s, self.last_execution_s = last.end_s, last.length_s

    def _settle(self) -> None:
        """Add the waits of rounds that have ended and whose next generation and execution have begun; forget
        them."""
        while len(self._generations) > 1 and len(self._executions) > 1:
            generation, execution = self._generations[0], self._executions[0]
            if math.isinf(generation.end_s):
                return
            if generation.length_s >= execution.length_s:
                wait_s = self._generations[1].start_s - generation.end_s
            else:
                wait_s = self._executions[1].start_s - execution.end_s
            self.waited_s += max(0.0, wait_s)
            del self._generations[0], self._executions[0]


@dataclass(eq=False)
class TaskRequest(Request):
    """A request for the next chunk of a robot's task, as a fleet's rules see it."""

    task: Task = field(kw_only=True)
