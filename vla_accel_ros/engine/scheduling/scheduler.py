"""Decides what runs next: schedule, run, postprocess.

Everything wanted of an engine is a `Request` in one queue. In each step the scheduling rules choose the
micro-requests that run now, together; the runner computes them; finished requests leave the queue. Requests
of a stream of frames wait until there is something new to act on, so frames never queue up: the newest wins.

Several lanes may run at once. They choose one after another, and never run requests of one kind (frames,
staggered actions, whole actions, text) at the same time, so the code that computes a kind needs no lock. Work
that the GPU still computes when a lane chooses again (`Lane.ahead`) comes earlier in the lane's stream.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from vla_accel_ros.engine.kv.pool import Prefix
from vla_accel_ros.engine.lanes.lane import Lane, Launched
from vla_accel_ros.engine.lanes.times import note
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, Cancelled, MicroBatch, Request
from vla_accel_ros.engine.rules.overload import Degradation
from vla_accel_ros.engine.rules.rules import Rules
from vla_accel_ros.engine.scheduling.interface import Runner
from vla_accel_ros.engine.scheduling.queue import Queue, tell
from vla_accel_ros.engine.scheduling.readiness import Readiness
from vla_accel_ros.engine.scheduling.streams import Stream, Streams

FAILED_AGAIN_S = 0.1
"""Pause of a lane's thread after a step that failed."""

_LOG = logging.getLogger(__name__)


