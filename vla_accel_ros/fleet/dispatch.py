"""Which wishes a replica begins now, and which robots are asked to observe anew before that.

Emergencies go first, then those that were observed anew, then as the policy says. A wish whose observation
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
from vla_accel_ros.fleet.records import Robot, Wish, Work
from vla_accel_ros.fleet.replicas.replica import SERVE, Replica, Served
from vla_accel_ros.fleet.task import Task

Pair = tuple[Robot, Wish]


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
        wishes = [robot.wish for robot in robots if robot.wish is not None]
        ready = self._ready(one, robots, now_s)
        while ready:
            room, calls = one.room(), self._calls(one, wishes, now_s)
            if room <= 0 and calls <= 0:
                return
            chosen, batch = self._choose(one, ready, max(room, 1), now_s)
            if not chosen:
                return
            for pair in chosen:
                ready.remove(pair)
                robot, wish = pair
                if self._is_stale(wish, now_s):
                    if self._calls(one, wishes, now_s) > 0:
                        wish.called_s, wish.calling = now_s, True
                        robot.counts.called += 1
                        self._call(wish.asked.round)
                elif one.room() > 0:
                    begin(one, robot, wish, batch, now_s).add_done_callback(self._done)
            if room <= 0:
                return

    def answered(self, work: Work, robots: Iterable[Robot], now_s: float) -> None:
        """Tell the policy once all of a micro-batch are answered."""
        others = (robot.wish.work for robot in robots if robot.wish is not None)
        if work.batch is not None and not any(one and one.batch is work.batch for one in others):
            self.policy.ran(work.batch, now_s - work.began_s)

    def ended(self, task: Task, now_s: float) -> None:
        """A task is over: a fleet's policy may learn from it, an engine's does not ask."""
        if (ended := getattr(self.policy, "ended", None)) is not None:
            ended(task, now_s)

    def _ready(self, one: Replica, robots: Iterable[Robot], now_s: float) -> list[Pair]:
        """Wishes that it may begin, in order of their first attempts."""
        ready = [
            (robot, robot.wish)
            for robot in robots
            if robot.wish is not None
            and robot.wish.work is None
            and not robot.wish.calling
            and robot.is_ready(one.name)
            and (now_s >= robot.next_s or robot.wish.queued.priority >= EMERGENCY)
        ]
        return sorted(ready, key=lambda pair: pair[1].first_s)

    def _choose(
        self, one: Replica, ready: Sequence[Pair], room: int, now_s: float
    ) -> tuple[list[Pair], MicroBatch | None]:
        """Who begins, at most so many, and the policy's micro-batch if it chose them."""
        urgent = [pair for pair in ready if pair[1].queued.priority >= EMERGENCY]
        if urgent:
            return sorted(urgent, key=lambda pair: -pair[1].queued.priority)[:room], None
        called = [pair for pair in ready if pair[1].called_s is not None]
        if called:
            return called[:room], None
        self._known[one.name].limit = room
        batch = self.policy.next(one.name, [wish.queued for _, wish in ready], now_s)
        if batch is None:
            return [], None
        by_request = {id(pair[1].queued): pair for pair in ready}
        return [by_request[id(request)] for request in batch.requests][:room], batch

    def _is_stale(self, wish: Wish, now_s: float) -> bool:
        """Whether it is to be observed anew. An emergency does not wait for that, and nobody twice."""
        urgent = wish.queued.priority >= EMERGENCY
        return wish.called_s is None and not urgent and now_s - wish.observed_s > self._stale_s

    def _calls(self, one: Replica, wishes: Iterable[Wish], now_s: float) -> int:
        """How many more robots may be called."""
        wishes = tuple(wishes)
        called = sum(wish.called_s is not None and wish.work is None for wish in wishes)
        works = [wish.work for wish in wishes if wish.work is not None and wish.work.replica is one]
        expected_s = one.profile.expected_s(SERVE, max(1, len(works)), math.inf)
        due_s = min((work.began_s for work in works), default=math.inf) + expected_s
        return one.room() + (due_s - now_s <= self._call_s) - called


def begin(one: Replica, robot: Robot, wish: Wish, batch: MicroBatch | None, now_s: float) -> Future[Served]:
    """Have a replica compute a wish."""
    assert robot.task is not None
    robot.task.dispatched(now_s)
    if robot.verdict.reason:  # its rate was lowered: two at once are its due, more are others'
        period_s = 1.0 / robot.verdict.chunks_per_s
        robot.next_s = max(robot.next_s, now_s - period_s) + period_s
    wish.queued.begun, wish.queued.begun_s = True, now_s
    round_ = wish.asked.round
    wish.work = Work(one, round_, one.serve(round_, wish.observation), now_s, batch)
    return wish.work.future
