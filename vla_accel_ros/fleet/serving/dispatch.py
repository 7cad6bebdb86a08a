"""Which requests a replica begins now, and which robots must observe again first.

Emergencies go first, then requests that were just observed again, then the rule's choice. A request whose
observation went stale while it waited is not computed: its robot is called to observe again, and others go
meanwhile. As many robots are called as there is room for, plus one if the oldest work should end within
call_s.

With several replicas, each is asked in order, nearest first. The rule knows each replica's measured times,
network time and busy time, how many requests it computes already and how much slower than measured it is now
(fleet.serving.slowness), and leaves a request to another replica that would answer it sooner. So a distant
replica takes the requests that would wait longer for a near one, equal engines share the requests, and one
that became slow gets fewer. Lost replicas are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import cast

from vla_accel_ros.engine.request import MicroBatch, Status
from vla_accel_ros.fleet.protocol import EMERGENCY, Round
from vla_accel_ros.fleet.replicas.replica import SERVE, Replica, Served
from vla_accel_ros.fleet.rules.rule import FleetRule, FleetSetup, ReplicaProfile
from vla_accel_ros.fleet.serving.members import Members
from vla_accel_ros.fleet.serving.queue import Pair, Place, Queue
from vla_accel_ros.fleet.serving.records import PendingRequest, Robot, Work
from vla_accel_ros.fleet.serving.settings import Settings
from vla_accel_ros.fleet.serving.slowness import Slowness
from vla_accel_ros.fleet.task import Task, TaskRequest


class Dispatcher:
    """Dispatches the requests of one scheduler. make: makes the rule. call: asks a robot to observe again.
    done: called, in any thread, when work is finished."""

    def __init__(
        self,
        members: Members,
        queue: Queue,
        make: Callable[[FleetSetup], FleetRule],
        settings: Settings,
        call: Callable[[Round], None],
        done: Callable[[Future[Served]], None],
    ) -> None:
        self._members, self._queue, self._call, self._done = members, queue, call, done
        self._stale_s, self._call_s, self._burst = settings.stale_s, settings.call_s, settings.burst
        self._replicas = replicas = members.replicas
        self._slowness = Slowness()
        self._known = {replica.name: _known(replica) for replica in replicas}
        self.rule = make(FleetSetup(self._known))

    def dispatch(self, one: Replica, now_s: float) -> None:
        """Start the requests that a replica has room for, and call robots with stale observations whose turn
        is near."""
        self._look(now_s)
        passed, unserved = set[TaskRequest](), self._members.not_served(one.name, now_s)
        while True:
            room, calls = one.room(), self._calls(one, now_s)
            if room <= 0 and calls <= 0:
                return
            pairs, batch = self._choose(one, room, calls, passed, unserved, now_s)
            if not pairs:
                return
            for robot, pending in pairs:
                passed.add(pending.request)
                if self._is_stale(pending, now_s):
                    if self._calls(one, now_s) > 0:
                        pending.called_s, pending.called_for, pending.calling = now_s, one.name, True
                        robot.counts.called += 1
                        self._queue.place(robot)
                        self._call(pending.asked.round)
                elif one.room() > 0:
                    behind_s = self._known[one.name].busy_s or 0.0
                    future = begin(one, robot, pending, batch, now_s, self._burst, behind_s)
                    self._queue.place(robot)
                    future.add_done_callback(self._done)
                    self._look(now_s)
                else:  # the next request needs room, not a call
                    room = 0
            if room <= 0:
                return

    def answered(self, work: Work, now_s: float) -> None:
        """Record an answer, and tell the rule once a whole micro-batch is answered."""
        name, took_s = work.replica.name, now_s - work.began_s
        if (profile := self._known.get(name)) is not None:
            computed_s = took_s - work.behind_s - profile.network_s
            self._slowness.took(name, computed_s, profile.together_s(work.together), now_s)
        running = (pending.work for _, pending in self._queue.working.values())
        if work.batch is not None and not any(job and job.batch is work.batch for job in running):
            self.rule.ran(work.batch, max(took_s - work.behind_s, 1e-6))

    def ended(self, task: Task, now_s: float) -> None:
        """Tell the rule that a task is over. Only fleet rules have this hook, not the engine's."""
        if (ended := getattr(self.rule, "ended", None)) is not None:
            ended(task, now_s)

    def _choose(
        self, one: Replica, room: int, calls: int, passed: set[TaskRequest], apart: set[Robot], now_s: float
    ) -> tuple[list[Pair], MicroBatch | None]:
        """Return at most max(room, calls, 1) requests to start, and the rule's micro-batch if the rule
        chose them. passed: requests already handled in this dispatch. apart: robots that this replica does
        not serve now."""
        queue, limit = self._queue, max(room, calls, 1)
        urgent = [pair for pair in _others(queue.urgent, passed) if pair[0].is_ready(one.name)]
        if urgent:
            return sorted(urgent, key=lambda pair: -pair[1].request.priority)[:limit], None
        if one.name not in self._known:
            return [], None
        called = [pair for pair in _others(queue.called, passed) if pair[0] not in apart]
        if for_replica := [pair for pair in called if self._is_for(one, pair[1], now_s)]:
            return for_replica[:limit], None
        ready: Sequence[TaskRequest] = tuple(queue.waiting)
        if apart:
            ready = [request for request, (robot, _) in queue.waiting.items() if robot not in apart]
        if passed:
            ready = [request for request in ready if request not in passed]
        if calls <= 0:  # no robot can be called, so take only fresh observations
            oldest_s, waiting = now_s - self._stale_s, queue.waiting
            ready = [request for request in ready if waiting[request][1].observed_s >= oldest_s]
        if not ready:
            return [], None
        self._known[one.name].limit = limit
        batch = self.rule.next(one.name, ready, now_s)
        if batch is None:
            return [], None
        requests = cast("tuple[TaskRequest, ...]", batch.requests)
        return [queue.waiting[request] for request in requests][:limit], batch

    def _is_for(self, one: Replica, pending: PendingRequest, now_s: float) -> bool:
        """Return whether a request that was observed again is this replica's: it was called for it, or the
        replica that called it did not take it soon or is lost."""
        overdue = pending.called_s is not None and now_s - pending.called_s > 2.0 * self._call_s
        return overdue or pending.called_for in ("", one.name) or pending.called_for not in self._known

    def _look(self, now_s: float) -> None:
        """Update the rule's replica profiles: which replicas exist and how long each is busy. With one
        replica there is nothing to place."""
        if len(self._replicas) < 2:
            return
        works: dict[str, list[Work]] = {replica.name: [] for replica in self._replicas}
        for _, pending in self._queue.working.values():
            if pending.work is not None:
                works[pending.work.replica.name].append(pending.work)
        for replica in self._replicas:
            if replica.room() <= 0 and not works[replica.name]:
                self._known.pop(replica.name, None)
                continue
            if (profile := self._known.get(replica.name)) is None:
                profile = self._known[replica.name] = _known(replica)
            jobs = works[replica.name]
            profile.limit, profile.busy_s = seats(replica), busy_s(replica, jobs, now_s)
            profile.beside, profile.slower = (
                beside(replica, jobs, now_s),
                self._slowness.factor(replica.name, now_s),
            )
            for work in jobs:
                work.together = max(work.together, min(len(jobs), profile.limit))

    def _is_stale(self, pending: PendingRequest, now_s: float) -> bool:
        """Return whether a robot must observe again. Emergencies are exempt, and no request is called
        twice."""
        urgent = pending.request.priority >= EMERGENCY
        return pending.called_s is None and not urgent and now_s - pending.observed_s > self._stale_s

    def _calls(self, one: Replica, now_s: float) -> int:
        """Return how many more robots may be called."""
        queue = self._queue
        called = len(queue.called) + sum(p.called_s is not None for _, p in queue.urgent.values())
        works = [p.work for _, p in queue.working.values() if p.work is not None and p.work.replica is one]
        expected_s = one.profile.latest_s(SERVE, max(1, len(works)), math.inf)
        due_s = min((work.began_s for work in works), default=math.inf) + expected_s
        return one.room() + (due_s - now_s <= self._call_s) - called


