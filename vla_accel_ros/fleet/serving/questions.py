"""Questions of a fleet's robots: which replica answers each, and what is said if none does.

A question is about what its robot saw when asking, so it is never observed again. Questions wait in order of
arrival, beside the requests for chunks, and take no chunk seats: a replica has separate places for answers
and writes them in the time that chunks leave. Each question is answered, or refused with a sentence, by its
deadline. The queue is bounded, in total and for each robot; a question whose replica is lost goes to another.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from vla_accel_ros.fleet.protocol import ChunkRequest, TextAnswer
from vla_accel_ros.fleet.replicas.replica import Replica, ReplicaLost
from vla_accel_ros.fleet.serving.members import Members
from vla_accel_ros.fleet.serving.records import Robot

MOST_WAITING = 16
MOST_OF_A_ROBOT = 4
"""Open questions of one robot, including those being answered."""

_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class _Question:
    """until_s: deadline. replica, future: the replica that answers it, None while it waits. lost: how many
    replicas were lost over it."""

    asked: ChunkRequest
    until_s: float
    replica: Replica | None = None
    future: Future[str] | None = None
    lost: int = 0

    @property
    def robot(self) -> str:
        return self.asked.round.robot


class Questions:
    """The questions of one scheduler. lost: how many replicas may be lost over one. text: called with every
    answer and refusal. done: called, in any thread, when a replica has an answer."""

    def __init__(
        self,
        members: Members,
        lost: int,
        text: Callable[[TextAnswer], None],
        done: Callable[[Future[Any]], None],
    ) -> None:
        self._members, self._lost, self._text, self._done = members, lost, text, done
        self._open: list[_Question] = []  # in the order in which they came

    def waiting(self) -> int:
        """Number of questions that no replica is answering."""
        return sum(question.future is None for question in self._open)

    def asked(self, robot: Robot, request: ChunkRequest, now_s: float) -> None:
        """Queue a question of an admitted robot, or refuse it."""
        if any(question.asked.round == request.round for question in self._open):
            return  # a duplicate
        if not any(question.answers for question in self._members.replicas):
            self.refuse(request, "the fleet's model has no language head; ask it nothing")
        elif self.waiting() >= MOST_WAITING:
            self.refuse(request, f"{MOST_WAITING} questions wait already at the fleet's scheduler; ask later")
        elif sum(question.robot == robot.name for question in self._open) >= MOST_OF_A_ROBOT:
            self.refuse(request, f"{MOST_OF_A_ROBOT} questions of this robot are open already; ask later")
        else:
            self._open.append(_Question(request, now_s + request.within_s))

    def refuse(self, request: ChunkRequest, why: str) -> None:
        """Send the reason why there is no answer."""
        observation = request.observation
        self._text(
            TextAnswer(request.round, observation.instruction, observation.stamp_ns, why, refused=True)
        )

    def forget(self, robot: str) -> None:
        """Refuse all questions of a robot that is gone, has restarted, or was silent for too long."""
        for question in [question for question in self._open if question.robot == robot]:
            self._leave(question)
            self.refuse(question.asked, "the fleet's scheduler has forgotten this robot; ask again")

    def step(self, now_s: float) -> None:
        """Send finished answers, refuse late questions, and dispatch waiting ones."""
        for question in tuple(self._open):
            if question.future is not None and question.future.done():
                self._finish(question, now_s)
        for question in tuple(self._open):
            if now_s >= question.until_s:
                self._leave(question)
                self.refuse(
                    question.asked, f"no replica of the fleet answered within {question.asked.within_s:.3g} s"
                )
        busy = Counter(question.replica.name for question in self._open if question.replica is not None)
        for question in self._open:
            if question.future is None:
                self._dispatch(question, busy)

    def _dispatch(self, one: _Question, busy: Counter[str]) -> None:
        """Give a question to the nearest replica that is ready for its robot and has a free place."""
        robot = self._members.robots.get(one.robot)
        for replica in self._members.replicas:
            if robot is not None and robot.is_ready(replica.name) and busy[replica.name] < replica.answers:
                busy[replica.name] += 1
                one.replica = replica
                one.future = replica.ask(one.asked.round, one.asked.observation)
                one.future.add_done_callback(self._done)
                return

    def _finish(self, one: _Question, now_s: float) -> None:
        assert one.future is not None and one.replica is not None
        replica = one.replica
        try:
            text = one.future.result()
        except ReplicaLost as error:
            self._members.lost(replica, now_s)
            one.replica, one.future, one.lost = None, None, one.lost + 1
            if one.lost > self._lost:
                self._leave(one)
                self.refuse(one.asked, str(error))
        except (Exception, CancelledError) as error:
            if not isinstance(error, ValueError):
                _LOG.warning("replica %s, %s: %r", replica.name, one.asked.round, error)
            self._leave(one)
            self.refuse(one.asked, str(error) or type(error).__name__)
        else:
            observation = one.asked.observation
            self._leave(one)
            answer = TextAnswer(
                one.asked.round, observation.instruction, observation.stamp_ns, text, replica=replica.name
            )
            self._text(answer)

    def _leave(self, one: _Question) -> None:
        self._open.remove(one)
        if one.replica is not None and one.future is not None:
            one.replica.cancel(one.future)
