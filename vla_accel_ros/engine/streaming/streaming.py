"""A running stack over one engine: frames come in, chunks and texts go out, each at its own rate.

This module decides nothing: every frame, chunk and question is a request, which a lane of the scheduler runs.
Vision submits the newest observation at its rate. One action request always waits for something new to act
on: a frame, newer joints for a model with a state token, or newly committed points when chunks are guided
(engine.readiness). Questions wait for room. When nobody asks, the model continues its own prompt
at its rate. A separate thread delivers the results (engine.streaming.ports).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

from vla_accel_ros.engine.actors.flow import FRAME_SLOTS
from vla_accel_ros.engine.config import FRESH_FIRST
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.grid import Grid
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.request import ASK, Act, Ask, MicroBatch, Observe, Pace, Request, Waits
from vla_accel_ros.engine.rules.overload import Degradation
from vla_accel_ros.engine.scheduler import Stream
from vla_accel_ros.engine.streaming.loop import Loop, LoopRecord, LoopStats
from vla_accel_ros.engine.streaming.ports import Chunking, Ports, Results, Text
from vla_accel_ros.types import Chunk, Torn

MOST_WAITING = 16
"""Most questions that wait for room."""


class Streaming:
    """One robot's stream over an engine; start() and stop() may be called repeatedly.

    action: the highest rate of further chunks from one frame, for newer joints or newly committed points; a
        new frame gets a chunk at once.
    language: how often the model continues its own prompt; None: it answers only questions. If a text takes
        longer than a period, several are written at once, each about its own frame, and share their forwards.
    max_tokens: of the longest answer.

    A prefix that existed before start() (a warm-up, or the last one before a pause) is never acted on.
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
        self._pace, self._action, self._max_tokens = vision, action, max_tokens
        self._grid = Grid(action.period_s)
        self._language = language if engine.policy.chain.answers else None
        self._chunking = chunking
        self._vision = Loop(
            "vision",
            vision.rate_hz,
            vision.most_s,
            self.run_vision,
            lambda error: ports.on_error("vision", error),
            awaited=ports.frames,
        )
        self._records = {"action": LoopRecord("action", action.rate_hz)}
        if engine.policy.chain.answers:
            self._records["language"] = LoopRecord("language", language.rate_hz if language else 0.0)
        # The waiting action requests by Act.first: one for everything, or one each for first and further
        # chunks.
        self._next: dict[bool | None, Request] = {}
        self._firsts = (True, False) if engine.config.staggering == FRESH_FIRST else (None,)
        self._narrated, self._narrate_s = -1, -math.inf
        self._delivered: dict[Request, str] = {}  # the text of each answer so far
        self._running = False
        self._results = Results(lambda name: self._records[name].note_miss(), ports.on_error)

    def start(self) -> None:
        """Start, and ignore every frame that exists. Raises ValueError if a stream of the robot runs
        already."""
        scheduler = self._scheduler
        scheduler.join(self._robot, Stream(lambda: self._vision.expects_s, self._ran))
        scheduler.skip(self._robot)
        self._narrated = self._engine.runner.prefixes.newest_version(self._robot)
        self._running = True
        self._results.start()
        self._want_chunks()
        self._vision.start()

    def stop(self) -> None:
        """Stop and wait for the threads; requests end after their present micro-batch."""
        self._running = False
        self._results.end()
        self._vision.stop()
        self._scheduler.leave(self._robot)
        self._next = {}
        self._results.stop()

    def forget(self) -> None:
        """Abandon chunks that have begun, because the robot was moved in another way meanwhile."""
        self._scheduler.forget(self._robot)

    def joints_came(self) -> None:
        """Newer joints arrived: a request that waits for them begins now instead of at the next poll."""
        if self._running and self._engine.policy.chain.takes_state:
            self._grid.arrived(now_s := self._scheduler.clock())
            if now_s >= self._grid.due_s:
                self._scheduler.wake()

    def stats(self) -> list[LoopStats]:
        """Rate and duration of vision, actions and language (of language: of its forwards). Counts of runs
        given up start with the engine."""
        degradation = self.degradation
        given_up = {
            "vision": degradation.frames.get(self._robot, 0),
            "action": degradation.chunks.get(self._robot, 0),
        }
        stats = [self._vision.stats(), *(record.stats() for record in self._records.values())]
        return [replace(record, given_up=given_up.get(record.name, 0)) for record in stats]

    @property
    def degradation(self) -> Degradation:
        """What the engine gives up for overload now, and what it has given up so far."""
        return self._scheduler.rules.overload.degradation

    def ask(self, question: str) -> None:
        """Submit a question about the frame that is newest when there is room to answer it.

        Raises ValueError if it is empty, if too many questions wait, or if the model has no language head.
        """
        if not self._engine.policy.chain.answers:
            kind = self._engine.policy.config.kind
            raise ValueError(f"a {kind} policy has no language head; ask it nothing.")
        if not question.strip():
            raise ValueError("the question is empty: say what to answer")
        waiting = sum(not request.begun for request in self._asks())
        if waiting >= MOST_WAITING:
            raise ValueError(f"{MOST_WAITING} questions wait already: {question!r} is not taken, ask later")
        self._scheduler.submit(self._ask(question))

    def cancel(self) -> int:
        """Cancel all answers and waiting questions; returns how many there were."""
        asks = self._asks()
        self._scheduler.cancel(*asks)
        return len(asks)

    def run_vision(self) -> bool:
        """One run of vision: computes a prefix of the observation that is newest when the loop takes the
        request.

        Returns False if there was no new observation, or if its images were overwritten meanwhile; the owner
        of the images counts the latter.
        """
        scheduler = self._scheduler
        request = Request(Observe(newest=self._ports.observe), self._robot, pace=self._pace)
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

    def _want_chunk(self, first: bool | None) -> None:
        """Submit the request for the next chunk, which waits for something new to act on; see Act.first."""
        chunking = self._chunking
        wish = Act(
            first=first,
            grid=self._grid,
            sense=self._ports.newest_state if self._engine.policy.chain.takes_state else None,
            commits=None if chunking is None else chunking.committed,
            on_begin=None if chunking is None else chunking.begin,
        )
        self._next[first] = request = Request(
            wish,
            self._robot,
            priority=int(first is True),
            waits=Waits.NEWS,
            pace=self._action,
            on_progress=self._acted,
        )
        self._scheduler.submit(request)

    def _acted(self, request: Request) -> None:
        first = request.act.first
        if request is self._next.get(first) and self._running:
            if first is not True:
                self._grid.began(request.begun_s)
            self._want_chunk(first)
        if not request.finished or request.cancelled:
            return
        try:
            if request.error is not None:
                raise request.error
            request.result = self._ports.limit(cast(Chunk, request.result), request.instruction)
        except Exception as error:
            self._results.give(self._ports.on_error, "action", error)
            return
        if self._chunking is not None:
            self._chunking.made(request)
        took_s = self._records["action"].note(request.begun_s, self._action.most_s)
        self._results.give(self._ports.on_chunk, request.result, took_s)

    def _narrate(self, prefix: Prefix) -> None:
        """Submit a text in which the model continues its own prompt, if it is due and there is room."""
        if self._language is None or not self._running or prefix.version == self._narrated:
            return
        now_s, period_s = self._scheduler.clock(), self._language.period_s
        if now_s < self._narrate_s or not self._may_narrate():
            return
        due_s = self._narrate_s if now_s - self._narrate_s < period_s else now_s
        self._narrated, self._narrate_s = prefix.version, due_s + period_s
        self._scheduler.submit(self._ask(None))

    def _may_narrate(self) -> bool:
        """Whether another unasked text may begin: none of this robot waits, and they leave a place for an
        answer and a slot for its frame."""
        config = self._engine.config
        unasked = [r for r in self._scheduler.requests if r.want == ASK and not r.priority]
        narrations = [request for request in unasked if request.robot == self._robot]
        spare = config.slots - max(1, config.staggered) - FRAME_SLOTS
        return not narrations or (
            all(r.begun for r in narrations) and len(unasked) < min(config.answers - 1, spare)
        )

    def _ask(self, question: str | None) -> Request:
        return Request(
            Ask(question, self._max_tokens),
            self._robot,
            priority=int(question is not None),
            waits=Waits.NEWS,
            on_progress=self._said,
        )

    def _asks(self) -> list[Request]:
        return [r for r in self._scheduler.requests if r.want == ASK and r.robot == self._robot]

    def _said(self, request: Request) -> None:
        delivered = self._delivered.pop(request, "")
        if request.cancelled:
            return
        if request.error is not None:
            self._results.give(self._ports.on_error, "language", request.error)
            return
        text = str(request.result or "")
        if not request.finished:
            self._delivered[request] = text
        if request.finished or text != delivered:
            answer = Text(request.frame, request.number, text, request.finished)
            self._results.give(self._ports.on_text, answer)

    def _ran(self, batch: MicroBatch, began_s: float) -> None:
        if batch.requests[-1].want == ASK and any(record.robot == self._robot for record in batch.requests):
            most_s = math.inf if self._language is None else self._language.most_s
            self._records["language"].note(began_s, most_s)
