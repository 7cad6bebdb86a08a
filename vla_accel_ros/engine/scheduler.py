"""What the GPU does next: one loop over one queue of requests.

A step takes in what was posted, hands on what the device has computed, and for each lane that is free has the
rules choose the micro-requests that run now, together, and launches them. Finished requests leave the queue.
Requests of a stream of frames wait until there is something new to act on, so frames never queue up: the
newest wins. Chunks that a newer frame or instruction makes useless are cancelled.

While streams of robots run, one thread steps the loop. A lane is a CUDA stream, not a thread: the loop
launches into all of them, and waits for results only if it has nothing else to do. What is not captured is
computed by one worker thread, which posts what came of it. Without the thread whoever waits for a request
steps the loop, one at a time, and each launch is waited for.
"""

from __future__ import annotations

import itertools
import logging
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
from vla_accel_ros.engine.lanes.lane import Lane, Launched, fail, sleep_s
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

MOST_QUEUED = 256
"""Most unfinished requests. Streams have a few each; more come from a caller that waits for none."""
FAILED_AGAIN_S = 0.1
"""Pause of the thread after a step that failed."""
POLL_S = 1e-4
"""Time from one look at the results of several lanes to the next, while some are expected."""

_LOG = logging.getLogger(__name__)
Waiting = tuple[Callable[[], bool], threading.Event]


class QueueFull(RuntimeError):
    """A request was refused because too many are unfinished."""


@dataclass(frozen=True)
class Stream:
    """Callbacks of a robot's running stream. due_s: returns when its next frame is expected, on the clock.
    on_ran: called with each micro-batch and when it began."""

    due_s: Callable[[], float] = lambda: math.inf
    on_ran: Callable[[MicroBatch, float], None] = lambda batch, began_s: None


