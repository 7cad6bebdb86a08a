"""What a fleet's scheduler knows of each robot, and what it reports.

A robot has at most one pending request, the round that it waits for. One record holds everything about a
robot, so that removing the record forgets the robot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from vla_accel_ros.engine.request import MicroBatch
from vla_accel_ros.engine.session import Session
from vla_accel_ros.fleet.admission.forecast import Rhythm
from vla_accel_ros.fleet.admission.verdict import Verdict
from vla_accel_ros.fleet.protocol import ChunkRequest, RobotDescription
from vla_accel_ros.fleet.replicas.replica import Replica, Served
from vla_accel_ros.fleet.serving.rhythms import Asked
from vla_accel_ros.fleet.task import Task, TaskRequest
from vla_accel_ros.types import Chunk

Order = tuple[int, int, int]
"""(task, round, attempt) of a request."""
NOTHING_ASKED: Order = (-1, -1, -1)
FARTHEST = 1000
"""How far a number may be ahead of the one before: some requests are lost on their way."""
FIRST_BELOW = 1 << 32
"""Bound for the first numbers of a robot, which may have asked another scheduler before."""

NOT_JUDGED = Verdict(False, reason="the scheduler is computing whether this robot fits")
NOT_READY = Verdict(False, reason="no replica is ready for this robot yet")


@dataclass(eq=False)
class Work:
    """A request being computed by a replica. asked: the attempt that is computed. until_s, observed_s: of
    that attempt, see PendingRequest. began_s: dispatch time. batch: the rule's, None if the rule was
    not asked. behind_s: expected wait behind other requests there. together: most requests that the replica
    computed at once meanwhile."""

    replica: Replica
    asked: ChunkRequest
    future: Future[Served]
    began_s: float
    until_s: float
    observed_s: float
    batch: MicroBatch | None = None
    behind_s: float = 0.0
    together: int = 1

    def cancel(self) -> None:
        """Cancel the work."""
        self.replica.cancel(self.future)


@dataclass(eq=False)
class PendingRequest:
    """The round that a robot waits for.

    asked: its newest attempt. request: the same as rules see it. first_s: arrival of its first attempt.
    until_s: deadline after which its chunk is useless. observed_s: capture time of its observation, by the
    scheduler's clock. called_s: when the robot was asked to observe again, None if it was not. called_for:
    for which replica. calling: the new observation has not arrived. work: its computation, perhaps of an
    earlier attempt. lost: how many replicas were lost over it. number: order of first attempts, -1 before it
    is queued.
    """

    asked: ChunkRequest
    request: TaskRequest
    first_s: float
    until_s: float
    observed_s: float
    called_s: float | None = None
    called_for: str = ""
    calling: bool = False
    work: Work | None = None
    lost: int = 0
    number: int = -1

    @property
    def order(self) -> Order:
        """Grows with the robot's requests: (task, round, attempt)."""
        return order_of(self.asked)


@dataclass
class Counts:
    """Outcomes of a robot's requests. misses: past their deadline. refused: failed otherwise. replaced: by a
    newer round. repeated: duplicates. out_of_order: see the function. foreign: of another process of the
    robot. called: observed again."""

    answered: int = 0
    misses: int = 0
    refused: int = 0
    replaced: int = 0
    repeated: int = 0
    out_of_order: int = 0
    foreign: int = 0
    called: int = 0


