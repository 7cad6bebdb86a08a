"""The one place that decides what runs next: schedule, run, postprocess.

All that anybody wants of an engine is a `Request` in one queue. A step asks the policy which micro-requests
run now, together; the runner computes them; what is finished leaves the queue. Requests of a stream of frames
wait until there is something new to act on, so frames never queue: the newest wins.

Several lanes may run at once. They choose one after another, and never run requests of one kind (frames,
actions in seats, whole actions, text) at the same time: what computes a kind is its own, and needs no lock.
What the GPU still computes when a lane chooses again (`Lane.ahead`) is behind it in the lane's stream.
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
from typing import Protocol

from vla_accel_ros.engine.kv.pool import Prefix, Prefixes
from vla_accel_ros.engine.lanes.lane import Lane, Launched, Stream, Streams
from vla_accel_ros.engine.lanes.times import note
from vla_accel_ros.engine.policies.overload import Degradation, Degrading
from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.queue import Queue, tell
from vla_accel_ros.engine.readiness import Readiness
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, Cancelled, MicroBatch, Request

FAILED_AGAIN_S = 0.1
"""How soon a lane's thread goes on after a step that failed."""

_LOG = logging.getLogger(__name__)


class Runner(Protocol):
    """Computes micro-batches. `run` may be called by several lanes at once, for requests of different kinds;
    while it runs, the others may be called for requests of other kinds, but not at once."""

    prefixes: Prefixes

    def first_stage(self, request: Request) -> str:
        """The stage that a request begins with. Raises ValueError for one that this policy does not have."""
        ...

    def kind(self, request: Request) -> str:
        """What computes it, see `Request.kind`; does not change from submission on."""
        ...

    def room(self, request: Request) -> bool:
        """Whether there is room to begin it."""
        ...

    def begin(self, request: Request) -> None:
        """Take a request in, whose prefix is held and whose state is known."""
        ...

    def run(self, batch: MicroBatch) -> Callable[[], None] | None:
        """Advance the requests: `finished` and `result` of those that are finished, `error` of those that
        failed. What it raises is the error of all of them.

        Where that is not known before the device has computed it, it returns what waits for it and then sets
        it, and has set `awaited` of the requests of which nothing more can be launched until then. The lane
        may launch the next one before it calls that. What it raises is the error of all of them, too.
        """
        ...

    def drop(self, request: Request) -> None:
        """Give back what a request holds beside its prefix; it is finished, failed or cancelled."""
        ...


