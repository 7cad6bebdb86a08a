"""Robots that ask an engine for chunks by a trace, in time that the test moves: a scheduler and a lane that
launches ahead, over a GPU whose times were measured on an H200 (pi0.5, two views; ms)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from builders import JOINTS, make_config
from overlapping import SimulatedTime
from scheduled import System

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import Prefix, Prefixes
from vla_accel_ros.engine.lanes.lane import DeviceTime
from vla_accel_ros.engine.request import ACT, OBSERVE, MicroBatch, Request, Waits
from vla_accel_ros.engine.rules.rule import Rule
from vla_accel_ros.types import Observation

STEPS, SEATS = 10, 16
FRAMES_MS = {1: 5.3, 2: 10.0, 4: 17.9}
ENCODE_MS = {1: 1.4, 2: 2.4, 4: 3.8}
STEP_MS = {1: 0.45, 2: 0.93, 4: 0.99, 8: 1.25, 16: 1.69}
"""By the seats of a step: the fewest that hold its chunks."""
CHOOSE_MS, LAUNCH_MS, COPY_MS, BEGIN_MS, AFTER_MS = 0.06, 0.2, 0.45, 0.1, 0.1
"""Of the host: to choose; to launch; to copy the images of a frame; to begin a chunk; to take in a step, and
each chunk that it finishes."""


class Fleet(System):
    """took_s: of each request that came, when it came and how long its chunk took."""

    def __init__(self, policy: Rule, most: int) -> None:
        super().__init__(policy, steps=STEPS)
        self.took_s: list[tuple[float, float]] = []
        self._most, self._inside = most, 0
        self._free_s = self._encoded_s = 0.0
        self._over_s: dict[int, float] = {}
        runner = self.runner
        pool = KVPool(make_config().prefix, most + 8, 2, torch.device("cpu"), torch.float32)
        runner.ahead, runner.pool, runner.prefixes = True, pool, Prefixes(pool)
        runner.room = lambda request: request.want != ACT or self._seated < SEATS  # type: ignore[method-assign]
        runner.during, runner.after = self._launched, self._waited
        self.scheduler.runs_ahead = True
        self.scheduler.lanes[0].timing = self._timing

    def play(self, asked_s: Sequence[float]) -> None:
        """Requests at these times, in order, each of a robot of its own; until all chunks are there."""
        come = 0
        while len(self.took_s) < len(asked_s):
            now_s = self.clock.now_s
            while come < len(asked_s) and asked_s[come] <= now_s and self._inside < self._most:
                self._ask(come, asked_s[come])
                come += 1
            self.scheduler.step()
            if not self.scheduler._moved:
                next_s = asked_s[come] if come < len(asked_s) and self._inside < self._most else math.inf
                until_s = min(self.scheduler.again_s, next_s, self.clock.now_s + 0.05)
                self.clock.now_s = max(self.clock.now_s, until_s)

    @property
    def _seated(self) -> int:
        return sum(request.want == ACT and not request.launched for request in self.runner.held)

    def _ask(self, number: int, asked_s: float) -> None:
        robot = f"/robot{number}"
        images = {name: np.zeros((1, 1, 3), np.uint8) for name in ("left", "right")}
        seen = Observation(images, np.zeros(JOINTS, np.float32), "reach", 1, robot=robot)
        self._inside += 1
        self.submit(
            OBSERVE, robot=robot, observation=seen, waits=Waits.ROOM, on_progress=partial(self._seen, asked_s)
        )

    def _seen(self, asked_s: float, frame: Request) -> None:
        if frame.finished:
            assert isinstance(frame.result, Prefix)
            self.runner.prefixes.remove(frame.robot)
            acted = partial(self._acted, asked_s, frame.result)
            self.submit(ACT, robot=frame.robot, prefix=frame.result, waits=Waits.ROOM, on_progress=acted)

    def _acted(self, asked_s: float, prefix: Prefix, action: Request) -> None:
        if action.finished:
            assert action.error is None, action.error
            prefix.release()
            self._inside -= 1
            self.took_s.append((asked_s, self.clock.now_s - asked_s))

    def _spend(self, ms: float) -> None:
        self.clock.now_s += 1e-3 * ms

    @contextmanager
    def _timing(self, batch: MicroBatch) -> Iterator[DeviceTime]:
        device = SimulatedTime(self.clock, 1e-3 * self._gpu_ms(batch))
        yield device
        device.over_s = self._free_s

    def _gpu_ms(self, batch: MicroBatch) -> float:
        count = len(batch.requests)
        if batch.requests[0].want == OBSERVE:
            return FRAMES_MS[count]
        return STEP_MS[min(size for size in STEP_MS if size >= count)]

    def _launched(self, batch: MicroBatch) -> None:
        """The images of a frame are copied when those of the one before are encoded."""
        self._spend(CHOOSE_MS + LAUNCH_MS)
        count, frame = len(batch.requests), batch.requests[0].want == OBSERVE
        if frame:
            self.clock.now_s = max(self.clock.now_s, self._encoded_s)
            self._spend(COPY_MS * count)
        else:
            self._spend(BEGIN_MS * sum(request.progress is None for request in batch.requests))
        begins_s = max(self.clock.now_s, self._free_s)
        self._free_s = begins_s + 1e-3 * self._gpu_ms(batch)
        if frame:
            self._encoded_s = begins_s + 1e-3 * ENCODE_MS[count]
        else:
            self._over_s[id(batch)] = self._free_s

    def _waited(self, batch: MicroBatch) -> None:
        self.clock.now_s = max(self.clock.now_s, self._over_s.pop(id(batch)))
        self._spend(AFTER_MS * (1 + sum(request.launched for request in batch.requests)))


def periodic(robots: int, hz: float, seconds: float, seed: int, jitter: float = 0.1) -> list[float]:
    """When so many robots ask, each from a random phase on."""
    chance = np.random.default_rng(seed)
    gaps = (1.0 + chance.uniform(-jitter, jitter, (robots, int(seconds * hz)))) / hz
    gaps[:, 0] = chance.uniform(0.0, 1.0 / hz, robots)
    asked: list[float] = np.sort(gaps.cumsum(axis=1).ravel()).tolist()
    return asked


def p99_s(policy: Rule, asked_s: Sequence[float], most: int = SEATS + 8, since_s: float = 1.0) -> float:
    """Of requests that come after a warm-up."""
    fleet = Fleet(policy, most)
    fleet.play(asked_s)
    return float(np.percentile([took for at, took in fleet.took_s if at >= since_s], 99))


def chunks_hz(policy: Rule, requests: int = 240, most: int = SEATS + 8) -> float:
    """With requests that are always there."""
    fleet = Fleet(policy, most)
    fleet.play([0.0] * requests)
    return requests / fleet.clock.now_s
