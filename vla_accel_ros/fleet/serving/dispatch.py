"""Which requests a replica begins now, and which robots must observe again first.

Emergencies go first, then requests that were just observed again, then the policy's choice. A request whose
observation went stale while it waited is not computed: its robot is called to observe again, and others go
meanwhile. As many robots are called as there is room for, plus one if the oldest work should end within
call_s.

With several replicas, each is asked in order, nearest first. The policy knows each replica's measured times,
network time and busy time, how many requests it computes already and how much slower than measured it is now
(fleet.serving.slowness), and leaves a request to another replica that would answer it sooner. So a distant
replica takes the requests that would wait longer for a near one, equal engines share the requests, and one
that became slow gets fewer. Lost replicas are left out. If enabled, a request that takes unusually long is
started on a second replica as well (fleet.serving.hedging).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.request import MicroBatch, Request
from vla_accel_ros.fleet.policies.policy import FleetSetup, ReplicaProfile
from vla_accel_ros.fleet.protocol import EMERGENCY, Round
from vla_accel_ros.fleet.replicas.replica import SERVE, Replica, Served
from vla_accel_ros.fleet.serving.hedging import Hedging
from vla_accel_ros.fleet.serving.members import Members
from vla_accel_ros.fleet.serving.queue import Pair, Place, Queue
from vla_accel_ros.fleet.serving.records import PendingRequest, Robot, Work
from vla_accel_ros.fleet.serving.settings import Settings
from vla_accel_ros.fleet.serving.slowness import Slowness
from vla_accel_ros.fleet.task import Task


class Dispatcher:
    """Dispatches the requests of one scheduler. make: makes the policy. call: asks a robot to observe again.
    done: called, in any thread, when work is finished."""

    def __init__(
        self,
        members: Members,
        queue: Queue,
        make: Callable[[FleetSetup], Policy],
        settings: Settings,
        call: Callable[[Round], None],
        done: Callable[[Future[Served]], None],
    ) -> None:
        self._members, self._queue, self._call, self._done = members, queue, call, done
        self._stale_s, self._call_s, self._burst = settings.stale_s, settings.call_s, settings.burst
        self._replicas = replicas = members.replicas
        self._hedging = Hedging() if settings.hedge else None
        self._slowness = Slowness()
        self._known = {one.name: _known(one) for one in replicas}
        self.policy = make(FleetSetup(self._known))

    def dispatch(self, one: Replica, now_s: float) -> None:
        """Start the requests that a replica has room for, and call robots with stale observations whose turn
        is near."""
        self._look(now_s)
        passed, apart = set[Request](), self._members.not_served(one.name, now_s)
        while True:
            room, calls = one.room(), self._calls(one, now_s)
            if room <= 0 and calls <= 0:
                return
            chosen, batch = self._choose(one, room, calls, passed, apart, now_s)
            if not chosen:
                return
            for robot, pending in chosen:
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

    def hedge(self, now_s: float) -> None:
        """Start requests that take unusually long on a second replica with room, once each."""
        if self._hedging is None:
            return
        for robot, pending in self._queue.working.values():
            work = pending.work
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

    def answered(self, work: Work, now_s: float) -> None:
        """Record an answer, and tell the policy once a whole micro-batch is answered."""
        self._took(work, now_s)
        others = (pending.work for _, pending in self._queue.working.values())
        if work.batch is not None and not any(one and one.batch is work.batch for one in others):
            self.policy.ran(work.batch, max(now_s - work.began_s - work.behind_s, 1e-6))

    def cancelled(self, work: Work, now_s: float) -> None:
        """Record the time of work that is cancelled now because another replica answered first."""
        self._took(work, now_s, at_least=True)

    def _took(self, work: Work, now_s: float, at_least: bool = False) -> None:
        name, took_s = work.replica.name, now_s - work.began_s
        if self._hedging is not None:
            self._hedging.took(name, took_s)
        if (known := self._known.get(name)) is not None:
            expected_s = known.together_s(work.together)
            computed_s = took_s - work.behind_s - known.network_s
            if not at_least or computed_s > expected_s:
                self._slowness.took(name, computed_s, expected_s, now_s)

    def ended(self, task: Task, now_s: float) -> None:
        """Tell the policy that a task is over. Only fleet policies have this hook, not the engine's."""
        if (ended := getattr(self.policy, "ended", None)) is not None:
            ended(task, now_s)

    def _choose(
        self, one: Replica, room: int, calls: int, passed: set[Request], apart: set[Robot], now_s: float
    ) -> tuple[list[Pair], MicroBatch | None]:
        """Return at most max(room, calls, 1) requests to start, and the policy's micro-batch if the policy
        chose them. passed: requests already handled in this dispatch. apart: robots that this replica does
        not serve now."""
        queue, most = self._queue, max(room, calls, 1)
        urgent = [pair for pair in _others(queue.urgent, passed) if pair[0].is_ready(one.name)]
        if urgent:
            return sorted(urgent, key=lambda pair: -pair[1].request.priority)[:most], None
        if one.name not in self._known:
            return [], None
        called = [pair for pair in _others(queue.called, passed) if pair[0] not in apart]
        if mine := [pair for pair in called if self._is_for(one, pair[1], now_s)]:
            return mine[:most], None
        ready: Sequence[Request] = tuple(queue.waiting)
        if apart:
            ready = [request for request, (robot, _) in queue.waiting.items() if robot not in apart]
        if passed:
            ready = [request for request in ready if request not in passed]
        if calls <= 0:  # no robot can be called, so take only fresh observations
            oldest_s, waiting = now_s - self._stale_s, queue.waiting
            ready = [request for request in ready if waiting[request][1].observed_s >= oldest_s]
        if not ready:
            return [], None
        self._known[one.name].limit = most
        batch = self.policy.next(one.name, ready, now_s)
        if batch is None:
            return [], None
        return [queue.waiting[request] for request in batch.requests][:most], batch

    def _is_for(self, one: Replica, pending: PendingRequest, now_s: float) -> bool:
        """Return whether a request that was observed again is this replica's: it was called for it, or the
        replica that called it did not take it soon or is lost."""
        late = pending.called_s is not None and now_s - pending.called_s > 2.0 * self._call_s
        return late or pending.called_for in ("", one.name) or pending.called_for not in self._known

    def _look(self, now_s: float) -> None:
        """Update the policy's replica profiles: which replicas exist and how long each is busy. With one
        replica there is nothing to place."""
        if len(self._replicas) < 2:
            return
        works: dict[str, list[Work]] = {one.name: [] for one in self._replicas}
        for robot, _ in self._queue.working.values():
            for work in works_of(robot):
                works[work.replica.name].append(work)
        for one in self._replicas:
            if one.room() <= 0 and not works[one.name]:
                self._known.pop(one.name, None)
                continue
            if (known := self._known.get(one.name)) is None:
                known = self._known[one.name] = _known(one)
            own = works[one.name]
            known.limit, known.busy_s = seats(one), busy_s(one, own, now_s)
            known.beside, known.slower = beside(one, own, now_s), self._slowness.factor(one.name, now_s)
            for work in own:
                work.together = max(work.together, min(len(own), known.limit))

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
        expected_s = one.profile.expected_s(SERVE, max(1, len(works)), math.inf)
        due_s = min((work.began_s for work in works), default=math.inf) + expected_s
        return one.room() + (due_s - now_s <= self._call_s) - called