class Scheduler:
    """The requests of one engine. Safe to use from several threads.

    clock: monotonic seconds. lanes: where micro-batches run; none: one. streams: of robots, that run.
    """

    def __init__(
        self,
        runner: Runner,
        policy: Policy,
        profile: Profile | None = None,
        clock: Callable[[], float] = time.monotonic,
        lanes: Sequence[Lane] = (),
    ) -> None:
        self.policy, self.profile, self.lanes = policy, profile or Profile(), tuple(lanes) or (Lane(),)
        self.streams = Streams(self.start, self.stop)
        self._runner, self._clock = runner, clock
        self._queue = Queue(self.lanes, runner.drop, self.now_s)
        self._readiness = Readiness(runner.prefixes, runner.room)
        self._numbers = {want: itertools.count() for want in (ACT, ASK)}

    @property
    def requests(self) -> tuple[Request, ...]:
        """All that are not finished, in order of submission."""
        return self._queue.requests

    @property
    def degradation(self) -> Degradation:
        """What is given up for overload, and what was so far."""
        return self.policy.degradation if isinstance(self.policy, Degrading) else Degradation()

    def now_s(self) -> float:
        """By the clock."""
        return self._clock()

    def newest(self, robot: str = "") -> Prefix | None:
        """A robot's newest prefix, held for the caller, or None before the first observation."""
        return self._runner.prefixes.newest(robot)

    def submit(self, request: Request) -> Request:
        """Queue a request; returns it. Raises ValueError for one that this engine cannot compute, QueueFull
        for one of no stream if too many are not finished."""
        request.stage = self._runner.first_stage(request)
        request.kind = self._runner.kind(request)
        self._queue.add(request)
        return request

    def step(self, lane: Lane | None = None) -> tuple[Request, ...]:
        """Schedule, run, postprocess: one micro-batch; returns the requests in it, () if none may run now.

        Not for what the lane calls (on_begin, on_progress, on_ran): those submit and cancel.
        """
        lane = lane or self.lanes[0]
        lane.lock.acquire()
        return self._step(lane)

    def wait(self, request: Request, until: Callable[[Request], bool] = lambda r: r.released) -> Request:
        """Return when nothing is held for a request any longer, or when `until` is true; steps the lanes
        meanwhile where nobody else does. `until` is asked by any thread, with the queue locked: it takes no
        lock.

        Raises what it failed with, Cancelled if it was cancelled.
        """

        def there() -> bool:
            return until(request) or request.released

        while True:
            seen = self._queue.changes
            if there():
                break
            if all(lane.running for lane in self.lanes):
                self._queue.wait_for(there)
                continue
            mine = [one for one in self.lanes if not one.running and one.lock.acquire(blocking=False)]
            if not [True for lane in mine if self._step(lane)]:
                self._queue.wait(seen, min((lane.again_s for lane in mine), default=math.inf))
        if request.error is not None:
            raise request.error
        if request.cancelled:
            raise Cancelled(f"the request to {request.want} was cancelled before it was finished")
        return request

    def wake(self) -> None:
        """Have all who wait check again: something may have changed."""
        self._queue.wake()

    def cancel(self, *requests: Request) -> None:
        """Finish none of these; a micro-batch that runs is computed to its end. From any thread, and from
        what the garbage collector calls. Does nothing to what is finished already."""
        self._queue.cancel(requests)
        self._queue.settle()

    def forget(self, robot: str | None = None) -> None:
        """Cancel the action requests that have begun, of one robot or all: it was moved otherwise."""
        self.cancel(*(r for r in self.requests if r.want == ACT and r.begun and robot in (None, r.robot)))

    def skip(self, robot: str = "") -> None:
        """Act on no frame that there is already."""
        self._readiness.skip(robot)

    def start(self) -> None:
        """Give each lane a thread."""
        for lane in self.lanes:
            lane.start(partial(self._turn, lane))

    def stop(self) -> None:
        """End the threads, and cancel what is not finished."""
        for lane in self.lanes:
            lane.stop(self.wake)
        self.cancel(*self.requests)

    def join(self, robot: str, stream: Stream) -> None:
        """A robot's stream begins; with the first, the lanes get threads. Raises ValueError if it runs."""
        self.streams.join(robot, stream)

    def leave(self, robot: str) -> None:
        """A robot's stream ends, and what is not finished of it; with the last, the threads of the lanes.
        Returns after the micro-batches that run, unless it is called in one."""
        if not self.streams.leave(robot):
            return
        requests = [request for request in self.requests if request.robot == robot]
        self.cancel(*requests)
        if not any(lane.entered for lane in self.lanes):
            for request in requests:
                with suppress(Exception):  # it was cancelled, or failed: nobody is told here
                    self.wait(request)

    def _turn(self, lane: Lane, given_up: Callable[[], bool]) -> None:
        """Step, or wait until that may be of use."""
        seen = self._queue.changes
        try:
            if self.step(lane):
                return
        except Exception:  # a request's own error is in the request; this is a defect, and must be seen
            _LOG.exception("lane '%s': a step failed; it goes on", lane.name)
            seen, lane.again_s = self._queue.changes, self._clock() + FAILED_AGAIN_S
        self._queue.wait(seen, lane.again_s, given_up)

    def _step(self, lane: Lane) -> tuple[Request, ...]:
        """With the lane's lock, which is given back."""
        idle = False
        try:
            with lane.computing():
                before = tuple(lane.ahead)
                batch = self._schedule(lane) if self._chooses(lane) else None
                if batch is None and lane.looks_out(self._clock()):
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

    def _chooses(self, lane: Lane) -> bool:
        """Whether the lane chooses what to run next. Where it chose nothing and nothing has changed since, it
        comes for what runs ahead."""
        now_s = self._clock()
        if lane.holds_off(now_s):
            self._queue.look(lane)
            lane.idle_s = -math.inf
            return False
        same = lane.looked == self._queue.changes and now_s < lane.idle_s
        return not (same and lane.ahead and lane.runs_ahead)

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
        """Launch it behind what runs ahead, of which the older is postprocessed; None if it may run ahead
        itself. Where there is none, the oldest of what runs ahead is."""
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
        lane.run_ahead(launched, self._clock())
        if launched.is_first:
            self._drop_older(batch.requests[0], lambda one: one.lane == lane.name and not one.awaited)
        launched.told = tuple(r for r in batch.requests if not (r.awaited or r.released))
        for request in launched.told:
            tell(request)
        return None

    def _postprocess(self, lane: Lane, launched: Launched | None) -> None:
        """Wait for its results; the finished leave, give back what they hold, and are told."""
        if launched is None:
            return
        batch = launched.batch
        if batch.requests[-1].kind == ASK:
            with self._taking_in(lane, batch):
                launched.complete()
        else:
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
                        self._drop_overtaken(request)
                    request.done += 1
                self.policy.ran(batch, took_s)
            self.streams.ran(batch, began_s)
        finally:
            for request in there:
                if request.released or request not in launched.told:
                    tell(request)

    @contextmanager
    def _taking_in(self, lane: Lane, batch: MicroBatch) -> Iterator[None]:
        """While answers are told their tokens, text runs: no answer is taken out then."""
        with self._queue.choosing:
            running, lane.batch = lane.batch, (*lane.batch, *batch.requests)
        try:
            yield
        finally:
            lane.batch = running

    def _end(self, lane: Lane) -> None:
        """The lane runs nothing any more; who was cancelled meanwhile is taken out."""
        lane.batch = ()
        if self._queue.cancels:
            with self._queue.choosing:
                self._queue.reap()
            self._queue.tell_left()

    def _choose(self, lane: Lane) -> MicroBatch | None:
        lane.again_s, lane.idle_s = math.inf, -math.inf
        queue = self._queue.look(lane)
        now_s, elsewhere = self._clock(), self._queue.kinds_running()
        ready = [
            request
            for request in queue
            if not request.awaited
            and request.kind not in elsewhere
            and (request.begun or self._readiness.is_ready(request, now_s))
        ]
        batch = self.policy.next(lane.name, ready, now_s, self.streams.due_s())
        if batch is None:
            again_s = min(self._readiness.due_again_s(queue, now_s), self.policy.wake_s(ready, now_s))
            lane.again_s = lane.idle_s = again_s
            return None
        for request in batch.requests:
            request.lane = lane.name
        begins = [request for request in batch.requests if not request.begun]
        if not begins:
            return batch
        for request in begins:
            if not request.released:
                self._begin(request)
        # One that begins drops those of another instruction.
        left = tuple(request for request in batch.requests if not request.released)
        if len(left) == len(batch.requests):
            return batch
        return replace(batch, requests=left) if left else None

    def _begin(self, request: Request) -> None:
        """Take a request in; one that fails at once is finished."""
        request.begun, request.begun_s = True, self._clock()
        held, request.prefix = request.prefix, None
        try:
            if request.observe is not None:
                request.observation = request.observe()
                if request.observation is None:
                    request.finished = True
                    return
            if request.want != OBSERVE:
                request.prefix = held = self._hold(held, request.robot)
                request.instruction = held.instruction
                if request.want == ACT and request.stream:
                    self._drop_other_words(request)
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

    def _hold(self, prefix: Prefix | None, robot: str) -> Prefix:
        prefixes = self._runner.prefixes
        if prefix is not None:
            return prefixes.hold(prefix)
        newest = prefixes.newest(robot)
        if newest is None:
            raise ValueError("nothing was observed yet; observe a frame first.")
        return newest

    def _drop_other_words(self, new: Request) -> None:
        """Nobody wants the actions of an instruction that is no more."""
        others = [
            old for old in self._acting(new.robot) if old is not new and old.instruction != new.instruction
        ]
        if others:
            self._queue.cancel(others)
            self._queue.reap()

    def _drop_overtaken(self, by: Request) -> None:
        """Nobody wants the actions of an older frame once those of a newer one are there. One that another
        lane finishes meanwhile comes to nothing."""
        if by.want == ACT and by.stream and by.result is not None:
            self._drop_older(by)

    def _drop_older(self, than: Request, which: Callable[[Request], bool] = lambda one: True) -> None:
        older = [one for one in self._acting(than.robot) if one.number < than.number and which(one)]
        if older:
            self._queue.cancel(older)

    def _acting(self, robot: str) -> Iterator[Request]:
        """Chunks of a robot's stream that have begun."""
        return (r for r in self.requests if r.want == ACT and r.stream and r.begun and r.robot == robot)
