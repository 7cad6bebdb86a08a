"""The one place that decides what runs next: schedule, run, postprocess.

All that anybody wants of an engine is a `Request` in one queue. A step asks the policy which micro-requests
run now, together; the runner computes them; what is finished leaves the queue. Requests of a stream of frames
wait until there is something new to act on, so frames never queue: the newest wins.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from vla_accel_ros.engine.kv.prefixes import Prefix, Prefixes
from vla_accel_ros.engine.lanes import Lane, sleep_s
from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, Cancelled, MicroBatch, Request

SENSE_AGAIN_S = 0.005
"""How soon to look again whether there are newer joints to act on."""

FAILED_AGAIN_S = 0.1
"""How soon a lane's thread goes on after a step that failed."""

_LOG = logging.getLogger(__name__)


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
        self._changes = 0  # how often something changed that may let a request run or a caller return
        self._looked = 0  # at how many of them the lane has looked
        self._again_s = math.inf  # when the policy is to be asked again, if nothing changes
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
        """Return when nothing is held for a request any longer, or when `until` is true; steps the lane
        meanwhile where nobody else does.

        Raises what it failed with, Cancelled if it was cancelled.
        """
        lane = self.lanes[0]
        while True:
            seen = self._changes
            if until(request) or request.released:
                break
            mine = not lane.running and lane.lock.acquire(blocking=False)
            if not (mine and self._step(lane)):
                self._idle(seen, self._again_s if mine else math.inf)
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
            newest = self._runner.prefixes.newest_version(robot)
            self._robots[robot] = _Robot(newest, newest)

    def start(self) -> None:
        """Give each lane a thread."""
        for lane in self.lanes:
            lane.start(partial(self._turn, lane))

    def stop(self) -> None:
        """End the threads, and cancel what is not finished."""
        for lane in self.lanes:
            lane.stop(self.wake)
        self.cancel(*self.requests)

    def _turn(self, lane: Lane, given_up: Callable[[], bool]) -> None:
        """Step, or wait until that may be of use."""
        seen = self._changes
        try:
            if self.step(lane):
                return
        except Exception:  # a request's own error is in the request; this is a defect, and must be seen
            _LOG.exception("lane '%s': a step failed; it goes on", lane.name)
            seen, self._again_s = self._changes, self._clock() + FAILED_AGAIN_S
        self._idle(seen, self._again_s, given_up)

    def _idle(self, seen: int, until_s: float, given_up: Callable[[], bool] = lambda: False) -> None:
        """Wait for a change after `seen`, at most until then."""
        with self._changed:
            if self._changes == seen and not given_up():
                self._changed.wait(sleep_s(until_s, self._clock()))

    def _step(self, lane: Lane) -> tuple[Request, ...]:
        """With the lane's lock, which is given back."""
        idle = False
        try:
            batch = self._schedule(lane)
            if batch is None:
                idle = True
                return ()
            began_s = self._clock()
            self._postprocess(batch, began_s, ran=self._run(batch))
            return batch.requests
        finally:
            try:
                self._reap()
            finally:
                lane.lock.release()
            # Who found the lane taken meanwhile waits for a change; what it brought may not have been seen.
            if not idle or self._changes != self._looked:
                self.wake()
            self._settle()

    def _schedule(self, lane: Lane) -> MicroBatch | None:
        self._reap()
        self._again_s = math.inf
        with self._changed:
            self._looked, queue = self._changes, tuple(self._queue)
        now_s = self._clock()
        ready = [request for request in queue if self._is_ready(request, now_s)]
        batch = self.policy.next(lane.name, ready, now_s, self.due_s())
        if batch is None:
            self._again_s = min(self._due_again_s(queue, now_s), self.policy.wake_s(ready, now_s))
            return None
        for request in batch.requests:
            if not (request.begun or request.released):
                self._begin(request)
        # One that begins drops those of another instruction.
        left = tuple(request for request in batch.requests if not request.released)
        return replace(batch, requests=left) if left else None

    def _run(self, batch: MicroBatch) -> bool:
        """Compute what is to be computed; whether all of it came to something."""
        alive = tuple(request for request in batch.requests if not request.finished)
        try:
            if alive:
                self._runner.run(replace(batch, requests=alive))
        except Exception as error:
            for request in alive:
                request.error, request.finished = error, True
        return bool(alive) and all(request.error is None for request in batch.requests)

    def _postprocess(self, batch: MicroBatch, began_s: float, ran: bool) -> None:
        took_s = self._clock() - began_s
        if ran:
            self.profile.note(batch.kind, len(batch.requests), took_s)
        for request in batch.requests:
            if request.finished or request.cancelled:
                self._leave(request)
                self._drop_overtaken(request)
            request.done += 1
        try:
            self.policy.ran(batch, took_s)
            self.on_ran(batch, began_s)
        finally:
            for request in batch.requests:
                self._tell(request)

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
        try:
            sensed = request.sense()
        except Exception:  # it begins, and fails with that
            return True
        return sensed is not None and sensed[1] != robot.sensed_ns

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
        """Take out who was cancelled. With the lane's lock: what is in a micro-batch stays to its end."""
        while self._cancelled:
            request = self._cancelled.popleft()
            if self._leave(request, cancelled=True):
                self._tell(request)

    def _leave(self, request: Request, cancelled: bool = False) -> bool:
        """Give back what is held for a request and take it out of the queue; False if it is not in it."""
        with self._changed:
            if request not in self._queue:
                return False
            self._queue.remove(request)
            request.cancelled |= cancelled
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

    def _due_again_s(self, queue: tuple[Request, ...], now_s: float) -> float:
        """When one of these may be ready without a change: when its time has come, or newer joints."""
        waiting = [r for r in queue if not r.begun]
        later_s = [r.not_before_s for r in waiting if r.not_before_s > now_s]
        sensing = any(r.sense is not None and r.not_before_s <= now_s for r in waiting)
        return min([*later_s, now_s + SENSE_AGAIN_S if sensing else math.inf])
