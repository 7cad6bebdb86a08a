"""A running stack over one engine: frames come in, chunks and texts go out, each at its own rate.

Nothing is decided here: every frame, every wish for a chunk and every question is a request, and the
scheduler's lane runs them. Vision submits the newest observation at its rate. One action request always waits
for something new to act on: a frame, newer joints for a model with a state token, or where chunks are guided
newly committed points (engine.readiness). Questions wait for room, and the model continues its own prompt
at its rate when nobody asks. Results are handed over in a thread of their own, so that a slow receiver never
delays the lane; nothing piles up before it (`_give`).
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import numpy as np

from vla_accel_ros.engine.actors.flow import BESIDE
from vla_accel_ros.engine.config import FRESH_FIRST
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.lanes.lane import Stream
from vla_accel_ros.engine.loop import Awaited, Loop, LoopRecord, LoopStats
from vla_accel_ros.engine.policies.overload import Degradation
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, MicroBatch, Request
from vla_accel_ros.types import Chunk, Observation, Torn

_LOG = logging.getLogger(__name__)

MOST_WAITING = 16
"""Questions that wait for room."""

MOST_UNDELIVERED = 8
"""Chunks, and errors, that wait for their receiver; as many answers do, each in its newest state."""


Undelivered = tuple[Callable[..., None], tuple[object, ...]]
"""Who is to be given what."""


@dataclass(frozen=True)
class Pace:
    """How often something is done and how long it may take; deadline_s 0 is one period."""

    rate_hz: float
    deadline_s: float = 0.0

    @property
    def period_s(self) -> float:
        """Seconds from one to the next."""
        return 1.0 / self.rate_hz

    @property
    def most_s(self) -> float:
        """Seconds after which it is a miss."""
        return self.deadline_s or self.period_s


@dataclass(frozen=True)
class Text:
    """An answer as it grows. text: the whole of it so far; request_id: which answer; prefix: what it is
    about, whose instruction is the question if there was one."""

    prefix: Prefix
    request_id: int
    text: str
    finished: bool


@dataclass(frozen=True)
class Ports:
    """What a stream takes from outside and gives back; called in threads of the stream.

    observe: the newest Observation, or None when there is none that is new; observed: it is needed no longer.
    newest_state: (state float [D], stamp_ns) of the newest joints, or None; for models with a state token.
    on_chunk: gets each chunk and the seconds its action request took. on_text: gets each piece of an answer.
    on_error: gets ("vision", "action" or "language", exception); the stream goes on.
    on_prefix: gets each prefix and the observation it was computed from, whose images are still lent.
    frames: what vision awaits when it is due; None: it takes what there is.
    limit: gets each chunk and its instruction before all others, in the lane, and gives it with its execution
        horizon; a chunk for which it raises is handed to nobody.
    """

    observe: Callable[[], Observation | None]
    observed: Callable[[], None]
    newest_state: Callable[[], tuple[np.ndarray, int] | None]
    on_chunk: Callable[[Chunk, float], None]
    on_text: Callable[[Text], None]
    on_error: Callable[[str, Exception], None]
    on_prefix: Callable[[Prefix, Observation], None] = lambda prefix, observation: None
    frames: Awaited | None = None
    limit: Callable[[Chunk, str], Chunk] = lambda chunk, instruction: chunk


class Chunking(Protocol):
    """Makes each chunk agree with the one that is being executed (control.chunking.rtc). Called in the
    lane."""

    def begin(self, request: Request) -> None: ...
    def made(self, request: Request) -> None: ...
    def committed(self, stamp_ns: int) -> int | None:
        """Of a further chunk from the frame of that stamp, if it began now: leading actions that are
        committed; None while nothing is guided."""
        ...


class Streaming:
    """One robot's stream over an engine; start() and stop() may be called again and again.

    action: how often at most chunks are made from one frame, for newer joints or newly committed points; of
    a new frame one is made at once.
    language: how often the model continues its own prompt; None: it answers only questions. Where that takes
    longer than a period, several such texts are written at once, each about its own frame: they share their
    forwards. max_tokens: of the longest answer. A prefix that was there before (a warm-up, or the last one
    before a pause) is never acted on.
    """

    def __init__(
        self,
        engine: Engine,
        ports: Ports,
        vision: Pace,
        action: Pace,
        language: Pace | None = None,
        max_tokens: int = 16,
        chunking: Chunking | None = None,
        robot: str = "",
    ) -> None:
        self._engine, self._scheduler, self._ports, self._robot = engine, engine.scheduler, ports, robot
        self._action, self._max_tokens = action, max_tokens
        self._language = language if engine.policy.answers else None
        self._chunking = chunking
        self._vision = Loop(
            "vision", vision.rate_hz, vision.most_s, self.see, on_error=self._failed, awaited=ports.frames
        )
        self._records = {"action": LoopRecord("action", action.rate_hz)}
        if engine.policy.answers:
            self._records["language"] = LoopRecord("language", language.rate_hz if language else 0.0)
        # The action requests that wait: one for frames and all else, or one for each.
        self._next: dict[bool | None, Request] = {}
        self._firsts = (True, False) if engine.config.staggering == FRESH_FIRST else (None,)
        self._narrated, self._narrate_s = -1, -math.inf
        self._running = False
        self._given = -1  # the newest chunk that was handed over, by its request
        self._results: deque[Undelivered] = deque()
        self._come = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start, forgetting every frame there is. Raises ValueError if a stream of the robot runs already."""
        scheduler = self._scheduler
        scheduler.join(self._robot, Stream(self._due_s, self._ran))
        scheduler.skip(self._robot)
        self._narrated = self._engine.runner.prefixes.newest_version(self._robot)
        self._running = True
        self._thread = threading.Thread(target=self._hand_over, name="results", daemon=True)
        self._thread.start()
        self._want_chunks()
        self._vision.start()

    def stop(self) -> None:
        """Stop and wait for the threads; requests are broken off after their present micro-batch."""
        with self._come:
            self._running = False
            self._come.notify_all()
        self._vision.stop()
        self._scheduler.leave(self._robot)
        self._next = {}
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._results.clear()

    def forget(self) -> None:
        """Finish no chunk that has begun: the robot was moved otherwise meanwhile."""
        self._scheduler.forget(self._robot)

    def joints_came(self) -> None:
        """There are newer joints: what waits for them begins now, and not when it is looked for them."""
        if self._running and self._engine.policy.takes_state:
            self._scheduler.wake()

    def stats(self) -> list[LoopStats]:
        """How often each is done, and how long it takes; of language, forwards. What was given up is counted
        since the engine was made."""
        now = self.degradation
        given_up = {"vision": now.frames.get(self._robot, 0), "action": now.chunks.get(self._robot, 0)}
        stats = [self._vision.stats(), *(record.stats() for record in self._records.values())]
        return [replace(one, given_up=given_up.get(one.name, 0)) for one in stats]

    @property
    def degradation(self) -> Degradation:
        """What the engine gives up for overload, and what it gave up so far."""
        return self._scheduler.degradation

    def ask(self, question: str) -> None:
        """Have a question answered, about the frame that is the newest when there is room for it.

        Raises ValueError for an empty one, if too many wait already, or if the model answers nothing.
        """
        if not self._engine.policy.answers:
            kind = self._engine.policy.config.kind
            raise ValueError(f"a {kind} policy has no language head; ask it nothing.")
        if not question.strip():
            raise ValueError("the question is empty: say what to answer")
        waiting = sum(not request.begun for request in self._asks())
        if waiting >= MOST_WAITING:
            raise ValueError(f"{MOST_WAITING} questions wait already: {question!r} is not taken, ask later")
        self._scheduler.submit(self._ask(question))

    def cancel(self) -> int:
        """Break off all answers, and forget the questions that wait; returns how many there were."""
        asks = self._asks()
        self._scheduler.cancel(*asks)
        return len(asks)

    def see(self) -> bool:
        """One run of vision: the observation that is the newest when the lane comes to it becomes a prefix.

        One whose images were overwritten meanwhile comes to nothing; who lends the images counts it.
        """
        scheduler = self._scheduler
        request = Request(OBSERVE, self._robot, observe=self._ports.observe)
        request.within_s, request.period_s = self._vision.deadline_s, 1.0 / self._vision.rate_hz
        try:
            prefix = cast(Prefix | None, scheduler.wait(scheduler.submit(request)).result)
            if prefix is None or request.observation is None:
                return False
            with prefix:
                self._ports.on_prefix(prefix, request.observation)
                self._narrate(prefix)
        except Torn:
            return False
        finally:
            if request.observation is not None:
                self._ports.observed()
        return True

    def _want_chunks(self) -> None:
        for first in self._firsts:
            self._want_chunk(first)

    def _want_chunk(self, first: bool | None = None, not_before_s: float = -math.inf) -> None:
        """Have the next chunk made when there is something new to act on; see Request.first."""
        self._next[first] = request = Request(
            ACT,
            self._robot,
            priority=int(first is True),
            within_s=self._action.most_s,
            period_s=self._action.period_s,
            stream=True,
            waits=True,
            first=first,
            not_before_s=not_before_s,
            sense=self._ports.newest_state if self._engine.policy.takes_state else None,
            commits=None if self._chunking is None else self._chunking.committed,
            on_begin=None if self._chunking is None else self._chunking.begin,
            on_progress=self._acted,
        )
        self._scheduler.submit(request)

    def _acted(self, request: Request) -> None:
        if request is self._next.get(request.first) and self._running:
            self._want_chunk(request.first, self._due_after_s(request))
        if not request.finished or request.cancelled:
            return
        if request.error is not None:
            self._give(self._ports.on_error, "action", request.error)
            return
        try:
            request.result = self._ports.limit(cast(Chunk, request.result), request.instruction)
        except Exception as error:
            self._give(self._ports.on_error, "action", error)
            return
        if self._chunking is not None:
            self._chunking.made(request)
        took_s = self._records["action"].note(request.begun_s, self._action.most_s)
        self._give(self._ports.on_chunk, request.result, took_s)

    def _due_after_s(self, request: Request) -> float:
        """When a further chunk is due: a period after this one was, so that those which a lane comes to a
        little late do not lower their rate; after it began, if that was later than a period, or earlier, as
        the first of a frame does."""
        due_s, period_s = min(request.not_before_s, request.begun_s), self._action.period_s
        return period_s + (due_s if request.begun_s - due_s < period_s else request.begun_s)

    def _narrate(self, prefix: Prefix) -> None:
        """Have the model continue its own prompt, if it is time and there is room for that."""
        if self._language is None or not self._running or prefix.version == self._narrated:
            return
        now_s, period_s = self._scheduler.now_s(), self._language.period_s
        if now_s < self._narrate_s or not self._may_narrate():
            return
        due_s = self._narrate_s if now_s - self._narrate_s < period_s else now_s
        self._narrated, self._narrate_s = prefix.version, due_s + period_s
        self._scheduler.submit(self._ask(None))

    def _may_narrate(self) -> bool:
        """Whether another text may begin that nobody asked for: none of this robot waits, and they leave a
        place for an answer, and a slot for its frame."""
        config = self._engine.config
        unasked = [r for r in self._scheduler.requests if r.want == ASK and not r.priority]
        own = [request for request in unasked if request.robot == self._robot]
        spare = config.slots - max(1, config.staggered) - BESIDE
        return not own or (all(r.begun for r in own) and len(unasked) < min(config.answers - 1, spare))

    def _ask(self, question: str | None) -> Request:
        return Request(
            ASK,
            self._robot,
            stream=True,
            waits=True,
            priority=int(question is not None),
            question=question,
            max_tokens=self._max_tokens,
            on_progress=self._said,
        )

    def _asks(self) -> list[Request]:
        return [r for r in self._scheduler.requests if r.want == ASK and r.robot == self._robot]

    def _said(self, request: Request) -> None:
        if request.cancelled:
            return
        if request.error is not None:
            self._give(self._ports.on_error, "language", request.error)
        elif request.pieces or request.finished:
            request.pieces.clear()
            text, finished = str(request.result or ""), request.finished
            self._give(self._ports.on_text, Text(request.frame, request.number, text, finished))

    def _due_s(self) -> float:
        return self._vision.expects_s

    def _ran(self, batch: MicroBatch, began_s: float) -> None:
        if batch.requests[-1].want == ASK and any(one.robot == self._robot for one in batch.requests):
            most_s = math.inf if self._language is None else self._language.most_s
            self._records["language"].note(began_s, most_s)

    def _failed(self, error: Exception) -> bool:
        self._ports.on_error("vision", error)
        return True

    def _give(self, port: Callable[..., None], *what: object) -> None:
        """Have a result handed over. Of an answer only the newest state waits, as it has all the text so far;
        of chunks and answers that wait too long the oldest comes to nothing, which is a miss. So does a chunk
        that another lane's newer one was faster than."""
        with self._come:
            if isinstance(what[0], Chunk):
                if what[0].request_id < self._given:
                    self._records["action"].note_miss()
                    return
                self._given = what[0].request_id
            old, lost = self._replaced(port, what[0])
            if old or lost:
                gone = {id(one) for one in (*old, *lost)}
                self._results = deque(one for one in self._results if id(one) not in gone)
            self._results.append((port, what))
            self._come.notify_all()
        if lost and isinstance(what[0], Chunk | Text):
            self._records["action" if isinstance(what[0], Chunk) else "language"].note_miss()

    def _replaced(
        self, port: Callable[..., None], what: object
    ) -> tuple[Sequence[Undelivered], Sequence[Undelivered]]:
        """Of those that wait: older states of the same answer, and what is lost for what comes."""
        same = [one for one in self._results if one[0] == port]
        if isinstance(what, Text):
            old = [one for one in same if cast(Text, one[1][0]).request_id == what.request_id]
            if old:
                return old, ()
        return (), same[: max(0, len(same) + 1 - MOST_UNDELIVERED)]

    def _hand_over(self) -> None:
        while True:
            with self._come:
                self._come.wait_for(lambda: self._results or not self._running)
                if not self._running:
                    return
                port, what = self._results.popleft()
            try:
                port(*what)
            except Exception as error:
                self._undeliverable("language" if port is self._ports.on_text else "action", error)

    def _undeliverable(self, name: str, error: Exception) -> None:
        try:
            self._ports.on_error(name, error)
        except Exception:
            _LOG.exception("%s goes on, but its error could not be reported", name)