class Scheduler:
    """The requests of one engine. Safe to use from several threads.

    clock: monotonic seconds. lanes: where micro-batches run, by default one. Attributes: `streams`, of the
    robots, while they run; `runs_ahead`, whether launched work is waited for later; `moved`, whether the last
    step changed anything.
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
        self.runs_ahead = False
        self._runner, self._clock = runner, clock
        self._readiness = Readiness(runner.prefixes, runner.room)
        self._numbers = {want: itertools.count() for want in (ACT, ASK)}
        self._joining, self._ending = threading.Condition(), False
        self._requests: dict[Request, None] = {}  # unfinished, in order of submission
        self._cancelled: dict[Request, bool] = {}  # of these, to be removed
        # None to wake the loop, and what the worker computed. Posting takes no lock, so that the garbage
        # collector may cancel in the middle of anything.
        self._inbox: SimpleQueue[tuple[Lane, Launched] | None] = SimpleQueue()
        self._taken: deque[tuple[Lane, Launched] | None] = deque()
        self._jobs: SimpleQueue[tuple[Lane, MicroBatch] | None] = SimpleQueue()
        self._leads = threading.Lock()  # held by who steps
        self._waiting: list[Waiting] = []  # callers beside the one who steps, and for what
        self._thread: threading.Thread | None = None
        self._worker: threading.Thread | None = None
        self._stopping = threading.Event()
        self.moved = False

    @property
    def requests(self) -> tuple[Request, ...]:
        """All unfinished requests, in order of submission."""
        return (*self._requests,)  # the garbage collector may cancel here: tuple() would count first

    @property
    def running(self) -> bool:
        """Whether the thread steps the loop."""
        return self._thread is not None

    @property
    def again_s(self) -> float:
        """When to step again if nothing is posted."""
        now_s = self._clock()
        times = [lane.wake_s(now_s) for lane in self.lanes]
        if sum(bool(lane.ahead) for lane in self.lanes) > 1:
            times = [max(wake_s, now_s + POLL_S) for wake_s in times]
        return min(times)

    def now_s(self) -> float:
        """Seconds on the scheduler's clock."""
        return self._clock()

    def submit(self, request: Request) -> Request:
        """Queue a request; returns it. Raises ValueError if this engine cannot compute it, QueueFull if too
        many requests are unfinished and it belongs to no stream."""
        request.stage = self._runner.first_stage(request)
        request.kind = self._runner.kind(request)
        if len(self._requests) >= MOST_QUEUED and not request.stream:
            raise QueueFull(
                f"{len(self._requests)} requests of this engine are not finished, so the one to "
                f"{request.want} is not taken; wait for some of them."
            )
        request.submitted_s = self._clock()
        self._requests[request] = None
        self.wake()
        return request

    def wake(self) -> None:
        """Have the loop check again: something may have changed, such as the joints that requests sense."""
        self._inbox.put(None)

    def step(self, lane: Lane | None = None) -> tuple[Request, ...]:
        """Step the loop once, for one lane or all; returns the requests that advanced, () if none did.

        Do not call it from callbacks of the loop (on_begin, on_progress, on_ran): those may submit and
        cancel.
        """
        with self._leads:
            return self._step(self.lanes if lane is None else (lane,))

    def wait(self, request: Request, until: Callable[[Request], bool] = lambda request: False) -> Request:
        """Return when nothing is held for the request any longer, or when `until` is true. Steps the loop if
        no thread does. Any thread may call `until`.

        Raises the request's error, or Cancelled if it was cancelled.
        """

        def over() -> bool:
            return until(request) or request not in self._requests

        while not over():
            if self._thread is None and self._leads.acquire(blocking=False):
                try:
                    while not over() and self._thread is None:
                        self._step(self.lanes)
                        if not self.moved and not over():
                            self._rest(self.again_s)
                finally:
                    self._leads.release()
                    self._hand_over()
            else:
                self._wait_beside(over)
        if request.error is not None:
            raise request.error
        if request.cancelled:
            raise Cancelled(f"the request to {request.want} was cancelled before it was finished")
        return request

    def cancel(self, *requests: Request) -> None:
        """Cancel these requests; a running micro-batch is computed to its end. Call it from any thread, also
        from the garbage collector. Ignores finished requests."""
        for request in requests:
            if request in self._requests:
                self._cancelled[request] = True
        self.wake()
        self._settle()

    def forget(self, robot: str | None = None) -> None:
        """Cancel the action requests that have begun, of one robot or of all: the robot was moved in another
        way."""
        self.cancel(*(request for request in self._acting() if robot in (None, request.robot)))

    def skip(self, robot: str = "") -> None:
        """Act on none of the robot's present frames."""
        self._readiness.skip(robot)

    def join(self, robot: str, stream: Stream) -> None:
        """Begin a robot's stream; the first stream starts the thread. Raises ValueError if it runs
        already."""
        with self._joining:
            self._joining.wait_for(lambda: not self._ending)
            if robot in self.streams:
                raise ValueError(f"a stream of robot '{robot}' runs on this engine already; stop it first.")
            self.streams[robot] = stream
            if len(self.streams) == 1:
                self.start()

    def leave(self, robot: str) -> None:
        """End a robot's stream and cancel its requests; the last stream ends the thread, and whoever still
        waits for a request steps the loop. Returns after the running micro-batches, unless the loop calls
        it."""
        entered = self._is_entered(self._thread)
        with self._joining:
            if self.streams.pop(robot, None) is None:
                return
            self._ending = last = not self.streams
        try:
            if last:
                self._end()
        finally:
            with self._joining:
                self._ending = False
                self._joining.notify_all()
        requests = [request for request in self.requests if request.stream and request.robot == robot]
        self.cancel(*requests)
        if not entered:
            for request in requests:
                with suppress(Exception):  # it was cancelled, or failed: nobody is told here
                    self.wait(request)

    def start(self) -> None:
        """Step the loop in a thread. Raises RuntimeError if one does."""
        if self._thread is not None:
            raise RuntimeError("the engine's thread runs already; stop it first.")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stopping,), name="engine", daemon=True)
        self.wake()  # who steps leaves it to the thread
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and cancel all unfinished requests."""
        self._end()
        self.cancel(*self.requests)

    def _end(self) -> None:
        """End the thread after the running micro-batches."""
        thread, self._thread = self._thread, None
        self._stopping.set()
        self.wake()
        if thread is not None and not self._is_entered(thread):
            thread.join()

    def _is_entered(self, thread: threading.Thread | None) -> bool:
        """Whether the loop's thread, or what it has computed, calls."""
        return threading.current_thread() in (thread, self._worker)

    def _run(self, stopping: threading.Event) -> None:
        with self._leads:
            self._worker = worker = threading.Thread(target=self._compute, name="plain", daemon=True)
            worker.start()
            self.runs_ahead = True
            try:
                while not stopping.is_set():
                    try:
                        self._step(self.lanes)
                        if not self.moved:
                            self._rest(self.again_s)
                    except Exception:  # a request's own error is in the request; this must be seen
                        _LOG.exception("a step of the engine failed; it goes on")
                        self._rest(self._clock() + FAILED_AGAIN_S)
            except BaseException as error:
                for request in self.requests:
                    request.error = Cancelled(f"the engine's thread ended: {error!r}")
                    self._leave(request)
                raise
            finally:
                self._drain()
                self._jobs.put(None)
                self.runs_ahead, self._worker = False, None
                if self._thread is threading.current_thread():
                    self._thread = None
        self._hand_over()

    def _compute(self) -> None:
        """Compute what is not captured, and post what came of it."""
        while (job := self._jobs.get()) is not None:
            self._inbox.put((job[0], self._computed(*job)))

    def _computed(self, lane: Lane, batch: MicroBatch) -> Launched:
        try:
            with lane.computing():
                launched = lane.launch(batch, self._runner.run)
                launched.complete()
        except BaseException as error:  # a panic of what it calls
            launched = Launched(batch, lane.chosen_s)
            fail(batch.requests, Cancelled(f"a request to {batch.requests[-1].want}: {error!r}"))
        launched.wait = None
        return launched

    def _drain(self) -> None:
        """Hand on all that was launched."""
        for lane in self.lanes:
            while lane.ahead:
                self._postprocess(lane, lane.ahead.popleft())
        while any(lane.batch is not None for lane in self.lanes):
            self._taken.append(self._inbox.get())
            self._take_in()
        self._reap()

    def _rest(self, until_s: float) -> None:
        """Return when something is posted, or at until_s, or after a while."""
        with suppress(Empty):
            self._taken.append(self._inbox.get(timeout=sleep_s(until_s, self._clock())))

    def _wait_beside(self, over: Callable[[], bool]) -> None:
        """Return when over() is true or nobody steps, or after a while. Who steps calls over(): a thread that
        woke up each time to check would take the interpreter from it."""
        waiting = over, threading.Event()
        self._waiting.append(waiting)
        try:
            if not over() and (self._thread is not None or self._leads.locked()):
                waiting[1].wait(sleep_s(math.inf))
        finally:
            self._waiting.remove(waiting)

    def _hand_over(self) -> None:
        """Have others step, after `_leads` was released."""
        self._settle()
        for _, come in tuple(self._waiting):
            come.set()

    def _settle(self) -> None:
        """Remove cancelled requests, now or when the running micro-batch is over."""
        while any(self._lane(request).batch is None for request in (*self._cancelled,)):
            if not self._leads.acquire(blocking=False):
                return
            try:
                self._reap()
            finally:
                self._leads.release()
                self._tell_waiting()

    def _tell_waiting(self) -> None:
        for is_over, come in tuple(self._waiting):
            if is_over():
                come.set()

    def _step(self, lanes: Sequence[Lane]) -> tuple[Request, ...]:
        """One step by who holds `_leads`."""
        self.moved = False
        try:
            advanced = self._take_in()
            for lane in lanes:
                for launched in lane.over():
                    advanced += self._postprocess(lane, launched)
                if lane.is_free(self._clock()) and (batch := self._choose(lane)) is not None:
                    advanced += self._launch(lane, batch)
            if not advanced:
                advanced = self._wait_for_results(lanes)
            if not advanced:
                self._runner.idle()
            self.moved |= bool(advanced)
            return tuple(advanced)
        except BaseException:
            self._leave_finished()
            raise
        finally:
            self._reap()
            self._tell_waiting()

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
        lane.again_s, now_s = math.inf, self._clock()
        free = all(lane.batch is None for lane in self.lanes)
        waiting = [
            request
            for request in self.requests
            if (request.status is RUNNING or request.status is WAITING)
            and (free or self._lane(request).batch is None)
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

    def _launch(self, lane: Lane, batch: MicroBatch) -> tuple[Request, ...]:
        """Launch a micro-batch behind the work that runs ahead, or have the worker compute it."""
        lane.chosen_s = self._clock()
        if self._worker is not None and not self._runner.is_captured(batch):
            lane.batch = batch
            self._jobs.put((lane, batch))
            return batch.requests
        with lane.computing():
            launched = lane.launch(batch, self._runner.run)
        if self.runs_ahead and launched.wait is None and launched.device is not None:
            launched.wait = launched.device.seconds
            for request in batch.requests:
                if request.finished and self._leave(request):  # at its launch, such as a frame
                    tell(request)
        if not self.runs_ahead or (launched.wait is None and not lane.ahead):
            self._postprocess(lane, launched)
            return batch.requests
        if launched.wait is None:  # it is over when what is before it is
            lane.ahead.append(launched)
            return batch.requests
        takes_s = self.profile.of(batch.kind, len(batch.requests)).soonest
        lane.run_ahead(launched, self._clock(), takes_s)
        if launched.is_followed:
            if launched.is_first:
                self._cancel_older(batch.requests[0], launched=False)
            launched.told = tuple(request for request in batch.requests if request.status is RUNNING)
            for request in launched.told:
                tell(request)
        return batch.requests

    def _wait_for_results(self, lanes: Sequence[Lane]) -> list[Request]:
        """Wait for the oldest work of a lane, if it should be over by now and no other lane has any; with
        several lanes they are looked at in turn."""
        now_s, pending = self._clock(), [lane for lane in lanes if lane.ahead]
        due = [lane for lane in pending if now_s >= lane.due_s]
        if not due or (len(pending) > 1 and due[0].ahead[0].device is not None):
            return []
        return self._postprocess(due[0], due[0].ahead.popleft())

    def _postprocess(self, lane: Lane, launched: Launched) -> list[Request]:
        """Wait for the results; finished requests leave the queue, free what they hold, and have on_progress
        called. Returns the requests."""
        batch = launched.batch
        launched.complete()
        took_s = lane.took(launched, self._clock())
        began_s = lane.ended_s - took_s
        lane.note(batch, began_s)
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
                if request.finished or request not in launched.told:
                    tell(request)
        return list(batch.requests)

    def _begin(self, request: Request) -> None:
        """Begin a request; one that fails at once is finished."""
        request.status, request.begun_s = RUNNING, self._clock()
        prefix, request.prefix = request.prefix, None
        try:
            if request.want == OBSERVE:
                if not self._observe(request):
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

    def _observe(self, request: Request) -> bool:
        """Take the newest observation; a request for which there is none is finished."""
        newest = cast(Observe, request.wish).newest
        if newest is not None:
            request.wish = Observe(newest())
        if newest is None or request.observation is not None:
            return True
        request.finish(None)
        return False

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
                tell(request)

    def _lane(self, request: Request) -> Lane:
        """Where the request runs."""
        return self._lane_of.get(request.kind, self.lanes[0])

    def _acting(self) -> list[Request]:
        """The action requests that have begun."""
        return [request for request in self.requests if request.want == ACT and request.status is not WAITING]

    def _own(self, other: Request) -> list[Request]:
        """Chunks in progress of the same robot's stream."""
        acting = self._acting()
        return [
            chunk for chunk in acting if chunk.stream and chunk.robot == other.robot and chunk is not other
        ]

    def _cancel_other_instructions(self, new: Request) -> None:
        """Cancel the chunks of a robot's stream for another instruction than the new one's, now: nobody wants
        them, and it may need their seats."""
        own = [chunk for chunk in self._own(new) if chunk.instruction != new.instruction]
        self._cancelled.update(dict.fromkeys(own, True))
        self._reap()

    def _cancel_older(self, than: Request, launched: bool = True) -> None:
        """Cancel the chunks of a robot's stream that began before this one, which is finished or soon will
        be: nobody wants them then. launched: also those of other lanes, and whose results are on their
        way."""
        lane = self._lane(than)
        chunks = [r for r in self._own(than) if launched or (self._lane(r) is lane and not r.launched)]
        self._cancelled.update({chunk: True for chunk in chunks if chunk.number < than.number})

    def _reap(self) -> None:
        """Remove cancelled requests, but those of a lane whose work the worker computes."""
        for request in (*self._cancelled,):
            if self._lane(request).batch is None and self._leave(request):
                tell(request)

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


def tell(request: Request) -> None:
    """Call on_progress; log its exception, so that other callbacks are still called."""
    try:
        if request.on_progress is not None:
            request.on_progress(request)
    except Exception:
        _LOG.exception("what a request to %s came to could not be told", request.want)
