"""Decides how frames of a policy that acts by tokens share forwards (ActionFlow, section 3).

A frame needs K tokens: a prefill, which gives the first, and K - 1 more, each a forward if nothing is shared.
Let p be the seconds of a prefill, p + s with a draft of K - 1 rows behind it, q with K - 1 riders, d those of
a decode, and A the mean number of correct draft tokens. The age of a frame at its last token, and the time
from one frame to the next, are

    sequential                 age  p + (K - 1) d           every  p + (K - 1) d
    pipelined                  age  (K - 1) max(q, T) + q   every  q
    speculative, for rate      age  (K - 1 - A) max(q + s, T) + q + s   every  q + s, the rest riding
    speculative, for freshness age  p + s + (K - 1 - A) d   every  the same, the rest decoded at once

where T is the camera's period: no frame comes sooner, and riders wait for the next. So a rate above the
camera's is worth nothing, and with A = K - 1 speculation is best in both respects. A is known in every mode,
because a frame that was finished without a draft still tells whether the draft would have been correct. In
every mode a frame's tokens are its greedy ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple
from weakref import WeakKeyDictionary

from vla_accel_ros.engine.config import (
    AUTO,
    FRESHNESS,
    PIPELINED,
    RATE,
    SEQUENTIAL,
    SPECULATIVE,
)
from vla_accel_ros.engine.profile import Times
from vla_accel_ros.engine.request import ACT, DECODE, PREFILL, MicroBatch, Request, Requests, by_priority
from vla_accel_ros.engine.rules.chunks import Chunks, next_frame
from vla_accel_ros.engine.rules.rule import Setup

SCHEDULES = (SEQUENTIAL, PIPELINED, SPECULATIVE)

ALIKE = 0.05
"""Two modes whose preferred cost (age or rate) differs by less are equal; the other cost decides then."""

MEMORY = 0.1
"""Weight of a newly finished frame in the mean of accepted tokens."""


class Expected(NamedTuple):
    """rate_hz: finished frames a second; age_s: of a frame at its last token."""

    rate_hz: float
    age_s: float


def expected(
    schedule: str, times: Times, tokens: int, accepted: float, prefer: str, camera_hz: float = float("inf")
) -> Expected:
    """The rate and age of a schedule of SCHEDULES, for K = tokens and a mean of `accepted` draft tokens, 0 to
    K - 1."""
    decodes, draft_s = tokens - 1, max(0.0, times.drafted_s - times.prefill_s)
    if schedule == SEQUENTIAL:
        age = every = times.prefill_s + decodes * times.decode_s
    elif schedule == SPECULATIVE and prefer == FRESHNESS:
        age = every = times.drafted_s + (decodes - accepted) * times.decode_s
    else:
        drafted = schedule == SPECULATIVE
        every = times.packed_s + draft_s * drafted
        waits = decodes - accepted * drafted
        age = waits * max(every, 1.0 / camera_hz) + every
    return Expected(min(camera_hz, 1.0 / every), age)


def best(
    times: Times, tokens: int, accepted: float, prefer: str, camera_hz: float = float("inf"), now: str = ""
) -> str:
    """The best schedule by the preferred cost; among equals the best by the other cost.

    now: the schedule in use, which is kept while it is equal in both.
    """
    forecasts = {name: expected(name, times, tokens, accepted, prefer, camera_hz) for name in SCHEDULES}
    ages_s = {name: forecast.age_s for name, forecast in forecasts.items()}
    periods_s = {name: 1.0 / forecast.rate_hz for name, forecast in forecasts.items()}
    first, second = (periods_s, ages_s) if prefer == RATE else (ages_s, periods_s)
    cheapest = _cheapest(_cheapest(SCHEDULES, first), second)
    return now if now in cheapest else min(cheapest, key=lambda name: second[name])


def _cheapest(names: Sequence[str], cost: Mapping[str, float]) -> list[str]:
    lowest = min(cost[name] for name in names)
    return [name for name in names if cost[name] <= (1.0 + ALIKE) * lowest]


class TokenFrames(Chunks):
    """Schedules frames, with a fixed schedule or one that is chosen before each frame.

    mode: of TOKEN_MODES. prefer: of PREFERENCES. tokens: K, the most of any robot. times: measured; needed
    only for "auto". camera_hz: frame rate. The draft of a frame is the tokens of its robot's last finished
    frame for the same instruction; until frames were finished, no draft token is expected to be correct.
    """

    def __init__(
        self, mode: str, prefer: str, tokens: int, times: Times | None = None, camera_hz: float = math.inf
    ) -> None:
        super().__init__()
        self.mode, self.prefer, self.times = mode, prefer, times
        self._tokens, self._camera_hz = tokens, camera_hz
        self.accepted = 0.0
        self._finished = 0
        self._schedule = "" if mode == AUTO else mode
        self._overlap = False
        self._last: dict[str, tuple[str, tuple[int, ...]]] = {}  # instruction and tokens of the last frame
        self._drafts = WeakKeyDictionary[Request, tuple[int, ...]]()

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        acts = [request for request in ready if request.want == ACT]
        begun = tuple(request for request in acts if request.begun)
        waiting = by_priority([request for request in acts if not request.begun])
        fresh = [request for request in waiting if request.fresh or not request.stream]
        if begun and not all(self._overlap and request.stream for request in begun):
            return MicroBatch(DECODE, begun)  # decode them to the end
        later = self._later(ready)
        for request in fresh:
            if request not in later:
                return self._prefill(begun, request)
        return next_frame(ready) or (self._prefill(begun, fresh[0]) if fresh else None)

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        for request in batch.requests:
            if request.want != ACT or not request.finished:
                continue
            draft = self._drafts.pop(request, ())
            if request.error is None and not request.cancelled:
                self.note(request.tokens, draft)
                self._last[request.robot] = request.instruction, tuple(request.tokens)

    def schedule(self) -> str:
        """The schedule, of SCHEDULES, for the next frame."""
        if self.mode == AUTO:
            assert self.times is not None
            self._schedule = best(
                self.times, self._tokens, self.accepted, self.prefer, self._camera_hz, self._schedule
            )
        return self._schedule

    def note(self, tokens: Sequence[int], draft: Sequence[int]) -> None:
        """Note a finished frame. draft: the draft that it had, or would have had; () = none."""
        if not draft:
            return
        pairs = zip(draft, tokens[:-1])
        correct = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._finished += 1
        self.accepted += (correct - self.accepted) * max(MEMORY, 1.0 / self._finished)

    def _prefill(self, begun: tuple[Request, ...], new: Request) -> MicroBatch:
        schedule = self.schedule()
        words, last = self._last.get(new.robot, ("", ()))
        if words != new.instruction:  # another task
            last = ()
        self._drafts[new] = last
        self._overlap = overlaps(schedule, self.prefer)
        draft = last[:-1] if schedule == SPECULATIVE else ()
        return MicroBatch(PREFILL, (*begun, new), draft=draft)


class Continued(Chunks):
    """Frames by themselves, and tokens of up to `actions` actions in one forward. While tokens are written,
    frames of other robots take turns with them, and their actions join. overlaps: so do those of the same
    stream; otherwise its next frame waits for the end of its action."""

    def __init__(self, actions: int, overlaps: bool = False) -> None:
        super().__init__()
        self._actions, self._overlaps = actions, overlaps

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        later = self._later(ready)
        acts = [request for request in ready if request.want == ACT and request not in later]
        begun = [request for request in acts if request.begun]
        busy = set[str]() if self._overlaps else {request.robot for request in begun}
        waiting = by_priority([request for request in acts if not request.begun])
        fresh = [r for r in waiting if not r.stream or (r.fresh and r.robot not in busy)]
        writing = (*begun, *fresh[: max(0, self._actions - len(begun))])
        frame = next_frame([request for request in ready if request.robot not in busy])
        if writing and (frame is None or self._passed):
            return MicroBatch(DECODE, writing)
        return frame


def overlaps(schedule: str, prefer: str) -> bool:
    """Whether the rest of a frame's tokens ride in the forwards of later frames."""
    return schedule == PIPELINED or (schedule == SPECULATIVE and prefer == RATE)


def most_riders(mode: str, prefer: str, tokens: int) -> int:
    """Most frames that may ride in a new frame's prefill."""
    return tokens - 1 if mode == AUTO or overlaps(mode, prefer) else 0


def draft_lengths(mode: str, tokens: int) -> tuple[int, ...]:
    """Possible numbers of draft tokens behind a new frame's prompt."""
    return (0, tokens - 1) if mode in (SPECULATIVE, AUTO) and tokens > 1 else (0,)


def frames(setup: Setup) -> TokenFrames | Continued:
    """The rule for `token_mode`. Raises ValueError for a policy that does not act by tokens."""
    config = setup.config
    if not setup.tokens:
        raise ValueError(f"scheduling is 'tokens', but the policy does not act by tokens; use '{AUTO}'.")
    if setup.actions:
        return Continued(setup.actions, config.token_mode == PIPELINED)
    hz = config.camera_hz or math.inf
    return TokenFrames(config.token_mode, config.token_prefer, setup.tokens, setup.times, hz)
