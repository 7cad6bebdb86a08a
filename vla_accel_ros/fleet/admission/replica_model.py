"""A replica in simulated time: the engine's own scheduling rule over the engine's simulated runner.

The rule and the runner are called directly, without the engine's loop: the loop makes the same forecasts (a
test compares them), but takes four times as long, and a robot waits for its forecast.

`ReplicaModel.of` builds the same rule as the engine, from the engine's options. The duration of a frame is
measured (FRAMES). The duration of a denoise step with n chunks is fitted, so that the simulated rule makes
as many chunks a second, with b requests always waiting, as were measured (SERVE). The fit therefore includes
the host's overhead.

If frames were not measured, one equation is missing: a step with as many chunks as a chunk has steps is then
assumed to last FULL times as long as a step with one chunk. If the engine's options are unknown, the model
alternates one frame with one step of all chunks in progress. If then no time is left for a frame, because a
batch costs no more than one request, the model computes all waiting requests together.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapify, heappop, heappush

import numpy as np

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import (
    ACT,
    DENOISE,
    ENCODE,
    OBSERVE,
    RUNNING,
    Act,
    MicroBatch,
    Observe,
    Request,
    Waits,
)
from vla_accel_ros.engine.rules.batches import Batches
from vla_accel_ros.engine.rules.chunks import StaggeredChunks, joins_of
from vla_accel_ros.engine.rules.rule import Rule, Setup, chosen
from vla_accel_ros.engine.simulated import SimulatedRunner
from vla_accel_ros.fleet.replicas.replica import FRAMES, MEASURED, SERVE, Replica
from vla_accel_ros.types import Observation

STEPS = 10
"""Assumed number of denoise steps of a chunk, where it is unknown."""
FULL = 2.0
HALVES = 14
"""Iterations of the bisection for a step's duration."""

FRAME, STEP = f"{OBSERVE}.{ENCODE}", f"{ACT}.{DENOISE}"
"""Micro-batches in a profile."""

Curve = tuple[tuple[int, float], ...]
"""Pairs of (batch size, seconds of the whole batch)."""
Again = Callable[[int, float], float]
"""Called with a robot and the time of its answer; returns when it sends its next request, inf for never."""

_PIXELS = np.zeros((1, 1, 3), np.uint8)
_SEEN = Observation({"camera": _PIXELS}, np.zeros(1, np.float32), "", 0)


@dataclass(frozen=True)
class Measured:
    """What is known of one replica. serve: seconds by number of requests that are always waiting. frames:
    seconds by number of frames computed together. most: requests that it accepts. config: of its engine, None
    if unknown."""

    serve: Curve
    frames: Curve = ()
    limit: int = 0
    config: EngineConfig | None = None

    @classmethod
    def of(cls, one: Replica) -> Measured:
        """Read the present measurements of a replica."""
        return cls.read(one.profile, one.limit, one.config)

    @classmethod
    def all(cls, replicas: Iterable[Replica]) -> list[Measured]:
        """Read those of all replicas, without those that never started while others did."""
        every = [cls.of(replica) for replica in replicas]
        return [replica for replica in every if replica.serve] or every

    @classmethod
    def read(cls, profile: Profile, most: int = 0, config: EngineConfig | None = None) -> Measured:
        """Read a profile, which may hold no measurements."""
        return cls(_curve(profile, SERVE), _curve(profile, FRAMES), most, config)

    @property
    def capacity_hz(self) -> float:
        """Chunks a second at the best batch size; inf if nothing was measured."""
        return max((batch / seconds for batch, seconds in self.serve), default=math.inf)

    def slower(self, factor: float) -> Measured:
        """Return these durations times `factor`, rounded so that small changes give equal values."""
        serve, frames = (
            tuple((n, float(f"{factor * seconds:.2e}")) for n, seconds in curve)
            for curve in (self.serve, self.frames)
        )
        return replace(self, serve=serve, frames=frames)


