"""A robot's side of a fleet: when it asks for its next chunk, which answer it takes, and why none comes.

Pure: time is given, in nanoseconds of the robot's own clock, and nothing is sent here. A round is asked for
when less than `ask_at_s` of executable motion is left, and at once for a new instruction. Every request has a
deadline, until which a chunk of its observation could still move the arm; after it the same round is asked
for again, with a new observation and the next attempt. A chunk is taken when it is of this process, task and
round, and of an observation that was sent for one of the round's attempts: also of an earlier attempt while
that is young enough to move the arm, because such a chunk is as good as it was and the arm may be at rest.
All else is for nobody, and counted.

Nothing is waited for without end and without a sentence: a scheduler that says nothing is told again that
there is this robot (`Step.announce`), every ANNOUNCE_S; a refusal ends after at most LONGEST_RETRY_S. Another
`scheduler` in an admission is another process, which knows nothing of what was asked: it is asked anew. The
last word of the scheduler on its latched topic counts, as one publisher's words keep their order.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass

import numpy as np

from vla_accel_ros.fleet.protocol import Admission, ChunkAnswer, Round
from vla_accel_ros.fleet.robot.execution import Execution, S
from vla_accel_ros.types import Chunk

ANNOUNCE_S = 1.0
LONGEST_RETRY_S = 2.0
LEAST_GAP_S = 0.03
"""Between two requests."""
USEFUL = 0.1
"""Share of the age limit of a chunk that must be left when it comes."""
_MOST_ATTEMPTS = 16
_WINDOW = 256


@dataclass(frozen=True)
class ClientSettings:
    """max_age_s: of the observation behind a chunk that moves the arm (contract.chunk). step_dt_s: by the
    same. ask_at_s: seconds of motion left when the next chunk is asked for. within_s: the longest wait for an
    answer before another attempt, 0: as long as a chunk would be of use. extend_actions: see execution."""

    max_age_s: float
    step_dt_s: float
    ask_at_s: float = 0.5
    within_s: float = 0.0
    extend_actions: int = 0


@dataclass(frozen=True)
class Step:
    """What is to be done now. announce: tell the scheduler who the robot is. observe: take an observation,
    and then call `ask` or `not_observed`."""

    announce: bool = False
    observe: bool = False


@dataclass(frozen=True)
class Ask:
    """A request to send; the fields are those of protocol.ChunkRequest."""

    round: Round
    attempt: int
    sent_ns: int
    executed_s: float
    remaining: int
    stalled_s: float
    within_s: float


@dataclass(frozen=True)
class _Sent:
    stamp_ns: int
    sent_ns: int
    deadline_ns: int


class FleetClient:
    """Of one robot's process. engine: its id, another at each start; robot: its namespace. One thread.

    Attributes: `counts` of rounds, attempts, lost (no answer in time), late (an answer after that), foreign
    (for another process, task, round or attempt, or of another scheduler), stale (a chunk that could not move
    the arm any more), refused, calls.
    """

    def __init__(self, engine: str, robot: str, settings: ClientSettings) -> None:
        self.engine, self.robot, self.settings = engine, robot, settings
        self.counts: Counter[str] = Counter()
        self._admission: Admission | None = None
        self._task = 0
        self._instruction, self._missing = "", ""
        self.execution = Execution(settings.max_age_s, settings.step_dt_s, settings.extend_actions)
        self._latencies: deque[float] = deque(maxlen=_WINDOW)
        self._attempts: dict[int, _Sent] = {}  # of this round, the last few
        self._lost: set[int] = set()
        self._asked: _Sent | None = None  # what an answer is waited for
        self._again_ns: int | None = None  # when the round is asked for, whatever is left to execute
        self._asked_ns: int | None = None
        self._first_ns: int | None = None
        self._attempt = self._in_a_row = 0
        self.begin(0)

    def begin(self, now_ns: int) -> None:
        """Start over, as at activation and when the clock has jumped: what was asked is for nobody."""
        self._since_ns = self._heard_ns = now_ns
        self._announced_ns = -10 * S  # never
        self._unknown = False  # a refusal came, or another scheduler's answer: it may not know the robot
        self.execution.forget()
        self._begin_task(now_ns)

    def instruct(self, text: str, now_ns: int, missing: str = "") -> None:
        """What to do; another text is another task. missing: what to say where it is empty."""
        self._missing = missing
        if text != self._instruction:
            self._instruction = text
            self._begin_task(now_ns)

    def admitted(self, admission: Admission, now_ns: int) -> bool:
        """The scheduler serves the robot, or does not; False for a word to another process."""
        if (admission.engine, admission.robot) != (self.engine, self.robot):
            self.counts["foreign"] += 1
            return False
        before, self._admission = self._admission, admission
        self._heard_ns = now_ns
        if before is None or before.scheduler != admission.scheduler:
            self._unknown = False
            if self._asked is not None or self._again_ns is not None:
                self._asked, self._again_ns = None, now_ns
            self._in_a_row, self._refusal = 0, ""
        return True

    def called(self, round_: Round, now_ns: int) -> bool:
        """The scheduler wants the round observed anew; False when it is not the one that is waited for."""
        if round_ != self._round or self._asked is None:
            self.counts["foreign"] += 1
            return False
        self.counts["calls"] += 1
        self._heard_ns, self._again_ns, self._asked = now_ns, now_ns, None
        return True

    def answered(self, answer: ChunkAnswer, now_ns: int) -> Chunk | None:
        """The chunk to execute, if the answer has one that is to be taken."""
        sent = self._attempts.get(answer.attempt)
        ours = self._admission is not None and answer.scheduler == self._admission.scheduler
        if answer.round != self._round or sent is None or not ours or not self._instruction:
            self.counts["foreign"] += 1
            self._unknown |= answer.round == self._round and not ours
            return None
        self._heard_ns = now_ns
        if now_ns > sent.deadline_ns:
            self.counts["late"] += 1
            if answer.attempt in self._lost:
                self._lost.remove(answer.attempt)
                self.counts["lost"] -= 1
        if answer.chunk is None:
            self._refused(answer, sent, now_ns)
            return None
        if answer.chunk.stamp_ns != sent.stamp_ns:
            self.counts["foreign"] += 1
            return None
        return self._take(answer.chunk, sent, now_ns)

    def step(self, now_ns: int) -> Step:
        """What is to be done now. To be called often: what it says holds for the moment alone."""
        self.execution.count(now_ns, bool(self._instruction))
        asked = self._asked
        if asked is not None and now_ns > asked.deadline_ns:
            self.counts["lost"] += 1
            self._lost.add(self._attempt)
            self._asked, self._again_ns, self._in_a_row = None, now_ns, self._in_a_row + 1
        announce = self._silent(now_ns) and now_ns >= self._announce_ns()
        if announce:
            self._announced_ns, self._unknown = now_ns, False
        return Step(announce, self._wants(now_ns))

    def ask(self, stamp_ns: int, now_ns: int) -> Ask:
        """Ask with an observation of this time; what to send."""
        self._attempt += 1
        self.counts["attempts"] += 1
        age_s = (now_ns - stamp_ns) * 1e-9
        useful_s = (1.0 - USEFUL) * self.settings.max_age_s - age_s
        within_s = max(LEAST_GAP_S, min(self.settings.within_s or math.inf, useful_s))
        self._asked = _Sent(stamp_ns, now_ns, now_ns + round(within_s * S))
        self._attempts[self._attempt] = self._asked
        self._attempts.pop(self._attempt - _MOST_ATTEMPTS, None)
        self._lost.discard(self._attempt - _MOST_ATTEMPTS)
        self._asked_ns, self._refusal, self._blind = now_ns, "", ""
        self._first_ns = now_ns if self._first_ns is None else self._first_ns
        self.execution.count(now_ns, True)
        progress, stalled_s = self.execution.progress(now_ns), self.execution.stalled_s
        return Ask(self._round, self._attempt, now_ns, *progress, stalled_s, within_s)

    def not_observed(self, why: str) -> None:
        """There is no observation to ask with."""
        self._blind = why

    def waiting_for(self, now_ns: int) -> tuple[str, str]:
        """Why no chunk comes, and how long already, as a sentence in two parts; empty while all is well."""
        since = _for(now_ns - max(self._heard_ns, self._since_ns))
        if not self._instruction:
            return self._missing, ""
        if self.execution.released:
            return "the trajectory node has released the robot, so no chunk is asked for", ""
        if self._admission is None:
            return "no fleet's scheduler has admitted this robot: is it running, in this ROS domain?", since
        if not self._admission.admitted:
            return f"the fleet's scheduler does not serve this robot: {self._admission.reason}", ""
        if self._in_a_row:
            return "no answer from the fleet's scheduler", self._silence(now_ns)
        if self._refusal:
            return f"the fleet's scheduler refuses: {self._refusal}", ""
        if self._useless:
            return self._useless, ""
        if self._blind and self._asked is None:
            return self._blind, ""
        if self.execution.moves(now_ns):
            return "", ""
        if self._asked is not None:
            return "the fleet's scheduler has been asked and is computing the chunk", ""
        rate = self._admission.chunks_per_s
        return f"the fleet's scheduler is about to be asked; it allows {rate:.3g} chunks/s", ""

    @property
    def state(self) -> str:
        """One word or two for diagnostics."""
        if not self._instruction:
            return "no instruction"
        if self.execution.released:
            return "released"
        if self._admission is None:
            return "announced"
        if not self._admission.admitted:
            return "not admitted"
        if self._asked is not None:
            return "asked"
        return "refused" if self._refusal else "blind" if self._blind else "executing"

    @property
    def admission(self) -> Admission | None:
        """What the scheduler said of this robot last."""
        return self._admission

    @property
    def observed_ns(self) -> int | None:
        """The stamp of the observation whose chunk is waited for."""
        return None if self._asked is None else self._asked.stamp_ns

    @property
    def round(self) -> Round:
        """The one that is asked for now, or next."""
        return self._round

    @property
    def attempt(self) -> int:
        """How often it was asked for."""
        return self._attempt

    def latency_s(self, quantile: float) -> float | None:
        """From request to chunk, of the last rounds; None before the first."""
        return float(np.quantile(self._latencies, quantile)) if self._latencies else None

    def deadline_ns(self, now_ns: int) -> int | None:
        """When at the latest something is done, without a word from outside; None where nothing is wanted
        of the scheduler: no instruction, or the robot is released."""
        if not self._instruction or self.execution.released:
            return None
        if self._asked is not None:
            return self._asked.deadline_ns
        if self._admission is None or not self._admission.admitted:
            return max(now_ns, self._announce_ns())
        return max(now_ns, self._due_ns())

    def _begin_task(self, now_ns: int) -> None:
        self._task += 1
        self.execution.begin_task(now_ns)
        self._asked_ns = None
        self._begin_round(1)
        self._again_ns = now_ns

    def _begin_round(self, number: int) -> None:
        self._round = Round(self.engine, self.robot, self._task, number)
        self._attempt = self._in_a_row = 0
        self._attempts, self._lost = {}, set()
        self._asked = self._again_ns = self._first_ns = None
        self._refusal = self._blind = self._useless = ""

    def _refused(self, answer: ChunkAnswer, sent: _Sent, now_ns: int) -> None:
        self.counts["refused"] += 1
        self._unknown = True
        if sent is self._asked:
            retry_s = max(LEAST_GAP_S, min(answer.retry_s, LONGEST_RETRY_S))
            self._asked, self._again_ns, self._in_a_row = None, now_ns + round(retry_s * S), 0
            self._refusal = answer.refusal

    def _take(self, chunk: Chunk, sent: _Sent, now_ns: int) -> Chunk | None:
        lasts_s = self.execution.take(chunk, now_ns)
        if lasts_s is not None:
            self.counts["stale"] += 1
            if sent is self._asked:
                self._asked, self._again_ns, self._in_a_row = None, now_ns, 0
                self._useless = (
                    f"a chunk of the fleet came {(now_ns - chunk.stamp_ns) * 1e-9:.2f} s after its images, "
                    f"and lasts until {lasts_s:.2f} s after them: serve fewer robots, or raise "
                    "chunk.max_age_s"
                )
            return None
        self._latencies.append((now_ns - sent.sent_ns) * 1e-9)
        self.counts["rounds"] += 1
        self._begin_round(self._round.number + 1)
        return self.execution.extended(chunk)

    def _wants(self, now_ns: int) -> bool:
        if not self._instruction or self.execution.released or self._asked is not None:
            return False
        if self._admission is None or not self._admission.admitted:
            return False
        return now_ns >= self._due_ns()

    def _due_ns(self) -> int:
        """When the round is asked for: the first time, or again."""
        gap_ns = 0 if self._asked_ns is None else self._asked_ns + round(LEAST_GAP_S * S)
        if self._again_ns is not None:
            return max(self._again_ns, gap_ns)
        rate = self._admission.chunks_per_s if self._admission is not None else 0.0
        if rate > 0.0 and self._asked_ns is not None:
            gap_ns = self._asked_ns + round(min(1.0 / rate, self.settings.max_age_s) * S)
        ends_ns = self.execution.ends_ns
        return gap_ns if ends_ns is None else max(gap_ns, ends_ns - round(self.settings.ask_at_s * S))

    def _announce_ns(self) -> int:
        """When the scheduler is told next that there is this robot."""
        return self._announced_ns + round(ANNOUNCE_S * S)

    def _silent(self, now_ns: int) -> bool:
        """Whether the scheduler is to be told that there is this robot."""
        if self._admission is None or not self._admission.admitted or self._unknown:
            return True
        return self._in_a_row > 0 and now_ns - self._heard_ns > ANNOUNCE_S * S

    def _silence(self, now_ns: int) -> str:
        since_ns = max(self._heard_ns, now_ns if self._first_ns is None else self._first_ns)
        return _for(now_ns - since_ns)


def _for(duration_ns: int) -> str:
    """How long, in whole seconds; nothing below one."""
    return f" for {duration_ns // S} s" if duration_ns >= S else ""
