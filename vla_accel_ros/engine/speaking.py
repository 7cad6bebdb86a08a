"""Text while the robot acts: answers to questions, and what the model says of its task by itself.

Whoever sees or acts never waits for it. A turn, of which there are several a frame, begins what is new about
the newest frame and then gives all answers under way a token in one forward, again and again: as long as the
newest frame was acted on, nobody has the right of way, and the next token can be expected to be over before
the next frame is due (engine.slack). Where there is never any slack, a token now and then (PATIENCE_S, SHARE)
keeps answers from standing still. Questions go before what nobody asked for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.prefixes import Prefix
from vla_accel_ros.engine.slack import Slack, fill
from vla_accel_ros.engine.text import Answer
from vla_accel_ros.engine.way import PATIENCE_S, RightOfWay

MOST_WAITING = 16

SHARE = 0.1
"""Of the time that text takes at most where actions leave none over."""

TOKEN_S = 0.001
"""What a token is expected to take before one was made: little, so that the first is measured soon."""


@dataclass(frozen=True)
class Text:
    """An answer as it grows. text: the whole of it so far; request_id: which answer; prefix: what it is
    about, whose instruction is the question if there was one."""

    prefix: Prefix
    request_id: int
    text: str
    finished: bool


@dataclass
class _Spoken:
    answer: Answer
    prefix: Prefix
    asked: bool
    text: str = ""


@dataclass(frozen=True)
class Moment:
    """What decides whether there is time: served: whether the newest frame was acted on; due_s: when the next
    one is expected, by the clock."""

    served: Callable[[], bool]
    due_s: Callable[[], float]
    clock: Callable[[], float] = time.monotonic


class Speaking:
    """The answers of one engine. `turn` and `end` belong to one thread, `ask` and `cancel` to any.

    on_text: gets each answer whenever it has grown. narrate_s: how often the model continues its own prompt,
    None never. max_tokens: of the longest answer.
    """

    def __init__(
        self,
        engine: Engine,
        on_text: Callable[[Text], None],
        way: RightOfWay,
        moment: Moment,
        narrate_s: float | None,
        max_tokens: int,
    ) -> None:
        self._engine, self._on_text, self._way, self._moment = engine, on_text, way, moment
        self._narrate_s, self._max_tokens = narrate_s, max_tokens
        self.slack = Slack(TOKEN_S)
        self._questions: deque[str] = deque()
        self._open: list[_Spoken] = []
        self._cancelled = threading.Event()
        self._narrated, self._narrate_at_s = -1, 0.0
        self._spoke_s, self._patience_s = moment.clock(), PATIENCE_S

    def ask(self, question: str) -> None:
        """Have a question answered, about the frame that is the newest when there is a place for it.

        Raises ValueError for an empty one, or if too many wait already.
        """
        if not question.strip():
            raise ValueError("the question is empty: say what to answer")
        if len(self._questions) >= MOST_WAITING:
            raise ValueError(f"{MOST_WAITING} questions wait already: {question!r} is not taken, ask later")
        self._questions.append(question)

    def cancel(self) -> int:
        """Break off all answers, and forget the questions that wait; returns how many there were."""
        there = len(self._questions) + len(self._open)
        self._questions.clear()
        self._cancelled.set()
        return there

    def turn(self) -> bool:
        """Begin what is new and advance what is under way as far as there is time; False if nothing was."""
        if self._cancelled.is_set():
            self.end()
        begun = False
        while self._begin():
            begun = True
        return self._advance() or begun

    def end(self) -> None:
        """Break off all answers that are under way."""
        self._cancelled.clear()
        while self._open:
            self._open.pop().answer.close()

    def forget(self, version: int) -> None:
        """Say nothing unasked about this frame, which is an old one."""
        self._narrated = version

    def _begin(self) -> bool:
        """Begin one answer, if one is wanted and there is a place."""
        now_s, asked, question = self._moment.clock(), bool(self._questions), None
        if not self._engine.places:
            return False
        if asked:
            self._way.give()  # while that waits a newer frame may come, or word that nobody wants to know
        else:
            narrates = self._narrate_s is not None and now_s >= self._narrate_at_s
            if not narrates or not all(spoken.asked for spoken in self._open):
                return False
        prefix = None if self._cancelled.is_set() else self._engine.newest()
        if prefix is None:
            return False
        with prefix:
            if asked:
                try:
                    question = self._questions.popleft()
                except IndexError:
                    return False
            elif prefix.version == self._narrated:
                return False
            else:
                self._narrated, self._narrate_at_s = prefix.version, now_s + (self._narrate_s or 0.0)
            self._open.append(self._spoken(prefix, question))
        return True

    def _spoken(self, prefix: Prefix, question: str | None) -> _Spoken:
        if question is None or question == prefix.instruction:
            answer = self._engine.ask(prefix, max_tokens=self._max_tokens)
            return _Spoken(answer, prefix, asked=question is not None)
        with self._engine.reword(prefix, question) as reworded:
            return _Spoken(self._engine.ask(reworded, max_tokens=self._max_tokens), reworded, asked=True)

    def _advance(self) -> bool:
        if not self._open:
            return False
        clock = self._moment.clock
        tokens = fill(self.slack, self._say, self._time, self._moment.due_s(), clock)
        if not tokens and clock() - self._spoke_s >= self._patience_s:
            begin = clock()
            self._say()
            took_s = clock() - begin
            self.slack.note(took_s)
            self._patience_s = max(PATIENCE_S, took_s / SHARE)
            tokens = 1
        return bool(tokens)

    def _time(self) -> bool:
        """Whether there is something to say and nobody in the way of it."""
        if not self._open or self._cancelled.is_set() or not self._moment.served():
            return False
        return self._way.give() and self._moment.served()

    def _say(self) -> None:
        """A token of each answer, and word of those that grew."""
        self._engine.speak()
        self._spoke_s = self._moment.clock()
        for spoken in list(self._open):
            piece, ended = spoken.answer.take(), spoken.answer.ended
            spoken.text += piece
            if ended:
                self._open.remove(spoken)
            if piece or ended:
                self._on_text(Text(spoken.prefix, spoken.answer.request, spoken.text, ended))
