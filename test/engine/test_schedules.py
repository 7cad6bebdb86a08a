"""Random schedules: whatever comes, and whenever micro-batches begin and end, streams keep their word.

A schedule is a few random events (frames, action requests, questions, newer joints, cancellations, other
words, pauses, the beginning or the end of a lane's micro-batch of a random length) on lanes without threads,
under a clock that the test moves, after which all ends. The scheduler, its policies, readiness and overload
are real; what computes is not. For a few of them the plain network of a tiny policy computes. SCHEDULES sets
how many there are, 100,000 unless told otherwise; `make fuzz` runs a million.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import JOINTS, make_observation, make_policy
from frame_stream import FrameStream, held_slots
from overlapping import Hurrying, Overlapping

from vla_accel_ros.engine.config import ALL_APART, LANES
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.grid import Grid
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, WHOLE, MicroBatch, Pace, Request, Waits
from vla_accel_ros.engine.rules.chunks import LATE, StaggeredChunks, WholeChunks
from vla_accel_ros.engine.rules.overload import LADDER, LEVELS
from vla_accel_ros.engine.rules.rule import Rule
from vla_accel_ros.engine.rules.rules import FIRST_APART
from vla_accel_ros.engine.rules.rules import LANES as KINDS
from vla_accel_ros.engine.rules.text import PATIENCE_S
from vla_accel_ros.types import Observation

SCHEDULES = int(os.environ.get("SCHEDULES", 100_000))
EVENTS, TOGETHER = 5, 4
IN_A_ROW = 120 if SCHEDULES < 30_000 else 400
"""Schedules of a fast machine, and then as many of a slow one."""
SEATS, STEPS = 2, 3
WITHIN_S = 0.03
GROUPS = 3
SETTINGS = [
    (word, *setting)
    for word in LANES
    for setting in (
        (0, False, False, 1),
        *((SEATS, fresh, ahead, 1) for fresh in (False, True) for ahead in (False, True)),
        *((SEATS, False, ahead, GROUPS) for ahead in (False, True)),
    )
]


class Random(Overlapping):
    """Random schedules of two robots in some lanes, and what has to be true after each event."""

    def __init__(self, word: str, seats: int, fresh: bool, ahead: bool, groups: int, seed: int) -> None:
        kinds = FIRST_APART if fresh and word == ALL_APART else KINDS[word]
        policy: Rule = StaggeredChunks(seats, groups) if seats else WholeChunks()
        super().__init__(word, policy, steps=STEPS if seats else 1, lanes=kinds, ahead=ahead)
        self.runner.whole_apart, self.seats, self.fresh, self.runner.groups = fresh, seats, fresh, groups
        self.runner.text_groups = groups
        self.before: dict[str, str] = {}  # by lane: the kind of its last micro-batch
        if ahead:
            self.runner.during = self.launched
            for lane in self.lanes.values():
                lane.__class__ = Hurrying
        self.draw = random.Random(seed)
        self.names, self.kinds = list(self.lanes), kinds
        self.felt, self.rungs = 0, [0]
        self.grids = {robot: Grid(0.01) for robot in "ab"}
        self.told: list[Request] = []
        self.waits: dict[tuple[str, bool | None], Request] = {}
        # Of each robot a frame, a text and what waits; chunks in seats, those that left them and whose
        # results are on their way, and one that is whole.
        self.most = 2 * (2 + (2 if fresh else 1)) + (1 + ahead) * max(seats, 1) + 1
        self.submitted: list[Request] = []
        self.newest: dict[str, tuple[int, int]] = {}
        self.begun: dict[tuple[str, int], list[Request]] = {}
        self.late = {OBSERVE: 0, ACT: 0}
        self.wrote_s = -1.0
        self.wrong: list[str] = []
        self.counts = Counter[str]()

    def schedule(self) -> None:
        """One. After TOGETHER of them all ends."""
        draw, clock = self.draw, self.clock
        slow = self.counts["schedules"] // IN_A_ROW % 2
        self.counts["schedules"] += 1
        for _ in range(EVENTS):
            clock.now_s += draw.random() * (0.1 if slow else 0.004)
            what = draw.random()
            if what < 0.35:
                self.come(draw)
            elif what < 0.37 and self.submitted:
                self.scheduler.cancel(draw.choice(self.submitted))
            elif what < 0.38:
                self.scheduler.forget(draw.choice("ab"))
            else:
                self.turn(draw.choice(self.names))
        if not self.counts["schedules"] % TOGETHER:
            self.finish()
            clock.now_s += 0.0 if slow else 0.3

    def come(self, draw: random.Random) -> None:
        """A frame, newer joints, or a question; an action request waits for either, as a stream's does."""
        robot, what = draw.choice("ab"), draw.random()
        self.felt += 1
        self.grids[robot].arrived(self.clock.now_s)
        for first in (True, False) if self.fresh else (None,):
            before = self.waits.get((robot, first))
            if before is None or before.begun or before.finished:
                if before is not None and before.begun and not first:
                    self.grids[robot].began(before.begun_s)
                self.waits[robot, first] = made = self.acting(
                    robot, first=first, sense=self.sense, grid=self.grids[robot], pace=Pace(100.0, WITHIN_S),
                    on_progress=self.acted,
                )  # fmt: skip
                self.submitted.append(made)
        want = OBSERVE if what < 0.6 else ASK
        if 0.6 <= what < 0.9 or any(r.want == want and r.robot == robot for r in self.scheduler.requests):
            return  # vision has one frame at a time, and the model one text of its own
        if want == OBSERVE:
            words = "put" if draw.random() < 0.05 else "reach"
            made = self.frame(robot, words, pace=Pace(1 / 0.03, WITHIN_S), on_progress=self.saw)
        else:
            made = self.submit(ASK, robot=robot, waits=Waits.NEWS, on_progress=self.tell)
        self.submitted.append(made)

    def turn(self, lane: str) -> None:
        """A lane's micro-batch begins, or ends."""
        if lane in self.running:
            self.end(lane)
        elif self.begin(lane) and lane in self.running:
            self.check_begun(lane, self.running[lane][0])
        if self.scheduler.runs_ahead:
            self.begin(lane)
        self.check()

    def launched(self, batch: MicroBatch) -> None:
        """What runs ahead is launched. What is raised here would be the error of its requests."""
        lane = next(name for name in self.names if batch.requests[-1].kind in self.kinds[name])
        try:
            self.check_begun(lane, batch)
        except AssertionError as error:
            self.wrong.append(str(error))

    def finish(self) -> None:
        """All that may end does; what waits for something new is broken off."""
        for lane in tuple(self.running):
            self.turn(lane)
        for _ in range(200):
            if not any(r.begun or r.want == OBSERVE for r in self.scheduler.requests):
                break
            self.clock.now_s += 0.01
            self.clock.now_s += 0.0 if self.step() else 1.0  # text may wait, while there is overload
        left = self.scheduler.requests
        assert not [r for r in left if r.begun or r.want == OBSERVE], (
            "what has begun ends, and frames are taken"
        )
        self.scheduler.cancel(*left)
        assert not self.scheduler.requests and not self.runner.open
        assert self.runner.slots_held <= 2, "the newest of two robots"
        ended = Counter(map(id, self.told))
        for request in self.submitted:
            assert request.finished and request.finished and ended[id(request)] == 1, "it is told so once"
        self.told.clear()
        self.submitted.clear()

    def step(self) -> bool:
        """A micro-batch in each lane that has something to do; whether any ran."""
        kinds = {request.kind for request in self.scheduler.requests}
        for lane in self.names:
            if not kinds.isdisjoint(self.kinds[lane]):
                self.turn(lane)
        ran = tuple(self.running)
        for lane in ran:
            self.turn(lane)
        return bool(ran)

    def check_begun(self, lane: str, batch: MicroBatch) -> None:
        """What a lane has chosen is what it may."""
        now_s = self.clock.now_s
        kinds = {request.kind for request in batch.requests}
        assert len(kinds) == 1, "a micro-batch is of one kind"
        (kind,) = kinds
        others = {r.kind for name, (other, _) in self.running.items() if name != lane for r in other.requests}
        assert kind not in others, "a kind runs once at a time"
        self.counts[kind] += 1
        seated = [r for r in self.runner.open if r.kind == ACT and not r.launched]
        if self.runner.groups > 1 and kind == self.before.get(lane) == OBSERVE:
            paced = any(now_s < r.act.grid.due_s + LATE * r.pace.period_s for r in seated)
            assert ACT not in self.kinds[lane] or not seated or paced, (
                "a step waits for one group, or for a chunk"
            )
        self.before[lane] = kind
        rung = self.rules.overload.rung
        if kind == ASK:
            goes_on = any(request.partial for request in batch.requests)
            rested = now_s >= self.wrote_s + PATIENCE_S - 1e-9
            assert LADDER.index(rung) == 0 or goes_on or rested, "language is first"
            self.wrote_s = now_s
        for request in batch.requests:
            if request.want == ACT and not request.progress and not request.finished:
                self.check_first(request, rung.every)
        assert len(seated) <= max(self.seats, 1)

    def check_first(self, request: Request, every: float) -> None:
        """A frame's first chunk goes first, and stays, whatever is given up."""
        assert request.prefix is not None
        before = self.begun.setdefault((request.robot, request.prefix.version), [])
        if request in before:  # its first step runs ahead
            return
        assert request.fresh == (not before)
        assert request.act.first in (None, request.fresh)
        if not request.fresh:
            assert every < np.inf, "further chunks are given up"
        before.append(request)

    def check(self) -> None:
        """Nothing is torn."""
        running = [request for batch, _ in self.running.values() for request in batch.requests]
        assert len(running) == len(set(running)) and not any(request.finished for request in running)
        assert len(self.scheduler.requests) <= self.most, "nothing queues without bound"
        now, rung = self.rules.overload.degradation, LADDER.index(self.rules.overload.rung)
        assert now.level == LADDER[rung].level and not self.wrong
        if rung != self.rungs[-1]:
            assert abs(rung - self.rungs[-1]) == 1, "one rung at a time"
            self.rungs.append(rung)

    def sense(self) -> tuple[np.ndarray, int]:
        return FELT, self.felt

    def tell(self, request: Request) -> None:
        if request.finished:
            self.told.append(request)

    def saw(self, request: Request) -> None:
        self.tell(request)
        if request.result is not None:
            self.late[OBSERVE] += self.clock.now_s - request.submitted_s > WITHIN_S
            request.result.release()

    def acted(self, request: Request) -> None:
        """Versions never go backwards, and what was dropped brings nothing."""
        self.tell(request)
        if request.result is None:
            return
        assert request.prefix is not None
        this = request.prefix.version, request.number
        if request.cancelled or this <= self.newest.get(request.robot, (-1, -1)):
            self.wrong.append(f"{this} after {self.newest}")  # the scheduler logs what is raised here
        self.newest[request.robot] = this
        self.late[ACT] += self.clock.now_s - request.begun_s > WITHIN_S
        self.counts["chunks"] += 1