def _others(place: Place, passed: set[Request]) -> list[Pair]:
    """Return the requests, in order, that were not handled yet and are not being observed again."""
    return [
        (robot, pending)
        for request, (robot, pending) in place.items()
        if request not in passed and not pending.calling
    ]


def _known(one: Replica) -> ReplicaProfile:
    return ReplicaProfile(max(1, one.most), one.profile, one.network_s)


def works_of(robot: Robot) -> Iterable[Work]:
    """Return the work in progress for a robot, hedge included."""
    work = robot.pending.work if robot.pending is not None else None
    return () if work is None else (work,) if work.hedge is None else (work, work.hedge)


def seats(one: Replica) -> int:
    """Return how many requests a replica was measured to compute at once; others wait there."""
    return max((batch for stage, batch in one.profile.known() if stage == SERVE), default=max(1, one.most))


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
    takes_s = one.profile.expected_s(SERVE, seats(one), 0.0)
    left_s = (work.began_s + work.behind_s + takes_s - now_s for work in works)
    return sorted(each for each in left_s if not -one.network_s < each <= 0.0)


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
    pending.request.begun, pending.request.begun_s = True, now_s
    asked = pending.asked
    future = one.serve(asked.round, asked.observation)
    pending.work = Work(one, asked, future, now_s, pending.until_s, pending.observed_s, batch, behind_s)
    return future
