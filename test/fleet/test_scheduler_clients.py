"""The scheduler with the robots' own side of it, over a network that delays, in given time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from fleet_stand_ins import ACTIONS, STEP_S, TimedReplica

from vla_accel_ros.extensions import FLEET_RULES, find
from vla_accel_ros.fleet.admission.verdict import Limits
from vla_accel_ros.fleet.protocol import (
    Admission,
    ChunkAnswer,
    ChunkRequest,
    EncodedObservation,
    RobotDescription,
    Round,
)
from vla_accel_ros.fleet.robot.client import ClientSettings, FleetClient
from vla_accel_ros.fleet.serving.scheduler import FleetScheduler
from vla_accel_ros.fleet.serving.settings import Ports, Settings

NETWORK_S, TICK_S = 0.004, 0.01
SETTINGS = ClientSettings(max_age_s=1.5, step_dt_s=STEP_S, ask_at_s=0.25)


class Fleet:
    """robots: how many; takes_s: of a chunk. Each robot's clock begins elsewhere. lost: of how many messages
    one is lost, 0 for none. More robots are admitted than fit. deaf: robots hear of no admission."""

    def __init__(self, robots: int, takes_s: float, lost: int = 0) -> None:
        self.now_s, self.lost, self.counted = 0.0, lost, itertools.count(1)
        self.deaf = False
        self.replica = TimedReplica(takes_s=takes_s)
        self.finish_s: float | None = None
        self.events: list[tuple[float, int, Callable[[], object]]] = []
        self.order = itertools.count()
        make = find(FLEET_RULES, "kairos")
        ports = Ports(self.admit, self.call, self.answer)
        self.scheduler = FleetScheduler("s", [self.replica], make, ports, Settings(limits=Limits(load=10.0)))
        self.clients: dict[str, tuple[int, FleetClient]] = {}
        self.taken = dict.fromkeys(range(robots), 0)
        self.ages_s: list[float] = []
        for number in range(robots):
            client = FleetClient(f"e{number}", f"/r{number}", SETTINGS)
            client.begin(self.clock_ns(number))
            client.instruct("reach", self.clock_ns(number))
            self.clients[f"/r{number}"] = number, client

    def clock_ns(self, number: int) -> int:
        return round((1000.0 * (number + 1) + self.now_s) * 1e9)

    def send(self, deliver: Callable[[], object]) -> None:
        if not self.lost or next(self.counted) % self.lost:
            heapq.heappush(self.events, (self.now_s + NETWORK_S, next(self.order), deliver))

    def admit(self, admission: Admission) -> None:
        number, client = self.clients[admission.robot]
        if self.deaf:
            return
        self.send(lambda: client.admitted(admission, self.clock_ns(number)))

    def call(self, round_: Round) -> None:
        number, client = self.clients[round_.robot]
        self.send(lambda: client.called(round_, self.clock_ns(number)))

    def answer(self, answer: ChunkAnswer) -> None:
        self.send(lambda: self.take(answer))

    def take(self, answer: ChunkAnswer) -> None:
        number, client = self.clients[answer.round.robot]
        chunk = client.answered(answer, self.clock_ns(number))
        if chunk is not None:
            assert chunk.actions[0, 0] == number
            self.taken[number] += 1
            self.ages_s.append((self.clock_ns(number) - chunk.stamp_ns) * 1e-9)

    def drive(self, number: int, client: FleetClient) -> None:
        now_ns = self.clock_ns(number)
        step = client.step(now_ns)
        if step.announce:
            robot = RobotDescription(client.engine, client.robot, "contract", chunks_per_s=4.0)
            self.send(lambda: self.scheduler.described(robot, self.now_s))
        if step.observe:
            stamp_ns = now_ns - 20_000_000
            ask = client.ask(stamp_ns, now_ns)
            seen = EncodedObservation({}, {}, np.full(1, number, np.float32), "reach", stamp_ns)
            request = ChunkRequest(ask.round, ask.attempt, ask.sent_ns, seen)
            progress = {
                name: getattr(ask, name) for name in ("executed_s", "remaining", "stalled_s", "within_s")
            }
            self.send(lambda: self.scheduler.asked(replace(request, **progress), self.now_s))

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            while self.events and self.events[0][0] <= self.now_s:
                heapq.heappop(self.events)[2]()
            for number, client in self.clients.values():
                self.drive(number, client)
            if self.finish_s is not None and self.now_s >= self.finish_s and self.replica.jobs:
                self.replica.finish()
            self.scheduler.step(self.now_s)
            if not self.replica.jobs:
                self.finish_s = None
            elif self.finish_s is None or self.finish_s <= self.now_s:
                self.finish_s = self.now_s + self.replica.takes_s


@pytest.mark.parametrize("lost", [0, 11])
def test_robots_that_fit_are_all_served_and_move_most_of_the_time(lost: int) -> None:
    fleet = Fleet(4, takes_s=0.03, lost=lost)
    fleet.run(20.0)
    rounds = 20.0 / (ACTIONS * STEP_S)
    for number, client in fleet.clients.values():
        assert fleet.taken[number] > (0.5 if lost else 0.8) * rounds
        if not lost:
            assert client.execution.stalled_s < 1.5
            assert not client.counts["foreign"] and not client.counts["stale"]
    assert max(fleet.ages_s) < SETTINGS.max_age_s


def test_overloaded_robots_are_asked_anew_and_get_young_chunks_in_turn() -> None:
    fleet = Fleet(4, takes_s=0.2)
    fleet.run(30.0)
    assert sum(client.counts["calls"] for _, client in fleet.clients.values()) > 10
    least, most = min(fleet.taken.values()), max(fleet.taken.values())
    assert least > 20 and most <= 1.3 * least
    assert float(np.median(fleet.ages_s)) < 0.6


@pytest.mark.parametrize("admitted", [True, False])
def test_a_late_word_of_the_scheduler_before_this_one_stops_no_robot(admitted: bool) -> None:
    fleet = Fleet(2, takes_s=0.03)
    fleet.run(3.0)
    before = dict(fleet.taken)
    for number, client in fleet.clients.values():
        old = Admission(client.engine, client.robot, "before", admitted, "" if admitted else "it is full")
        assert client.admitted(old, fleet.clock_ns(number))
    fleet.run(2 * SETTINGS.max_age_s + 1.0)
    for number, client in fleet.clients.values():
        assert fleet.taken[number] >= before[number] + 3
        assert client.admission is not None and client.admission.scheduler == "s"


def test_an_admission_that_was_lost_is_told_again() -> None:
    fleet = Fleet(2, takes_s=0.03)
    fleet.deaf = True
    fleet.run(1.5)
    assert not any(fleet.taken.values())
    fleet.deaf = False
    fleet.run(3.0)
    assert all(count >= 3 for count in fleet.taken.values())


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize(
    "ahead",
    [(2**64 - 1, 1, 1), (5_000, 1, 1), (900, 1, 1), (0, 2**64 - 1, 1), (0, 500, 1), (0, 0, 2**32 - 2000)],
)
def test_a_strangers_request_with_high_numbers_silences_no_robot(
    ahead: tuple[int, int, int], begun: bool
) -> None:
    fleet = Fleet(2, takes_s=0.03)
    fleet.run(3.0 if begun else 0.03)
    number, client = fleet.clients["/r0"]
    task = min(client.round.task + ahead[0], 2**64 - 1)
    stranger = Round(client.engine, client.robot, task, min(client.round.number + ahead[1], 2**64 - 1))
    seen = EncodedObservation({}, {}, np.full(1, number, np.float32), "go elsewhere", 0)
    fleet.scheduler.asked(ChunkRequest(stranger, client.attempt + ahead[2], 0, seen), fleet.now_s)
    before = dict(fleet.taken)
    fleet.run(6.0)
    assert min(fleet.taken[other] - before[other] for other in fleet.taken) > 0.5 * 6.0 / (ACTIONS * STEP_S)


def test_an_idle_robot_keeps_its_seat_and_one_that_has_gone_loses_it() -> None:
    fleet = Fleet(3, takes_s=0.03)
    fleet.run(2.0)
    number, idle = fleet.clients["/r0"]
    idle.instruct("", fleet.clock_ns(number))
    del fleet.clients["/r1"]  # its process was killed
    fleet.run(60.0)
    assert fleet.scheduler.robots() == ("/r0", "/r2")
    states = {
        report.robot: (report.state, report.chunks_per_s) for report in fleet.scheduler.reports(fleet.now_s)
    }
    assert states["/r0"] == ("idle", 4.0)
    before = fleet.taken[number]
    idle.instruct("go on", fleet.clock_ns(number))
    fleet.run(1.0)
    assert fleet.taken[number] > before
