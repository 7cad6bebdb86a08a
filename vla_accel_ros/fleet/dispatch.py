"""Which requests a replica begins now, and which robots are asked to observe anew before that.

Emergencies go first, then those that were observed anew, then as the policy says. A request whose observation
went stale while it waited is not computed: its robot is called, and others go meanwhile. As many are called
as there is room for, and one when the oldest work is expected to end while it is observed.

Where several replicas compute, each is asked in their order, nearest first, and the policy leaves to the
others whom they answer sooner: it is told what each was measured to take, how far it is, and how long it is
busy. So a distant replica takes who would wait longer for a near one. One that is lost is none. A request
that takes unusually long is begun on another one as well, if that is wanted (fleet.hedging).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import MicroBatch
from vla_accel_ros.fleet.hedging import Hedging
from vla_accel_ros.fleet.policies.policy import FleetSetup, ReplicaProfile
from vla_accel_ros.fleet.protocol import EMERGENCY, Round
from vla_accel_ros.fleet.records import PendingRequest, Robot, Work
from vla_accel_ros.fleet.replicas.replica import SERVE, Replica, Served
from vla_accel_ros.fleet.task import Task

Pair = tuple[Robot, PendingRequest]


class Dispatcher:
    """Of one scheduler. make: its policy. stale_s, call_s, hedge: see Settings. call: asks a robot to observe
    anew; done: told, in any thread, when work is."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        make: Callable[[FleetSetup], Policy],
        stale_s: float,
        call_s: float,
        call: Callable[[Round], None],
        done: Callable[[Future[Served]], None],
        hedge: bool = False,
    ) -> None:
        self._stale_s, self._call_s, self._call, self._done = stale_s, call_s, call, done
        self._replicas, self._hedging = replicas, Hedging() if hedge else None
        self._known = {one.name: _known(one) for one in replicas}
        self.policy = make(FleetSetup(self._known))

    def dispatch(self, one: Replica, robots: Iterable[Robot], now_s: float) -> None:
        """Have a replica begin what there is room for, and call whose turn comes."""
        robots = tuple(robots)
        self._look(robots, now_s)
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
                        pending.called_s, pending.called_for, pending.calling = now_s, one.name, True
                        robot.counts.called += 1
                        self._call(pending.asked.round)
                elif one.room() > 0:
                    behind_s = self._known[one.name].busy_s or 0.0
                    begin(one, robot, pending, batch, now_s, behind_s).add_done_callback(self._done)
                    self._look(robots, now_s)
            if room <= 0:
                return

    def hedge(self, robots: Iterable[Robot], now_s: float) -> None:
        """Begin what takes unusually long on another replica that has room, once."""
        if self._hedging is None:
            return
        for robot in robots:
            work = robot.pending.work if robot.pending is not None else None
            if work is None or work.hedge is not None or work.future.done():
                continue
            if now_s - work.began_s <= self._hedging.after_s(work.replica.name):
                continue
            for one in self._replicas:
                if one is not work.replica and one.room() > 0 and robot.is_ready(one.name):
                    future = one.serve(work.asked.round, work.asked.observation)
                    work.hedge = Work(one, work.asked, future, now_s, work.until_s, work.observed_s)
                    robot.counts.hedged += 1
                    future.add_done_callback(self._done)
                    break

    def answered(self, work: Work, robots: Iterable[Robot], now_s: float) -> None:
        """Tell the policy once all of a micro-batch are answered."""
        self.ran(work, now_s)
        others = (robot.pending.work for robot in robots if robot.pending is not None)
        if work.batch is not None and not any(one and one.batch is work.batch for one in others):
            self.policy.ran(work.batch, max(now_s - work.began_s - work.behind_s, 1e-6))

    def ran(self, work: Work, now_s: float) -> None:
        """Work was answered, or broken off, now."""
        if self._hedging is not None:
            self._hedging.took(work.replica.name, now_s - work.began_s)

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
        if one.name not in self._known:
            return [], None
        called = [pair for pair in ready if pair[1].called_s is not None]
        if mine := [pair for pair in called if self._is_for(one, pair[1], now_s)]:
            return mine[:room], None
        ready = [pair for pair in ready if pair[1].called_s is None]
        if not ready:
            return [], None
        self._known[one.name].limit = room
        batch = self.policy.next(one.name, [pending.request for _, pending in ready], now_s)
        if batch is None:
            return [], None
        by_request = {id(pair[1].request): pair for pair in ready}
        return [by_request[id(request)] for request in batch.requests][:room], batch

    def _is_for(self, one: Replica, pending: PendingRequest, now_s: float) -> bool:
        """Whether a request that was observed anew is this replica's: it was called for it, or the replica
        that it was called for did not take it soon, or is lost."""
        late = pending.called_s is not None and now_s - pending.called_s > 2.0 * self._call_s
        return late or pending.called_for in ("", one.name) or pending.called_for not in self._known

    def _look(self, robots: Iterable[Robot], now_s: float) -> None:
        """Tell the policy how the replicas are now: who is there, how long each is busy. Of one there is
        nothing to choose."""
        if len(self._replicas) < 2:
            return
        works: dict[str, list[Work]] = {one.name: [] for one in self._replicas}
        for robot in robots:
            for work in works_of(robot):
                works[work.replica.name].append(work)
        for one in self._replicas:
            if one.room() <= 0 and not works[one.name]:
                self._known.pop(one.name, None)
                continue
            if (known := self._known.get(one.name)) is None:
                known = self._known[one.name] = _known(one)
            known.limit, known.busy_s = seats(one), busy_s(one, works[one.name], now_s)

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


def _known(one: Replica) -> ReplicaProfile:
    return ReplicaProfile(max(1, one.most), Profile(one.profile.known()), one.network_s)


def works_of(robot: Robot) -> Iterable[Work]:
    """What is computed for a robot, here and there."""
    work = robot.pending.work if robot.pending is not None else None
    return () if work is None else (work,) if work.hedge is None else (work, work.hedge)


def seats(one: Replica) -> int:
    """How many requests a replica was measured to compute at once; further ones wait there."""
    return max((batch for stage, batch in one.profile.known() if stage == SERVE), default=max(1, one.most))


def busy_s(one: Replica, works: Sequence[Work], now_s: float) -> float:
    """How long until a replica computes what it is given now: until one of those that it computes is
    expected to be done, by what it was measured to take. One that is late is expected to be late for as long
    again."""
    ahead = len(works) - seats(one)
    if ahead < 0:
        return 0.0
    takes_s = one.profile.expected_s(SERVE, seats(one), 0.0)
    ends_s = sorted(work.began_s + work.behind_s + takes_s for work in works)
    left_s = ends_s[ahead] - now_s
    return left_s if left_s > 0.0 else max(-left_s, 1e-3)


def begin(
    one: Replica,
    robot: Robot,
    pending: PendingRequest,
    batch: MicroBatch | None,
    now_s: float,
    behind_s: float = 0.0,
) -> Future[Served]:
    """Have a replica compute a request. behind_s: see Work."""
    assert robot.task is not None
    robot.task.dispatched(now_s)
    if robot.verdict.reason:  # its rate was lowered: two at once are its due, more are others'
        period_s = 1.0 / robot.verdict.chunks_per_s
        robot.next_s = max(robot.next_s, now_s - period_s) + period_s
    pending.request.begun, pending.request.begun_s = True, now_s
    asked = pending.asked
    future = one.serve(asked.round, asked.observation)
    pending.work = Work(one, asked, future, now_s, pending.until_s, pending.observed_s, batch, behind_s)
    return future
