"""How a fleet's requests end: with a chunk, on another replica, or with a sentence that says why there is
none.

A replica may fail, be lost, take too long, or answer too late. Another replica then computes the request
while its chunk is still useful; otherwise the robot is told the reason. An answer uses the attempt that was
dispatched, and goes only to that robot, process, task and round.
"""

from __future__ import annotations

import logging
import math
from concurrent.futures import CancelledError

from vla_accel_ros.engine.request import Status
from vla_accel_ros.fleet.protocol import ChunkAnswer, ChunkRequest
from vla_accel_ros.fleet.replicas.replica import SERVE, ReplicaLost
from vla_accel_ros.fleet.serving.dispatch import Dispatcher
from vla_accel_ros.fleet.serving.members import Members
from vla_accel_ros.fleet.serving.queue import Queue
from vla_accel_ros.fleet.serving.records import PendingRequest, Robot, Work
from vla_accel_ros.fleet.serving.settings import ASK_AGAIN_S, Ports, Settings
from vla_accel_ros.types import Chunk

_LOG = logging.getLogger(__name__)


class Completion:
    """Completes the requests of one scheduler. name: the scheduler's."""

    def __init__(
        self,
        name: str,
        members: Members,
        queue: Queue,
        dispatcher: Dispatcher,
        ports: Ports,
        settings: Settings,
    ) -> None:
        self._name, self._ports, self._settings = name, ports, settings
        self._members, self._queue, self._dispatcher = members, queue, dispatcher

    def cancel(self, robot: Robot) -> None:
        """Cancel a robot's pending request."""
        pending, robot.pending = robot.pending, None
        if pending is None:
            return
        self._queue.remove(pending)
        if pending.work is not None:
            pending.work.cancel()
            if robot.task is not None:
                robot.task.failed()

    def advance(self, robot: Robot, pending: PendingRequest, now_s: float) -> None:
        """Handle a request that was computed, or whose deadline or serving time has passed."""
        work = pending.work
        if work is not None and work.future.done():
            self._finish(robot, pending, work, now_s)
        elif now_s >= (pending.until_s if work is None else work.until_s):
            self._expire(robot, pending, now_s)
        elif work is not None and now_s - work.began_s > self._settings.serve_s:
            work.cancel()
            self._retry(robot, pending, f"replica {work.replica.name} took too long")

    def _finish(self, robot: Robot, pending: PendingRequest, work: Work, now_s: float) -> None:
        """Answer with what a replica computed."""
        try:
            served = work.future.result()
            if served.round != work.asked.round:
                raise RuntimeError(f"replica {work.replica.name} answered for another request")
            chunk = robot.cut(served.chunk, pending.request.instruction)
        except ReplicaLost as error:
            self._members.lost(work.replica, now_s)
            self._retry(robot, pending, _sentence(error))
            return
        except (Exception, CancelledError) as error:
            if not isinstance(error, ValueError):
                _LOG.warning("replica %s, %s: %r", work.replica.name, work.asked.round, error)
            if robot.task is not None:
                robot.task.failed()
            pending.work = None
            self.drop(robot, _sentence(error))
            return
        if now_s >= work.until_s:
            self._expire(robot, pending, now_s)
        else:
            self._answer(robot, work, chunk, now_s)

    def _answer(self, robot: Robot, work: Work, chunk: Chunk, now_s: float) -> None:
        task, pending = robot.task, robot.pending
        assert task is not None and pending is not None
        task.answered(now_s, chunk.executed * chunk.step_dt_s)
        robot.pending, robot.step_dt_s = None, chunk.step_dt_s
        self._queue.remove(pending)
        self._members.heard(robot, now_s)
        self._members.judge.punctuality.answered(now_s - pending.first_s)
        self._dispatcher.answered(work, now_s)
        self._learn(work, now_s)
        robot.queued_s, robot.age_s = work.began_s - pending.first_s, now_s - work.observed_s
        robot.counts.answered += 1
        request = work.asked
        self._ports.answer(
            ChunkAnswer(
                request.round,
                request.attempt,
                self._name,
                request.sent_ns,
                chunk,
                queued_s=robot.queued_s,
                served_s=now_s - work.began_s,
                replica=work.replica.name,
            )
        )

    def _learn(self, work: Work, now_s: float) -> None:
        """Lower the profile to a faster measured time. A replica that was measured on a busy machine, as at
        startup, is faster than its profile, and robots would be refused forever. Punctuality detects a slower
        one."""
        took_s, profile = now_s - work.began_s, work.replica.profile
        if 0.0 < took_s < profile.latest_s(SERVE, 1, 0.0):
            profile.note(SERVE, 1, took_s)

    def _expire(self, robot: Robot, pending: PendingRequest, now_s: float) -> None:
        """Handle a request whose chunk can no longer be used: compute its newer attempt if there is one, or
        drop it."""
        robot.counts.misses += 1
        self._members.judge.punctuality.answered(math.inf)
        if pending.work is not None and pending.asked is not pending.work.asked and now_s < pending.until_s:
            pending.work.cancel()
            self._requeue(robot, pending)
        else:
            reason = "the robot could no longer use the chunk"
            if now_s < robot.next_s:
                rate_hz = robot.verdict.chunks_per_s
                reason += (
                    f": it asks more often than the {rate_hz:.3g} times a second that it was admitted with"
                )
            self.drop(robot, reason, counted=True)

    def _retry(self, robot: Robot, pending: PendingRequest, why: str) -> None:
        """Queue the request of a lost replica again, unless too many replicas were lost over it."""
        pending.lost += 1
        self._requeue(robot, pending)
        if pending.lost > self._settings.lost:
            self.drop(robot, why)

    def _requeue(self, robot: Robot, pending: PendingRequest) -> None:
        """Put a request back at its old place in the queue."""
        pending.work, pending.called_s, pending.request.status = None, None, Status.WAITING
        self._queue.place(robot)
        if robot.task is not None:
            robot.task.failed()

    def drop(self, robot: Robot, why: str, counted: bool = False) -> None:
        """Answer a robot's request without a chunk. counted: it is already counted as a miss."""
        if (pending := robot.pending) is not None:
            robot.counts.refused += not counted
            self.cancel(robot)
            self.refuse(pending.asked, why, 0.0)

    def refuse(self, request: ChunkRequest, why: str, retry_s: float = ASK_AGAIN_S) -> None:
        self._ports.answer(
            ChunkAnswer(
                request.round, request.attempt, self._name, request.sent_ns, refusal=why, retry_s=retry_s
            )
        )


def _sentence(error: BaseException) -> str:
    return str(error) or type(error).__name__
