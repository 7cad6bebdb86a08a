"""Streams of robots over a simulated engine, whose micro-batches take the time that a test says.

A robot's stream is what engine.streaming makes of it: one frame at a time, one action request that waits (or
two), one answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

import numpy as np
from builders import JOINTS
from scheduled import System

from vla_accel_ros.engine.config import ALL_APART
from vla_accel_ros.engine.grid import Grid
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import (
    ACT,
    ASK,
    DECODE,
    DENOISE,
    ENCODE,
    PREFILL,
    MicroBatch,
    Pace,
    Request,
    Waits,
)
from vla_accel_ros.engine.rules.rule import Rule
from vla_accel_ros.engine.rules.rules import FIRST_APART, LANES

FRAME_S, CHUNK_S, JOINTS_S = 1 / 30, 1 / 120, 0.002


def profile(takes_s: Mapping[str, float]) -> Profile:
    """By kind, seconds of a micro-batch of any stage."""
    stages = ENCODE, PREFILL, DENOISE, DECODE
    return Profile({(f"{kind}.{stage}", 1): took_s for kind, took_s in takes_s.items() for stage in stages})


class Streams(System):
    """takes_s: by kind, seconds of a micro-batch. steps: of a chunk in a seat. fresh: whole first chunks.
    chunk_s: from one chunk that is wanted to the next. joints_s: when joints come, with their stamps; or from
    one joint state to the next.

    made, frames_seen: by robot, (end, version, request) of each chunk, (end, version) of each frame.
    tokens: when text ran. steps_run: micro-batches of actions. levels: (time, level) of what
    was given up, where it changed.
    """

    def __init__(
        self,
        word: str,
        rule: Rule,
        takes_s: Mapping[str, float],
        robots: tuple[str, ...] = ("",),
        steps: int = 1,
        fresh: bool = False,
        chunk_s: float = CHUNK_S,
        joints_s: float | Iterable[tuple[float, int]] = JOINTS_S,
        **options: Any,
    ) -> None:
        lanes = FIRST_APART if fresh and word == ALL_APART else LANES[word]
        super().__init__(
            rule, steps, profile=profile(takes_s), lanes=lanes, whole_apart=fresh, captured=True, **options
        )
        self.runner.during = self._launched
        self.fresh, self.robots, self.chunk_s = fresh, robots, chunk_s
        regular = zip(count(0.0, joints_s), count()) if isinstance(joints_s, float) else joints_s
        self._joints, self._stamp = iter(regular), 0
        self._coming = next(self._joints)
        self.grids = {robot: Grid(chunk_s) for robot in robots}
        self.steps_run = 0
        self.made: dict[str, list[tuple[float, int, Request]]] = {robot: [] for robot in robots}
        self.frames_seen: dict[str, list[tuple[float, int]]] = {robot: [] for robot in robots}
        self.tokens: list[float] = []
        self.levels: list[tuple[float, str]] = []
        self._next: dict[tuple[str, bool | None], Request] = {}
        self._due_s = dict.fromkeys(robots, 0.0)
        self._frames: dict[str, Request | None] = dict.fromkeys(robots)
        for robot in robots:
            for first in (True, False) if fresh else (None,):
                self._want(robot, first)

    def run_for(self, seconds: float, asking: bool = True) -> None:
        """Let time pass."""
        end_s = self.clock.now_s + seconds
        while self.clock.now_s < end_s:
            self._feel()
            self._arrive(asking)
            due_s = [due_s for due_s in self._due_s.values() if due_s > self.clock.now_s]
            self.advance(min([end_s, self._coming[0], *due_s]))
            self._note_level()

    def rate_hz(self, robot: str = "", since_s: float = 0.0) -> float:
        """Chunks a second from then on."""
        count = sum(end_s >= since_s for end_s, _, _ in self.made[robot])
        return count / (self.clock.now_s - since_s)

    def _launched(self, batch: MicroBatch) -> None:
        kind = batch.requests[-1].kind
        if kind == ASK and not batch.requests[0].partial:
            self.tokens.append(self.clock.now_s)
        self.steps_run += kind == ACT

    def _feel(self) -> None:
        """Take the joints that came."""
        while self._coming[0] <= self.clock.now_s:
            self._stamp = self._coming[1]
            self._coming = next(self._joints, (math.inf, 0))
            for grid in self.grids.values():
                grid.arrived(self.clock.now_s)

    def _arrive(self, asking: bool) -> None:
        now_s = self.clock.now_s
        for robot in self.robots:
            frame = self._frames[robot]
            if frame not in self.scheduler.requests and now_s >= self._due_s[robot]:
                self._due_s[robot] += FRAME_S * max(1, math.ceil((now_s - self._due_s[robot]) / FRAME_S))
                self._frames[robot] = self.frame(
                    robot, pace=Pace(1 / FRAME_S, FRAME_S), on_progress=self._saw
                )
        if asking and not any(request.want == ASK for request in self.scheduler.requests):
            self.submit(ASK, robot=self.robots[0], waits=Waits.NEWS)

    def _want(self, robot: str, first: bool | None) -> None:
        self._next[robot, first] = self.acting(
            robot,
            first=first,
            grid=self.grids[robot],
            sense=self._sense,
            on_begin=self._begins,
            pace=Pace(1 / self.chunk_s, FRAME_S),
            on_progress=self._acted,
        )

    def _sense(self) -> tuple[np.ndarray, int]:
        return np.zeros(JOINTS, np.float32), self._stamp

    def _begins(self, request: Request) -> None:
        """A chunk does."""

    def _acted(self, request: Request) -> None:
        if self._next[request.robot, request.act.first] is request:
            if request.act.first is not True:
                self.grids[request.robot].began(request.begun_s)
            self._want(request.robot, request.act.first)
        if request.result is not None:
            self.made[request.robot].append((self.clock.now_s, request.prefix.version, request))

    def _saw(self, request: Request) -> None:
        if request.result is not None:
            self.frames_seen[request.robot].append((self.clock.now_s, request.result.version))
            request.result.release()

    def _note_level(self) -> None:
        level = self.rules.overload.degradation.level
        if not self.levels or self.levels[-1][1] != level:
            self.levels.append((self.clock.now_s, level))
