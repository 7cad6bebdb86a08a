"""A robot's side of a fleet: when it asks for its next chunk, which answer it takes, and why none comes.

Pure: time is injected, in nanoseconds of the robot's clock, and nothing is sent here. The client asks for a
round when less than `ask_at_s` of executable motion is left, and at once for a new instruction. Each request
has a deadline, after which a chunk of its observation could no longer move the arm; then the client asks for
the same round again, with a new observation and the next attempt. It takes a chunk of this process, task and
round whose observation it sent, even from an earlier attempt if that is fresh enough to move the arm, since
the arm may be at rest. All other chunks are counted and ignored.

No wait is endless or silent. While the scheduler is silent the client announces the robot again
(`Step.announce`) every ANNOUNCE_S; a refusal ends after at most LONGEST_RETRY_S. An admitted robot that asks
for nothing is announced every HEARTBEAT_S. If an admission names another `scheduler` process, which does not
know the open request, the client asks again. The latest admission on the scheduler's latched topic counts.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass

import numpy as np

from vla_accel_ros.fleet.protocol import Admission, ChunkAnswer, Round
from vla_accel_ros.fleet.robot.execution import Execution, S
from vla_accel_ros.option import option
from vla_accel_ros.types import Chunk

ANNOUNCE_S = 1.0
HEARTBEAT_S = 2.0
"""A robot that the scheduler would hear nothing of for this long describes itself again, so that it keeps its
seat while it has nothing to do."""
LONGEST_RETRY_S = 2.0
LEAST_GAP_S = 0.03
"""Least time between two requests."""
LARGE = 500_000
"""Bytes of a request's images that a network which loses packets may never deliver whole."""
USEFUL = 0.1
"""Share of a chunk's age limit that must be left when it arrives."""
_MOST_ATTEMPTS = 16
_WINDOW = 256


@dataclass(frozen=True)
class ClientSettings:
    """max_age_s: age limit of the observation behind a chunk (contract.chunk). step_dt_s: likewise. The
    others are the robot's parameters fleet_... ."""

    max_age_s: float
    step_dt_s: float
    ask_at_s: float = option(
        0.5,
        "Request the next chunk when less motion than this is left [s]: as long as answers take, which "
        "/diagnostics shows.",
        minimum=0.0,
        maximum=10.0,
    )
    within_s: float = option(
        0.0,
        "Repeat a request with new images after this long without an answer [s]; 0: as long as the chunk "
        "would be of use, by chunk.max_age_s of the contract.",
        minimum=0.0,
        maximum=10.0,
    )
    extend_actions: int = option(
        0,
        "How many actions past its execution horizon a chunk may be executed while the next one is awaited.",
        minimum=0,
        maximum=256,
    )


@dataclass(frozen=True)
class Step:
    """What to do now. announce: tell the scheduler who the robot is. observe: take an observation, then call
    `ask` or `not_observed`."""

    announce: bool = False
    observe: bool = False


