"""Which requests a replica begins now, and which robots are asked to observe anew before that.

Emergencies go first, then those that were observed anew, then as the policy says. A request whose observation
went stale while it waited is not computed: its robot is called, and others go meanwhile. As many are called
as there is room for, and one when the oldest work is expected to end while it is observed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import MicroBatch
from vla_accel_ros.fleet.policies.policy import FleetSetup, ReplicaProfile
from vla_accel_ros.fleet.protocol import EMERGENCY, Round
from vla_accel_ros.fleet.records import PendingRequest, Robot, Work
from vla_accel_ros.fleet.replicas.replica import SERVE, Replica, Served
from vla_accel_ros.fleet.task import Task

Pair = tuple[Robot, PendingRequest]


class Dispatcher:
    """Of one scheduler. make: its policy. stale_s, call_s: see Settings. call: asks a robot to observe
    anew; done: told, in any thread, when work is."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        make: Callable[[FleetSetup], Policy],
        stale_s: float,
        call_s: float,
        call: Callable[[Round], None],
        done: Callable[[Future[Served]], None],
    ) -> None:
        self._stale_s, self._call_s, self._call, self._done = stale_s, call_s, call, done
        self._known = {one.name: ReplicaProfile(one.most, Profile(one.profile.known())) for one in replicas}
        self.policy = make(FleetSetup(self._known))

    def dispatch(self, one: Replica, robots: Iterable[Robot], now_s: float) -> None:
        """Have a replica begin what there is room for, and call whose turn comes."""
        robots = tuple(robots)
        waiting = [robot.pending for robot in robots if robot.pending is not None]
        ready = self._ready(one, robots, now_s)
        while ready:
            room, calls = one.room(), self._calls(one, waiting, now_s)
            if room <= 0 and calls <= 0:
                return
            chosen, batch = self._choose(one, ready, max(room, 1), now_s)
            if not chosen:
                return
            for pair in chosen:
                ready.remove(pair)
                robot, pending = pair
                if self._is_stale(pending, now_s):
                    if self._calls(one, waiting, now_s) > 0:
                        pending.called_s, pending.calling = now_s, True
                        robot.counts.called += 1
                        self._call(pending.asked.round)
                elif one.room() > 0:
                    begin(one, robot, pending, batch, now_s).add_done_callback(self._done)
            if room <= 0:
                return

    def answered(self, work: Work, robots: Iterable[Robot], now_s: float) -> None:
        """Tell the policy once all of a micro-batch are answered."""
        others = (robot.pending.work for robot in robots if robot.pending is not None)
        if work.batch is not None and not any(one and one.batch is work.batch for one in others):
            self.policy.ran(work.batch, now_s - work.began_s)

    def ended(self, task: Task, now_s: float) -> None:
        """A task is over: a fleet's policy may learn from it, an engine's does not ask."""
        if (ended := getattr(self.policy, "ended", None)) is not None:
            ended(task, now_s)

    def _ready(self, one: Replica, robots: Iterable[Robot], now_s: float) -> list[Pair]:
        """Requests that it may begin, in order of their first attempts."""
        ready = [
            (robot, robot.pending)
            for robot in robots
            if robot.pending is not None
            and robot.pending.work is None
            and not robot.pending.calling
            and robot.is_ready(one.name)
            and (now_s >= robot.next_s or robot.pending.request.priority >= EMERGENCY)
        ]
        return sorted(ready, key=lambda pair: pair[1].first_s)

    def _choose(
        self, one: Replica, ready: Sequence[Pair], room: int, now_s: float
    ) -> tuple[list[Pair], MicroBatch | None]:
        """Who begins, at most so many, and the policy's micro-batch if it chose them."""
        urgent = [pair for pair in ready if pair[1].request.priority >= EMERGENCY]
        if urgent:
            return sorted(urgent, key=lambda pair: -pair[1].request.priority)[:room], None
        called = [pair for pair in ready if pair[1].called_s is not None]
        if called:
            return called[:room], None
        self._known[one.name].limit = room
        batch = self.policy.next(one.name, [pending.request for _, pending in ready], now_s)
        if batch is None:
            return [], None
        by_request = {id(pair[1].request): pair for pair in ready}
        return [by_request[id(request)] for request in batch.requests][:room], batch

    def _is_stale(self, pending: PendingRequest, now_s: float) -> bool:
        """Whether it is to be observed anew. An emergency does not wait for that, and nobody twice."""
        urgent = pending.request.priority >= EMERGENCY
        return pending.called_s is None and not urgent and now_s - pending.observed_s > self._stale_s

    def _calls(self, one: Replica, waiting: Iterable[PendingRequest], now_s: float) -> int:
        """How many more robots may be called."""
        waiting = tuple(waiting)
        called = sum(pending.called_s is not None and pending.work is None for pending in waiting)
        works = [
            pending.work for pending in waiting if pending.work is not None and pending.work.replica is one
        ]
        expected_s = one.profile.expected_s(SERVE, max(1, len(works)), math.inf)
        due_s = min((work.began_s for work in works), default=math.inf) + expected_s
        return one.room() + (due_s - now_s <= self._call_s) - called


def begin(
    one: Replica, robot: Robot, pending: PendingRequest, batch: MicroBatch | None, now_s: float
) -> Future[Served]:
    """Have a replica compute a request."""
    assert robot.task is not None
    robot.task.dispatched(now_s)
    if robot.verdict.reason:  # its rate was lowered: two at once are its due, more are others'
        period_s = 1.0 / robot.verdict.chunks_per_s
        robot.next_s = max(robot.next_s, now_s - period_s) + period_s
    pending.request.begun, pending.request.begun_s = True, now_s
    asked = pending.asked
    future = one.serve(asked.round, asked.observation)
    pending.work = Work(one, asked, future, now_s, pending.until_s, pending.observed_s, batch)
    return future
