"""A running stack over one engine: frames come in, chunks and texts go out, each at its own rate.

Nothing is decided here: every frame, every wish for a chunk and every question is a request, and the
scheduler's lane runs them. Vision submits the newest observation at its rate. One action request always waits
for something new to act on: a frame, newer joints for a model with a state token, or where chunks are guided
newly committed points (engine.readiness). Questions wait for room, and the model continues its own prompt
at its rate when nobody asks. Results are handed over in a thread of their own (engine.ports).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

from vla_accel_ros.engine.actors.flow import BESIDE
from vla_accel_ros.engine.config import FRESH_FIRST
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.pool import Prefix
from vla_accel_ros.engine.lanes.lane import Stream
from vla_accel_ros.engine.loop import Loop, LoopRecord, LoopStats
from vla_accel_ros.engine.policies.overload import Degradation
from vla_accel_ros.engine.ports import Chunking, Pace, Ports, Results, Text
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, MicroBatch, Request
from vla_accel_ros.types import Chunk, Torn

MOST_WAITING = 16
"""Questions that wait for room."""


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
        self._results = Results(lambda name: self._records[name].note_miss(), self._undeliverable)

    def start(self) -> None:
        """Start, forgetting every frame there is. Raises ValueError if a stream of the robot runs already."""
        scheduler = self._scheduler
        scheduler.join(self._robot, Stream(self._due_s, self._ran))
        scheduler.skip(self._robot)
        self._narrated = self._engine.runner.prefixes.newest_version(self._robot)
        self._running = True
        self._results.start()
        self._want_chunks()
        self._vision.start()

    def stop(self) -> None:
        """Stop and wait for the threads; requests are broken off after their present micro-batch."""
        self._running = False
        self._results.end()
        self._vision.stop()
        self._scheduler.leave(self._robot)
        self._next = {}
        self._results.stop()

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
            self._results.give(self._ports.on_error, "action", request.error)
            return
        try:
            request.result = self._ports.limit(cast(Chunk, request.result), request.instruction)
        except Exception as error:
            self._results.give(self._ports.on_error, "action", error)
            return
        if self._chunking is not None:
            self._chunking.made(request)
        took_s = self._records["action"].note(request.begun_s, self._action.most_s)
        self._results.give(self._ports.on_chunk, request.result, took_s)

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
            self._results.give(self._ports.on_error, "language", request.error)
        elif request.pieces or request.finished:
            request.pieces.clear()
            text, finished = str(request.result or ""), request.finished
            self._results.give(self._ports.on_text, Text(request.frame, request.number, text, finished))

    def _due_s(self) -> float:
        return self._vision.expects_s

    def _ran(self, batch: MicroBatch, began_s: float) -> None:
        if batch.requests[-1].want == ASK and any(one.robot == self._robot for one in batch.requests):
            most_s = math.inf if self._language is None else self._language.most_s
            self._records["language"].note(began_s, most_s)

    def _failed(self, error: Exception) -> bool:
        self._ports.on_error("vision", error)
        return True

    def _undeliverable(self, name: str, error: Exception) -> None:
        self._ports.on_error(name, error)
