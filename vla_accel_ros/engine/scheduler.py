"""The requests of one engine, from several threads: who steps the loop (engine.loop), and who waits.

While streams of robots run, one thread steps the loop, and a worker thread computes what is not captured.
Without these whoever waits for a request steps the loop, one at a time, and each launch is waited for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty

from vla_accel_ros.engine.lanes.lane import Lane, Launched, fail
from vla_accel_ros.engine.loop import EngineLoop, Stream
from vla_accel_ros.engine.request import ACT, Cancelled, MicroBatch, Request
from vla_accel_ros.engine.rules.rules import Rules
from vla_accel_ros.engine.runner.interface import Runner

__all__ = ["QueueFull", "Scheduler", "Stream"]
MOST_QUEUED = 256
"""Most unfinished requests. Streams have a few each; more come from a caller that waits for none."""
FAILED_AGAIN_S = 0.1
"""Pause of the thread after a step that failed."""
LONGEST_WAIT_S = 1.0
"""Longest wait before the next look at what is waited for."""

_LOG = logging.getLogger(__name__)
Waiting = tuple[Callable[[], bool], threading.Event]


class QueueFull(RuntimeError):
    """A request was refused because too many are unfinished."""


class Scheduler(EngineLoop):
    """The loop of one engine, safe to use from several threads. Arguments: see EngineLoop."""

    def __init__(
        self,
        runner: Runner,
        rules: Rules,
        clock: Callable[[], float] = time.monotonic,
        lanes: Sequence[Lane] = (),
    ) -> None:
        super().__init__(runner, rules, clock, lanes)
        self._joining, self._ending = threading.Condition(), False
        self._leads = threading.Lock()  # held by who steps
        self._waiting: list[Waiting] = []  # callers beside the one who steps, and for what
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def running(self) -> bool:
        """Whether the thread steps the loop."""
        return self._thread is not None

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
        request.submitted_s = self.clock()
        self._requests[request] = None
        self.wake()
        return request

    def wake(self) -> None:
        """Have the loop check again: something may have changed, such as the joints that requests sense."""
        self._inbox.put(None)

    def step(self, lane: Lane | None = None) -> tuple[Request, ...]:
        """Step the loop once, for one lane or all; returns the requests that advanced, () if none did or the
        thread steps.

        Do not call it from callbacks of the loop (on_begin, on_progress, on_ran): those may submit and
        cancel.
        """
        while not self._leads.acquire(timeout=LONGEST_WAIT_S):
            if self._thread is not None:
                return ()
        try:
            return self._step(self.lanes if lane is None else (lane,))
        finally:
            self._leads.release()

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
        chunks = (request for request in self.requests if request.want == ACT and request.begun)
        self.cancel(*(request for request in chunks if robot in (None, request.robot)))

    def skip(self, robot: str) -> None:
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
                        self._rest(self.clock() + FAILED_AGAIN_S)
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
            self._taken.append(self._inbox.get(timeout=min(max(until_s - self.clock(), 0.0), LONGEST_WAIT_S)))

    def _wait_beside(self, over: Callable[[], bool]) -> None:
        """Return when over() is true or nobody steps, or after a while. Who steps calls over(): a thread that
        woke up each time to check would take the interpreter from it."""
        waiting = over, threading.Event()
        self._waiting.append(waiting)
        try:
            if not over() and (self._thread is not None or self._leads.locked()):
                waiting[1].wait(LONGEST_WAIT_S)
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

    def _step(self, lanes: Sequence[Lane]) -> tuple[Request, ...]:
        """By who holds `_leads`."""
        try:
            return super()._step(lanes)
        finally:
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        for is_over, come in tuple(self._waiting):
            if is_over():
                come.set()
