"""The requests of one engine that are not finished: who comes, who waits for a change, and who is taken out.

A request that was cancelled is taken out when no lane computes its kind; a lane that does takes it out when
its micro-batch is over. So whoever cancels never waits for the GPU, and what computes a kind needs no lock.
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
from vla_accel_ros.engine.request import OBSERVE, Request

MOST_QUEUED = 256
"""Requests that are not finished. Streams have a few each: more are somebody's who waits for none."""

_LOG = logging.getLogger(__name__)


class QueueFull(RuntimeError):
    """A request was not taken: too many wait."""


class Queue:
    """In order of submission. Safe to use from several threads.

    lanes: where requests run. drop: gives back what a request that has begun holds beside its prefix.
    changes: how often something changed that may let a request run or a caller return.
    choosing: held by whoever chooses what runs, or takes requests out. Not to be taken twice: who is
    forgotten meanwhile stays.
    """

    def __init__(
        self, lanes: Sequence[Lane], drop: Callable[[Request], None], now_s: Callable[[], float]
    ) -> None:
        self.changes, self.choosing = 0, threading.Lock()
        self._lanes, self._drop, self._now_s = lanes, drop, now_s
        self._requests: list[Request] = []
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._cancelled: deque[Request] = deque()  # to be taken out
        self._left: deque[Request] = deque()  # taken out, and not yet told
        self._callers: list[tuple[Callable[[], bool], threading.Event]] = []  # who wait, and for what

    @property
    def cancels(self) -> bool:
        """Whether somebody was cancelled who is not taken out."""
        return bool(self._cancelled)

    @property
    def requests(self) -> tuple[Request, ...]:
        """All of them."""
        with self._lock:
            return tuple(self._requests)

    def kinds_running(self) -> set[str]:
        """What lanes run: nothing else of it may run, begin, or be taken out."""
        return {request.kind for lane in self._lanes for request in lane.batch}

    def add(self, request: Request) -> None:
        """Raises QueueFull for one of no stream if MOST_QUEUED are there."""
        with self._lock:
            if len(self._requests) >= MOST_QUEUED and not request.stream:
                raise QueueFull(
                    f"{len(self._requests)} requests of this engine are not finished, so the one to "
                    f"{request.want} is not taken; wait for some of them."
                )
            request.submitted_s = self._now_s()
            self._requests.append(request)
            self.wake()

    def look(self, lane: Lane) -> tuple[Request, ...]:
        """All of them, as the lane sees them from now on."""
        with self._lock:
            lane.looked = self.changes
            return tuple(self._requests)

    def wake(self) -> None:
        """Have all who wait check again: something may have changed."""
        with self._lock:
            self.changes += 1
            self._changed.notify_all()
            for there, come in self._callers:
                if there():
                    come.set()

    def wait(self, seen: int, until_s: float, given_up: Callable[[], bool] = lambda: False) -> None:
        """Return after a change that is later than `seen`, or at that time."""
        with self._lock:
            if self.changes == seen and not given_up():
                self._changed.wait(sleep_s(until_s, self._now_s()))

    def wait_for(self, there: Callable[[], bool]) -> None:
        """Return after a change with which that is so, or after a while.

        Whoever changes something asks it, with the queue locked. Lanes change something several times a
        chunk, and a thread that woke each time to look would take the interpreter from them.
        """
        waits = there, threading.Event()
        with self._lock:
            if there():
                return
            self._callers.append(waits)
        try:
            waits[1].wait(sleep_s(math.inf))
        finally:
            with self._lock:
                self._callers.remove(waits)

    def cancel(self, requests: Iterable[Request]) -> None:
        """Have these taken out, if they are there, when `reap` or `settle` comes to them."""
        with self._lock:
            for request in requests:
                if request in self._requests:
                    request.cancelled = True
                    self._cancelled.append(request)

    def settle(self) -> None:
        """Take out who was cancelled, now or when the micro-batch that runs is over."""
        while self._cancelled and self._may_reap() and self.choosing.acquire(blocking=False):
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
        """Take out who was cancelled, of the kinds that no lane runs. Of whoever chooses."""
        if not self._cancelled:
            return
        running = self.kinds_running()
        for _ in range(len(self._cancelled)):
            request = self._cancelled.popleft()
            if request.kind in running:
                self._cancelled.append(request)
            elif self.leave(request, cancelled=True):
                self._left.append(request)

    def leave(self, request: Request, cancelled: bool = False) -> bool:
        """Give back what is held for a request and take it out; False if it is not there.

        In the lane where it ran: what it has read may be used again after what that lane was given to do.
        """
        with self._lock:
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
        """Tell those that `reap` took out."""
        while self._left:
            with suppress(IndexError):  # another thread tells it
                tell(self._left.popleft())


def tell(request: Request) -> None:
    """Call on_progress. One that raises keeps no other from being called."""
    try:
        if request.on_progress is not None:
            request.on_progress(request)
    except Exception:
        _LOG.exception("what a request to %s came to could not be told", request.want)
