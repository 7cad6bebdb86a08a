"""Overload: what is given up, in this order, when there is more work than time.

1. Language: text is paused but for an occasional token, with at most SHARE of the time.
2. Action rate: further chunks of a frame come at a half, then a quarter of their rate, then not at all. The
first chunk of each frame stays.
3. Vision rate: a frame waits until the first chunk of its robot's previous frame is finished, and is then the
newest; frames in between are skipped. So vision is as fast as frames can be acted on, and never slower.

Overload means that UP of the last OF frames, or of the last OF chunks, missed their deadline
(`Request.pace`). Each rung of the ladder is held until there is new evidence. Frames are skipped only if
chunks are late, because otherwise it would gain nothing. After CALM_S with hardly any late request, one rung
is taken back. A rung that is needed again within that time is kept twice as long the next time, up to
MOST_CALM_S, so that a load at the limit does not oscillate. Everything that is given up is counted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary, WeakValueDictionary

from vla_accel_ros.engine.request import ACT, ASK, DENOISE, OBSERVE, WAITING, MicroBatch, Request, Requests
from vla_accel_ros.engine.rules.rule import Plan, Rule
from vla_accel_ros.engine.rules.text import pause_s

NONE, LANGUAGE, ACTIONS, VISION = "none", "language", "actions", "vision"
LEVELS = (NONE, LANGUAGE, ACTIONS, VISION)
UP, OF = 4, 8
"""Overload: at least UP late requests among the last OF."""
AGAIN = 2
"""At least this many late requests among them are not calm."""
CALM_S, MOST_CALM_S = 2.0, 32.0
"""Calm time before a rung is taken back: at first, and at most."""
LEAST_PERIOD_S = 0.001
"""Shortest period of chunks, also used if it is unknown."""
MOST_HELD_S = 1.0
"""Longest time that a frame waits for a chunk."""


@dataclass(frozen=True)
class Rung:
    """What is given up. every: periods from one chunk of a frame to its next, inf = there is no next."""

    level: str
    every: float = 1.0


LADDER = (
    Rung(NONE),
    Rung(LANGUAGE),
    Rung(ACTIONS, 2.0),
    Rung(ACTIONS, 4.0),
    Rung(ACTIONS, math.inf),
    Rung(VISION, math.inf),
)


@dataclass(frozen=True)
class Degradation:
    """What is given up now, and what was so far. Immutable: each change makes a new object.

    level: of LEVELS; it includes those before it. raised: how often a rung was taken. paused_s: how long
    waiting text was held back. chunks, frames: by robot, number of periods in which one was held back.
    """

    level: str = NONE
    raised: int = 0
    paused_s: float = 0.0
    chunks: Mapping[str, int] = field(default_factory=dict)
    frames: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _Held:
    """Of a request that is held back. counted: periods so far. let_go_s: of a frame, since when it is held
    back no longer."""

    since_s: float
    counted: int = 0
    let_go_s: float | None = None


class Overload(Rule):
    """Holds back what is given up. Its time is that at which others choose, and of what micro-batches took.
    groups: of a token.

    degradation: read it from any thread.
    """

    def __init__(self, groups: int = 1) -> None:
        self.plan, self._groups = Plan(), groups
        self.degradation = Degradation()
        self._rung = 0
        self._late = {want: deque[bool](maxlen=OF) for want in (OBSERVE, ACT)}
        self._calm_s, self._quiet_s = CALM_S, -math.inf  # since when it is calm, and no rung was new
        self._lowered_s = -math.inf
        self._began_s: dict[str, float] = {}  # by kind
        self._acted_s: dict[str, float] = {}  # by robot: when its last chunk was begun
        # Weak references, because requests have images and callbacks.
        self._acting = WeakValueDictionary[str, Request]()  # by robot: first chunk of its newest frame
        self._held = WeakKeyDictionary[Request, _Held]()
        self._wrote_s = -math.inf
        self._paused_s: float | None = None  # until when text was seen to be held back

    @property
    def rung(self) -> Rung:
        """What is given up now."""
        return LADDER[self._rung]

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        return None

    def admitted(self, lane: str, ready: Requests, now_s: float) -> Requests:
        self._recover(now_s)
        admitted, waits = ready, any(request.want == ASK for request in ready)
        if self._rung or self._held:
            admitted = [request for request in ready if not self._holds(request, now_s)]
        self._count_pause(waits, any(request.want == ASK for request in admitted), now_s)
        return admitted

    def chose(self, lane: str, batch: MicroBatch, now_s: float) -> None:
        self._began_s[batch.kind] = now_s
        for request in batch.requests:
            if request.want == ASK:
                self._wrote_s = now_s
            elif request.want == ACT and request.stream and request.status is WAITING:
                self._acted_s[request.robot] = now_s
                if request.fresh and request.stage == DENOISE:
                    self._acting[request.robot] = request

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        ended_s = self._began_s.get(batch.kind, 0.0) + took_s
        for request in batch.requests:
            if request.finished and request.result is not None:
                self._note(request, ended_s)

    def wake_s(self, ready: Requests, now_s: float) -> float:
        until_s = [self._until_s(request) for request in ready if self._holds(request, now_s)]
        return min([*until_s, self._quiet_s + self._calm_s]) if until_s else math.inf

    def _holds(self, request: Request, now_s: float) -> bool:
        """Whether the request is given up for now; counts the periods of that."""
        level = self.rung.level
        if request.want == ASK:
            return level != NONE and not request.partial and now_s < self._until_s(request)
        if request.status is not WAITING:
            return False
        if request.want == ACT:
            is_held = request.stream and not request.fresh and now_s < self._until_s(request)
        else:
            is_held = level == VISION and self._waits_for_chunk(request, now_s)
        self._count(request, is_held, now_s)
        return is_held

    def _until_s(self, request: Request) -> float:
        """Until when a request that may be held back is held."""
        if request.want == ASK:
            return self._wrote_s + pause_s(self.plan, self._groups)
        if request.want == OBSERVE:
            return self._held[request].since_s + MOST_HELD_S
        every = self.rung.every
        if every == 1.0:
            return -math.inf
        takes_s = self.plan.takes_s(MicroBatch(request.stage, (request,)))
        period_s = max(request.pace.period_s, takes_s, LEAST_PERIOD_S)
        return self._acted_s.get(request.robot, -math.inf) + every * period_s

    def _waits_for_chunk(self, request: Request, now_s: float) -> bool:
        chunk = self._acting.get(request.robot)
        if chunk is None or chunk.finished:
            return False
        record = self._held.get(request)
        return record is None or (record.let_go_s is None and now_s < self._until_s(request))

    def _count(self, request: Request, is_held: bool, now_s: float) -> None:
        record = self._held.get(request)
        if record is None and is_held:
            record = self._held[request] = _Held(now_s)
        if record is None or record.let_go_s is not None:
            return
        period_s = max(request.pace.period_s, LEAST_PERIOD_S)
        periods = math.floor((now_s - record.since_s) / period_s + 1e-6)
        if periods > record.counted:
            counts = self.degradation.frames if request.want == OBSERVE else self.degradation.chunks
            counts = {**counts, request.robot: counts.get(request.robot, 0) + periods - record.counted}
            record.counted = periods
            if request.want == OBSERVE:
                self.degradation = replace(self.degradation, frames=counts)
            else:
                self.degradation = replace(self.degradation, chunks=counts)
        if not is_held and request.want == OBSERVE:
            record.let_go_s = now_s
        elif not is_held:
            del self._held[request]

    def _count_pause(self, waits: bool, admitted: bool, now_s: float) -> None:
        """Count the time in which text waited and none was let through."""
        if self._paused_s is not None and waits:
            paused_s = self.degradation.paused_s + now_s - self._paused_s
            self.degradation = replace(self.degradation, paused_s=paused_s)
        self._paused_s = now_s if waits and not admitted else None

    def _note(self, request: Request, ended_s: float) -> None:
        """Note whether a finished frame or chunk of a stream was late, and take a rung if needed."""
        if request.want not in self._late or math.isinf(request.pace.most_s):
            return
        began_s = request.begun_s
        if request.want == OBSERVE:
            record = self._held.get(request)
            began_s = request.submitted_s if record is None or record.let_go_s is None else record.let_go_s
        is_late = ended_s - began_s > request.pace.most_s
        self._late[request.want].append(is_late)
        if is_late and sum(self._late[request.want]) >= AGAIN:
            self._quiet_s = max(self._quiet_s, ended_s)
        overloaded = {want for want, recent in self._late.items() if sum(recent) >= UP}
        above = self._rung + 1
        if not overloaded or above == len(LADDER):
            return
        if LADDER[above].level == VISION and ACT not in overloaded:
            return
        if ended_s < self._lowered_s + self._calm_s:
            self._calm_s = min(2.0 * self._calm_s, MOST_CALM_S)
        self._lowered_s = -math.inf
        self._take(above, ended_s)

    def _recover(self, now_s: float) -> None:
        """Take a rung back after a calm period."""
        if self._rung and now_s >= self._quiet_s + self._calm_s:
            if self._lowered_s > -math.inf:  # it was not needed again
                self._calm_s = max(CALM_S, self._calm_s / 2.0)
            self._lowered_s = now_s
            self._take(self._rung - 1, now_s)

    def _take(self, rung: int, now_s: float) -> None:
        raised = self.degradation.raised + (rung > self._rung)
        self._rung, self._quiet_s = rung, max(self._quiet_s, now_s)
        self.degradation = replace(self.degradation, level=self.rung.level, raised=raised)
        for recent in self._late.values():
            recent.clear()