def _others(place: Place, passed: set[TaskRequest]) -> list[Pair]:
    """Return the requests, in order, that were not handled yet and are not being observed again."""
    return [
        (robot, pending)
        for request, (robot, pending) in place.items()
        if request not in passed and not pending.calling
    ]


def _known(one: Replica) -> ReplicaProfile:
    return ReplicaProfile(max(1, one.limit), one.profile, one.network_s)


def seats(one: Replica) -> int:
    """Return how many requests a replica was measured to compute at once; others wait there."""
    return max((batch for stage, batch in one.profile.known() if stage == SERVE), default=max(1, one.limit))


def busy_s(one: Replica, works: Sequence[Work], now_s: float) -> float:
    """Return how long until a replica would start new work: until the first of its seats is expected to be
    free, by its measured time. Work that is late is expected to be late for as long again."""
    open_s = _open_s(one, works, now_s)
    ahead = len(open_s) - seats(one)
    if ahead < 0:
        return 0.0
    return open_s[ahead] if open_s[ahead] > 0.0 else max(-one.network_s - open_s[ahead], 1e-3)


def beside(one: Replica, works: Sequence[Work], now_s: float) -> int:
    """Return how many requests a replica would compute together with new work, once that has a seat."""
    return min(len(_open_s(one, works, now_s)), seats(one) - 1)


def _open_s(one: Replica, works: Sequence[Work], now_s: float) -> list[float]:
    """Return the expected remaining times of the work that takes a seat of a replica, ascending; negative if
    late. Work that should be done is on its way back for network_s and takes no seat."""
    takes_s = one.profile.latest_s(SERVE, seats(one), 0.0)
    left_s = (work.began_s + work.behind_s + takes_s - now_s for work in works)
    return sorted(wait_s for wait_s in left_s if not -one.network_s < wait_s <= 0.0)


def begin(
    one: Replica,
    robot: Robot,
    pending: PendingRequest,
    batch: MicroBatch | None,
    now_s: float,
    burst: int,
    behind_s: float = 0.0,
) -> Future[Served]:
    """Start a request on a replica. burst: see Settings. behind_s: see Work."""
    assert robot.task is not None
    robot.task.dispatched(now_s)
    if not pending.lost:  # a chunk that is computed again costs no more
        robot.spend(burst, now_s)
    pending.request.status, pending.request.begun_s = Status.RUNNING, now_s
    request = pending.asked
    future = one.serve(request.round, request.observation)
    pending.work = Work(one, request, future, now_s, pending.until_s, pending.observed_s, batch, behind_s)
    return future
