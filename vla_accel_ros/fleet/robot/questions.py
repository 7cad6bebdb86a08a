"""A robot's questions to its fleet: when each is sent, which answer belongs to it, and what is said if none
comes.

Pure: time is injected, in nanoseconds of the robot's clock, and nothing is sent here. A question is sent with
the next observation and has one deadline, after which it is refused with a sentence; it is not asked again,
since the user can do that. Numbers start at random for each process, so that an answer to an earlier process
matches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from uuid import uuid4

from vla_accel_ros.fleet.protocol import (
    MOST_WORDS,
    Admission,
    ChunkRequest,
    EncodedObservation,
    Round,
    TextAnswer,
)
from vla_accel_ros.fleet.robot.execution import S

MOST_OPEN = 16
GRACE_S = 0.5
"""How much longer than the scheduler a robot waits, so that the scheduler's own sentence arrives first."""


@dataclass
class _Question:
    """until_ns: deadline. stamp_ns: of its observation, None until it is sent."""

    text: str
    until_ns: int
    stamp_ns: int | None = None


class Questions:
    """The questions of one robot's process. within_s: how long to wait for an answer. first: number of the
    first question; None means random."""

    def __init__(self, engine: str, robot: str, within_s: float, first: int | None = None) -> None:
        self._engine, self._robot, self._within_s = engine, robot, within_s
        self._number = uuid4().int >> 66 if first is None else first
        self._open: dict[int, _Question] = {}

    def __len__(self) -> int:
        """Number of unanswered questions."""
        return len(self._open)

    def asked(self, text: str, admission: Admission | None, now_ns: int) -> None:
        """Queue a question. admission: the scheduler's latest admission of this robot. Raises ValueError,
        with the reason, if the question is not accepted."""
        if not text.strip():
            raise ValueError("the question is empty: say what to answer")
        if len(text) > MOST_WORDS:
            raise ValueError(f"the question has {len(text)} letters: ask with at most {MOST_WORDS}")
        if admission is None:
            raise ValueError("no fleet's scheduler has admitted this robot, so none can answer: start one")
        if not admission.admitted:
            raise ValueError(f"the fleet's scheduler does not serve this robot: {admission.reason}")
        if len(self._open) >= MOST_OPEN:
            raise ValueError(f"{MOST_OPEN} questions wait already: {text!r} is refused, ask later")
        self._open[self._number] = _Question(text, now_ns + round((self._within_s + GRACE_S) * S))
        self._number += 1

    @property
    def unsent(self) -> bool:
        """Whether a question waits for an observation."""
        return any(question.stamp_ns is None for question in self._open.values())

    def send(self, seen: EncodedObservation, now_ns: int) -> Iterator[ChunkRequest]:
        """Yield the questions to send with this observation."""
        for number, question in self._open.items():
            if question.stamp_ns is None:
                question.stamp_ns = seen.stamp_ns
                within_s = max(0.0, (question.until_ns - now_ns) * 1e-9 - GRACE_S)
                observation = replace(seen, instruction=question.text)
                yield ChunkRequest(
                    Round(self._engine, self._robot, 0, number), 0, now_ns, observation, within_s=within_s
                )

    def answered(self, answer: TextAnswer) -> bool:
        """Close the question that this answers; return whether there was one."""
        question = self._open.get(answer.round.number)
        if question is None or (question.text, question.stamp_ns) != (answer.prompt, answer.stamp_ns):
            return False
        del self._open[answer.round.number]
        return True

    def late(self, now_ns: int, blind: str) -> list[tuple[str, str]]:
        """Close the questions whose deadline has passed; return their texts and reasons. blind: why there is
        no observation."""
        expired = [number for number, question in self._open.items() if now_ns >= question.until_ns]
        return [self._told(self._open.pop(number), blind) for number in expired]

    def close(self, why: str = "") -> list[tuple[str, str]]:
        """Close all questions; return their texts with the reason `why`."""
        open_questions, self._open = self._open, {}
        return [(question.text, why) for question in open_questions.values()]

    def _told(self, one: _Question, blind: str) -> tuple[str, str]:
        if one.stamp_ns is None:
            return one.text, f"there was no observation for the question: {blind or 'no new images arrived'}"
        return one.text, f"no answer from the fleet's scheduler within {self._within_s + GRACE_S:.3g} s"
