"""The unfinished requests of one engine: submission, waiting for changes, and cancellation.

A cancelled request leaves the queue at once if no lane computes its kind, else when that lane's micro-batch
is over. So cancelling never waits for the GPU, and the code that computes a kind needs no lock. Chunks that a
newer frame or instruction makes useless are cancelled, too.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress

from vla_accel_ros.engine.kv.pool import Prefix
from vla_accel_ros.engine.lanes.lane import Lane, sleep_s
from vla_accel_ros.engine.request import ACT, OBSERVE, Request

MOST_QUEUED = 256
"""Most unfinished requests. Streams have a few each; more come from a caller that waits for none."""

_LOG = logging.getLogger(__name__)


class QueueFull(RuntimeError):
    """A request was refused because too many are unfinished."""


class Queue:
    """The unfinished requests, in order of submission. Safe to use from several threads.

    lanes: where requests run. drop: frees what a request that has begun holds besides its prefix. changes:
    number of changes so far that may let a request run or a caller return. choosing: lock of the thread that
    chooses what runs, or removes requests. It is not reentrant: requests that are cancelled while it is held
    are removed later.
    """

    def __init__(
        self, lanes: Sequence[Lane], drop: Callable[[Request], None], now_s: Callable[[], float]
    ) -> None:
        self.changes, self.choosing = 0, threading.Lock()
        self._lanes, self._drop, self._now_s = lanes, drop, now_s
        self._requests: list[Request] = []
        self._changed = threading.Condition(threading.RLock())
        self._waiting = 0  # threads in `wait`
        self._cancelled: deque[Request] = deque()  # to be taken out
        self._left: deque[Request] = deque()  # taken out, and not yet told
        self._callers: list[tuple[Callable[[], bool], threading.Event]] = []  # who wait, and for what

    @property
    def requests(self) -> tuple[Request, ...]:
        """All requests in the queue."""
        with self._changed:
            return tuple(self._requests)

    def kinds_running(self) -> set[str]:
        """Kinds that lanes run now: no other request of them may run, begin, or leave the queue."""
        return {request.kind for lane in self._lanes for request in lane.batch}

    def add(self, request: Request) -> None:
        """Add a request. Raises QueueFull if MOST_QUEUED are there and it belongs to no stream."""
        with self._changed:
            if len(self._requests) >= MOST_QUEUED and not request.stream:
                raise QueueFull(
                    f"{len(self._requests)} requests of this engine are not finished, so the one to "
                    f"{request.want} is not taken; wait for some of them."
                )
            request.submitted_s = self._now_s()
            self._requests.append(request)
            self.wake()

    def look(self, lane: Lane) -> tuple[Request, ...]:
        """All requests, and note that the lane has seen the queue's present state."""
        with self._changed:
            lane.looked = self.changes
            return tuple(self._requests)

    def wake(self) -> None:
        """Have all who wait check again: something may have changed."""
        with self._changed:
            self.changes += 1
            if self._waiting:
                self._changed.notify_all()
            for there, come in self._callers:
                if there():
                    come.set()

    def wait(self, seen: int, until_s: float, given_up: Callable[[], bool] = lambda: False) -> None:
        """Return after a change later than `seen`, or at until_s, or after a while."""
        with self._changed:
            if self.changes != seen or given_up():
                return
            self._waiting += 1
            try:
                self._changed.wait(sleep_s(until_s, self._now_s()))
            finally:
                self._waiting -= 1

    def wait_for(self, there: Callable[[], bool]) -> None:
        """Return after a change that makes there() true, or after a while.

        The thread that makes a change calls there(), with the queue locked. Lanes change something several
        times a chunk, and a thread that woke up each time to check would take the interpreter from them.
        """
        waits = there, threading.Event()
        with self._changed:
            if there():
                return
            self._callers.append(waits)
        try:
            waits[1].wait(sleep_s(math.inf))
        finally:
            with self._changed:
                self._callers.remove(waits)

    def cancel(self, requests: Iterable[Request]) -> None:
        """Mark these requests, if they are in the queue, for `reap` or `settle` to remove."""
        with self._changed:
            for request in requests:
                if request in self._requests:
                    request.cancelled = True
                    self._cancelled.append(request)

    def acting(self) -> list[Request]:
        """The action requests that have begun."""
        return [request for request in self.requests if request.want == ACT and request.begun]

    def cancel_other_instructions(self, new: Request) -> None:
        """Cancel the chunks of a robot's stream for another instruction than the new one's: nobody wants them
        now. The caller holds `choosing`."""
        own = [one for one in self.acting() if one.stream and one.robot == new.robot and one is not new]
        others = [one for one in own if one.instruction != new.instruction]
        if others:
            self.cancel(others)
            self.reap()

    def cancel_older(self, than: Request, which: Callable[[Request], bool] = lambda one: True) -> None:
        """Cancel the chunks of a robot's stream that began before this one, which is finished or soon will
        be: nobody wants them then."""
        own = [one for one in self.acting() if one.stream and one.robot == than.robot and which(one)]
        older = [one for one in own if one.number < than.number]
        if older:
            self.cancel(older)

    def settle(self) -> None:
        """Remove cancelled requests, now or when the running micro-batch is over."""
        while self._may_reap() and self.choosing.acquire(blocking=False):
            try:
                self.reap()
            finally:
                self.choosing.release()
                self.tell_left()
                self.wake()

    def _may_reap(self) -> bool:
        running = self.kinds_running()
        return any(request.kind not in running for request in self._cancelled.copy())

    def reap(self) -> None:
        """Remove cancelled requests of the kinds that no lane runs. The caller holds `choosing`."""
        running = self.kinds_running()
        for _ in range(len(self._cancelled)):
            request = self._cancelled.popleft()
            if request.kind in running:
                self._cancelled.append(request)
            elif self.leave(request, cancelled=True):
                self._left.append(request)

    def leave(self, request: Request, cancelled: bool = False) -> bool:
        """Free what a request holds and remove it; False if it is not in the queue.

        This happens in the context of the lane where it ran, so that memory it reads is reused only after
        that lane's work.
        """
        with self._changed:
            if request not in self._requests:
                return False
            self._requests.remove(request)
            request.cancelled |= cancelled
        ran = [lane for lane in self._lanes if lane.name == request.lane]
        with ran[0].computing() if ran else nullcontext():
            try:
                if request.begun:
                    self._drop(request)
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

    def tell_left(self) -> None:
        """Call on_progress of the requests that `reap` removed."""
        while self._left:
            with suppress(IndexError):  # another thread tells it
                tell(self._left.popleft())


def tell(request: Request) -> None:
    """Call on_progress; log its exception, so that other callbacks are still called."""
    try:
        if request.on_progress is not None:
            request.on_progress(request)
    except Exception:
        _LOG.exception("what a request to %s came to could not be told", request.want)
