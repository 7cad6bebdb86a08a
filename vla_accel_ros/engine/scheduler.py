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
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from vla_accel_ros.engine.kv.prefixes import Prefix, Prefixes
from vla_accel_ros.engine.lanes.lane import Lane, Launched, sleep_s
from vla_accel_ros.engine.lanes.times import note
from vla_accel_ros.engine.policies.overload import Degradation, Degrading
from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.readiness import Readiness
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, Cancelled, MicroBatch, Request

MOST_QUEUED = 256
"""Requests that are not finished. Streams have a few each: more are somebody's who waits for none."""
FAILED_AGAIN_S = 0.1
"""How soon a lane's thread goes on after a step that failed."""

_LOG = logging.getLogger(__name__)


class QueueFull(RuntimeError):
    """A request was not taken: too many wait."""


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
        it, and has set `awaited` of the requests that are finished then. The lane may launch the next one
        before it calls that. What it raises is the error of all of them, too.
        """
        ...

    def drop(self, request: Request) -> None:
        """Give back what a request holds beside its prefix; it is finished, failed or cancelled."""
        ...


@dataclass(frozen=True)
class Stream:
    """What a running stream tells and is told. due_s: when its next frame is expected, by the clock. on_ran:
    told of each micro-batch and when it began."""

    due_s: Callable[[], float] = lambda: math.inf
    on_ran: Callable[[MicroBatch, float], None] = lambda batch, began_s: None


class Scheduler:
    """The requests of one engine. Safe to use from several threads.

    clock: monotonic seconds. lanes: where micro-batches run; none: one. streams: those that run, by robot.
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
        self.streams: dict[str, Stream] = {}
        self._runner, self._clock = runner, clock
        self._readiness = Readiness(runner.prefixes, runner.room)
        # Of whoever chooses, or takes requests out. Not to be taken twice: who is forgotten meanwhile stays.
        self._choosing = threading.Lock()
        self._joining, self._ending = threading.Condition(), False
        self._queue: list[Request] = []
        self._changed = threading.Condition(threading.RLock())
        self._changes = 0  # how often something changed that may let a request run or a caller return
        self._numbers = {want: itertools.count() for want in (ACT, ASK)}
        self._cancelled: deque[Request] = deque()  # to be taken out
        self._left: deque[Request] = deque()  # taken out, and not yet told

    @property
    def requests(self) -> tuple[Request, ...]:
        """All that are not finished, in order of submission."""
        with self._changed:
            return tuple(self._queue)

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
        for one of no stream if MOST_QUEUED are not finished."""
        request.stage = self._runner.first_stage(request)
        request.kind = self._runner.kind(request)
        with self._changed:
            if len(self._queue) >= MOST_QUEUED and not request.stream:
                raise QueueFull(
                    f"{len(self._queue)} requests of this engine are not finished, so the one to "
                    f"{request.want} is not taken; wait for some of them."
                )
            request.submitted_s = self._clock()
            self._queue.append(request)
            self.wake()
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
        meanwhile where nobody else does.

        Raises what it failed with, Cancelled if it was cancelled.
        """
        while True:
            seen = self._changes
            if until(request) or request.released:
                break
            mine = [one for one in self.lanes if not one.running and one.lock.acquire(blocking=False)]
            if not [True for lane in mine if self._step(lane)]:
                self._idle(seen, min((lane.again_s for lane in mine), default=math.inf))
        if request.error is not None:
            raise request.error
        if request.cancelled:
            raise Cancelled(f"the request to {request.want} was cancelled before it was finished")
        return request

    def wake(self) -> None:
        """Have all who wait check again: something may have changed."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def cancel(self, *requests: Request) -> None:
        """Finish none of these; a micro-batch that runs is computed to its end. From any thread, and from
        what the garbage collector calls. Does nothing to what is finished already."""
        with self._changed:
            for request in requests:
                if request in self._queue:
                    request.cancelled = True
                    self._cancelled.append(request)
        self._settle()

    def forget(self, robot: str | None = None) -> None:
        """Cancel the action requests that have begun, of one robot or all: it was moved otherwise."""
        self.cancel(*(r for r in self.requests if r.want == ACT and r.begun and robot in (None, r.robot)))

    def skip(self, robot: str = "") -> None:
        """Act on no frame that there is already."""
        with self._changed:
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
        with self._joining:
            self._joining.wait_for(lambda: not self._ending)
            if robot in self.streams:
                raise ValueError(f"a stream of robot '{robot}' runs on this engine already; stop it first.")
            self.streams[robot] = stream
            if len(self.streams) == 1:
                self.start()

    def leave(self, robot: str) -> None:
        """A robot's stream ends, and what is not finished of it; with the last, the threads of the lanes.
        Returns after the micro-batches that run, unless it is called in one."""
        with self._joining:
            if self.streams.pop(robot, None) is None:
                return
            if last := not self.streams:
                self._ending = True
        if last:
            try:
                self.stop()
            finally:
                with self._joining:
                    self._ending = False
                    self._joining.notify_all()
            return
        requests = [request for request in self.requests if request.robot == robot]
        self.cancel(*requests)
        if not any(lane.entered for lane in self.lanes):
            for request in requests:
                with suppress(Exception):  # it was cancelled, or failed: nobody is told here
                    self.wait(request)

    def _turn(self, lane: Lane, given_up: Callable[[], bool]) -> None:
        """Step, or wait until that may be of use."""
        seen = self._changes
        try:
            if self.step(lane):
                return
        except Exception:  # a request's own error is in the request; this is a defect, and must be seen
            _LOG.exception("lane '%s': a step failed; it goes on", lane.name)
            seen, lane.again_s = self._changes, self._clock() + FAILED_AGAIN_S
        self._idle(seen, lane.again_s, given_up)

    def _idle(self, seen: int, until_s: float, given_up: Callable[[], bool] = lambda: False) -> None:
        """Wait for a change after `seen`, at most until then."""
        with self._changed:
            if self._changes == seen and not given_up():
                self._changed.wait(sleep_s(until_s, self._clock()))

    def _step(self, lane: Lane) -> tuple[Request, ...]:
        """With the lane's lock, which is given back."""
        idle = False
        try:
            with lane.computing():
                batch, before = self._schedule(lane), lane.ahead
                lane.ahead = None
                idle = batch is None and before is None
                return () if idle else self._advance(lane, batch, before)
        finally:
            try:
                self._end(lane)
            finally:
                lane.lock.release()
            # Who found the lane taken meanwhile waits for a change; what it brought may not have been seen.
            if not idle or self._changes != lane.looked:
                self.wake()
            self._settle()

    def _advance(self, lane: Lane, batch: MicroBatch | None, before: Launched | None) -> tuple[Request, ...]:
        """Launch this one, if there is one, behind the one before, and take what came of that, and of this
        one unless it may run ahead; returns the requests of both."""
        advanced = () if before is None else before.batch.requests
        if batch is None or batch.requests[-1].kind == ASK:  # text is waited for as it is computed
            self._complete(lane, before)
            before = None
        if batch is None:
            return advanced
        try:
            launched = self._launch(lane, batch)
        finally:
            self._complete(lane, before)
        if lane.runs_ahead and launched.is_short:
            lane.ahead = launched
            launched.told = tuple(r for r in batch.requests if not (r.awaited or r.released))
            for request in launched.told:
                self._tell(request)
        else:
            self._complete(lane, launched)
        return (*advanced, *batch.requests)

    def _schedule(self, lane: Lane) -> MicroBatch | None:
        try:
            with self._choosing:
                self._reap()
                batch = self._choose(lane)
                lane.batch, lane.chosen_s = () if batch is None else batch.requests, self._clock()
        finally:
            self._tell_left()
        return batch

    def _choose(self, lane: Lane) -> MicroBatch | None:
        """The lane's next micro-batch, whose requests have begun."""
        lane.again_s = math.inf
        with self._changed:
            lane.looked, queue = self._changes, tuple(self._queue)
        now_s, elsewhere = self._clock(), self._kinds_running()
        waiting = [r for r in queue if not r.awaited and r.kind not in elsewhere]
        ready = [r for r in waiting if self._readiness.is_ready(r, now_s)]
        due_s = min((stream.due_s() for stream in tuple(self.streams.values())), default=math.inf)
        batch = self.policy.next(lane.name, ready, now_s, due_s)
        if batch is None:
            lane.again_s = min(self._readiness.due_again_s(queue, now_s), self.policy.wake_s(ready, now_s))
            return None
        for request in batch.requests:
            request.lane = lane.name
            if not (request.begun or request.released):
                self._begin(request)
        # One that begins drops those of another instruction.
        left = tuple(request for request in batch.requests if not request.released)
        return replace(batch, requests=left) if left else None

    def _kinds_running(self) -> set[str]:
        """What lanes run: nothing else of it may run, begin, or be taken out."""
        return {request.kind for lane in self.lanes for request in lane.batch}

    def _launch(self, lane: Lane, batch: MicroBatch) -> Launched:
        """Have what is to be computed computed, waiting only for what the runner waits for."""
        alive = tuple(request for request in batch.requests if not request.finished)
        launched = Launched(batch, lane.chosen_s, computed=bool(alive))
        try:
            if alive:
                with lane.timing(batch):
                    launched.wait = self._runner.run(replace(batch, requests=alive))
        except Exception as error:
            _fail(alive, error)
        return launched

    def _complete(self, lane: Lane, launched: Launched | None) -> None:
        """Take what a micro-batch came to."""
        if launched is None:
            return
        try:
            if launched.wait is not None:
                launched.wait()
        except Exception as error:
            _fail([r for r in launched.batch.requests if not (r.finished or r.released)], error)
        began_s, lane.ended_s = max(launched.began_s, lane.ended_s), self._clock()
        note(lane.name, launched.batch, began_s, lane.ended_s)
        self._postprocess(launched, began_s, lane.ended_s - began_s)

    def _postprocess(self, launched: Launched, began_s: float, took_s: float) -> None:
        batch, told = launched.batch, launched.told
        there: list[Request] = []
        try:
            with self._choosing:
                # Of what ran ahead some may have been taken out meanwhile.
                there = [request for request in batch.requests if not request.released]
                if launched.computed and all(request.error is None for request in batch.requests):
                    self.profile.note(batch.kind, len(batch.requests), took_s)
                for request in there:
                    if request.finished or request.cancelled:
                        self._leave(request)
                        self._drop_overtaken(request)
                    request.done += 1
                self.policy.ran(batch, took_s)
            for stream in tuple(self.streams.values()):
                stream.on_ran(batch, began_s)
        finally:
            for request in there:
                if request.released or request not in told:
                    self._tell(request)

    def _end(self, lane: Lane) -> None:
        """The lane runs nothing any more; who was cancelled meanwhile is taken out."""
        with self._choosing:
            lane.batch = ()
            self._reap()
        self._tell_left()

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
        old = [r for r in self.requests if r is not new and r.begun and r.stream and r.want == ACT]
        self._drop(r for r in old if r.robot == new.robot and r.instruction != new.instruction)
        self._reap()

    def _drop_overtaken(self, by: Request) -> None:
        """Nobody wants the actions of an older frame once those of a newer one are there."""
        if by.want == ACT and by.stream and by.result is not None:
            self._drop(
                r
                for r in self.requests
                if r.want == ACT and r.stream and r.begun and r.robot == by.robot and r.number < by.number
            )

    def _drop(self, requests: Iterable[Request]) -> None:
        """Cancel these; one that another lane finishes meanwhile comes to nothing."""
        for request in requests:
            request.cancelled = True
            self._cancelled.append(request)

    def _settle(self) -> None:
        """Take out who was cancelled, now or when the micro-batch that runs is over."""
        while self._may_reap() and self._choosing.acquire(blocking=False):
            try:
                self._reap()
            finally:
                self._choosing.release()
                self._tell_left()
                self.wake()

    def _may_reap(self) -> bool:
        running = self._kinds_running()
        return any(request.kind not in running for request in self._cancelled.copy())

    def _reap(self) -> None:
        """Take out who was cancelled, of the kinds that no lane runs. Of whoever chooses."""
        running = self._kinds_running()
        for _ in range(len(self._cancelled)):
            request = self._cancelled.popleft()
            if request.kind in running:
                self._cancelled.append(request)
            elif self._leave(request, cancelled=True):
                self._left.append(request)

    def _tell_left(self) -> None:
        while self._left:
            with suppress(IndexError):  # another thread tells it
                self._tell(self._left.popleft())

    def _leave(self, request: Request, cancelled: bool = False) -> bool:
        """Give back what is held for a request and take it out of the queue; False if it is not in it.

        In the lane where it ran: what it has read may be used again after what that lane was given to do.
        """
        with self._changed:
            if request not in self._queue:
                return False
            self._queue.remove(request)
            request.cancelled |= cancelled
        ran = [lane for lane in self.lanes if lane.name == request.lane]
        with ran[0].computing() if ran else nullcontext():
            try:
                if request.begun:
                    self._runner.drop(request)
            finally:
                if request.want != OBSERVE and request.begun and request.prefix is not None:
                    request.prefix.release()
                if request.cancelled:
                    result, request.result = request.result, None
                    if isinstance(result, Prefix):
                        result.release()
                request.finished = request.released = True
                self.wake()
        return True

    def _tell(self, request: Request) -> None:
        """Call on_progress. One that raises keeps no other from being called."""
        try:
            if request.on_progress is not None:
                request.on_progress(request)
        except Exception:
            _LOG.exception("what a request to %s came to could not be told", request.want)


def _fail(requests: Iterable[Request], error: Exception) -> None:
    for request in requests:
        request.error, request.finished = error, True
