"""Discrete-event simulation of a fleet: robots ask, a rule chooses, replicas compute, robots move.

A request reaches the scheduler link_s after the observation, and an answer reaches the robot after another
link_s. An observation older than stale_s at dispatch is renewed. The robot is called call_s before the
replica is free, as the real scheduler does, or at dispatch if the replica was idle, which costs the batch
twice link_s. A replica that takes one request at a time is reserved for the robot that it called. A chunk
later than within_s is useless: its request is dropped, computed or not, and its robot asks again at once. A
replica takes one batch at a time, from dispatch until its answers are back. A batch takes exactly its
profile's time, or, where scripts record durations, that of the longest. The run is deterministic: no clock
and no randomness.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import Act, MicroBatch, Pace, Status
from vla_accel_ros.fleet.rules.rule import SERVE, FleetRule, FleetSetup, ReplicaProfile
from vla_accel_ros.fleet.simulator.robot import Robot
from vla_accel_ros.fleet.simulator.workloads import Script
from vla_accel_ros.fleet.task import Task, TaskRequest

REQUEST, ANSWER, END, WAKE, LATE, CALL = range(6)
MOST_LATE = 30_000
"""Late chunks in a row after which no task is expected to end."""


@dataclass(frozen=True)
class Settings:
    """rate_hz: of actions. lead_s: motion left when a robot asks; None means the duration of a lone request.
    link_s: one way between robot and scheduler. stale_s, call_s, within_s: see the module. elastic: without a
    new chunk a robot continues beyond the horizon to the end of its chunk. Raises ValueError if a value is
    out of range."""

    rate_hz: float = 30.0
    lead_s: float | None = None
    link_s: float = 0.0025
    stale_s: float = 0.2
    elastic: bool = False
    call_s: float = 0.1
    within_s: float = math.inf

    def __post_init__(self) -> None:
        if not 0 < self.rate_hz < math.inf:
            raise ValueError(
                f"rate_hz is {self.rate_hz}; robots execute a positive number of actions a second."
            )
        for name in ("lead_s", "link_s", "stale_s", "call_s", "within_s"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} is {value}; give 0 or more seconds.")
        if math.isinf(self.link_s):
            raise ValueError("link_s is inf; give the seconds that a message takes.")


@dataclass
class Outcome:
    """Results of a run. fleet: number of robots that did the tasks back to back; 0 if each task had its own.
    robots: one for each task in order of their ends, at ends_s. busy_s: compute time of each replica.
    batches: their sizes. served: robot and round of each chunk, in order of dispatch. late: requests dropped
    before and after they were computed. ended_s: end of the last task."""

    fleet: int = 0
    robots: list[Robot] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    busy_s: dict[str, float] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    served: list[tuple[str, int]] = field(default_factory=list)
    requests: int = 0
    late: list[int] = field(default_factory=lambda: [0, 0])
    ended_s: float = 0.0


class Simulation:
    """replicas: their true durations; the rule gets copies of the profiles, which it may update. make:
    makes the rule from a FleetSetup. A run raises ValueError if a replica's durations are unknown, or if
    chunks come so late that no task ends."""

    def __init__(
        self,
        replicas: Mapping[str, ReplicaProfile],
        make: Callable[[FleetSetup], FleetRule],
        settings: Settings | None = None,
    ) -> None:
        if not replicas:
            raise ValueError("there is no replica; give one or more.")
        self._settings = settings or Settings()
        self._replicas = dict(replicas)
        self._known = {
            name: ReplicaProfile(profile.limit, Profile(profile.profile.known()), profile.network_s)
            for name, profile in replicas.items()
        }
        self.rule = make(FleetSetup(self._known))
        first = next(iter(self._replicas.values()))
        lead_s = self._settings.lead_s
        self._lead_s = first.serves_s(1) + 2 * self._settings.link_s if lead_s is None else lead_s
        self._events: list[tuple[float, int, int, object]] = []
        self._number = 0
        self._pending: dict[TaskRequest, Robot] = {}
        self._idle = dict.fromkeys(self._replicas, True)
        self._computed = dict.fromkeys(self._replicas, (-math.inf, -math.inf))  # last batch: start, end
        self._called: dict[str, TaskRequest] = {}  # request for which a replica is reserved
        self._wakes_s = math.inf
        self._late_in_a_row = 0
        self._next_tasks: list[Script] = []
        self.outcome = Outcome(busy_s=dict.fromkeys(self._replicas, 0.0))

    def open(self, scripts: Sequence[Script], arrivals_s: Sequence[float]) -> Outcome:
        """Run tasks that arrive at given times, each with its own robot."""
        for number, (script, at_s) in enumerate(zip(scripts, arrivals_s, strict=True)):
            self._begin(script, f"/r{number}", number, at_s)
        return self._run()

    def closed(self, scripts: Sequence[Script], robots: int, within_s: float = 1.0) -> Outcome:
        """Run the tasks on `robots` robots, each taking the next when it has finished one; they start within
        within_s."""
        self._next_tasks = list(reversed(scripts))
        self.outcome.fleet = min(robots, len(scripts))
        for number in range(min(robots, len(scripts))):
            at_s = within_s * number / robots
            self._begin(self._next_tasks.pop(), f"/r{number}", 0, at_s)
        return self._run()

    def _begin(self, script: Script, name: str, number: int, at_s: float) -> None:
        settings = self._settings
        task = Task(name, number, script.kind, at_s + settings.link_s)
        robot = Robot(name, script, task, at_s, 1.0 / settings.rate_hz, self._lead_s, settings.elastic)
        self._ask(robot, at_s)

    def _ask(self, robot: Robot, at_s: float) -> None:
        self._push(at_s + self._settings.link_s, REQUEST, robot)

    def _push(self, at_s: float, what: int, of: object) -> None:
        heapq.heappush(self._events, (at_s, self._number, what, of))
        self._number += 1

    def _run(self) -> Outcome:
        happened = {REQUEST: self._asked, ANSWER: self._answered, END: self._ended, WAKE: self._woken}
        happened |= {LATE: self._late, CALL: self._call}
        events = self._events
        while events:
            now_s = events[0][0]
            while events and events[0][0] <= now_s:
                _, _, kind, subject = heapq.heappop(events)
                happened[kind](subject, now_s)  # type: ignore[operator]
            self._dispatch(now_s)
        self.outcome.ended_s = max(self.outcome.ends_s, default=0.0)
        return self.outcome

    def _asked(self, robot: Robot, now_s: float) -> None:
        sent_s = now_s - self._settings.link_s
        robot.observe(sent_s)
        executed_s, left_s = robot.told(sent_s)
        robot.task.told(now_s, executed_s, left_s, robot.stalled_s)
        request = TaskRequest(Act(), robot.name, task=robot.task, priority=robot.task.priority)
        request.submitted_s, request.pace = now_s, Pace(math.inf, self._settings.within_s)
        self._pending[request] = robot
        if math.isfinite(request.pace.most_s):
            self._push(now_s + request.pace.most_s, LATE, request)
        self.outcome.requests += 1

    def _dispatch(self, now_s: float) -> None:
        for lane, idle in self._idle.items():
            if idle and self._pending:
                batch = self._next(lane, now_s)
                if batch is not None:
                    self._serve(lane, batch, now_s)
        if self._pending and any(self._idle.values()):
            wakes_s = self.rule.wake_s(tuple(self._pending), now_s)
            if now_s < wakes_s < self._wakes_s:
                self._wakes_s = wakes_s
                self._push(wakes_s, WAKE, None)

    def _next(self, lane: str, now_s: float) -> MicroBatch | None:
        called = self._called.pop(lane, None)
        if called in self._pending:
            return MicroBatch(SERVE, (called,), steps=0)
        return self.rule.next(lane, tuple(self._pending), now_s)

    def _call(self, lane: str, now_s: float) -> None:
        """The replica is free soon: call the robot of the rule's choice if its observation is stale."""
        waiting = tuple(self._pending)
        batch = self.rule.next(lane, waiting, now_s) if waiting and not self._idle[lane] else None
        if batch is not None:
            (request,) = cast("tuple[TaskRequest]", batch.requests)
            if now_s - self._pending[request].observed_s > self._settings.stale_s:
                self._called[lane] = request

    def _serve(self, lane: str, batch: MicroBatch, now_s: float) -> None:
        settings, replica = self._settings, self._replicas[lane]
        robots, begins_s = list[Robot](), now_s
        for request in cast("tuple[TaskRequest, ...]", batch.requests):
            robots.append(self._pending.pop(request))
            request.status = Status.RUNNING
        began_s, freed_s = self._computed[lane]
        called_s = now_s if freed_s < now_s else max(began_s, now_s - settings.call_s)
        for robot in robots:
            robot.task.dispatched(now_s)
            if now_s - robot.observed_s > settings.stale_s:
                robot.observe(max(robot.observed_s, called_s + settings.link_s))
                begins_s = max(now_s, called_s + 2 * settings.link_s)
        self.outcome.served += [(robot.name, robot.rounds) for robot in robots]
        computes_s = _recorded_s(robots) or replica.profile.latest_s(SERVE, len(robots), math.nan)
        if math.isnan(computes_s):
            raise ValueError(f"replica {lane} has a profile without '{SERVE}'; give its seconds by batch.")
        self._idle[lane] = False
        self.outcome.busy_s[lane] += computes_s
        self.outcome.batches.append(len(robots))
        done_s = begins_s + replica.network_s + computes_s
        self._push(done_s, ANSWER, (lane, batch, robots, now_s))
        if replica.limit == 1 and settings.call_s > 0.0:
            self._push(max(now_s, done_s - settings.call_s), CALL, lane)

    def _answered(self, of: tuple[str, MicroBatch, list[Robot], float], now_s: float) -> None:
        lane, batch, robots, began_s = of
        self._idle[lane], self._computed[lane] = True, (began_s, now_s)
        profile = self._known[lane]
        profile.profile.note(SERVE, len(batch.requests), max(now_s - began_s - profile.network_s, 1e-6))
        self.rule.ran(batch, now_s - began_s)
        for request, robot in zip(batch.requests, robots, strict=True):
            comes_s = now_s + self._settings.link_s
            if now_s - request.submitted_s > request.pace.most_s:
                robot.task.failed()
                self._ask_again(robot, 1, now_s)
                continue
            self._late_in_a_row = 0
            robot.task.answered(now_s, robot.receive(comes_s))
            if robot.done:
                self._push(robot.stops_s, END, robot)
            else:
                self._ask(robot, robot.asks_s(comes_s))

    def _ended(self, robot: Robot, now_s: float) -> None:
        self.rule.ended(robot.task, now_s)
        self.outcome.robots.append(robot)
        self.outcome.ends_s.append(now_s)
        if self._next_tasks:
            self._begin(self._next_tasks.pop(), robot.name, robot.task.number + 1, now_s)

    def _late(self, request: TaskRequest, now_s: float) -> None:
        robot = self._pending.pop(request, None)
        if robot is not None:
            self._ask_again(robot, 0, now_s)

    def _ask_again(self, robot: Robot, computed: int, now_s: float) -> None:
        """Count a late request, and let its robot ask again."""
        self.outcome.late[computed] += 1
        self._late_in_a_row += 1
        if self._late_in_a_row > MOST_LATE:
            raise ValueError(
                f"{MOST_LATE} chunks in a row came later than within_s, {self._settings.within_s:g} s, so no "
                "task ends; give more time, faster replicas or fewer robots."
            )
        self._ask(robot, now_s)

    def _woken(self, _: None, now_s: float) -> None:
        self._wakes_s = math.inf


def _recorded_s(robots: Sequence[Robot]) -> float:
    """Return the longest recorded duration of these chunks; 0 if none was recorded."""
    return max(robot.script.serves_s(robot.rounds) or 0.0 for robot in robots)
