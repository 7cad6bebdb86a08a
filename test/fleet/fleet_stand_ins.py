"""A fleet without robots and GPUs: replicas whose time is given, robots that keep what they are told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import MicroBatch, Request
from vla_accel_ros.engine.session import Session
from vla_accel_ros.fleet.protocol import (
    Admission,
    ChunkAnswer,
    ChunkRequest,
    EncodedObservation,
    RobotDescription,
    Round,
    TextAnswer,
)
from vla_accel_ros.fleet.replicas.replica import SERVE, ReplicaLost, Served
from vla_accel_ros.fleet.serving.scheduler import FleetScheduler
from vla_accel_ros.fleet.serving.settings import ANYONE, Ports, Settings
from vla_accel_ros.fleet.task import Task
from vla_accel_ros.types import Chunk

STEP_S, ACTIONS = 0.05, 8
USUAL = Settings()


class Fifo:
    """First in, first out, as many at once as `most`."""

    def __init__(self, most: int = 1) -> None:
        self.limit = most
        self.took: list[float] = []

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        return MicroBatch(SERVE, tuple(ready[: self.limit])) if ready else None

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        self.took.append(took_s)

    def wake_s(self, ready: Sequence[Request], now_s: float) -> float:
        return math.inf

    def ended(self, task: Task, now_s: float) -> None:
        pass


class TimedReplica:
    """Computes in given time; a chunk says whose it is: its actions are the state of its observation."""

    def __init__(self, name: str = "r", most: int = 1, takes_s: float = 0.1, network_s: float = 0.0) -> None:
        self.name, self.limit, self.takes_s, self.network_s = name, most, takes_s, network_s
        self.profile = Profile({(SERVE, most): takes_s})
        self.known: set[str] = set()
        self.jobs: dict[Future[Served], tuple[Round, EncodedObservation]] = {}
        self.served: list[Round] = []
        self.cancelled: list[Round] = []
        self.dead, self.refuses = False, ""
        self.answers, self.session, self.step_s = 0, None, STEP_S
        self.config: EngineConfig | None = None
        self.questions: dict[Future[str], Round] = {}

    def room(self) -> int:
        return 0 if self.dead else self.limit - len(self.jobs)

    def describe(self, robot: RobotDescription) -> Future[Session | None]:
        future: Future[Session | None] = Future()
        if self.dead:
            future.set_exception(ReplicaLost(f"{self.name} is lost"))
        elif self.refuses:
            future.set_exception(ValueError(self.refuses))
        else:
            self.known.add(robot.robot)
            future.set_result(self.session)
        return future

    def forget(self, robot: str) -> None:
        self.known.discard(robot)

    def serve(self, round: Round, observation: EncodedObservation) -> Future[Served]:
        assert self.room() > 0
        future: Future[Served] = Future()
        if round.robot not in self.known:
            future.set_exception(ReplicaLost(f"{self.name} does not know {round.robot}"))
            return future
        self.jobs[future] = round, observation
        self.served.append(round)
        return future

    def ask(self, round: Round, observation: EncodedObservation) -> Future[str]:
        assert len(self.questions) < self.answers
        future: Future[str] = Future()
        self.questions[future] = round
        return future

    def say(self, text: str = "", error: Exception | None = None) -> None:
        """The oldest question is answered."""
        future = next(iter(self.questions))
        del self.questions[future]
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(text)

    def cancel(self, served: Future[Any]) -> None:
        if served in self.jobs:
            self.cancelled.append(self.jobs.pop(served)[0])
            served.cancel()
        if served in self.questions:
            self.cancelled.append(self.questions.pop(served))
            served.cancel()

    def finish(self, error: Exception | None = None) -> None:
        """The oldest is computed."""
        future = next(iter(self.jobs))
        round_, seen = self.jobs.pop(future)
        if error is not None:
            future.set_exception(error)
            return
        actions = np.tile(seen.state, (ACTIONS, 1))
        chunk = Chunk(actions, seen.stamp_ns, self.step_s, 0, len(self.served), np.zeros(ACTIONS, np.float32))
        future.set_result(Served(round_, chunk, self.takes_s))

    def die(self) -> None:
        """What it computes comes to nothing, and it knows nobody."""
        self.dead = True
        self.known.clear()
        while self.jobs:
            self.finish(ReplicaLost(f"{self.name} is lost"))
        while self.questions:
            self.say(error=ReplicaLost(f"{self.name} is lost"))


@dataclass
class Told:
    """What the scheduler told."""

    admissions: list[Admission] = field(default_factory=list)
    calls: list[Round] = field(default_factory=list)
    answers: list[ChunkAnswer] = field(default_factory=list)
    texts: list[TextAnswer] = field(default_factory=list)
    sessions: list[tuple[str, str, Session]] = field(default_factory=list)

    @property
    def ports(self) -> Ports:
        return Ports(
            self.admissions.append,
            self.calls.append,
            self.answers.append,
            text=self.texts.append,
            session=lambda *told: self.sessions.append(told),
        )

    def chunks(self) -> list[Round]:
        return [answer.round for answer in self.answers if answer.chunk is not None]

    def refusals(self) -> list[str]:
        return [answer.refusal for answer in self.answers if answer.chunk is None]


def make_description(robot: str = "/a", engine: str = "e1", **fields: Any) -> RobotDescription:
    return RobotDescription(engine, robot, "contract", **{"chunks_per_s": 0.01, **fields})


def make_request(
    robot: str = "/a",
    number: int = 0,
    *,
    task: int = 0,
    attempt: int = 0,
    engine: str = "e1",
    sent_s: float = 100.0,
    age_s: float = 0.01,
    state: Sequence[float] = (0.0,),
    **fields: Any,
) -> ChunkRequest:
    """sent_s: by the robot's clock; age_s: of its observation then."""
    sent_ns = round(sent_s * 1e9)
    seen = EncodedObservation({}, {}, np.array(state, np.float32), "reach", sent_ns - round(age_s * 1e9))
    return ChunkRequest(Round(engine, robot, task, number), attempt, sent_ns, seen, **fields)