class Scheduler:
    """The requests of one engine. Safe to use from several threads.

    clock: monotonic seconds. lanes: where micro-batches run, by default one. Attribute `streams`: of the
    robots, while they run.
    """

    def __init__(
        self,
        runner: Runner,
        rules: Rules,
        clock: Callable[[], float] = time.monotonic,
        lanes: Sequence[Lane] = (),
    ) -> None:
        self.rules, self.profile, self.lanes = rules, rules.plan.profile, tuple(lanes) or (Lane(),)
        self.streams = Streams(self.start, self._stop_lanes)
        self._runner, self._clock = runner, clock
        self._queue = Queue(self.lanes, runner.drop, self.now_s)
        self._readiness = Readiness(runner.prefixes, runner.room)
        self._numbers = {want: itertools.count() for want in (ACT, ASK)}

    @property
    def requests(self) -> tuple[Request, ...]:
        """All unfinished requests, in order of submission."""
        return self._queue.requests

    @property
    def degradation(self) -> Degradation:
        """What is given up for overload now, and what has been given up so far."""
        return self.rules.degradation

    def now_s(self) -> float:
        """Seconds on the scheduler's clock."""
        return self._clock()

    def newest(self, robot: str = "") -> Prefix | None:
        """A robot's newest prefix, held for the caller, or None before the first observation."""
        return self._runner.prefixes.newest(robot)

    def submit(self, request: Request) -> Request:
        """Queue a request; returns it. Raises ValueError if this engine cannot compute it, QueueFull if too
        many requests are unfinished and it belongs to no stream."""
        request.stage = self._runner.first_stage(request)
        request.kind = self._runner.kind(request)
        self._queue.add(request)
        return request

    def step(self, lane: Lane | None = None) -> tuple[Request, ...]:
        """Schedule, run and postprocess one micro-batch; returns the requests that advanced, () if none did.

        Do not call it from callbacks that the lane calls (on_begin, on_progress, on_ran): those may submit
        and cancel.
        """
        lane = lane or self.lanes[0]
        lane.lock.acquire()
        return self._step(lane)

    def wait(self, request: Request, until: Callable[[Request], bool] = lambda r: r.released) -> Request:
        """Return when nothing is held for the request any longer, or when `until` is true. Steps the lanes
        that have no thread meanwhile. Any thread may call `until`, with the queue locked, so it must take no
        lock.

        Raises the request's error, or Cancelled if it was cancelled.
        """

        def there() -> bool:
            return until(request) or request.released

        while True:
            seen = self._queue.changes
            if there():
                break
            if self._running():
                self._queue.wait_for(lambda: there() or not self._running())
                continue
            mine, advanced = list[Lane](), False
            for lane in self.lanes:  # a step may raise, so no other lane's lock is held meanwhile
                if not lane.running and lane.lock.acquire(blocking=False):
                    mine.append(lane)
                    advanced |= bool(self._step(lane))
            if not advanced:
                self._queue.wait(seen, min((lane.again_s for lane in mine), default=math.inf))
        if request.error is not None:
            raise request.error
        if request.cancelled:
            raise Cancelled(f"the request to {request.want} was cancelled before it was finished")
        return request

    def wake(self) -> None:
        """Have all waiting threads check again: something may have changed, such as the joints that requests
        sense."""
        self._queue.wake()

    def cancel(self, *requests: Request) -> None:
        """Cancel these requests; a running micro-batch is computed to its end. Call it from any thread, also
        from the garbage collector. Ignores finished requests."""
        self._queue.cancel(requests)
        self._queue.settle()

    def forget(self, robot: str | None = None) -> None:
        """Cancel the action requests that have begun, of one robot or of all: the robot was moved in another
        way."""
        self.cancel(*(r for r in self._queue.acting() if robot in (None, r.robot)))

    def skip(self, robot: str = "") -> None:
        """Act on none of the robot's present frames."""
        self._readiness.skip(robot)

    def start(self) -> None:
        """Give each lane a thread."""
        for lane in self.lanes:
            lane.start(partial(self._step_or_wait, lane))

    def stop(self) -> None:
        """End the threads, and cancel all unfinished requests."""
        self._stop_lanes()
        self.cancel(*self.requests)

    def join(self, robot: str, stream: Stream) -> None:
        """Begin a robot's stream; the first stream starts the lanes' threads. Raises ValueError if it runs
        already."""
        self.streams.join(robot, stream)

    def leave(self, robot: str) -> None:
        """End a robot's stream and cancel its requests; the last stream stops the lanes' threads, and whoever
        still waits for a request steps the lanes. Returns after the running micro-batches, unless a lane's
        thread calls it."""
        entered = any(lane.entered for lane in self.lanes)
        if not self.streams.leave(robot):
            return
        requests = [one for one in self.requests if one.stream and one.robot == robot]
        self.cancel(*requests)
        if not entered:
            for request in requests:
                with suppress(Exception):  # it was cancelled, or failed: nobody is told here
                    self.wait(request)

    def _running(self) -> bool:
        """Whether all lanes have threads."""
        return all(lane.running for lane in self.lanes)

    def _stop_lanes(self) -> None:
        for lane in self.lanes:
            lane.stop(self.wake)
        self.wake()

    def _step_or_wait(self, lane: Lane, given_up: Callable[[], bool]) -> None:
        """Step the lane, or wait until a step may be useful."""
        seen = self._queue.changes
        try:
            if self.step(lane):
                return
        except Exception:  # a request's own error is in the request; this is a defect, and must be seen
            _LOG.exception("lane '%s': a step failed; it goes on", lane.name)
            seen, lane.again_s = self._queue.changes, self._clock() + FAILED_AGAIN_S
        self._queue.wait(seen, lane.again_s, given_up)

    def _step(self, lane: Lane) -> tuple[Request, ...]:
        """One step by a caller that holds the lane's lock; releases the lock."""
        idle = False
        try:
            with lane.computing():
                before = tuple(lane.ahead)
                self._hand_on(lane)
                batch = None if self._holds_off(lane) else self._schedule(lane)
                if batch is None:
                    self._runner.idle()
                    if lane.looks_out(self._clock()):
                        idle = True
                        return ()
                launched = self._run(lane, batch)
                self._postprocess(lane, launched)
                over = [one.batch.requests for one in before if one not in lane.ahead]
                advanced = [request for requests in over for request in requests]
                advanced += batch.requests if batch else ()
                idle = not advanced
                return tuple(advanced)
        finally:
            try:
                self._end(lane)
            finally:
                lane.lock.release()
            # Who found the lane taken meanwhile waits for a change; what it brought may not have been seen.
            if not idle or self._queue.changes != lane.looked:
                self.wake()
            self._queue.settle()

    def _hand_on(self, lane: Lane) -> None:
        """Postprocess the oldest work ahead that is over on the device."""
        for launched in lane.over():
            self._postprocess(lane, launched)

    def _holds_off(self, lane: Lane) -> bool:
        """Whether the lane chooses nothing now, whatever is there."""
        if not lane.holds_off(self._clock()):
            return False
        self._queue.look(lane)
        return True

    def _schedule(self, lane: Lane) -> MicroBatch | None:
        """The lane's next micro-batch, whose requests have begun."""
        try:
            with self._queue.choosing:
                self._queue.reap()
                batch = self._choose(lane)
                lane.batch, lane.chosen_s = () if batch is None else batch.requests, self._clock()
        finally:
            self._queue.tell_left()
        return batch

    def _run(self, lane: Lane, batch: MicroBatch | None) -> Launched | None:
        """Launch a micro-batch behind the work that runs ahead, and postprocess what is due of that work.
        Returns the launch to postprocess, None if it runs ahead itself. Without a batch, postprocesses the
        oldest work ahead."""
        if batch is None:
            self._postprocess(lane, lane.ahead.popleft() if lane.ahead else None)
            return None
        launched = None
        try:
            launched = lane.launch(batch, self._runner.run)
        finally:
            for before in lane.due(launched):
                self._postprocess(lane, before)
        if not (lane.runs_ahead and launched.is_followed):
            return launched
        takes_s = self.profile.of(batch.kind, len(batch.requests)).soonest
        lane.run_ahead(launched, self._clock(), takes_s)
        if launched.is_first:
            self._queue.cancel_older(batch.requests[0], lambda one: one.lane == lane.name and not one.awaited)
        launched.told = tuple(r for r in batch.requests if not (r.awaited or r.released))
        for request in launched.told:
            tell(request)
        return None

    def _postprocess(self, lane: Lane, launched: Launched | None) -> None:
        """Wait for the results; finished requests leave the queue, free what they hold, and have on_progress
        called."""
        if launched is None:
            return
        batch = launched.batch
        with self._taking_in(lane, batch):
            launched.complete()
        took_s, there = lane.took(launched, self._clock()), list[Request]()
        began_s = lane.ended_s - took_s
        note(lane.name, batch, began_s, lane.ended_s)
        try:
            with self._queue.choosing:
                # Of what ran ahead some may have been taken out meanwhile.
                there = [request for request in batch.requests if not request.released]
                if launched.computed and all(request.error is None for request in batch.requests):
                    self.profile.note(batch.kind, len(batch.requests), took_s)
                for request in there:
                    if request.finished or request.cancelled:
                        self._queue.leave(request)
                        if request.want == ACT and request.stream and request.result is not None:
                            # What another lane finishes of an older frame meanwhile is dropped.
                            self._queue.cancel_older(request)
                    request.done += 1
                self.rules.ran(batch, took_s)
            self.streams.ran(batch, began_s)
        finally:
            for request in there:
                if request.released or request not in launched.told:
                    tell(request)

    @contextmanager
    def _taking_in(self, lane: Lane, batch: MicroBatch) -> Iterator[None]:
        """While answers take in their tokens, text counts as running, so that no answer leaves the queue."""
        words = tuple(request for request in batch.requests if request.kind == ASK)
        if not words:
            yield
            return
        with self._queue.choosing:
            running, lane.batch = lane.batch, (*lane.batch, *words)
        try:
            yield
        finally:
            lane.batch = running

    def _end(self, lane: Lane) -> None:
        """The lane runs nothing any longer; cancelled requests leave the queue."""
        with self._queue.choosing:
            lane.batch = ()
            self._queue.reap()
        self._queue.tell_left()

    def _choose(self, lane: Lane) -> MicroBatch | None:
        lane.again_s = math.inf
        queue = self._queue.look(lane)
        now_s, elsewhere = self._clock(), self._queue.kinds_running()
        waiting = [r for r in queue if not r.awaited and r.kind not in elsewhere]
        ready = [r for r in waiting if r.begun or self._readiness.is_ready(r, now_s)]
        batch = self.rules.next(lane.name, ready, now_s, self.streams.due_s())
        if batch is None:
            wake_s = self.rules.wake_s(lane.name, ready, now_s)
            lane.again_s = min(self._readiness.due_again_s(queue, now_s), wake_s)
            return None
        for request in batch.requests:
            request.lane = lane.name
            if not (request.begun or request.released):
                self._begin(request)
        # One that begins drops those of another instruction.
        left = tuple(request for request in batch.requests if not request.released)
        if len(left) == len(batch.requests):
            return batch
        return replace(batch, requests=left) if left else None

    def _begin(self, request: Request) -> None:
        """Begin a request; one that fails at once is finished."""
        request.begun, request.begun_s = True, self._clock()
        held, request.prefix = request.prefix, None
        try:
            if request.observe is not None:
                request.observation = request.observe()
                if request.observation is None:
                    request.finished = True
                    return
            if request.want != OBSERVE:
                prefixes = self._runner.prefixes
                held = prefixes.newest(request.robot) if held is None else prefixes.hold(held)
                if held is None:
                    raise ValueError("nothing was observed yet; observe a frame first.")
                request.prefix = held
                request.instruction = held.instruction
                if request.want == ACT and request.stream:
                    self._queue.cancel_other_instructions(request)
            if request.want in self._numbers:
                request.number = next(self._numbers[request.want])
            if request.sense is not None and (sensed := request.sense()) is not None:
                request.state, request.sensed_ns = sensed
            if request.on_begin is not None:
                request.on_begin(request)
            self._runner.begin(request)
        except Exception as error:
            request.error, request.finished = error, True
        except BaseException as error:  # a panic of what it calls: nobody is to compute the rest of it
            request.error, request.finished = Cancelled(f"a request to {request.want}: {error!r}"), True
            raise
        if request.want == ACT and request.stream and held is not None:
            self._readiness.begun(request, held)