@dataclass(eq=False)
class Robot:
    """One robot. ready: result of `describe` at each replica. introduced: those whose session was announced.
    heard_s: last sign of life. since_s: when it was described. next_s: when its next chunk may begin, by its
    promised rate. asked: times of its latest requests. judged_s: when it was judged by the others'
    rhythms."""

    description: RobotDescription
    verdict: Verdict
    cut: Callable[[Chunk, str], Chunk]
    since_s: float
    heard_s: float
    ready: dict[str, Future[Session | None]] = field(default_factory=dict)
    introduced: dict[str, Future[Session | None]] = field(default_factory=dict)
    told: Verdict | None = None
    task: Task | None = None
    pending: PendingRequest | None = None
    newest: Order = NOTHING_ASKED
    step_dt_s: float = 0.0
    next_s: float = -math.inf
    queued_s: float = 0.0
    age_s: float = 0.0
    asked: Asked = field(default_factory=Asked)
    judged_s: float = -math.inf
    counts: Counts = field(default_factory=Counts)

    @property
    def judged(self) -> bool:
        """Whether there is a verdict on it."""
        return self.verdict is not NOT_JUDGED

    def spend(self, burst: int, now_s: float) -> None:
        """Take a chunk from its token bucket, which holds `burst` and is filled at its promised rate."""
        period_s = 1.0 / self.verdict.chunks_per_s
        self.next_s = max(self.next_s, now_s - (burst - 1) * period_s) + period_s

    @property
    def name(self) -> str:
        """Its namespace."""
        return self.description.robot

    def rhythm(self, now_s: float) -> Rhythm:
        """Return its observed rhythm, or else its promised rate with an unknown phase."""
        return self.asked.rhythm(now_s) or Rhythm(1.0 / self.verdict.chunks_per_s)

    def is_ready(self, replica: str) -> bool:
        """Return whether a replica can serve it."""
        future = self.ready.get(replica)
        if future is None or not future.done() or future.cancelled():
            return False
        return future.exception() is None

    @property
    def state(self) -> str:
        """being judged, refused, preparing, idle, waiting, observing anew, or computed."""
        if not self.verdict.admitted:
            return "refused" if self.judged else "being judged"
        if not any(map(self.is_ready, self.ready)):
            return "preparing"
        if self.pending is None:
            return "idle"
        return "computed" if self.pending.work else "observing anew" if self.pending.calling else "waiting"


@dataclass(frozen=True)
class Report:
    """Status of a robot. state: see Robot. buffer_s: how long its arm still moves. queued_s, age_s: how long
    the last chunk waited, and the age of its observation at the answer. stalled_s, wait_ratio: of its task.
    chunks_per_s: its promised rate. reason: see Verdict."""

    robot: str
    state: str
    reason: str
    chunks_per_s: float
    buffer_s: float
    queued_s: float
    age_s: float
    stalled_s: float
    wait_ratio: float
    counts: Counts


def report_of(robot: Robot, now_s: float) -> Report:
    """Return a robot's present status."""
    task = robot.task
    return Report(
        robot.name,
        robot.state,
        robot.verdict.reason,
        robot.verdict.chunks_per_s,
        task.slack_s(now_s) if task else 0.0,
        robot.queued_s,
        robot.age_s,
        task.stalled_s if task else 0.0,
        task.wait_ratio(now_s) if task else 0.0,
        robot.counts,
    )


def order_of(request: ChunkRequest) -> Order:
    """See PendingRequest.order."""
    return request.round.task, request.round.number, request.attempt


def out_of_order(newest: Order, order: Order) -> str | None:
    """Return why a request cannot follow a robot's newest one, None if it can: it is older, or so far ahead
    that everything the robot itself asks for would be older.

    Such a request came from somebody else, or the newest one did. A robot that describes itself again starts
    its numbers anew.
    """
    fields = ", ".join(f"{name} {number}" for name, number in zip(("task", "round", "attempt"), order))
    if newest == NOTHING_ASKED:
        is_wild = max(order) >= FIRST_BELOW
        return f"{fields}: numbers begin at 1; the first must be below {FIRST_BELOW}" if is_wild else None
    task, number, attempt = newest
    latest = f"the newest of this robot is task {task}, round {number}, attempt {attempt}"
    if order < newest:
        return f"{fields} is old: {latest}; publish fleet/robot again to start the numbers anew"
    reference = newest if order[:2] == newest[:2] else (task, number, 0) if order[0] == task else (task, 0, 0)
    if any(later - earlier > FARTHEST for later, earlier in zip(order, reference)):
        return f"{fields} is more than {FARTHEST} ahead: {latest}; publish fleet/robot again to start anew"
    return None


def fairness(wait_ratios: Iterable[float]) -> float:
    """Return Jain's index over the shares of their lives that tasks did not wait: 1 if all are served alike,
    1/n if only one of n is served."""
    shares = [1.0 - ratio for ratio in wait_ratios]
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
