"""What a fleet's scheduler knows of each robot, and what it tells of it.

A robot has at most one pending request: the round that it waits for. All of a robot is in one record, so
that who forgets the record has forgotten the robot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from vla_accel_ros.engine.request import MicroBatch, Request
from vla_accel_ros.engine.session import Session
from vla_accel_ros.fleet.admission.forecast import Rhythm
from vla_accel_ros.fleet.admission.verdict import Verdict
from vla_accel_ros.fleet.protocol import ChunkRequest, RobotDescription
from vla_accel_ros.fleet.replicas.replica import Replica, Served
from vla_accel_ros.fleet.serving.rhythms import Asked
from vla_accel_ros.fleet.task import Task
from vla_accel_ros.types import Chunk

NOT_JUDGED = Verdict(False, reason="whether this robot fits is being computed")


@dataclass(eq=False)
class Work:
    """A replica computes a request. asked: the attempt that is computed; until_s, observed_s: its own, see
    PendingRequest; began_s: when it was given to the replica; batch: of the policy, None if it was not
    asked; behind_s: how long it was expected to wait there for others. alone: nothing but its batch was
    computed there meanwhile, so that how long it took tells of such a batch. hedge: the same on another
    replica, where this one takes unusually long."""

    replica: Replica
    asked: ChunkRequest
    future: Future[Served]
    began_s: float
    until_s: float
    observed_s: float
    batch: MicroBatch | None = None
    behind_s: float = 0.0
    alone: bool = True
    hedge: Work | None = None

    def cancel(self) -> None:
        """Nobody wants it any more."""
        for work in (self, self.hedge):
            if work is not None:
                work.replica.cancel(work.future)


@dataclass(eq=False)
class PendingRequest:
    """The round that a robot waits for.

    asked: its newest attempt; request: it, as policies see it; first_s: when its first attempt came;
    until_s: when nobody can use its chunk any longer; observed_s: when what it saw was captured, by the
    scheduler's clock. called_s: when the robot was asked to observe anew, None if it was not; called_for: for
    which replica; calling: it is being waited for. work: what computes it, or an earlier attempt. lost: how
    many replicas were lost over it. number: grows in order of first attempts, -1 until it is in the queue.
    """

    asked: ChunkRequest
    request: Request
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
    def order(self) -> tuple[int, int, int]:
        """Grows with what a robot asks for: task, round, attempt."""
        return order_of(self.asked)


@dataclass
class Counts:
    """What came of a robot's requests. misses: nobody could use the chunk any longer; refused: failed for
    another reason; replaced: by a newer one; repeated: that came twice or too late; foreign: of a process
    or under a name that the robot does not have; called: observed anew; hedged: computed by two replicas."""

    answered: int = 0
    misses: int = 0
    refused: int = 0
    replaced: int = 0
    repeated: int = 0
    foreign: int = 0
    called: int = 0
    hedged: int = 0


@dataclass(eq=False)
class Robot:
    """One robot. ready: what its replicas' descriptions came to, by replica; introduced: those whose session
    was told. heard_s: its last sign. since_s: when it was described. next_s: when its next chunk may begin,
    where its rate was lowered. asked: when it did lately. judged_s: when it was judged by how others ask."""

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
    newest: tuple[int, int, int] = (-1, -1, -1)
    step_dt_s: float = 0.0
    next_s: float = 0.0
    queued_s: float = 0.0
    age_s: float = 0.0
    asked: Asked = field(default_factory=Asked)
    judged_s: float = -math.inf
    counts: Counts = field(default_factory=Counts)

    @property
    def judged(self) -> bool:
        """Whether it is known if it fits."""
        return self.verdict is not NOT_JUDGED

    @property
    def name(self) -> str:
        """Its name in the fleet."""
        return self.description.robot

    def rhythm(self, now_s: float) -> Rhythm:
        """How it was seen to ask, or what it was promised, from a time on that nobody knows."""
        return self.asked.rhythm(now_s) or Rhythm(1.0 / self.verdict.chunks_per_s)

    def is_ready(self, replica: str) -> bool:
        """Whether a replica can serve it."""
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
    """What is told of a robot. state: see Robot. buffer_s: how long its arm still moves; queued_s, age_s: how
    long the last chunk waited, and how old its observation was when it was answered; stalled_s, wait_ratio:
    of its task; chunks_per_s: what it was promised; reason: see Verdict."""

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
    """Of now."""
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


def order_of(request: ChunkRequest) -> tuple[int, int, int]:
    """See PendingRequest.order."""
    return request.round.task, request.round.number, request.attempt


def fairness(wait_ratios: Iterable[float]) -> float:
    """Jain's index of the shares of their lives that tasks did not wait: 1 if all are served alike, 1/n if
    one of n is served and the others only wait."""
    shares = [1.0 - ratio for ratio in wait_ratios]
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
