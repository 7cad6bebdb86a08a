"""The scheduler of a fleet: which robot's chunk is computed next, and by which replica.

Each robot has at most one pending request, its newest round; a rule orders them, as in the engine. `step`
takes finished chunks from the replicas, drops what nobody can use any more, and dispatches what there is room
for (fleet.serving.dispatch). An answer uses the request that was dispatched, and goes only to that robot,
process, task and round. One record holds everything about a robot (fleet.serving.records), so forgetting it
leaves nothing behind.

Time is injected, from one monotonic clock. One thread calls everything; `step` reads the futures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from vla_accel_ros.engine.request import Act, Pace
from vla_accel_ros.fleet.admission.forecast import Forecast, Rhythm, at_once
from vla_accel_ros.fleet.protocol import ChunkRequest, RobotDescription
from vla_accel_ros.fleet.replicas.replica import Replica
from vla_accel_ros.fleet.rules.rule import FleetRule, FleetSetup
from vla_accel_ros.fleet.serving.completion import Completion
from vla_accel_ros.fleet.serving.dispatch import Dispatcher
from vla_accel_ros.fleet.serving.members import Members
from vla_accel_ros.fleet.serving.questions import Questions
from vla_accel_ros.fleet.serving.queue import Queue
from vla_accel_ros.fleet.serving.records import (
    PendingRequest,
    Report,
    Robot,
    fairness,
    order_of,
    out_of_order,
    report_of,
)
from vla_accel_ros.fleet.serving.settings import ASK_AGAIN_S, USUAL, Cut, Ports, Settings, whole
from vla_accel_ros.fleet.task import Task, TaskRequest


class FleetScheduler:
    """The robots of a fleet and their requests. name: of this process. rule: makes the rule from the
    replica profiles. horizon: makes the function that limits a robot's chunks; raises ValueError if it does
    not understand the description. forecast: see fleet.admission.forecast."""

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        rule: Callable[[FleetSetup], FleetRule],
        ports: Ports,
        settings: Settings = USUAL,
        horizon: Callable[[RobotDescription], Cut] = whole,
        forecast: Forecast = at_once,
    ) -> None:
        self.name, self.settings, self._ports = name, settings, ports
        self._queue = Queue()
        callbacks = self._left, self._failed
        self._members = Members(name, replicas, ports, settings, horizon, *callbacks, forecast)
        self._dispatcher = Dispatcher(self._members, self._queue, rule, settings, ports.call, self._wake)
        self._completion = Completion(name, self._members, self._queue, self._dispatcher, ports, settings)
        self._questions = Questions(self._members, settings.lost, ports.text, self._wake)
        self.strangers = 0  # requests of unknown robots

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The replicas, nearest first."""
        return self._members.replicas

    @property
    def capacity_hz(self) -> float:
        """Chunks a second that the replicas can compute."""
        return self._members.judge.capacity_hz

    @property
    def in_time_hz(self) -> float:
        """Chunks a second expected in time; see Judge."""
        return self._members.judge.in_time_hz()

    @property
    def slower(self) -> float:
        """Factor by which durations are assumed longer than measured, because many chunks were late."""
        return self._members.judge.punctuality.slower

    def robots(self) -> tuple[str, ...]:
        """Return the names of the known robots."""
        return tuple(self._members.robots)

    def reports(self, now_s: float) -> tuple[Report, ...]:
        """Return the status of each robot."""
        return tuple(report_of(robot, now_s) for robot in self._members.robots.values())

    def rhythms(self, now_s: float) -> dict[str, Rhythm | None]:
        """Return each robot's rhythm by name; None if too few of its requests were seen."""
        return {name: robot.asked.rhythm(now_s) for name, robot in self._members.robots.items()}

    @property
    def took_s(self) -> float | None:
        """Median request duration since the fleet changed; None if too few were answered."""
        return self._members.judge.punctuality.took_s

    def fairness(self, now_s: float) -> float:
        """Return the fairness of the present tasks; see fleet.serving.records.fairness."""
        return fairness(robot.task.wait_ratio(now_s) for robot in self._members.robots.values() if robot.task)

    def waiting(self) -> int:
        """Return the number of requests that are not being computed."""
        return len(self._queue)

    def questions(self) -> int:
        """Return the number of questions that no replica is answering."""
        return self._questions.waiting()

    def described(self, description: RobotDescription, now_s: float) -> None:
        """Add a robot that described itself; see Members.described."""
        self._members.described(description, now_s)

    def asked(self, request: ChunkRequest, now_s: float) -> None:
        """Take a request for a chunk; its answer is sent through the ports, at most once."""
        robot = self._sender(request, self._completion.refuse)
        if robot is None:
            return
        self._members.heard(robot, now_s)
        if not robot.verdict.admitted:
            robot.counts.refused += 1
            again_s = self.settings.gone_s if robot.judged else ASK_AGAIN_S
            self._completion.refuse(request, robot.verdict.reason, again_s)
            return
        if self._is_duplicate(robot, request):
            robot.counts.repeated += 1
            return
        if (problem := out_of_order(robot.newest, order_of(request))) is not None:
            robot.counts.out_of_order += 1
            self._completion.refuse(request, problem)
            return
        robot.newest = order_of(request)
        self._note(robot, request, now_s)
        self._enqueue(robot, request, now_s)

    def questioned(self, request: ChunkRequest, now_s: float) -> None:
        """Take a question; its answer, or the reason why there is none, is sent through the ports once."""
        robot = self._sender(request, self._questions.refuse)
        if robot is None:
            return
        if not robot.verdict.admitted:
            self._questions.refuse(request, f"the fleet does not serve this robot: {robot.verdict.reason}")
        else:
            self._members.heard(robot, now_s)
            self._questions.asked(robot, request, now_s)

    def gone(self, robot: str, now_s: float) -> None:
        """Forget a robot that has gone."""
        self._members.gone(robot, now_s)

    def close(self, now_s: float) -> None:
        """Forget all robots."""
        for robot in tuple(self._members.robots.values()):
            self._members.forget(robot, now_s)

    def step(self, now_s: float) -> None:
        """Answer finished requests, drop useless ones, dispatch what there is room for."""
        self._members.look(now_s)
        for robot, pending in (*self._queue.working.values(), *self._queue.expired(now_s)):
            if robot.pending is pending:
                self._completion.advance(robot, pending, now_s)
        for _, pending in self._queue.called.values():
            if pending.calling and pending.called_s is not None:
                pending.calling = now_s - pending.called_s <= self.settings.call_s
        self._members.step(now_s)
        for replica in self.replicas:
            self._dispatcher.dispatch(replica, now_s)
        self._questions.step(now_s)

    def _sender(self, request: ChunkRequest, refuse: Callable[[ChunkRequest, str], None]) -> Robot | None:
        """The robot that sent a request; None, and the request is refused, if it is not known."""
        robot = self._members.robots.get(request.round.robot)
        if robot is None:
            self.strangers += 1
            refuse(request, "the scheduler does not know this robot; publish fleet/robot")
        elif request.round.engine != robot.description.engine:
            robot.counts.foreign += 1
            refuse(request, "the scheduler knows another process of this robot")
            return None
        return robot

    def _wake(self, future: Future[Any]) -> None:
        self._ports.wake()

    def _left(self, robot: Robot, now_s: float) -> None:
        """Clean up after a forgotten robot."""
        self._questions.forget(robot.name)
        self._completion.cancel(robot)
        self._end_task(robot, now_s)

    def _failed(self, robot: Robot, why: str) -> None:
        """Drop the request of a robot that can no longer be served."""
        self._completion.drop(robot, why)

    def _is_duplicate(self, robot: Robot, request: ChunkRequest) -> bool:
        """Return whether a request has come before. An observation that was called for may keep its attempt
        number, so its sending time decides."""
        pending, order = robot.pending, order_of(request)
        if pending is not None and pending.calling and order == pending.order:
            return request.sent_ns <= pending.asked.sent_ns
        return order == robot.newest

    def _note(self, robot: Robot, request: ChunkRequest, now_s: float) -> None:
        """Record what the request says of its robot's task."""
        number, words = request.round.task, request.observation.instruction
        if robot.task is None or robot.task.number != number:
            self._end_task(robot, now_s)
            priority = self._priority(robot, request)
            robot.task = Task(robot.name, number, words, now_s, priority)
        executed_s = request.executed_s if math.isfinite(request.executed_s) else -1.0
        stalled_s = request.stalled_s if math.isfinite(request.stalled_s) else 0.0
        robot.task.told(now_s, executed_s, request.remaining * robot.step_dt_s, stalled_s)

    def _end_task(self, robot: Robot, now_s: float) -> None:
        if robot.task is not None:
            self._dispatcher.ended(robot.task, now_s)

    def _priority(self, robot: Robot, request: ChunkRequest) -> int:
        return self.settings.granted(robot.name, max(robot.description.priority, request.priority))

    def _enqueue(self, robot: Robot, request: ChunkRequest, now_s: float) -> None:
        """Make this the robot's pending request."""
        old, within_s = robot.pending, request.within_s
        until_s = now_s + within_s if within_s > 0.0 else math.inf
        age_s = max(0.0, (request.sent_ns - request.observation.stamp_ns) * 1e-9)
        if old is not None and old.asked.round == request.round:
            old.asked, old.until_s, old.observed_s, old.calling = request, until_s, now_s - age_s, False
            old.request.priority = self._priority(robot, request)
            old.request.submitted_s, old.request.pace = now_s, Pace(math.inf, within_s)
            self._queue.place(robot)
            return
        if old is not None:
            robot.counts.replaced += 1
            self._completion.cancel(robot)
        robot.asked.note(now_s, request.remaining * robot.step_dt_s)
        assert robot.task is not None
        queued = TaskRequest(Act(), robot.name, task=robot.task, priority=self._priority(robot, request))
        queued.pace = Pace(math.inf, within_s)
        queued.submitted_s, queued.instruction = now_s, request.observation.instruction
        robot.pending = PendingRequest(request, queued, now_s, until_s, now_s - age_s)
        self._queue.place(robot)