@dataclass(frozen=True)
class ReplicaModel:
    """profile: seconds of frames (FRAME) and steps (STEP). steps: of a chunk. seats: chunks that a step can
    hold. limit: requests accepted at once. make: makes the scheduling rule."""

    profile: Profile
    steps: int
    seats: int
    limit: int
    make: Callable[[], Rule]

    @classmethod
    def of(cls, measured: Measured) -> ReplicaModel:
        """Fit a model to the measurements. Raises ValueError if there are none."""
        if not measured.serve:
            raise ValueError("the replica was not measured; call measure")
        return _model(measured)

    def slower(self, factor: float) -> ReplicaModel:
        """Return this model with all durations times `factor`."""
        known = self.profile.known().items()
        return replace(self, profile=Profile({key: factor * seconds for key, seconds in known}))

    def play(self, first_s: Sequence[float], again: Again) -> list[tuple[float, float]]:
        """Simulate robots that send their first requests at first_s and later ones as `again` says. Returns,
        in the order of completion, when each request came and how long its chunk took."""
        rule, coming = self.make(), [(at_s, robot) for robot, at_s in enumerate(first_s)]
        heapify(coming)
        runner = SimulatedRunner(self.profile, steps=self.steps, slots=self.limit)
        clock, prefixes, limit = runner.clock, runner.prefixes, self.limit
        ready: list[Request] = []
        origins: dict[Request, tuple[int, float]] = {}
        took_s: list[tuple[float, float]] = []
        while True:
            now_s = clock.now_s
            while coming and coming[0][0] <= now_s and len(origins) < limit:
                at_s, robot = heappop(coming)
                frame = Request(Observe(_SEEN), str(robot), waits=Waits.ROOM)
                origins[frame] = robot, at_s
                ready.append(frame)
            batch = rule.next("main", ready, now_s)
            if batch is None:
                next_s = min(rule.wake_s(ready, now_s), coming[0][0] if coming else math.inf)
                if math.isinf(next_s):
                    return took_s
                clock.wait(max(next_s, now_s + 1e-9))
                continue
            rule.chose("main", batch, now_s)
            runner.run(batch)
            for request in batch.requests:
                if not request.finished:
                    request.status = RUNNING
                    continue
                ready.remove(request)
                robot, at_s = origins.pop(request)
                if isinstance(request.result, Prefix):
                    request.result.release()
                    prefixes.remove("")
                    action = Request(Act(), request.robot, waits=Waits.ROOM)
                    action.fresh = True
                    origins[action] = robot, at_s
                    ready.append(action)
                else:
                    took_s.append((at_s, clock.now_s - at_s))
                    if (next_s := again(robot, clock.now_s)) < math.inf:
                        heappush(coming, (next_s, robot))
            rule.ran(batch, clock.now_s - now_s)

    def interval_s(self, batch: int) -> float:
        """Return the steady time from one chunk to the next with `batch` requests always waiting."""
        remaining = [(MEASURED + 2) * batch]

        def again(robot: int, done_s: float) -> float:
            remaining[0] -= 1
            return done_s if remaining[0] >= batch else math.inf

        ends_s = [at_s + took_s for at_s, took_s in self.play([0.0] * batch, again)]
        begin, end = batch, (MEASURED + 1) * batch
        return (ends_s[end] - ends_s[begin]) / (end - begin)


@lru_cache(256)
def _model(measured: Measured) -> ReplicaModel:
    config, largest = measured.config, measured.serve[-1][0]
    alone_s, often_s = measured.serve[0][1], min(seconds / batch for batch, seconds in measured.serve)
    steps = STEPS if config is None else config.steps if config.staggered else 1
    single_s = (alone_s - often_s) / (steps - FULL) if steps > FULL else 0.0
    frame_s = max(0.0, alone_s - steps * single_s)
    if config is not None:
        seats, together, make = max(1, config.staggered), config.frames_together, _of_engine(config)
    elif single_s < 1e-3 * alone_s:  # the replica computes requests one after another and shares nothing
        steps, seats, together, make = 1, largest, 1, _alternating(largest, 1)
    elif frame_s > 0.0:
        seats, together, make = largest, 1, _alternating(largest, steps)
    else:
        seats, together, make = largest, largest, lambda: Batches(largest, largest, largest)
    frames = _profile(FRAME, _frames_s(measured.frames or ((1, frame_s),), together))
    first = ReplicaModel(Profile(frames), steps, seats, measured.limit or largest, make)
    by_load = config is not None and config.seats_by_load
    sizes = tuple(1 << power for power in range(seats.bit_length())) if by_load else range(1, seats)
    return _with_steps(first, measured.serve, (*(size for size in sizes if size < seats), seats))


