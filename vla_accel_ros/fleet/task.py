"""What a scheduler knows of one robot's task: rounds of generation and execution, and how long it waited.

A round is the generation of a chunk (from its dispatch to its answer) and the execution of it. Where
execution takes longer than generation, a robot waits while it stands between two executions; where generation
does, between the end of one and the begin of the next (Kairos, section 3.2.1). All times are seconds of the
scheduler's clock; a robot tells only how long ago something was, so that clocks are never compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Interval:
    """From start_s to end_s; inf while it has not ended."""

    start_s: float
    end_s: float = math.inf

    @property
    def length_s(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s


@dataclass(eq=False)
class Task:
    """One task of one robot, from its first request on.

    robot: whose. number: which of its tasks. kind: of what tasks are alike, such as the instruction: what is
    known of earlier ones of a kind tells about this one. began_s: when its first request came. priority:
    higher goes first.
    rounds: chunks that were answered. generated_s: seconds that replicas worked for it so far (attained
    service). moved_s: seconds of motion that it was sent. waited_s: as the module says, of the rounds that
    are over. first_waited_s: from its first request to the dispatch of it. stalled_s: how long the arm stood
    for want of a chunk, as the robot tells it. skipped: how often in a row others were dispatched while it
    waited. runs_out_s: when the arm has executed all that it was sent, -inf before the first chunk.
    last_execution_s: how long the last chunk is executed, None before the first.
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
    skipped: int = field(default=0, init=False)
    runs_out_s: float = field(default=-math.inf, init=False)
    last_execution_s: float | None = field(default=None, init=False)
    _generations: list[Interval] = field(default_factory=list, init=False)  # of the rounds that are not over
    _executions: list[Interval] = field(default_factory=list, init=False)

    def told(self, now_s: float, executed_s: float, left_s: float, stalled_s: float = 0.0) -> None:
        """A request came. executed_s: how long ago the last chunk began to be executed, negative if none
        is; left_s: how long it goes on."""
        self.stalled_s = stalled_s
        if executed_s >= 0.0 and self._executions:
            start_s, end_s = now_s - executed_s, now_s + left_s
            if left_s <= 0.0:  # it is over: since when, the robot does not tell
                end_s = max(start_s, min(now_s, self._executions[-1].end_s))
            self._executed(Interval(start_s, end_s))
        elif self._executions and self.runs_out_s > now_s:  # it was given up, as by a robot that is held
            self._executed(Interval(min(now_s, self._executions[-1].start_s), now_s))
        self._settle()

    def dispatched(self, now_s: float) -> None:
        """A chunk for it is begun."""
        self.skipped = 0
        if not self.rounds:
            self.first_waited_s = max(0.0, now_s - self.began_s)
        self._generations.append(Interval(now_s))
        self._settle()

    def answered(self, now_s: float, execution_s: float) -> None:
        """The chunk was sent, to be executed for execution_s, after what is being executed."""
        generation = self._generations[-1]
        generation.end_s = now_s
        self.rounds += 1
        self.moved_s += execution_s
        self.generated_s += generation.length_s
        start_s = max(now_s, self.runs_out_s)
        self._executions.append(Interval(start_s))
        self._executed(Interval(start_s, start_s + execution_s))
        self._settle()

    def failed(self) -> None:
        """Nothing came of the chunk that was dispatched last."""
        if self._generations and math.isinf(self._generations[-1].end_s):
            self._generations.pop()

    def slack_s(self, now_s: float) -> float:
        """How long the arm still moves; 0 while it stands."""
        return max(0.0, self.runs_out_s - now_s)

    def wait_ratio(self, now_s: float) -> float:
        """Share of its life that it waited so far, 0 to 1 (Kairos, equation 1)."""
        life_s = now_s - self.began_s
        return min(1.0, self.waited_s / life_s) if life_s > 0.0 else 0.0

    def _executed(self, last: Interval) -> None:
        self._executions[-1] = last
        self.runs_out_s, self.last_execution_s = last.end_s, last.length_s

    def _settle(self) -> None:
        """Count the wait of rounds whose next round has begun on both sides, and forget them."""
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
