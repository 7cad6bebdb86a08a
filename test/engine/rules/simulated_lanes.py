"""Streams over a scheduler whose micro-batches take the time that a test says: no thread, no network.

Lanes share one GPU: a micro-batch takes as many times longer as lanes run when it begins. A robot's stream is
what engine.streaming makes of it: one frame at a time, one action request that waits (or two), one answer.
`RunningAhead` is one lane that launches micro-batches behind what its GPU computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from builders import JOINTS
from overlapping import Overlapping, SimulatedTime

from vla_accel_ros.engine.config import ALL_APART, ONE
from vla_accel_ros.engine.lanes.lane import DeviceTime
from vla_accel_ros.engine.request import ACT, ASK, DECODE, MicroBatch, Pace, Request, Waits
from vla_accel_ros.engine.rules.rule import Rule
from vla_accel_ros.engine.rules.rules import FIRST_APART, LANES

FRAME_S, CHUNK_S, JOINTS_S = 1 / 30, 1 / 120, 0.002


class Streams(Overlapping):
    """takes_s: by kind, seconds of a micro-batch. steps: of a chunk in a seat. fresh: whole first chunks.
    chunk_s: from one chunk that is wanted to the next.

    made, frames_seen: by robot, (end, version, request) of each chunk, (end, version) of each frame.
    tokens: when text ran. steps_run: micro-batches of actions. levels: (time, level) of what
    was given up, where it changed.
    """

    def __init__(
        self,
        word: str,
        policy: Rule,
        takes_s: Mapping[str, float],
        robots: tuple[str, ...] = ("",),
        steps: int = 1,
        fresh: bool = False,
        chunk_s: float = CHUNK_S,
        text_groups: int = 1,
        text_share: float = 0.0,
    ) -> None:
        kinds = FIRST_APART if fresh and word == ALL_APART else LANES[word]
        super().__init__(
            word, policy, steps=steps, lanes=kinds, text_groups=text_groups, text_share=text_share
        )
        self.takes_s, self.fresh, self.robots, self.chunk_s = dict(takes_s), fresh, robots, chunk_s
        self.steps_run = 0
        self.runner.seats, self.runner.text_groups = fresh, text_groups
        self.made: dict[str, list[tuple[float, int, Request]]] = {robot: [] for robot in robots}
        self.frames_seen: dict[str, list[tuple[float, int]]] = {robot: [] for robot in robots}
        self.tokens: list[float] = []
        self.levels: list[tuple[float, str]] = []
        self._next: dict[tuple[str, bool | None], Request] = {}
        self._due_s = dict.fromkeys(robots, 0.0)
        self._frames: dict[str, Request | None] = dict.fromkeys(robots)
        self._ends: dict[str, float] = {}
        for robot in robots:
            for first in (True, False) if fresh else (None,):
                self._want(robot, first)

    def run_for(self, seconds: float, asking: bool = True) -> None:
        """Let time pass."""
        end_s = self.clock.now_s + seconds
        while self.clock.now_s < end_s:
            self._arrive(asking)
            for lane in self.lanes:
                if lane not in self.running and self.begin(lane):
                    self._took(lane)
            self._note_level()
            again = [lane.again_s for name, lane in self.lanes.items() if name not in self.running]
            later = [t for t in (*self._ends.values(), *self._due_s.values(), *again) if t > self.clock.now_s]
            self.clock.now_s = min(end_s, *later, self.clock.now_s + 0.05)
            for lane, ends_s in list(self._ends.items()):
                if ends_s <= self.clock.now_s:
                    del self._ends[lane]
                    self.end(lane)

    def rate_hz(self, robot: str = "", since_s: float = 0.0) -> float:
        """Chunks a second from then on."""
        count = sum(end_s >= since_s for end_s, _, _ in self.made[robot])
        return count / (self.clock.now_s - since_s)

    def _took(self, lane: str) -> None:
        batch, began_s = self.running[lane]
        kind = batch.requests[-1].kind
        if kind == ASK and not batch.requests[0].partial:
            self.tokens.append(began_s)
        self.steps_run += kind == ACT
        takes_s = self.takes_s.get(kind, self.takes_s[ACT])
        self._ends[lane] = began_s + takes_s * len(self.running)

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

    def _want(self, robot: str, first: bool | None, not_before_s: float = -math.inf) -> None:
        self._next[robot, first] = self.acting(
            robot,
            first=first,
            not_before_s=not_before_s,
            sense=self._sense,
            on_begin=self._begins,
            pace=Pace(1 / self.chunk_s, FRAME_S),
            on_progress=self._acted,
        )

    def _sense(self) -> tuple[np.ndarray, int]:
        return np.zeros(JOINTS, np.float32), int(self.clock.now_s / JOINTS_S)

    def _begins(self, request: Request) -> None:
        """A chunk does."""

    def _acted(self, request: Request) -> None:
        if self._next[request.robot, request.act.first] is request:
            due_s, begun_s = min(request.act.not_before_s, request.begun_s), request.begun_s
            late = begun_s - due_s >= self.chunk_s
            self._want(request.robot, request.act.first, self.chunk_s + (begun_s if late else due_s))
        if request.result is not None:
            self.made[request.robot].append((self.clock.now_s, request.prefix.version, request))

    def _saw(self, request: Request) -> None:
        if request.result is not None:
            self.frames_seen[request.robot].append((self.clock.now_s, request.result.version))
            request.result.release()

    def _note_level(self) -> None:
        level = self.rules.degradation.level
        if not self.levels or self.levels[-1][1] != level:
            self.levels.append((self.clock.now_s, level))


class RunningAhead(Streams):
    """One lane whose GPU computes what is launched, one micro-batch after another, while the host goes on.

    takes_s: of the GPU. host_s: what the host takes to launch a micro-batch; begin_s, after_s: to begin a
    chunk, and to hand on the results of a step. waits_for_text: text is launched behind nothing, and nothing
    behind text.
    """

    def __init__(
        self,
        policy: Rule,
        takes_s: Mapping[str, float],
        steps: int,
        chunk_s: float,
        host_s: float,
        waits_for_text: bool = False,
        text_groups: int = 1,
        begin_s: float = 0.0,
        after_s: float = 0.0,
        fresh: bool = False,
    ) -> None:
        super().__init__(
            ONE, policy, takes_s, steps=steps, fresh=fresh, chunk_s=chunk_s, text_groups=text_groups
        )
        self.host_s, self._begin_s, self._after_s = host_s, begin_s, after_s
        self._waits_for_text, self._free_s = waits_for_text, 0.0
        self._over_s: dict[int, float] = {}  # by micro-batch
        self.runner.ahead = self.scheduler.runs_ahead = True
        self.scheduler._worker = None
        self.runner.during, self.runner.after = self._launched, self._waited
        self.lanes["main"].timing = self._timing

    def run_for(self, seconds: float, asking: bool = True) -> None:
        end_s = self.clock.now_s + seconds
        while self.clock.now_s < end_s:
            self._arrive(asking)
            self.scheduler.step()
            if not self.scheduler._moved:
                later = [t for t in (self.scheduler.again_s, *self._due_s.values()) if t > self.clock.now_s]
                self.clock.now_s = min(end_s, *later, self.clock.now_s + 0.05)
            self._note_level()

    @contextmanager
    def _timing(self, batch: MicroBatch) -> Iterator[DeviceTime]:
        device = SimulatedTime(self.clock, self.takes_s[batch.requests[-1].kind])
        yield device
        device.over_s = self._over_s[id(batch)]

    def _launched(self, batch: MicroBatch) -> None:
        self.clock.now_s += self.host_s
        kind = batch.requests[-1].kind
        self.steps_run += kind == ACT
        if kind == ASK and not batch.requests[0].partial:
            self.tokens.append(self.clock.now_s)
        text = kind == ASK and batch.stage == DECODE
        if text and self._waits_for_text:
            self.clock.now_s = max(self.clock.now_s, self._free_s) + self.host_s
        self._free_s = max(self.clock.now_s, self._free_s) + self.takes_s[kind]
        self._over_s[id(batch)] = self._free_s
        if text and self._waits_for_text:
            self.clock.now_s = self._free_s

    def _waited(self, batch: MicroBatch) -> None:
        self.clock.now_s = max(self.clock.now_s, self._over_s.pop(id(batch)))
        self.clock.now_s += self._after_s if batch.requests[-1].want == ACT else 0.0

    def _begins(self, request: Request) -> None:
        self.clock.now_s += self._begin_s
