"""The engine in simulated time: its own loop and rules over micro-batches that compute nothing.

A micro-batch takes as long as a `Profile` says. A lane computes one after another; lanes that compute at once
slow each other down in equal shares. The clock stands still until the host does something (`Host`), the loop
waits for results, or `SimulatedEngine.advance` finds nothing to do before the next event. Tests, forecasts
and benches all simulate an engine with this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vla_accel_ros.engine.kv.prefixes import PoolExhausted, Prefixes, Slots
from vla_accel_ros.engine.lanes.lane import DeviceTime, Lane
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import (
    ACT,
    ASK,
    DECODE,
    DENOISE,
    LAUNCHED,
    OBSERVE,
    PREFILL,
    RUNNING,
    WHOLE,
    MicroBatch,
    Request,
)
from vla_accel_ros.engine.rules.rule import Rule
from vla_accel_ros.engine.rules.rules import LANES, Lanes, Rules
from vla_accel_ros.engine.scheduler import Scheduler

NOBODY: Any = None
"""Embodiment of the frames: no policy reads them."""


@dataclass
class Clock:
    """Time that stands still until somebody moves it."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, until_s: float) -> None:
        """Move it to then, if that is later."""
        self.now_s = max(self.now_s, until_s)


@dataclass(frozen=True)
class Host:
    """Seconds of the host. launch_s: to choose and launch a micro-batch; copy_s: of the images of a frame;
    begin_s: of a chunk; result_s: of a step of chunks, and of each chunk that it ends."""

    launch_s: float = 0.0
    copy_s: float = 0.0
    begin_s: float = 0.0
    result_s: float = 0.0


IDLE = Host()


@dataclass
class _Computed:
    """A DeviceTime."""

    clock: Clock
    took_s: float = 0.0
    over_s: float = math.inf

    def over(self) -> bool:
        return self.clock.now_s >= self.over_s

    def seconds(self) -> float:
        return self.took_s


