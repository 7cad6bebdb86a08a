"""Robots that ask a simulated engine for chunks by a trace; times were measured on an H200 (pi0.5, two
views)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from builders import JOINTS
from scheduled import System

from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import ACT, OBSERVE, Request, Waits
from vla_accel_ros.engine.rules.rule import Rule
from vla_accel_ros.engine.simulated import Host
from vla_accel_ros.types import Observation

STEPS, SEATS = 10, 16
FRAMES_MS = {1: 5.3, 2: 10.0, 4: 17.9}
STEP_MS = {1: 0.45, 2: 0.93, 4: 0.99, 8: 1.25, 16: 1.69}
"""By the seats of a step: the fewest that hold its chunks."""
KNOWN = {("observe.encode", count): 1e-3 * ms for count, ms in FRAMES_MS.items()}
KNOWN |= {("act.denoise", count): 1e-3 * ms for count, ms in STEP_MS.items()}
HOST = Host(launch_s=0.26e-3, copy_s=0.45e-3, begin_s=0.1e-3, result_s=0.1e-3)


class Fleet(System):
    """most: requests at once. options: of the runner, instead of the H200's.

    took_s: of each request that came, when it came and how long its chunk took.
    """

    def __init__(self, rule: Rule, most: int, **options: Any) -> None:
        h200 = {"profile": Profile(KNOWN), "seats": SEATS, "captured": True, "host": HOST}
        super().__init__(rule, STEPS, slots=most + 8, **{**h200, **options})
        self.took_s: list[tuple[float, float]] = []
        self._most, self._inside = most, 0

    def play(self, asked_s: Sequence[float]) -> None:
        """Requests at these times, in order, each of a robot of its own; until all chunks are there."""
        come = 0
        while len(self.took_s) < len(asked_s):
            while come < len(asked_s) and asked_s[come] <= self.clock.now_s and self._inside < self._most:
                self._ask(come, asked_s[come])
                come += 1
            waits = come < len(asked_s) and self._inside < self._most
            self.advance(asked_s[come] if waits else self.clock.now_s + 0.05)

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
