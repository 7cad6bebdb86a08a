"""Sends requests to a replica or a scheduler, and measures the outcome."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from heapq import merge
from typing import Any, NamedTuple

import numpy as np

from fleets.serving import STEP_DT_S, Robots, round_of
from shared.timing import summary
from vla_accel_ros.extensions import FLEET_RULES, find
from vla_accel_ros.fleet.admission.forecast import Rhythm
from vla_accel_ros.fleet.admission.verdict import Limits
from vla_accel_ros.fleet.protocol import Admission, ChunkAnswer, ChunkRequest, RobotDescription, Round
from vla_accel_ros.fleet.replicas.replica import Replica, Served
from vla_accel_ros.fleet.serving.records import NOT_JUDGED, NOT_READY
from vla_accel_ros.fleet.serving.scheduler import FleetScheduler
from vla_accel_ros.fleet.serving.settings import Ports, Settings

STEP_S = 0.02
"""Seconds between two checks of a scheduler for events that only time brings, as in the node."""
FORGOTTEN_S = 5.0


def saturate(
    replica: Replica, robots: Robots, seconds: float, warm_up: float = 1.0, at_once: int = 0
) -> dict[str, Any]:
    """Chunks a second with always as many requests as the replica takes (or at_once), and the time of each
    request."""
    room, lock = threading.Semaphore(at_once or replica.limit), threading.Lock()
    done: list[tuple[float, float]] = []
    errors: list[BaseException] = []

    def ended(future: Future[Served], *, sent_s: float) -> None:
        with lock:
            if (error := future.exception()) is not None:
                errors.append(error)
            done.append((time.monotonic(), time.monotonic() - sent_s))
        room.release()

    began_s, number = time.monotonic(), 0
    until_s = began_s + warm_up + seconds
    while time.monotonic() < until_s and not errors:
        room.acquire()
        robot, sent_s = robots.names[number % len(robots.names)], time.monotonic()
        future = replica.serve(round_of(robot, number), robots.observed(robot, number // len(robots.names)))
        future.add_done_callback(partial(ended, sent_s=sent_s))
        number += 1
    for _ in range(at_once or replica.limit):
        room.acquire()
    if errors:
        raise errors[0]
    inside = [(end_s, took_s) for end_s, took_s in done if began_s + warm_up <= end_s < until_s]
    spans_s = np.array([took_s for _, took_s in inside])
    return {"chunks_hz": round(len(inside) / seconds, 2), "request": times(spans_s), "chunks": len(inside)}


def times(seconds: np.ndarray) -> dict[str, float]:
    """Quantiles in ms; empty if nothing was finished."""
    return summary(1e3 * seconds)


class Due(NamedTuple):
    """A request of a trace, in seconds after its beginning."""

    at_s: float
    robot: str
    number: int


def make_trace(robots: int, hz: float, jitter: float, seconds: float, seed: int) -> list[Due]:
    """Each robot asks `hz` times a second from a random phase on, with every interval longer or shorter by up
    to the share `jitter`, whatever happened to its last request."""
    rng = np.random.default_rng(seed)

    def one(robot: str) -> list[Due]:
        number = int(seconds * hz * 1.5) + 4
        gaps = (1.0 + rng.uniform(-jitter, jitter, number)) / hz
        at_s = rng.uniform(0.0, 1.0 / hz) + np.concatenate(([0.0], np.cumsum(gaps)))
        return [Due(float(when), robot, index) for index, when in enumerate(at_s) if when < seconds]

    return list(merge(*(one(f"/robot{index}") for index in range(robots))))


@dataclass
class Fleet:
    """A FleetScheduler as the node runs it: one thread calls it for each request, after each computation, and
    every STEP_S. answers: of requests, with their times. seen, took_s: how robots were seen to ask until
    seen_s of the trace, and the median time of their requests."""

    replicas: Sequence[Replica]
    robots: Robots
    names: tuple[str, ...]
    hz: float
    answers: dict[tuple[str, int], tuple[float, ChunkAnswer]] = field(default_factory=dict)
    steps_s: list[float] = field(default_factory=list)
    buffer_s: float = 0.0
    seen_s: float = math.inf
    seen: dict[str, Rhythm | None] = field(default_factory=dict)
    took_s: float | None = None
    held_up_s: float = 0.0
    _wake: threading.Event = field(default_factory=threading.Event)
    _asked: dict[Round, int] = field(default_factory=dict)
    _newest: dict[str, int] = field(default_factory=dict)
    _served: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        ports = Ports(self._admit, self._call, self._answer, self._wake.set)
        # How many are admitted, and how often, is not measured here.
        settings = Settings(burst=10**9, limits=Limits(most_robots=1024, load=1e6))
        make = find(FLEET_RULES, "fifo")
        self.scheduler = FleetScheduler("bench", self.replicas, make, ports, settings)
        for name in self.names:
            described = RobotDescription("bench", name, "", chunks_per_s=self.hz)
            self.scheduler.described(described, time.monotonic())
        until_s = time.monotonic() + 60.0
        while len(self._served) < len(self.names):
            if time.monotonic() > until_s:
                raise RuntimeError("a replica does not get ready for its robots")
            self._step()
            self._wake.wait(STEP_S)

    def run(self, trace: list[Due]) -> float:
        """Send a whole trace and wait for the answers; returns when it began, on time.monotonic."""
        began_s, index = time.monotonic(), 0
        last_s = began_s + (trace[-1].at_s if trace else 0.0)
        while index < len(trace) or time.monotonic() < last_s + FORGOTTEN_S:
            self._wake.clear()
            while index < len(trace) and (late_s := time.monotonic() - began_s - trace[index].at_s) >= 0.0:
                if trace[index].at_s >= self.seen_s:
                    self.held_up_s = max(self.held_up_s, late_s)
                self._ask(round_of(trace[index].robot, trace[index].number))
                index += 1
            self._step()
            if not self.seen and time.monotonic() >= began_s + self.seen_s:
                self.seen, self.took_s = self.scheduler.rhythms(time.monotonic()), self.scheduler.took_s
            if index == len(trace) and all(newest in self.answers for newest in self._newest.items()):
                break
            due_s = began_s + trace[index].at_s if index < len(trace) else last_s + FORGOTTEN_S
            self._wake.wait(max(0.0, min(STEP_S, due_s - time.monotonic())))
        return began_s

    def ask_again(self, warm_up: float, seconds: float) -> tuple[float, float]:
        """Each robot asks, and again as soon as it is answered, for so long; returns when the warm-up was
        over, by time.monotonic, and what this process has computed since [s]."""
        counted_s = time.monotonic() + warm_up
        spent_s, asking = math.nan, list(self.names)
        while (now_s := time.monotonic()) < counted_s + seconds:
            if now_s >= counted_s and math.isnan(spent_s):
                spent_s = time.process_time()
            self._wake.clear()
            for name in asking:
                self._ask(round_of(name, self._newest.get(name, -1) + 1))
            self._step()
            asking = [name for name, number in self._newest.items() if (name, number) in self.answers]
            if not asking:
                self._wake.wait(STEP_S)
        return counted_s, time.process_time() - spent_s

    def close(self) -> None:
        self.scheduler.close(time.monotonic())

    def _ask(self, round_: Round) -> None:
        attempt = self._asked.get(round_, -1) + 1
        self._asked[round_], self._newest[round_.robot] = attempt, round_.number
        observation = self.robots.observed(round_.robot, round_.number)
        remaining = round(self.buffer_s / STEP_DT_S)
        request = ChunkRequest(round_, attempt, time.monotonic_ns(), observation, remaining=remaining)
        self.scheduler.asked(request, time.monotonic())

    def _step(self) -> None:
        began_s = time.perf_counter()
        self.scheduler.step(time.monotonic())
        self.steps_s.append(time.perf_counter() - began_s)

    def _admit(self, admission: Admission) -> None:
        if admission.admitted:
            self._served.add(admission.robot)
        elif admission.reason not in (NOT_JUDGED.reason, NOT_READY.reason):
            raise RuntimeError(f"{admission.robot} is refused: {admission.reason}")

    def _call(self, round_: Round) -> None:
        self._ask(round_)

    def _answer(self, answer: ChunkAnswer) -> None:
        self.answers[answer.round.robot, answer.round.number] = time.monotonic(), answer


def ask_again(
    replicas: Sequence[Replica], robots: Robots, count: int, seconds: float, warm_up: float = 1.0
) -> dict[str, Any]:
    """`count` robots ask anew as soon as they were answered, through the scheduler: chunks a second, from the
    observation that was computed to its chunk, which replicas computed how many, and what this process
    computed for a chunk."""
    fleet = Fleet(replicas, robots, _named(robots, count), hz=1.0)
    try:
        began_s, spent_s = fleet.ask_again(warm_up, seconds)
    finally:
        fleet.close()
    answers = [pair for pair in fleet.answers.values() if began_s <= pair[0] < began_s + seconds]
    chunks = [(came_s, answer.chunk) for came_s, answer in answers if answer.chunk is not None]
    image = [came_s - chunk.stamp_ns * 1e-9 for came_s, chunk in chunks]
    return {
        "robots": count,
        "chunks_hz": round(len(chunks) / seconds, 2),
        "chunks": len(chunks),
        "refused": len(answers) - len(chunks),
        "image_to_chunk": times(np.array(image)),
        "by_replica": dict(Counter(answer.replica for _, answer in answers)),
        "cpu_ms_per_chunk": round(1e3 * spent_s / max(1, len(chunks)), 3),
        "scheduler_step": times(np.array(fleet.steps_s)),
    }


def _named(robots: Robots, count: int) -> tuple[str, ...]:
    """The first so many."""
    names = robots.names[:count]
    if len(names) < count:
        raise ValueError(f"there are {len(names)} robots; {count} are asked for.")
    return names


def play(
    replicas: Sequence[Replica],
    robots: Robots,
    count: int,
    hz: float,
    buffer_s: float,
    seconds: float,
    seed: int,
    jitter: float = 0.1,
    warm_up: float = 1.0,
) -> dict[str, Any]:
    """`count` robots ask by a trace, each when buffer_s of its motion are left.

    image_to_chunk: from the observation that was computed to its chunk; request: from the first attempt.
    late: share of requests whose chunk came after that motion had ended, or not at all; stall: share of the
    time that arms stood; held_up_ms: see Fleet.
    """  # fmt: skip
    names = _named(robots, count)
    trace = make_trace(count, hz, jitter, warm_up + seconds, seed)
    fleet = Fleet(replicas, robots, names, hz, buffer_s=buffer_s, seen_s=warm_up)
    try:
        began_s = fleet.run(trace)
    finally:
        fleet.close()
    counted = [due for due in trace if due.at_s >= warm_up]
    request, image, stood, refusals = [], [], 0.0, 0
    computed: Counter[str] = Counter()
    for due in counted:
        came_s, answer = fleet.answers.get((due.robot, due.number), (0.0, None))
        if answer is None or answer.chunk is None:
            refusals += 1
            stood += 1.0 / hz
            continue
        request.append(came_s - began_s - due.at_s)
        image.append(came_s - answer.chunk.stamp_ns * 1e-9)
        computed[answer.replica] += 1
        stood += max(0.0, request[-1] - buffer_s)
    late_chunks = refusals + sum(took_s > buffer_s for took_s in request)
    return {
        "robots": count,
        "asked_hz": round(len(counted) / seconds, 2),
        "image_to_chunk": times(np.array(image)),
        "request": times(np.array(request)),
        "late": round(late_chunks / max(1, len(counted)), 6),
        "stall": round(stood / (count * seconds), 6),
        "unanswered": refusals,
        "requests": len(counted),
        "by_replica": dict(computed),
        "scheduler_step": times(np.array(fleet.steps_s)),
        "held_up_ms": round(1e3 * fleet.held_up_s, 2),
        "seen": [_plain(fleet.seen.get(name)) for name in names],
        "took_ms": None if fleet.took_s is None else round(1e3 * fleet.took_s, 2),
    }


def _plain(rhythm: Rhythm | None) -> list[float] | None:
    """Period, jitter and when it asks next."""
    if rhythm is None or rhythm.next_s is None:
        return None
    return [round(rhythm.period_s, 4), round(rhythm.jitter, 3), round(rhythm.next_s, 4)]


def most_robots(fits: Callable[[int], bool], least: int, most: int, guess: int | None = None) -> int:
    """The largest number from least to most that fits, if all smaller ones do; 0: none. guess: is tried
    first, then those near it."""
    low, high, step = least - 1, most + 1, 2
    tried = (least + most + 1) // 2 if guess is None else min(max(guess, least), most)
    while high - low > 1:
        if fits(tried):
            low = tried
            near = tried + step
        else:
            high = tried
            near = tried - step
        outwards = guess is not None and (low == least - 1 or high == most + 1)
        tried = min(max(near if outwards else (low + high) // 2, low + 1), high - 1)
        step *= 2
    return 0 if low < least else low