def _profile(kind: str, seconds: Iterable[float]) -> dict[tuple[str, int], float]:
    """Of 0, 1, 2, ... requests; what takes no time is left out."""
    return {(kind, count): took_s for count, took_s in enumerate(seconds) if took_s > 0.0}


def _of_engine(config: EngineConfig) -> Callable[[], Rule]:
    return lambda: chosen(Setup(config, Profile()))


def _alternating(seats: int, steps: int) -> Callable[[], Rule]:
    return lambda: StaggeredChunks(seats, joins=joins_of(seats, steps))


def _frames_s(frames: Curve, most: int) -> tuple[float, ...]:
    """Return the seconds of 0, 1, 2, ..., most frames: interpolated between measurements, proportional beyond
    them."""
    points = ((0, 0.0), *frames)
    last, last_s = points[-1]
    sizes, seconds = zip(*points, (max(most, last) + 1, last_s * (max(most, last) + 1) / last), strict=True)
    by_count: list[float] = np.interp(range(most + 1), sizes, seconds).tolist()
    return tuple(by_count)


def _curve(profile: Profile, stage: str) -> Curve:
    entries = profile.known().items()
    return tuple(sorted((batch, seconds) for (name, batch), seconds in entries if name == stage))


def _filled(
    model: ReplicaModel, by_size: Mapping[int, float], sizes: Sequence[int], least_s: float = 0.0
) -> ReplicaModel:
    """Return the model with these seconds of a step by its number of chunks, at least least_s. They are
    interpolated at `sizes`; a count between two of these takes as long as the next larger one, and one beyond
    the largest known size as long as that."""
    known = sorted(by_size) or [1]
    at_sizes = np.interp(sizes, known, [by_size.get(size, 0.0) for size in known])
    seconds = [at_sizes[bisect_left(sizes, max(1, count))] for count in range(model.seats + 1)]
    steps = _profile(STEP, (max(least_s, float(took_s)) for took_s in seconds))
    return replace(model, profile=Profile({**model.profile.known(), **steps}))


def _with_steps(model: ReplicaModel, serve: Curve, sizes: Sequence[int]) -> ReplicaModel:
    """Fit the seconds of steps so that the simulated rates equal the measured ones. sizes: the chunk counts
    for which the engine has a step; other counts take as long as the next larger one."""
    by_size: dict[int, float] = {}
    for batch, seconds in serve:
        used = _used(_filled(model, by_size, sizes, 1e-6), batch)
        step_size = sizes[min(bisect_left(sizes, used), len(sizes) - 1)]
        if step_size in by_size or step_size < max(by_size, default=0):
            continue
        low, high = 0.0, seconds / model.steps * 2.0
        for _ in range(HALVES):
            middle = (low + high) / 2.0
            tried = _filled(model, {**by_size, step_size: middle}, sizes)
            low, high = (middle, high) if tried.interval_s(batch) < seconds / batch else (low, middle)
        by_size[step_size] = (low + high) / 2.0
    return _filled(model, by_size, sizes)


def _used(model: ReplicaModel, batch: int) -> int:
    """Return the most frequent number of chunks in a step with `batch` requests always waiting."""
    counts = Counter[int]()

    def make() -> Rule:
        rule = model.make()
        chose = rule.chose

        def count(lane: str, batch: MicroBatch, now_s: float) -> None:
            chose(lane, batch, now_s)
            if batch.requests[0].want == ACT:
                counts[len(batch.requests)] += batch.steps or 1

        rule.chose = count  # type: ignore[method-assign]
        return rule

    replace(model, make=make).interval_s(batch)
    return max(counts, key=lambda size: (counts[size], size))