class Fleet:
    """A scheduler, its replicas and its clock. robots: described at the start. burst, priorities: see
    Settings; by default the promised rates bound nothing, and every priority is granted."""

    def __init__(
        self,
        *robots: str,
        replicas: Sequence[TimedReplica] = (),
        settings: Settings = USUAL,
        policy: Any = None,
        make: Any = None,
        burst: int = 10**6,
        priorities: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        priorities = {ANYONE: 1000} if priorities is None else priorities
        settings = replace(settings, burst=burst, priorities=priorities)
        self.replicas, self.told, self.now_s = list(replicas) or [TimedReplica()], Told(), 0.0
        self.policy = policy or Fifo()
        self.scheduler = FleetScheduler(
            "s", self.replicas, make or (lambda setup: self.policy), self.told.ports, settings, **options
        )
        for robot in robots:
            self.describe(robot)

    @property
    def replica(self) -> TimedReplica:
        return self.replicas[0]

    def describe(self, robot: str, **fields: Any) -> None:
        self.scheduler.described(make_description(robot, **fields), self.now_s)

    def ask(self, robot: str, number: int = 0, **fields: Any) -> None:
        self.scheduler.asked(make_request(robot, number, **fields), self.now_s)

    def begin(self, robot: str, number: int = 0, **fields: Any) -> None:
        """The robot asks, and what can be computed is begun."""
        self.ask(robot, number, **fields)
        self.step()

    def question(self, robot: str, number: int = 0, **fields: Any) -> None:
        self.scheduler.questioned(make_request(robot, number, within_s=9.0, **fields), self.now_s)

    def step(self, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.scheduler.step(self.now_s)

    def serve(self, after_s: float = 0.0) -> None:
        """The oldest that is computed is finished, and the next is begun."""
        self.now_s += after_s
        self.replica.finish()
        self.step()

    def report(self, robot: str) -> Any:
        (one,) = [one for one in self.scheduler.reports(self.now_s) if one.robot == robot]
        return one


def robots_of(rounds: list[Round]) -> list[str]:
    return [one.robot for one in rounds]
