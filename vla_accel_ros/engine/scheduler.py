"""The one place that decides what runs next: schedule, run, postprocess.

All that anybody wants of an engine is a `Request` in one queue. A step asks the policy which micro-requests
run now, together; the runner computes them; what is finished leaves the queue. Requests of a stream of frames
wait until there is something new to act on, so frames never queue: the newest wins.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from vla_accel_ros.engine.lanes import Lane, sleep_s
from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.prefixes import Prefix, Prefixes
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, Cancelled, MicroBatch, Request


class Runner(Protocol):
    """Computes micro-batches. Called by one lane at a time."""

    prefixes: Prefixes

    def first_stage(self, request: Request) -> str:
        """The stage that a request begins with. Raises ValueError for one that this policy does not have."""
        ...

    def room(self, request: Request) -> bool:
        """Whether there is room to begin it."""
        ...

    def begin(self, request: Request) -> None:
        """Take a request in, whose prefix is held and whose state is known."""
        ...

    def run(self, batch: MicroBatch) -> None:
        """Advance the requests: `finished` and `result` of those that are finished, `error` of those that
        failed. What it raises is the error of all of them."""
        ...

    def drop(self, request: Request) -> None:
        """Give back what a request holds beside its prefix; it is finished, failed or cancelled."""
        ...


@dataclass
class _Robot:
    """Of a robot's stream: the version that was acted on last, the newest that is never acted on, and the
    stamp of the joints that were given last."""

    acted: int = -1
    skipped: int = -1
    sensed_ns: int = 0


class Scheduler:
    """The requests of one engine. Safe to use from several threads.

    clock: monotonic seconds. due_s: when the next frame is expected, by the clock. on_ran: told of each
    micro-batch and when it began. Both may be replaced.
    """

    def __init__(
        self,
        runner: Runner,
        policy: Policy,
        profile: Profile | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy, self.profile, self.lanes = policy, profile or Profile(), (Lane(),)
        self.due_s: Callable[[], float] = lambda: math.inf
        self.on_ran: Callable[[MicroBatch, float], None] = lambda batch, began_s: None
        self._runner, self._clock = runner, clock
        self._queue: list[Request] = []
        self._changed = threading.Condition(threading.RLock())
        self._robots: dict[str, _Robot] = {}
        self._numbers = {want: itertools.count() for want in (ACT, ASK)}
        self._cancelled: deque[Request] = deque()

    @property
    def requests(self) -> tuple[Request, ...]:
        """All that are not finished, in order of submission."""
        with self._changed:
            return tuple(self._queue)

    def now_s(self) -> float:
        """By the clock."""
        return self._clock()

    def newest(self, robot: str = "") -> Prefix | None:
        """A robot's newest prefix, held for the caller, or None before the first observation."""
        return self._runner.prefixes.newest(robot)

    def submit(self, request: Request) -> Request:
        """Queue a request; returns it. Raises ValueError for one that this engine cannot compute."""
        request.stage = self._runner.first_stage(request)
        with self._changed:
            request.submitted_s = self._clock()
            self._queue.append(request)
            self._changed.notify_all()
        return request

    def step(self, lane: Lane | None = None) -> tuple[Request, ...]:
        """Schedule, run, postprocess: one micro-batch; returns the requests in it, () if none may run now."""
        lane = lane or self.lanes[0]
        with lane.lock:
            try:
                batch = self._schedule(lane)
                if batch is None:
                    return ()
                began_s = self._clock()
                self._run(batch)
                self._postprocess(batch, began_s)
                return batch.requests
            finally:
                self._reap()

    def wait(self, request: Request, until: Callable[[Request], bool] = lambda r: r.finished) -> Request:
        """Return when a request is finished, or as told; steps the lane meanwhile where nobody else does.

        Raises what it failed with, Cancelled if it was cancelled.
        """
        lane = self.lanes[0]
        while not (until(request) or request.finished):
            if not lane.running and lane.lock.acquire(blocking=False):
                try:
                    ran = self.step(lane)
                finally:
                    lane.lock.release()
                    self.wake()  # another may step it now
                if ran:
                    continue
            self.idle(lambda: until(request) or request.finished)
        if request.error is not None:
            raise request.error
        if request.cancelled:
            raise Cancelled(f"the request to {request.want} was cancelled before it was finished")
        return request

    def idle(self, given_up: Callable[[], bool]) -> None:
        """Wait until something may have changed: a request came or advanced, or the policy is to be asked
        again; return at once if given_up says so."""
        with self._changed:
            if not given_up():
                self._changed.wait(sleep_s(self._wake_s(), self._clock()))

    def wake(self) -> None:
        """Have everybody who waits look again."""
        with self._changed:
            self._changed.notify_all()

    def cancel(self, *requests: Request) -> None:
        """Finish none of these; a micro-batch that runs is computed to its end. From any thread, and from
        what the garbage collector calls."""
        for request in requests:
            request.cancelled = True
            self._cancelled.append(request)
        self._settle()

    def forget(self, robot: str | None = None) -> None:
        """Cancel the action requests that have begun, of one robot or all: it was moved otherwise."""
        self.cancel(*(r for r in self.requests if r.want == ACT and r.begun and robot in (None, r.robot)))

    def skip(self, robot: str = "") -> None:
        """Act on no frame that there is already."""
        with self._changed:
            newest = self._runner.prefixes.newest_version(robot)
            self._robots[robot] = _Robot(newest, newest)

    def start(self) -> None:
        """Give each lane a thread."""
        for lane in self.lanes:
            lane.start(partial(self.step, lane), self.idle)

    def stop(self) -> None:
        """End the threads, and cancel what is not finished."""
        for lane in self.lanes:
            lane.stop(self.wake)
        self.cancel(*self.requests)

    def _schedule(self, lane: Lane) -> MicroBatch | None:
        self._reap()
        with self._changed:
            now_s = self._clock()
            ready = self._ready(now_s)
            batch = self.policy.next(lane.name, ready, now_s, self.due_s())
        if batch is None:
            return None
        under_way = [request for request in batch.requests if request.begun]
        for request in batch.requests:
            if not request.begun:
                self._begin(request)
        dropped = [
            request for request in under_way if request.finished
        ]  # told other words by one that begins
        return replace(batch, requests=tuple(r for r in batch.requests if r not in dropped))

    def _run(self, batch: MicroBatch) -> None:
        alive = tuple(request for request in batch.requests if not request.finished)
        try:
            if alive:
                self._runner.run(replace(batch, requests=alive))
        except Exception as error:
            for request in alive:
                request.error, request.finished = error, True

    def _postprocess(self, batch: MicroBatch, began_s: float) -> None:
        took_s = self._clock() - began_s
        if all(request.error is None for request in batch.requests):
            self.profile.note(batch.kind, len(batch.requests), took_s)
        for request in batch.requests:
            request.done += 1
            if request.finished:
                self._leave(request)
                self._drop_overtaken(request)
        self.policy.ran(batch, took_s)
        self.on_ran(batch, began_s)
        for request in batch.requests:
            if request.on_progress is not None:
                request.on_progress(request)
        self.wake()

    def _ready(self, now_s: float) -> list[Request]:
        return [request for request in self._queue if self._is_ready(request, now_s)]

    def _is_ready(self, request: Request, now_s: float) -> bool:
        if request.begun or request.want == OBSERVE:
            return True
        if request.prefix is None:
            request.instruction = self._runner.prefixes.newest_words(request.robot)
        else:
            request.instruction = request.prefix.instruction
        if request.stream:
            return self._is_new(request, now_s) and self._runner.room(request)
        return not request.waits or self._runner.room(request)

    def _is_new(self, request: Request, now_s: float) -> bool:
        """Whether there is something to begin with that was not there for the last of its kind."""
        given = request.prefix
        newest = self._runner.prefixes.newest_version(request.robot) if given is None else given.version
        robot = self._robots.setdefault(request.robot, _Robot())
        if newest <= robot.skipped or request.want != ACT:
            return newest > robot.skipped
        request.fresh = newest != robot.acted
        if request.fresh or now_s < request.not_before_s or request.sense is None:
            return request.fresh
        sensed = request.sense()
        return sensed is not None and sensed[1] != robot.sensed_ns

    def _begin(self, request: Request) -> None:
        """Take a request in; one that fails at once is finished."""
        request.begun, request.begun_s = True, self._clock()
        held, request.prefix = request.prefix, None
        try:
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
        if request.want == ACT and request.stream and held is not None:
            robot = self._robots.setdefault(request.robot, _Robot())
            robot.acted, robot.sensed_ns = held.version, request.sensed_ns

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
        self._cancelled.extend(r for r in old if r.robot == new.robot and r.instruction != new.instruction)
        self._reap()

    def _drop_overtaken(self, by: Request) -> None:
        """Nobody wants the actions of an older frame once those of a newer one are there."""
        if by.want == ACT and by.stream and by.result is not None:
            self._cancelled.extend(
                r
                for r in self.requests
                if r.want == ACT and r.stream and r.begun and r.robot == by.robot and r.number < by.number
            )

    def _settle(self) -> None:
        """Take out who was cancelled, now or when the micro-batch that runs is over."""
        lane = self.lanes[0]
        while self._cancelled and lane.lock.acquire(blocking=False):
            try:
                self._reap()
            finally:
                lane.lock.release()
                self.wake()

    def _reap(self) -> None:
        while self._cancelled:
            request = self._cancelled.popleft()
            if request.finished:
                continue
            request.cancelled = request.finished = True
            self._leave(request)
            if request.on_progress is not None:
                request.on_progress(request)
        self.wake()

    def _leave(self, request: Request) -> None:
        with self._changed:
            if request in self._queue:
                self._queue.remove(request)
        if request.begun:
            self._runner.drop(request)
            if request.want != OBSERVE and request.prefix is not None:
                request.prefix.release()

    def _wake_s(self) -> float:
        now_s = self._clock()
        pending = [r for r in self._queue if not r.begun and r.not_before_s > now_s]
        least = min((r.not_before_s for r in pending), default=math.inf)
        return min(least, self.policy.wake_s(self._ready(now_s), now_s))
