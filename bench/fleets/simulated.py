"""A replica in simulated time, in more detail than fleet/admission/replica_model.py, and a fleet of robots
that asks it through the node's scheduler.

The engine's own policy chooses. The host takes time to launch, begin and finish chunks, and durations vary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from fleets.loads import make_trace
from fleets.replicas import Undescribed
from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.policies.policy import Setup, chosen
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import ACT, OBSERVE, MicroBatch, Request
from vla_accel_ros.extensions import FLEET_RULES, find
from vla_accel_ros.fleet.admission.forecast import Rhythm
from vla_accel_ros.fleet.admission.verdict import Limits
from vla_accel_ros.fleet.protocol import (
    ChunkAnswer,
    ChunkRequest,
    EncodedObservation,
    RobotDescription,
    Round,
)
from vla_accel_ros.fleet.replicas.replica import FRAMES, MEASURED, SERVE, Served
from vla_accel_ros.fleet.serving.scheduler import FleetScheduler
from vla_accel_ros.fleet.serving.settings import Ports, Settings
from vla_accel_ros.types import Chunk, Observation

LINK_S, STEP_DT_S, LEFT = 0.002, 1 / 30, 3
"""Between robot and scheduler; of a chunk; actions that are left when a robot asks."""
LAUNCH_S, BEGIN_S, END_S = 0.10e-3, 0.05e-3, 0.10e-3
"""Of the host, in which the GPU waits: for a micro-batch, to begin a chunk, and to take it in."""
VARIES = 0.02
"""Of durations, the standard deviation."""
CHUNK = np.zeros((50, 7), np.float32)
SEEN = Observation({"camera": np.zeros((1, 1, 3), np.uint8)}, CHUNK[0], "", 0)


@dataclass(frozen=True)
class Engine:
    """Milliseconds of 1, 2 and 4 frames together, and of a step of 1, 2, 4, 8 and 16 chunks."""

    frames_ms: tuple[float, ...]
    steps_ms: tuple[float, ...]

    def frames_s(self, together: int) -> float:
        """Of so many."""
        return 1e-3 * float(np.interp(together, (1, 2, 4), self.frames_ms))

    def step_s(self, chunks: int) -> float:
        """Of the fewest seats that hold them."""
        return 1e-3 * self.steps_ms[min((chunks - 1).bit_length(), len(self.steps_ms) - 1)]


class SimulatedReplica(Undescribed):
    """An engine in simulated time. It computes until `due_s`; the owner of the clock then calls `advance`,
    and `begin` after each event."""

    def __init__(
        self, engine: Engine, config: EngineConfig, seed: int = 0, most: int = 0, name: str = "gpu"
    ) -> None:
        ahead = 2 * max(config.frames_together, 2)
        self.name, self.network_s, self.limit = name, 0.0, most or config.staggered + ahead
        self.config, self.profile = config, Profile()
        self.due_s, self._engine, self._steps = math.inf, engine, config.steps
        self._policy, self._chance = chosen(Setup(config, Profile())), np.random.default_rng([seed, 7])
        self._ready: list[Request] = []
        self._jobs: dict[Request, tuple[Future[Served], Round, int]] = {}
        self._running: MicroBatch | None = None

    def room(self) -> int:
        return self.limit - len(self._jobs)

    def serve(self, round: Round, observation: EncodedObservation) -> Future[Served]:
        future: Future[Served] = Future()
        frame = Request(OBSERVE, round.robot, observation=SEEN, waits=True)
        self._jobs[frame] = future, round, observation.stamp_ns
        self._ready.append(frame)
        return future

    def cancel(self, served: Future[Served]) -> None:
        raise AssertionError("robots ask again when they were answered")

    def begin(self, now_s: float) -> None:
        """Begin the next micro-batch, if none runs."""
        if self._running is not None:
            return
        batch = self._running = self._policy.next("main", self._ready, now_s)
        if batch is None:
            return
        requests, host_s = batch.requests, LAUNCH_S
        if requests[0].want == OBSERVE:
            gpu_s = self._engine.frames_s(len(requests))
        else:
            ends = sum(request.done + 1 >= self._steps for request in requests)
            host_s += BEGIN_S * sum(not request.begun for request in requests) + END_S * ends
            gpu_s = self._engine.step_s(len(requests))
        for request in requests:
            request.begun = True
        took_s = host_s + gpu_s * max(0.5, 1.0 + VARIES * self._chance.standard_normal())
        self.due_s = now_s + took_s
        self._policy.ran(batch, took_s)

    def advance(self) -> None:
        """Finish the running micro-batch."""
        batch = self._running
        assert batch is not None
        self._running, self.due_s = None, math.inf
        for request in batch.requests:
            if request.want == OBSERVE:
                self._see(request)
                continue
            request.done += 1
            if request.done >= self._steps:
                self._end(request)

    def _see(self, frame: Request) -> None:
        """It comes to an action."""
        self._ready.remove(frame)
        frame.finished = frame.released = True
        action = Request(ACT, frame.robot, waits=True)
        action.fresh = True
        self._jobs[action] = self._jobs.pop(frame)
        self._ready.append(action)

    def _end(self, action: Request) -> None:
        self._ready.remove(action)
        action.finished = action.released = True
        future, round_, stamp_ns = self._jobs.pop(action)
        chunk = Chunk(CHUNK, stamp_ns, STEP_DT_S, 0, 0, CHUNK[:, 0])
        future.set_result(Served(round_, chunk, 0.1))


def measure(engine: Engine, config: EngineConfig) -> SimulatedReplica:
    """A replica that is measured in the way of fleet/replicas/local.py."""
    found = SimulatedReplica(engine, config)
    for batch in sorted({1, 2, 4, 8, 16, found.limit} & set(range(found.limit + 1))):
        replica, ends_s, now_s, numbers = SimulatedReplica(engine, config), list[float](), 0.0, count()
        waiting: list[Future[Served]] = []
        seen = EncodedObservation({}, {}, CHUNK[0], "", 0)
        while len(ends_s) < batch * (MEASURED + 2):
            while len(waiting) < batch:
                waiting.append(replica.serve(Round("", "", 0, next(numbers)), seen))
            replica.begin(now_s)
            now_s = replica.due_s
            replica.advance()
            ends_s += [now_s for future in waiting if future.done()]
            waiting = [future for future in waiting if not future.done()]
        begin, end = batch, (MEASURED + 1) * batch
        found.profile.note(SERVE, batch, batch * (ends_s[end] - ends_s[begin]) / (end - begin))
    for power in range(config.frames_together.bit_length()):
        found.profile.note(FRAMES, 1 << power, engine.frames_s(1 << power) + LAUNCH_S)
    return found


@dataclass
class Run:
    """took_s: from request to answer, after the warm-up; stall: share of the time that arms stood still;
    seen, took_before_s: how robots were seen to ask in the warm-up, and the median time of their requests."""

    took_s: list[float]
    stall: float
    seen: list[Rhythm | None]
    took_before_s: float | None

    def fits(self, within_s: float, stall: float) -> bool:
        """Whether robots got what they need."""
        return float(np.percentile(self.took_s, 99)) <= within_s and self.stall <= stall


def play(
    replicas: Sequence[SimulatedReplica],
    robots: int,
    hz: float,
    jitter: float,
    warm_s: float,
    until_s: float,
    seed: int,
    policy: str = "fifo",
) -> Run:
    """Run a fleet in simulated time; robots ask by a trace, but not before their last answer."""
    answers, calls, now_s = list[ChunkAnswer](), list[Round](), 0.0
    ports = Ports(lambda admission: None, calls.append, answers.append)
    settings = Settings(limits=Limits(most_robots=4096, load=1e9))
    scheduler = FleetScheduler("bench", replicas, find(FLEET_RULES, policy), ports, settings)
    names = [f"/robot{index}" for index in range(robots)]
    for name in names:
        scheduler.described(RobotDescription("bench", name, "", chunks_per_s=hz), 0.0)
    planned: dict[str, list[float]] = {name: [] for name in names}
    for due in make_trace(robots, hz, jitter, until_s, seed):
        planned[due.robot].append(due.at_s)
    events: list[tuple[float, str, int, int]] = []
    for name, times in planned.items():
        heappush(events, (times[0], name, 0, 0))
    asked: dict[str, tuple[int, float]] = {}
    run, stood_s, seen = Run([], 0.0, [], None), 0.0, False
    while True:
        replica = min(replicas, key=lambda one: one.due_s)
        next_s = min(events[0][0] if events else math.inf, replica.due_s)
        if next_s == math.inf:
            break
        if not seen and next_s >= warm_s:
            rhythms, run.took_before_s, seen = scheduler.rhythms(warm_s), scheduler.took_s, True
            run.seen = [rhythms[name] for name in names]
        if events and events[0][0] < replica.due_s:
            now_s, name, number, attempt = heappop(events)
            if attempt == 0:
                asked[name] = number, now_s
            stamp_ns = round(1e9 * now_s)
            observed = EncodedObservation({}, {}, CHUNK[0], "reach", stamp_ns)
            round_ = Round("bench", name, 0, number)
            scheduler.asked(ChunkRequest(round_, attempt, stamp_ns, observed, 0.1, LEFT), now_s)
        else:
            now_s = replica.due_s
            replica.advance()
        scheduler.step(now_s)
        for one in replicas:
            one.begin(now_s)
        for round_ in calls:
            heappush(events, (now_s + 2 * LINK_S, round_.robot, round_.number, 1))
        calls.clear()
        for answer in answers:
            name, (number, since_s) = answer.round.robot, asked[answer.round.robot]
            if since_s > warm_s:
                run.took_s.append(now_s - since_s)
                stood_s += max(0.0, now_s - since_s - LEFT * STEP_DT_S)
            if number + 1 < len(planned[name]):
                heappush(events, (max(now_s, planned[name][number + 1]), name, number + 1, 0))
        answers.clear()
    run.stall = stood_s / (robots * (until_s - warm_s))
    return run


def plain(rhythm: Rhythm | None) -> list[Any] | None:
    """As fleets/admitting.py takes it."""
    return None if rhythm is None else [rhythm.period_s, rhythm.jitter, rhythm.next_s]
