"""Random messages of many robots to a scheduler."""

from __future__ import annotations

import collections
import random
from typing import Any

from fleet_stand_ins import Fifo, Fleet, TimedReplica, make_request

from vla_accel_ros.fleet.admission.verdict import Limits
from vla_accel_ros.fleet.protocol import EMERGENCY, ChunkRequest, Round
from vla_accel_ros.fleet.serving.settings import Settings

NAMES = tuple(f"/r{number}" for number in range(7))
SETTINGS = Settings(stale_s=0.2, call_s=0.1, gone_s=3.0, serve_s=1.0, limits=Limits(most_robots=5))


class Storm:
    """A fleet in which anything may happen next. What is seen says whose it is: robot, process, task, round
    and attempt, which a chunk has from its observation. make: the policy, None: first in, first out."""

    def __init__(self, seed: int, make: Any = None) -> None:
        self.random = random.Random(seed)
        replicas = [TimedReplica("one", 2, 0.05), TimedReplica("two", 1, 0.2)]
        self.fleet = Fleet(replicas=replicas, settings=SETTINGS, policy=Fifo(most=3), make=make)
        self.replicas = replicas
        self.engines = dict.fromkeys(NAMES, 0)
        self.orders = dict.fromkeys(NAMES, (0, 0, 0))
        self.sent: list[ChunkRequest] = []
        self.delivered: collections.Counter[tuple[Round, int]] = collections.Counter()
        self.most_records, self.read = 0, 0
        self.records: dict[str, object] = {}
        self.lives = dict.fromkeys(NAMES, 0)
        self.answered: collections.Counter[tuple[Round, int, int]] = collections.Counter()

    def run(self, events: int) -> None:
        happenings = {
            self.ask: 40,
            self.repeat: 8,
            self.overtake: 8,
            self.describe: 6,
            self.begin_anew: 1,
            self.vanish: 1,
            self.compute: 40,
            self.fail: 3,
            self.die: 1,
            self.revive: 3,
            self.silent: 1,
        }
        names, weights = list(happenings), list(happenings.values())
        for happen in self.random.choices(names, weights, k=events):
            happen()
            self.note()
            self.fleet.step(self.random.choice((0.0, 0.0, 0.005, 0.05)))
            self.note()
            self.most_records = max(self.most_records, len(self.fleet.scheduler.robots()))

    def note(self) -> None:
        """Count the chunks that were answered. Who was forgotten may be given the same round again."""
        for name in NAMES:
            record = self.fleet.scheduler._members.robots.get(name)
            if record is not None and record is not self.records.get(name):
                self.records[name], self.lives[name] = record, self.lives[name] + 1
        for answer in self.fleet.told.answers[self.read :]:
            if answer.chunk is not None:
                self.answered[answer.round, answer.attempt, self.lives[answer.round.robot]] += 1
        self.read = len(self.fleet.told.answers)

    def name(self) -> str:
        return self.random.choice(NAMES)

    def describe(self) -> None:
        name = self.name()
        self.fleet.describe(name, engine=str(self.engines[name]))
        self.lives[name] += 1  # its numbers start anew

    def begin_anew(self) -> None:
        name = self.name()
        self.engines[name] += 1
        self.orders[name] = (0, 0, 0)

    def ask(self) -> None:
        name = self.name()
        task, number, attempt = self.orders[name]
        kind = self.random.random()
        if kind < 0.05:
            task, number, attempt = task + 1, 0, 0
        elif kind < 0.7:
            number, attempt = number + 1, 0
        else:
            attempt += 1
        self.orders[name] = task, number, attempt
        request = make_request(
            name,
            number,
            task=task,
            attempt=attempt,
            engine=str(self.engines[name]),
            sent_s=1000.0 + self.fleet.now_s,
            age_s=self.random.choice((0.01, 0.3)),
            state=(NAMES.index(name), self.engines[name], task, number, attempt),
            executed_s=self.random.choice((-1.0, 0.1)),
            remaining=self.random.randrange(8),
            within_s=self.random.choice((float("inf"), 0.05, 0.5)),
            priority=self.random.choice((0, 0, 0, 1, EMERGENCY)),
        )
        self.sent = [*self.sent[-50:], request]
        if self.random.random() < 0.9:
            self.deliver(request)

    def deliver(self, request: ChunkRequest) -> None:
        self.delivered[request.round, request.attempt] += 1
        self.fleet.scheduler.asked(request, self.fleet.now_s)

    def repeat(self) -> None:
        if self.sent:
            self.deliver(self.sent[-1])

    def overtake(self) -> None:
        if self.sent:
            self.deliver(self.random.choice(self.sent))

    def vanish(self) -> None:
        self.fleet.scheduler.gone(self.name(), self.fleet.now_s)

    def busy(self) -> list[TimedReplica]:
        return [one for one in self.replicas if one.jobs]

    def compute(self) -> None:
        if busy := self.busy():
            self.random.choice(busy).finish()

    def fail(self) -> None:
        if busy := self.busy():
            self.random.choice(busy).finish(self.random.choice((ValueError("bad"), RuntimeError("worse"))))

    def die(self) -> None:
        self.random.choice(self.replicas).die()

    def revive(self) -> None:
        self.random.choice(self.replicas).dead = False

    def silent(self) -> None:
        self.fleet.step(1.1)
