"""Ten thousand short lives of a robot whose fleet loses, delays, doubles and reorders messages, and whose
processes are started again.

Time goes from message to message and from deadline to deadline: a robot that waits without one stands still,
which is found. No two clocks are compared: each process has its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random

import numpy as np
import pytest

from vla_accel_ros.fleet.protocol import Admission, ChunkAnswer, Round
from vla_accel_ros.fleet.robot.client import Ask, ClientSettings, FleetClient
from vla_accel_ros.types import Chunk

S, MS = 1_000_000_000, 1_000_000
MAX_AGE_S = 2.0
SETTINGS = ClientSettings(MAX_AGE_S, 0.1, ask_at_s=0.5)
ACTIONS = np.zeros((20, 1), np.float32)
FAULTS_NS = 3 * S
SEQUENCES = 10_000


class World:
    """One robot "/left", one scheduler, and a network between them, in true time `now_ns`."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ns = 0
        self.faulty = True
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = count()
        self.offset_ns = self.random.choice((0, 2 * S, -2 * S, 10**15))
        self.settings = replace(SETTINGS, within_s=self.random.choice((0.0, 0.2, 0.7)))
        self.asked: list[tuple[Ask, int]] = []
        self.taken: list[int] = []  # true times
        self.rounds: set[Round] = set()
        self.heard: dict[str, int] = {}
        self.scheduler, self.known, self.up = "scheduler-0", set[str](), True
        self.start_robot()

    @property
    def robot_ns(self) -> int:
        """The robot's clock."""
        return self.now_ns + self.offset_ns

    def at(self, time_ns: int, event: Callable[[], object]) -> None:
        heapq.heappush(self._events, (time_ns, next(self._numbers), event))

    def send(self, event: Callable[[], object]) -> None:
        """A message on its way: later, never, or more than once."""
        random = self.random
        copies = random.choice((0, 1, 1, 1, 2)) if self.faulty else 1
        for _ in range(copies):
            most_ms = 1500 if self.faulty and random.random() < 0.3 else 40
            self.at(self.now_ns + random.randint(5, most_ms) * MS, event)

    def start_robot(self) -> None:
        self.client = FleetClient(f"engine-{self.random.random()}", "/left", self.settings)
        self.client.begin(self.robot_ns)
        self.client.instruct("reach", self.robot_ns)

    def move(self, beginning: int) -> None:
        self.client.execution.told("running", "blend", 0.03, beginning, self.robot_ns)

    def start_scheduler(self) -> None:
        self.scheduler, self.up, self.known = f"scheduler-{self.random.random()}", True, set()
        self.announce()

    def stop_scheduler(self) -> None:
        self.up = False

    def announce(self) -> None:
        engine = self.client.engine
        self.send(lambda: self.register(engine))

    def register(self, engine: str) -> None:
        if self.up:
            self.known.add(engine)
            full = self.faulty and self.random.random() < 0.2
            self.tell(Admission(engine, "/left", self.scheduler, not full, "full" if full else ""))

    def tell(self, admission: Admission) -> None:
        """Latched and reliable: of one publisher's words none comes after a later one."""
        number = next(self._numbers)

        def hear() -> None:
            if number > self.heard.get(admission.scheduler, -1):
                self.heard[admission.scheduler] = number
                self.client.admitted(admission, self.robot_ns)

        self.send(hear)

    def request(self, ask: Ask, stamp_ns: int) -> None:
        if not self.up:
            return
        if ask.round.engine not in self.known:
            return  # a scheduler that was started again does not know it yet
        scheduler, random = self.scheduler, self.random
        if self.faulty and random.random() < 0.2:
            self.send(lambda: self.client.called(ask.round, self.robot_ns))
        number = len(self.asked)
        self.asked.append((ask, stamp_ns))
        chunk = Chunk(ACTIONS, stamp_ns, 0.1, number, number, np.zeros(0), execution_horizon=10)
        answer = ChunkAnswer(ask.round, ask.attempt, scheduler, ask.sent_ns, chunk)
        if self.faulty and random.random() < 0.2:
            answer = replace(answer, chunk=None, refusal="busy", retry_s=random.random() / 2)
        elif self.faulty and random.random() < 0.3:
            answer = replace(answer, round=self.misled(ask.round))
        took_ns = random.randint(10, 1000 if self.faulty else 100) * MS
        self.at(self.now_ns + took_ns, lambda: self.send(lambda: self.answer(answer)))

    def misled(self, round_: Round) -> Round:
        """Somebody else's."""
        return self.random.choice(
            (
                replace(round_, engine="another"),
                replace(round_, robot="/right"),
                replace(round_, task=round_.task + 1),
                replace(round_, number=round_.number + 1),
            )
        )

    def answer(self, answer: ChunkAnswer) -> None:
        waited = self.client.round
        chunk = self.client.answered(answer, self.robot_ns)
        if chunk is None:
            return
        ask, stamp_ns = self.asked[chunk.request_id]
        assert answer.round == ask.round == waited, "a chunk of another robot, engine, task or round"
        assert answer.scheduler == self.client.admission.scheduler
        assert waited not in self.rounds, "a second chunk of one round"
        assert chunk.stamp_ns == stamp_ns and self.robot_ns < stamp_ns + MAX_AGE_S * S
        self.rounds.add(waited)
        self.taken.append(self.now_ns)

    def mend(self) -> None:
        """Faults end: the scheduler runs, and what is latched comes on both sides."""
        self.faulty = False
        if self.up:
            self.announce()
        else:
            self.start_scheduler()
        for engine in self.known:
            self.tell(Admission(engine, "/left", self.scheduler, True))

    def step(self) -> None:
        step = self.client.step(self.robot_ns)
        if step.announce:
            self.announce()
        if step.observe:
            stamp_ns = self.robot_ns - self.random.randint(1, 30) * MS
            ask = self.client.ask(stamp_ns, self.robot_ns)
            assert ask.within_s <= MAX_AGE_S
            self.send(lambda: self.request(ask, stamp_ns))

    def run(self, until_ns: int) -> None:
        for _ in range(2000):
            self.step()
            deadline_ns = self.client.deadline_ns(self.robot_ns)
            assert deadline_ns is not None, "it waits for ever"
            assert deadline_ns - self.robot_ns <= 5 * S
            wake_ns = max(deadline_ns - self.offset_ns, self.now_ns) + 1
            if self._events and self._events[0][0] <= wake_ns:
                self.now_ns, _, event = heapq.heappop(self._events)
                if self.now_ns > until_ns:
                    return
                event()
            else:
                self.now_ns = wake_ns
                if self.now_ns > until_ns:
                    return
        raise AssertionError("it does things without end")