FELT = np.zeros(JOINTS, np.float32)


@pytest.mark.parametrize(("word", "seats", "fresh", "ahead", "groups"), SETTINGS)
def test_random_schedules(word: str, seats: int, fresh: bool, ahead: bool, groups: int) -> None:
    system = Random(word, seats, fresh, ahead, groups, seed=1)
    count = -(-SCHEDULES // len(SETTINGS))
    for _ in range(count):
        system.schedule()
    seen = {LADDER[rung].level for rung in system.rungs}
    levels = LEVELS if count > 10_000 else LEVELS[:-1]  # few schedules need not have all
    assert min(system.late.values()) > count / 200 and seen >= set(levels), "there was overload"
    assert min(system.counts[kind] for kind in (OBSERVE, ASK, WHOLE if fresh else ACT, "chunks")) > count / 20


@pytest.mark.parametrize("word", LANES)
def test_random_schedules_of_a_network(word: str) -> None:
    """The same by the plain network of pi0: each chunk is what act makes of its own frame, to the bit."""
    draw, policy = random.Random(1), make_policy("pi0")
    options: dict[str, Any] = {
        "slots": 10,
        "steps": STEPS,
        "staggered": 2,
        "staggering": "fresh",
        "answers": 2,
    }
    engine, frames = Engine(policy, lanes=word, **options), dict[int, Observation]()
    streams, numbers, felt = [FrameStream(engine, robot) for robot in "ab"], iter(range(10_000)), [0]

    def sense() -> tuple[np.ndarray, int]:
        return np.full(JOINTS, felt[0] / 1000, np.float32), felt[0]

    for _ in range(100):
        stream, what = draw.choice(streams), draw.random()
        felt[0] += 1
        if what < 0.2:
            number = next(numbers)
            stream.see(made := make_observation(number, stamp_ns=1000 + number))
            frames[made.stamp_ns] = replace(made, robot=stream.robot)
        elif what < 0.5:
            waiting = {request.act.first for request in stream.waiting}
            stream.want(first=first, sense=sense) if (first := draw.random() < 0.5) not in waiting else None
        elif what < 0.52:
            engine.scheduler.forget(stream.robot)
        else:
            engine.scheduler.step(draw.choice(engine.scheduler.lanes))
    while any(engine.scheduler.step(lane) for lane in engine.scheduler.lanes):
        pass
    engine.scheduler.stop()
    assert not engine.scheduler.requests and held_slots(engine, 2) == 0
    for stream in streams:
        assert not stream.errors and len(stream.chunks) > 3
        versions = [(chunk.kv_version, chunk.request_id) for chunk in stream.chunks]
        assert versions == sorted(versions)
        for chunk in stream.chunks[::3]:
            with engine.observe(frames[chunk.stamp_ns]) as prefix:
                again = engine.act(prefix, chunk.state, chunk.request_id)
            np.testing.assert_array_equal(again.actions, chunk.actions)