@dataclass(frozen=True)
class Ask:
    """A request to send; its fields are those of protocol.ChunkRequest."""

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
    """The client of one robot's process. engine: its id, new at each start. robot: its namespace.
    Single-threaded.

    Attributes: `counts` of rounds, attempts, lost (no answer in time), late (answers after their deadline),
    foreign (for another process, task, round or attempt, or from another scheduler), stale (chunks too late
    to move the arm), refused, calls; `admission`, the scheduler's latest; `round`, asked for now or next, and
    `attempt`, how many times it was asked for.
    """

    def __init__(self, engine: str, robot: str, settings: ClientSettings) -> None:
        self.engine, self.robot, self.settings = engine, robot, settings
        self.counts: Counter[str] = Counter()
        self.admission: Admission | None = None
        self._task = 0
        self._instruction, self._missing = "", ""
        self.execution = Execution(settings.max_age_s, settings.step_dt_s, settings.extend_actions)
        self._latencies: deque[float] = deque(maxlen=_WINDOW)
        self._attempts: dict[int, _Sent] = {}  # the last few of this round
        self._lost: set[int] = set()
        self._asked: _Sent | None = None  # the request that is open
        self._again_ns: int | None = None  # when to ask again, whatever motion is left
        self._asked_ns: int | None = None
        self._first_ns: int | None = None
        self.attempt = self._in_a_row = self._size = 0
        self.begin(0)

    def begin(self, now_ns: int) -> None:
        """Start over, at activation and after a clock jump; answers to earlier requests are ignored."""
        self._since_ns = self._heard_ns = now_ns
        self._announced_ns = -10 * S  # never
        self._unknown = False  # the scheduler may not know the robot: it refused, or another one answered
        self.execution.forget()
        self._begin_task(now_ns)

    def instruct(self, text: str, now_ns: int, missing: str = "") -> None:
        """Set the instruction; another text begins another task. missing: the reason to give while it is
        empty."""
        self._missing = missing
        if text != self._instruction:
            self._instruction = text
            self._begin_task(now_ns)

    def admitted(self, admission: Admission, now_ns: int) -> bool:
        """Record the scheduler's admission or refusal. Returns False if it is for another process."""
        if (admission.engine, admission.robot) != (self.engine, self.robot):
            self.counts["foreign"] += 1
            return False
        previous, self.admission = self.admission, admission
        self._heard_ns = now_ns
        if previous is None or previous.scheduler != admission.scheduler:
            self._unknown = False
            if self._asked is not None or self._again_ns is not None:
                self._asked, self._again_ns = None, now_ns
            self._in_a_row, self._refusal = 0, ""
        return True

    def called(self, round_: Round, now_ns: int) -> bool:
        """The scheduler wants a new observation for the round. Returns False if the round is not the open
        one."""
        if round_ != self.round or self._asked is None:
            self.counts["foreign"] += 1
            return False
        self.counts["calls"] += 1
        self._heard_ns, self._again_ns, self._asked = now_ns, now_ns, None
        return True

    def answered(self, answer: ChunkAnswer, now_ns: int) -> Chunk | None:
        """Return the chunk to execute, or None if the answer has none that can be taken."""
        sent = self._attempts.get(answer.attempt)
        ours = self.admission is not None and answer.scheduler == self.admission.scheduler
        if answer.round != self.round or sent is None or not ours or not self._instruction:
            self.counts["foreign"] += 1
            self._unknown |= answer.round == self.round and not ours
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
        """Return what to do now. Call it often: the result holds only for now_ns."""
        self.execution.count(now_ns, bool(self._instruction))
        round_ = self._asked
        if round_ is not None and now_ns > round_.deadline_ns:
            self.counts["lost"] += 1
            self._lost.add(self.attempt)
            self._asked, self._again_ns, self._in_a_row = None, now_ns, self._in_a_row + 1
        announce = self._silent(now_ns) and now_ns >= self._announce_ns()
        if announce:
            self._announced_ns, self._unknown = now_ns, False
        return Step(announce, self._wants(now_ns))

    def ask(self, stamp_ns: int, now_ns: int, size: int = 0) -> Ask:
        """Return the request to send for an observation captured at stamp_ns, with images of `size` bytes."""
        self.attempt, self._size = self.attempt + 1, size
        self.counts["attempts"] += 1
        age_s = (now_ns - stamp_ns) * 1e-9
        useful_s = (1.0 - USEFUL) * self.settings.max_age_s - age_s
        within_s = max(LEAST_GAP_S, min(self.settings.within_s or math.inf, useful_s))
        self._asked = _Sent(stamp_ns, now_ns, now_ns + round(within_s * S))
        self._attempts[self.attempt] = self._asked
        self._attempts.pop(self.attempt - _MOST_ATTEMPTS, None)
        self._lost.discard(self.attempt - _MOST_ATTEMPTS)
        self._asked_ns, self._refusal, self._blind = now_ns, "", ""
        self._first_ns = now_ns if self._first_ns is None else self._first_ns
        self.execution.count(now_ns, True)
        progress, stalled_s = self.execution.progress(now_ns), self.execution.stalled_s
        return Ask(self.round, self.attempt, now_ns, *progress, stalled_s, within_s)

    def not_observed(self, why: str) -> None:
        """Record that no observation could be taken, and why."""
        self._blind = why

    def waiting_for(self, now_ns: int) -> tuple[str, str]:
        """Return why no chunk comes, and for how long, as two parts of a sentence; empty while all is
        well."""
        since = _for(now_ns - max(self._heard_ns, self._since_ns))
        if not self._instruction:
            return self._missing, ""
        if self.execution.released:
            return "the trajectory node has released the robot, so inference requests no chunks", ""
        if self.admission is None:
            return "start a fleet's scheduler: none in this ROS domain has admitted this robot", since
        if not self.admission.admitted:
            return f"the fleet's scheduler does not serve this robot: {self.admission.reason}", ""
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
            return "the fleet's scheduler has the request, and a replica computes the chunk", ""
        rate = self.admission.chunks_per_s
        return f"the next request is about to be sent; the fleet's scheduler allows {rate:.3g} chunks/s", ""

    @property
    def state(self) -> str:
        """The client's state for diagnostics, in one or two words."""
        if not self._instruction:
            return "no instruction"
        if self.execution.released:
            return "released"
        if self.admission is None:
            return "announced"
        if not self.admission.admitted:
            return "not admitted"
        if self._asked is not None:
            return "asked"
        return "refused" if self._refusal else "blind" if self._blind else "executing"

    @property
    def observed_ns(self) -> int | None:
        """Stamp of the observation of the open request; None if none is open."""
        return None if self._asked is None else self._asked.stamp_ns

    def latency_s(self, quantile: float) -> float | None:
        """Return a quantile of the time from request to chunk over the latest rounds; None before the
        first."""
        return float(np.quantile(self._latencies, quantile)) if self._latencies else None

    def deadline_ns(self, now_ns: int) -> int | None:
        """Return when the client must act next even if no message arrives. None if it wants nothing of the
        scheduler, because it has no instruction or the robot is released."""
        if not self._instruction or self.execution.released:
            return None
        if self._asked is not None:
            return self._asked.deadline_ns
        if self.admission is None or not self.admission.admitted:
            return max(now_ns, self._announce_ns())
        return max(now_ns, self._due_ns())

    def _begin_task(self, now_ns: int) -> None:
        self._task += 1
        self.execution.begin_task(now_ns)
        self._asked_ns = None
        self._begin_round(1)
        self._again_ns = now_ns

    def _begin_round(self, number: int) -> None:
        self.round = Round(self.engine, self.robot, self._task, number)
        self.attempt = self._in_a_row = 0
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
                    f"a fleet's chunk arrived {(now_ns - chunk.stamp_ns) * 1e-9:.2f} s after its images, "
                    f"but ends {lasts_s:.2f} s after them: serve fewer robots, or raise "
                    "chunk.max_age_s"
                )
            return None
        self._latencies.append((now_ns - sent.sent_ns) * 1e-9)
        self.counts["rounds"] += 1
        self._begin_round(self.round.number + 1)
        return self.execution.extended(chunk)

    def _wants(self, now_ns: int) -> bool:
        if not self._instruction or self.execution.released or self._asked is not None:
            return False
        if self.admission is None or not self.admission.admitted:
            return False
        return now_ns >= self._due_ns()

    def _due_ns(self) -> int:
        """Return when to ask for the round, or to ask again."""
        gap_ns = 0 if self._asked_ns is None else self._asked_ns + round(LEAST_GAP_S * S)
        if self._again_ns is not None:
            return max(self._again_ns, gap_ns)
        rate = self.admission.chunks_per_s if self.admission is not None else 0.0
        if rate > 0.0 and self._asked_ns is not None:
            gap_ns = self._asked_ns + round(min(1.0 / rate, self.settings.max_age_s) * S)
        ends_ns = self.execution.ends_ns
        return gap_ns if ends_ns is None else max(gap_ns, ends_ns - round(self.settings.ask_at_s * S))

    def _announce_ns(self) -> int:
        """Return when to announce the robot next."""
        return self._announced_ns + round(ANNOUNCE_S * S)

    def _silent(self, now_ns: int) -> bool:
        """Return whether the scheduler must hear of this robot."""
        if self.admission is None or not self.admission.admitted or self._unknown:
            return True
        if self._in_a_row > 0 and now_ns - self._heard_ns > ANNOUNCE_S * S:
            return True
        return now_ns - max(self._announced_ns, self._asked_ns or self._announced_ns) >= HEARTBEAT_S * S

    def _silence(self, now_ns: int) -> str:
        since_ns = max(self._heard_ns, now_ns if self._first_ns is None else self._first_ns)
        silence = _for(now_ns - since_ns)
        if not silence or self._size < LARGE:
            return silence
        return (
            f"{silence}; its images have {self._size / 1e6:.1f} MB: over a network that loses packets, set "
            "fleet_images to jpeg"
        )


def _for(duration_ns: int) -> str:
    """Return a duration in whole seconds as text; "" below one second."""
    return f" for {duration_ns // S} s" if duration_ns >= S else ""
