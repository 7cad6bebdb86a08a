"""The node's scheduler in simulated time: robots of the simulator ask `FleetScheduler`, whose replica returns
chunks at a steady rate.

So the decisions are the node's own: its queue, its calls for new observations, its dispatch of each request
as soon as there is room. Only time, messages and the replica are simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from heapq import heappop, heappush
from typing import Any

import numpy as np

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.session import Session
from vla_accel_ros.fleet.admission.verdict import Limits
from vla_accel_ros.fleet.protocol import (
    ChunkAnswer,
    ChunkRequest,
    EncodedObservation,
    RobotDescription,
    Round,
)
from vla_accel_ros.fleet.replicas.replica import SERVE, Served
from vla_accel_ros.fleet.rules.rule import FleetRule, FleetSetup, ReplicaProfile
from vla_accel_ros.fleet.serving.scheduler import FleetScheduler
from vla_accel_ros.fleet.serving.settings import Ports
from vla_accel_ros.fleet.serving.settings import Settings as Serving
from vla_accel_ros.fleet.simulator.robot import Robot
from vla_accel_ros.fleet.simulator.simulation import Outcome, Settings
from vla_accel_ros.fleet.simulator.workloads import Script
from vla_accel_ros.fleet.task import Task
from vla_accel_ros.types import Chunk

ENGINE, TICK_S = "bench", 0.02
ROBOT_HZ, LATE_S = 100.0, 1e6
"""What a robot is admitted for; in that time a chunk is of use."""


def steady(hz: float, at_once: int) -> ReplicaProfile:
    """A replica of the simulator that serves `hz` chunks a second, in batches of at_once."""
    return ReplicaProfile(at_once, Profile({(SERVE, size): size / hz for size in range(1, at_once + 1)}))


class SteadyReplica:
    """A fleet.replicas.replica.Replica that takes at_once requests and returns their chunks one by one, hz a
    second; the owner of the clock finishes them. scripts: the task of each robot, for the horizons."""

    answers = 0
    config: EngineConfig | None = None

    def __init__(self, hz: float, at_once: int, rate_hz: float) -> None:
        self.name, self.limit, self.network_s = "gpu", at_once, 0.0
        self.profile = steady(hz, at_once).profile
        self.scripts: dict[str, Script] = {}
        self.begun: list[tuple[Future[Served], Served]] = []
        self.jobs, self._step_s = 0, 1.0 / rate_hz

    def room(self) -> int:
        return self.limit - self.jobs

    def serve(self, round: Round, observation: EncodedObservation) -> Future[Served]:
        future: Future[Served] = Future()
        script = self.scripts[round.robot]
        actions = np.zeros((script.chunk, 1), np.float32)
        horizon = script.horizon(round.number)
        chunk = Chunk(
            actions, observation.stamp_ns, self._step_s, 0, 0, actions[:, 0], execution_horizon=horizon
        )
        self.begun.append((future, Served(round, chunk, 0.1)))
        self.jobs += 1
        return future

    def cancel(self, served: Future[Served]) -> None:
        raise AssertionError("no request has a deadline here")

    def describe(self, robot: RobotDescription) -> Future[Session | None]:
        future: Future[Session | None] = Future()
        future.set_result(None)
        return future

    def ask(self, round: Round, observation: EncodedObservation) -> Future[str]:
        future: Future[str] = Future()
        future.set_exception(ValueError("it answers nothing"))
        return future

    def forget(self, robot: str) -> None:
        pass


class ScheduledFleet:
    """A fleet of the simulator (fleet/simulator/simulation.py) on the node's scheduler. hz, at_once: of the
    replica. settings: of the simulator; lead_s is required."""

    def __init__(
        self, make: Callable[[FleetSetup], FleetRule], hz: float, at_once: int, settings: Settings
    ) -> None:
        assert settings.lead_s is not None
        self._settings, self._lead_s, self._hz = settings, settings.lead_s, hz
        self._replica = SteadyReplica(hz, at_once, settings.rate_hz)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number, self._now_s, self._free_s = 0, 0.0, 0.0
        self._robots: dict[str, Robot] = {}
        self._attempts: dict[str, int] = {}
        self._next_tasks: list[Script] = []
        self._tasks = 0
        ports = Ports(lambda admission: None, self._called, self._answered)
        serving = Serving(
            settings.stale_s, settings.call_s, gone_s=2 * LATE_S, serve_s=LATE_S,
            limits=Limits(most_robots=1 << 16, load=1e9),
        )  # fmt: skip
        self._scheduler = FleetScheduler("bench", [self._replica], make, ports, serving)
        self.outcome = Outcome(busy_s={"gpu": 0.0})

    def open(self, scripts: Sequence[Script], arrivals_s: Sequence[float]) -> Outcome:
        """Run tasks that arrive at given times, each with its own robot."""
        for number, (script, at_s) in enumerate(zip(scripts, arrivals_s, strict=True)):
            self._at(at_s, self._begin, f"/r{number}", number, script)
        return self._run(len(scripts))

    def closed(self, scripts: Sequence[Script], robots: int, within_s: float = 1.0) -> Outcome:
        """Run the tasks on `robots` robots, each taking the next when it has finished one."""
        self._next_tasks, self.outcome.fleet = list(reversed(scripts)), robots
        for number in range(robots):
            self._at(within_s * number / robots, self._begin, f"/r{number}", 0, self._next_tasks.pop())
        return self._run(len(scripts))

    def _at(self, at_s: float, what: Callable[..., None], *of: Any) -> None:
        self._number += 1
        heappush(self._events, (at_s, self._number, what, of))

    def _run(self, tasks: int) -> Outcome:
        self._at(0.0, self._tick)
        while len(self.outcome.ends_s) < tasks:
            self._now_s, _, action, arguments = heappop(self._events)
            action(*arguments)
            self._step()
        self.outcome.ended_s = max(self.outcome.ends_s)
        return self.outcome

    def _tick(self) -> None:
        self._at(self._now_s + TICK_S, self._tick)

    def _step(self) -> None:
        self._scheduler.step(self._now_s)
        for future, served in self._replica.begun:
            self._free_s = max(self._now_s, self._free_s) + 1.0 / self._hz
            self.outcome.busy_s["gpu"] += 1.0 / self._hz
            self.outcome.batches.append(1)
            self.outcome.served.append((served.round.robot, served.round.number))
            self._at(self._free_s, self._finish, future, served)
        self._replica.begun.clear()

    def _finish(self, future: Future[Served], served: Served) -> None:
        self._replica.jobs -= 1
        future.set_result(served)

    def _begin(self, name: str, number: int, script: Script) -> None:
        if name not in self._robots:
            description = RobotDescription(ENGINE, name, "", chunks_per_s=ROBOT_HZ)
            self._scheduler.described(description, self._now_s)
        task = Task(name, number, script.kind, self._now_s)
        step_s = 1.0 / self._settings.rate_hz
        self._robots[name] = Robot(name, script, task, self._now_s, step_s, self._lead_s)
        self._replica.scripts[name] = script
        self._ask(name)

    def _ask(self, name: str) -> None:
        """A robot observes now; its request comes link_s later."""
        robot = self._robots[name]
        robot.observe(self._now_s)
        executed_s, left_s = robot.told(self._now_s)
        self._attempts[name] = self._attempts.get(name, -1) + 1
        sent_ns, zeros = round(1e9 * self._now_s), np.zeros(1, np.float32)
        observation = EncodedObservation({}, {}, zeros, robot.script.kind, sent_ns)
        round_ = Round(ENGINE, name, robot.task.number, robot.rounds)
        remaining = math.floor(left_s * self._settings.rate_hz + 1e-6)
        request = ChunkRequest(
            round_, self._attempts[name], sent_ns, observation, executed_s, remaining, robot.stalled_s, LATE_S
        )
        self.outcome.requests += 1
        self._at(self._now_s + self._settings.link_s, self._arrives, request)

    def _arrives(self, request: ChunkRequest) -> None:
        self._scheduler.asked(request, self._now_s)

    def _called(self, round_: Round) -> None:
        self._at(self._now_s + self._settings.link_s, self._ask, round_.robot)

    def _answered(self, answer: ChunkAnswer) -> None:
        assert not answer.refusal, answer.refusal
        self._at(self._now_s + self._settings.link_s, self._receive, answer.round)

    def _receive(self, round_: Round) -> None:
        robot = self._robots[round_.robot]
        self._attempts.pop(round_.robot)
        robot.receive(self._now_s)
        if robot.done:
            self._at(robot.stops_s, self._end, robot)
        else:
            self._at(robot.asks_s(self._now_s), self._ask, round_.robot)

    def _end(self, robot: Robot) -> None:
        self.outcome.robots.append(robot)
        self.outcome.ends_s.append(self._now_s)
        if self._next_tasks:
            self._begin(robot.name, robot.task.number + 1, self._next_tasks.pop())
        elif not self.outcome.fleet:
            self._scheduler.gone(robot.name, self._now_s)
