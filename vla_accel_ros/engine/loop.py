"""What the GPU does next: one step of the loop over one queue of requests.

A step takes in what was posted, hands on what the device has computed, and for each lane that is free has the
rules choose the micro-requests that run now, together, and launches them. Finished requests leave the queue.
Requests of a stream of frames wait until there is something new to act on, so frames never queue up: the
newest wins. Chunks that a newer frame or instruction makes useless are cancelled.

A lane is a CUDA stream, not a thread: the loop launches into all of them, and waits for results only if it
has nothing else to do. While a worker thread runs, it computes what is not captured, and posts what came of
it.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import cast

from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.lanes.lane import Lane, Launched
from vla_accel_ros.engine.readiness import Readiness
from vla_accel_ros.engine.request import (
    ACT,
    ASK,
    CANCELLED,
    FINISHED,
    OBSERVE,
    RUNNING,
    WAITING,
    Cancelled,
    MicroBatch,
    Observe,
    Request,
)
from vla_accel_ros.engine.rules.rules import Rules
from vla_accel_ros.engine.runner.interface import Runner

POLL_S = 1e-4
"""Time from one look at the results of several lanes to the next, while some are expected."""


@dataclass(frozen=True)
class Stream:
    """Callbacks of a robot's running stream. due_s: returns when its next frame is expected, on the clock.
    on_ran: called with each micro-batch and when it began."""

    due_s: Callable[[], float] = lambda: math.inf
    on_ran: Callable[[MicroBatch, float], None] = lambda batch, began_s: None


class EngineLoop:
    """The queue of one engine, and a step of the loop over it, by one thread at a time.

    clock: monotonic seconds. lanes: where micro-batches run, by default one. Attributes: these; `streams`, of
    the robots, while they run; `runs_ahead`, whether launched work is waited for later; `moved`, whether the
    last step changed anything.
    """

    def __init__(
        self,
        runner: Runner,
        rules: Rules,
        clock: Callable[[], float] = time.monotonic,
        lanes: Sequence[Lane] = (),
    ) -> None:
        self.rules, self.profile, self.lanes = rules, rules.plan.profile, tuple(lanes) or (Lane(),)
        self._lane_of = {kind: lane for lane in self.lanes for kind in lane.kinds}
        self.streams: dict[str, Stream] = {}
        self.runs_ahead = self.moved = False
        self._runner, self.clock = runner, clock
        self._readiness = Readiness(runner.prefixes, runner.room)
        self._numbers = {want: itertools.count() for want in (ACT, ASK)}
        self._requests: dict[Request, None] = {}  # unfinished, in order of submission
        self._cancelled: dict[Request, bool] = {}  # of these, to be removed
        # None to wake the loop, and what the worker computed. Posting takes no lock, so that the garbage
        # collector may cancel in the middle of anything.
        self._inbox: SimpleQueue[tuple[Lane, Launched] | None] = SimpleQueue()
        self._taken: deque[tuple[Lane, Launched] | None] = deque()
        self._jobs: SimpleQueue[tuple[Lane, MicroBatch] | None] = SimpleQueue()
        self._worker: threading.Thread | None = None

    @property
    def requests(self) -> tuple[Request, ...]:
        """All unfinished requests, in order of submission."""
        return (*self._requests,)  # the garbage collector may cancel here: tuple() would count first

    @property
    def again_s(self) -> float:
        """When to step again if nothing is posted."""
        now_s = self.clock()
        times = [lane.wake_s(now_s) for lane in self.lanes]
        if sum(bool(lane.ahead) for lane in self.lanes) > 1:
            times = [max(wake_s, now_s + POLL_S) for wake_s in times]
        return min(times)

    def _step(self, lanes: Sequence[Lane]) -> tuple[Request, ...]:
        """Step the loop once for these lanes; returns the requests that advanced."""
        self.moved = False
        try:
            advanced = self._take_in()
            for lane in lanes:
                for launched in lane.over():
                    advanced += self._postprocess(lane, launched)
                if lane.is_free(self.clock()) and (batch := self._choose(lane)) is not None:
                    self._launch(lane, batch)
                    advanced += batch.requests
            if not advanced:
                advanced += self._wait_for_results(lanes)
            if not advanced:
                self._runner.idle()
            self.moved |= bool(advanced)
            return tuple(advanced)
        except BaseException:
            self._leave_finished()
            raise
        finally:
            self._reap()

    def _take_in(self) -> list[Request]:
        """Hand on what the worker computed, and remove cancelled requests."""
        advanced = list[Request]()
        with suppress(Empty):
            while True:
                self._taken.append(self._inbox.get_nowait())
        while self._taken:
            if (message := self._taken.popleft()) is not None:
                lane, launched = message
                lane.batch = None
                advanced += self._postprocess(lane, launched)
        self._reap()
        return advanced

    def _choose(self, lane: Lane) -> MicroBatch | None:
        """The lane's next micro-batch, whose requests have begun."""
        lane.again_s, now_s = math.inf, self.clock()
        waiting = [
            request
            for request in self.requests
            if request.status in (RUNNING, WAITING) and self._lane(request).batch is None
        ]
        ready = [r for r in waiting if r.status is not WAITING or self._readiness.is_ready(r, now_s)]
        due_s = min((stream.due_s() for stream in (*self.streams.values(),)), default=math.inf)
        batch = self.rules.next(lane.name, ready, now_s, due_s)
        if batch is None:
            wake_s = self.rules.wake_s(lane.name, ready, now_s)
            lane.again_s = min(self._readiness.due_again_s(waiting, now_s), wake_s)
            return None
        with lane.computing():
            for request in batch.requests:
                if request.status is WAITING:
                    self._begin(request)
        # One that begins drops those of another instruction.
        remaining = tuple(request for request in batch.requests if not request.cancelled)
        if len(remaining) < len(batch.requests):
            return replace(batch, requests=remaining) if remaining else None
        return batch

    def _launch(self, lane: Lane, batch: MicroBatch) -> None:
        """Launch a micro-batch behind the work that runs ahead, or have the worker compute it."""
        lane.chosen_s = self.clock()
        if self._worker is not None and not self._runner.is_captured(batch):
            lane.batch = batch
            self._jobs.put((lane, batch))
            return
        with lane.computing():
            launched = lane.launch(batch, self._runner.run)
        if self.runs_ahead and launched.wait is None and launched.device is not None:
            launched.wait = launched.device.seconds
            for request in batch.requests:
                if request.finished and self._leave(request):  # at its launch, such as a frame
                    request.report()
        if not self.runs_ahead or (launched.wait is None and not lane.ahead):
            self._postprocess(lane, launched)
        elif launched.wait is None:  # it is over when what is before it is
            lane.ahead.append(launched)
        else:
            soonest_s = self.profile.of(batch.kind, len(batch.requests)).soonest
            lane.run_ahead(launched, self.clock(), soonest_s)
            if launched.is_first:
                self._cancel_older(batch.requests[0], launched=False)
            if launched.is_followed:
                launched.reported = tuple(request for request in batch.requests if request.status is RUNNING)
                for request in launched.reported:
                    request.report()

    def _wait_for_results(self, lanes: Sequence[Lane]) -> Sequence[Request]:
        """Wait for the oldest work of a lane, if it should be over by now and no other lane has any; with
        several lanes they are looked at in turn."""
        now_s, pending = self.clock(), [lane for lane in lanes if lane.ahead]
        due = [lane for lane in pending if now_s >= lane.due_s]
        if not due or (len(pending) > 1 and due[0].ahead[0].device is not None):
            return ()
        return self._postprocess(due[0], due[0].ahead.popleft())

    def _postprocess(self, lane: Lane, launched: Launched) -> tuple[Request, ...]:
        """Wait for the results; finished requests leave the queue, free what they hold, and have on_progress
        called. Returns the requests."""
        batch = launched.batch
        launched.complete()
        took_s = lane.end(launched, self.clock())
        began_s = lane.ended_s - took_s
        # Of what ran ahead some may have been removed meanwhile.
        present = [request for request in batch.requests if request in self._requests]
        try:
            if launched.computed and all(request.error is None for request in batch.requests):
                self.profile.note(batch.kind, len(batch.requests), took_s)
            for request in present:
                if request.finished or request in self._cancelled:
                    self._leave(request)
                    if request.want == ACT and request.stream and request.result is not None:
                        # What another lane finishes of an older frame meanwhile is dropped.
                        self._cancel_older(request)
            self.rules.ran(batch, took_s)
            for stream in (*self.streams.values(),):
                stream.on_ran(batch, began_s)
        finally:
            for request in present:
                if request.finished or request not in launched.reported:
                    request.report()
        return batch.requests

    def _begin(self, request: Request) -> None:
        """Begin a request; one that fails at once is finished."""
        request.status, request.begun_s = RUNNING, self.clock()
        prefix, request.prefix = request.prefix, None
        try:
            if request.want == OBSERVE:
                self._observe(request)
                if request.finished:
                    return
            else:
                prefixes = self._runner.prefixes
                prefix = prefixes.newest(request.robot) if prefix is None else prefixes.hold(prefix)
                if prefix is None:
                    raise ValueError("nothing was observed yet; observe a frame first.")
                request.prefix = prefix
                request.instruction = prefix.instruction
                if request.want == ACT and request.stream:
                    self._cancel_other_instructions(request)
                    if request.cancelled:  # somebody cancelled this one meanwhile
                        return
            if request.want in self._numbers:
                request.number = next(self._numbers[request.want])
            if request.want == ACT:
                self._sense(request)
            self._runner.begin(request)
        except Exception as error:
            request.fail(error)
        except BaseException as error:  # a panic of what it calls: nobody is to compute the rest of it
            request.fail(Cancelled(f"a request to {request.want}: {error!r}"))
            raise
        if request.want == ACT and request.stream and prefix is not None:
            self._readiness.begun(request, prefix)

    def _observe(self, request: Request) -> None:
        """Take the newest observation; a request for which there is none is finished."""
        newest = cast(Observe, request.wish).newest
        if newest is not None:
            request.wish = Observe(newest())
            if request.observation is None:
                request.finish(None)

    def _sense(self, request: Request) -> None:
        """Take the newest joints, and tell the caller that its action begins."""
        act = request.act
        if act.sense is not None and (sensed := act.sense()) is not None:
            request.wish = replace(act, state=sensed[0], sensed_ns=sensed[1])
        if act.on_begin is not None:
            act.on_begin(request)

    def _leave_finished(self) -> None:
        """Remove what a panic has ended, which nobody launches again."""
        ahead = {r for lane in self.lanes for launched in lane.ahead for r in launched.batch.requests}
        for request in self.requests:
            if request.finished and request not in ahead and self._lane(request).batch is None:
                self._leave(request)
                request.report()

    def _lane(self, request: Request) -> Lane:
        """Where the request runs."""
        return self._lane_of.get(request.kind, self.lanes[0])

    def _chunks_beside(self, chunk: Request) -> list[Request]:
        """The other chunks in progress of the same robot's stream."""
        requests = (request for request in self.requests if request.robot == chunk.robot)
        return [r for r in requests if r.want == ACT and r.stream and r.begun and r is not chunk]

    def _cancel_other_instructions(self, new: Request) -> None:
        """Cancel the chunks of a robot's stream for another instruction than the new one's, now: nobody wants
        them, and it may need their seats."""
        for chunk in self._chunks_beside(new):
            if chunk.instruction != new.instruction:
                self._cancelled[chunk] = True
        self._reap()

    def _cancel_older(self, new: Request, launched: bool = True) -> None:
        """Cancel the chunks of a robot's stream that began before this one, which is finished or soon will
        be: nobody wants them then. launched: also those of other lanes, and whose results are on their
        way."""
        for chunk in self._chunks_beside(new):
            in_lane = self._lane(chunk) is self._lane(new)
            if chunk.number < new.number and (launched or (in_lane and not chunk.launched)):
                self._cancelled[chunk] = True

    def _reap(self) -> None:
        """Remove cancelled requests, but those of a lane whose work the worker computes."""
        for request in (*self._cancelled,):
            if self._lane(request).batch is None and self._leave(request):
                request.report()

    def _leave(self, request: Request) -> bool:
        """Free what a request holds and remove it; False if it is not in the queue.

        This happens in the context of the lane where it ran, so that memory it reads is reused only after
        that lane's work.
        """
        begun = request.status is not WAITING
        cancelled = self._cancelled.pop(request, False)
        if request not in self._requests:
            return False
        self.moved = True
        try:
            with self._lane(request).computing(), ExitStack() as prefix:
                if request.want != OBSERVE and begun and request.prefix is not None:
                    prefix.callback(request.prefix.release)
                if cancelled and isinstance(request.result, Prefix):
                    prefix.callback(request.result.release)
                if begun:
                    self._runner.drop(request)
        finally:
            if cancelled:
                request.result = None
            request.status = CANCELLED if cancelled else FINISHED
            del self._requests[request]
        return True