@dataclass(eq=False)
class SimulatedRunner:
    """Answers as the runner of an engine does; see engine.runner.interface.Runner.

    profile: seconds of micro-batches by kind and size; 0 for a kind that is not in it. steps: of a chunk, or
    tokens of an action; first: stage in which an action begins. groups: micro-batches of a frame,
    text_groups: of a token. tokens: of an answer. seats: most chunks that have begun, None = any number.
    answers: most open answers. whole_apart: whole chunks are of a kind of their own. captured: results come
    later, as with a GPU.

    Attributes: `open`, the requests that have begun and were not dropped; `ends_s`, of what is launched.
    """

    profile: Profile = field(default_factory=Profile)
    clock: Clock = field(default_factory=Clock)
    steps: int = 1
    first: str = DENOISE
    groups: int = 1
    text_groups: int = 1
    tokens: int = 3
    slots: int = 8
    seats: int | None = None
    answers: int = 2
    whole_apart: bool = False
    captured: bool = False
    host: Host = IDLE
    lanes: Lanes = field(default_factory=lambda: LANES["one"])

    def __post_init__(self) -> None:
        self.pool = Slots(self.slots)
        self.prefixes = Prefixes(self.pool)
        self.open = set[Request]()
        self._group = 0  # groups of a token that are launched
        self._lane_of = {kind: name for name, kinds in self.lanes.items() for kind in kinds}
        self._free_s: dict[str, float] = {}  # when a lane has computed all that was launched
        self._newest = 0.0, 0.0  # seconds and end of the newest micro-batch
        self.ends_s: list[float] = []

    def first_stage(self, request: Request) -> str:
        return self.first if request.want == ACT else request.stage

    def kind(self, request: Request) -> str:
        return WHOLE if self.whole_apart and request.whole else request.kind

    def room(self, request: Request) -> bool:
        if request.want == ACT:
            return self.seats is None or self._count(ACT) < self.seats
        return self._count(ASK) < self.answers if request.want == ASK else self.pool.free > 0

    def begin(self, request: Request) -> None:
        if not self.room(request):
            raise PoolExhausted(f"no place for a request to {request.want}")
        self.open.add(request)

    def is_captured(self, batch: MicroBatch) -> bool:
        return self.captured

    def run(self, batch: MicroBatch) -> Callable[[], None] | None:
        last, host = batch.requests[-1], self.host
        if host is not IDLE:
            begin_s = {OBSERVE: host.copy_s, ACT: host.begin_s}.get(last.want, 0.0)
            new = sum(request.progress is None for request in batch.requests)
            self.clock.now_s += host.launch_s + new * begin_s
        over_s = self._occupy(batch)
        text = batch.stage == DECODE and last.kind == ASK
        if text:
            self._group = (self._group + 1) % self.text_groups
        ended = [request for request in batch.requests if self._advance(request, batch)]
        if not self.captured:
            self.clock.wait(over_s)
            self._end(ended)
            return None
        frame = last.want == OBSERVE and self._lane_of[OBSERVE] == self._lane_of[ACT]
        if frame or (last.kind == ASK and not text):  # what follows waits for it on the device
            self._end(ended)
            if not frame or self.groups == 1:
                return None
        for request in ended:
            if not request.finished:
                request.status = LAUNCHED

        def wait() -> None:
            self.clock.wait(over_s)
            if last.want == ACT:
                self.clock.now_s += host.result_s * (1 + len(ended))
            self._end(ended)

        return wait

    def drop(self, request: Request) -> None:
        self.open.discard(request)
        if request.partial:
            self._group = 0
        if request.want == OBSERVE and request.progress is not None:
            self.pool.release(request.progress[0])
            request.progress = None

    def idle(self) -> None:
        pass

    @contextmanager
    def timing(self, batch: MicroBatch) -> Iterator[DeviceTime]:
        """See engine.lanes.lane.Timing."""
        computed = _Computed(self.clock)
        yield computed
        computed.took_s, computed.over_s = self._newest

    def _count(self, want: str) -> int:
        return sum(request.want == want and (want == ASK or not request.launched) for request in self.open)

    def _occupy(self, batch: MicroBatch) -> float:
        """Put a micro-batch behind the work of its lane; returns when it is computed."""
        lane, now_s = self._lane_of[batch.requests[-1].kind], self.clock.now_s
        takes_s = self.profile.of(batch.kind, len(batch.requests)).usual
        if len(self._free_s) > 1:
            takes_s *= 1 + sum(free_s > now_s for name, free_s in self._free_s.items() if name != lane)
        over_s = self._free_s[lane] = max(now_s, self._free_s.get(lane, now_s)) + takes_s
        self._newest = takes_s, over_s
        if self.captured:
            self.ends_s.append(over_s)
        return over_s

    def _advance(self, request: Request, batch: MicroBatch) -> bool:
        """Take a request as far as the launch does; returns whether something comes of it when computed."""
        if request.want == OBSERVE:
            slot, groups = request.progress or (self.pool.acquire(), 0)
            request.progress, request.stage = (slot, groups + 1), PREFILL
            return bool(groups + 1 == self.groups)
        if request.want == ACT:
            request.progress = self.steps if batch.steps == 0 else (request.progress or 0) + batch.steps
            if batch.stage != DENOISE:
                request.tokens.append(len(request.tokens))
                request.stage = DECODE
            return bool(request.progress >= self.steps)
        request.partial = batch.stage == DECODE and self._group > 0
        return not request.partial

    def _end(self, requests: Iterable[Request]) -> None:
        """Set the results of what is computed."""
        for request in requests:
            if request.finished:
                continue
            if request.want == ACT:
                request.finish(f"{ACT} {request.number}")
            elif request.observation is not None:
                slot, request.progress = request.progress[0], None
                request.finish(self.prefixes.publish(slot, request.observation, NOBODY, 2, 1))
            else:
                request.tokens.append(len(request.tokens))
                request.stage, request.status = DECODE, RUNNING
                request.result = "word" * len(request.tokens)
                if len(request.tokens) >= self.tokens:
                    request.finish(f"{ASK} {request.number}")


class SimulatedEngine:
    """The loop over a runner in simulated time. rule: of frames and actions; text_share: see EngineConfig.
    Attributes: `scheduler`, `rules`, `runner`, `clock`; `lanes`, by name."""

    def __init__(self, runner: SimulatedRunner, rule: Rule, text_share: float = 0.0) -> None:
        self.runner, self.clock = runner, runner.clock
        self.rules = Rules(rule, lanes=runner.lanes, text_groups=runner.text_groups, text_share=text_share)
        self.lanes = {
            name: Lane(name, timing=runner.timing, kinds=kinds) for name, kinds in runner.lanes.items()
        }
        self.scheduler = Scheduler(runner, self.rules, runner.clock, [*self.lanes.values()])
        self.scheduler.runs_ahead = runner.captured

    def advance(self, until_s: float) -> None:
        """Step the loop once; if that changed nothing, move the clock to the next event, at most until
        then."""
        self.scheduler.step()
        if self.scheduler.moved:
            return
        now_s = self.clock.now_s
        self.runner.ends_s = [end_s for end_s in self.runner.ends_s if end_s > now_s]
        wakes_s = [lane.wake_s(now_s) for lane in self.lanes.values()]
        self.clock.wait(min([until_s, *self.runner.ends_s, *(s for s in wakes_s if s > now_s)]))