def life(seed: int) -> World:
    """Faults for FAULTS_NS, then none for as long as a chunk may be old."""
    world = World(seed)
    happens = (
        world.start_robot,
        world.start_scheduler,
        world.stop_scheduler,
        world.announce,
        lambda: world.client.instruct(f"task {world.random.random()}", world.robot_ns),
        lambda: world.client.begin(world.robot_ns),
        lambda: world.client.execution.told(
            "running", "blend", 0.03, world.random.randint(0, 2), world.robot_ns
        ),
    )
    for _ in range(world.random.randint(0, 6)):
        world.at(world.random.randint(1, FAULTS_NS), world.random.choice(happens))
    world.at(FAULTS_NS, world.mend)
    world.run(FAULTS_NS + round((MAX_AGE_S + 0.3) * S))
    return world


@pytest.mark.parametrize("part", range(10))
def test_no_wrong_chunk_is_taken_no_wait_is_endless_and_it_goes_on_when_faults_end(part):
    accepted = lost = late = foreign = 0
    for seed in range(part, SEQUENCES, 10):
        world = life(seed)
        resumed = [time_ns for time_ns in world.taken if time_ns >= FAULTS_NS]
        assert resumed, f"sequence {seed}: no chunk after the faults ended"
        assert resumed[0] <= FAULTS_NS + MAX_AGE_S * S, f"sequence {seed}: late"
        counts = world.client.counts
        accepted, lost = accepted + len(world.taken), lost + counts["lost"]
        late, foreign = late + counts["late"], foreign + counts["foreign"]
    # The faults happened.
    assert accepted > 1000 and lost > 1000 and late > 50 and foreign > 1000
