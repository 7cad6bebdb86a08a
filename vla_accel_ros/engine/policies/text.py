"""Schedules text in the slack: answers are written in the time that frames and actions leave.

Frames and actions never wait for text. A token, which advances all open answers at once, begins only if it
should end, with a margin, before the next frame is due and before actions that wait for joints go on; a token
in groups of layers is checked group by group. The expected time rises at once with a longer token and falls
slowly, because one token too many delays a robot, while one too few delays a sentence. If there is never any
slack, an occasional token keeps answers going, with at most SHARE of the time. EngineConfig.text_share gives
text more than the slack: further chunks of a frame wait for a token whenever text has had less than its
share; new frames and their first chunks do not. In its own lane text waits for nobody (`TextAlone`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vla_accel_ros.engine.policies.chunks import StaggeredChunks, in_progress, next_frame
from vla_accel_ros.engine.policies.policy import Backlog, Policy
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import ACT, ASK, DECODE, OBSERVE, PREFILL, MicroBatch, Request

PATIENCE_S = 0.2
"""Longest time that text waits for its first or next token if there is no slack."""
SHARE = 0.1
"""Largest share of the time that text takes if actions leave no slack."""
LATE = 0.5
"""How late a group of a token may end when a step waits, as a share of how late a frame's group may."""
MARGIN_S = 0.001
"""Time kept free before the next frame."""
AGAIN_S = 0.005
"""Time until the next check for slack: a frame that was due may not have come."""
MOST_BEGUN = 16
"""Answers in a row that begin before a token of the open ones: their callers may give them up at once."""
TOKEN_S = 0.001
"""Expected time of a token before one was measured: short, so that the first is measured soon."""


class TextInSlack(Policy):
    """Chooses what `first` chooses, and text if that is nothing. profile: expected times of tokens. groups:
    of a token; a group is expected to take as long as lately. share: of the time that text gets before
    further chunks."""

    def __init__(self, first: Policy, profile: Profile, groups: int = 1, share: float = 0.0) -> None:
        self._first, self._profile, self._groups, self._share = first, profile, groups, share
        self._wrote_s: float | None = None
        self._patience_s = PATIENCE_S
        self._token_s = 0.0  # what the groups of a token took
        self._earned_s, self._asked_s = 0.0, math.inf  # of the share, what text has not taken, as of then
        self._backlog = Backlog()
        self._hurries = self._after_text = False  # the token in progress was overdue; text ran last
        self._acts = False  # actions run in this lane
        self._begun = 0  # answers since the last token

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        asks = [request for request in ready if request.want == ASK]
        self._earn(self._share * max(0.0, now_s - self._asked_s))
        self._asked_s = now_s
        text = _text(asks, self._begun)
        if text is None:
            return self._before_text(lane, ready, now_s, due_s)
        partial = any(request.partial for request in text.requests)
        overdue = now_s >= self._overdue_s(asks) or (partial and self._hurries)
        if text.stage == PREFILL and in_progress(ready):
            overdue = False
        earned = self._has_earned(text, ready, now_s, due_s)
        if not (overdue or earned) or (partial and self._after_text):
            others = [request for request in ready if request.want != ASK]
            if (urgent := self._before_text(lane, others, now_s, due_s)) is not None:
                return urgent
        until_s = min(due_s - MARGIN_S, self._until_s(ready, now_s))
        at_once = text.stage == PREFILL and self._groups == 1
        if not (overdue or earned or at_once or self._fits(text, until_s, now_s)):
            return None
        self._after_text = True
        self._begun = self._begun + 1 if text.stage == PREFILL else 0
        self._backlog.chose(text, now_s)
        self._earn(-self._backlog.takes_s(ASK, text.stage))
        if self._acts and isinstance(self._first, StaggeredChunks):
            self._first.occupied(self._backlog.free_s(now_s))
        if text.stage == DECODE:
            self._hurries = overdue
            if not partial:
                self._wrote_s = now_s
        return text

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        self._backlog.ran(batch, took_s)
        if batch.stage != DECODE or batch.requests[0].want != ASK:
            self._first.ran(batch, took_s)
            return
        self._token_s += took_s
        if not any(request.writing for request in batch.requests):
            self._patience_s, self._token_s = max(PATIENCE_S, self._token_s / SHARE), 0.0

    def wake_s(self, ready: Sequence[Request], now_s: float) -> float:
        asks = [request for request in ready if request.want == ASK]
        text_s = min(self._overdue_s(asks), now_s + AGAIN_S) if asks else math.inf
        return min(text_s, self._first.wake_s(ready, now_s))

    def _before_text(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float
    ) -> MicroBatch | None:
        """What frames and actions run now, if anything."""
        urgent = self._first.next(lane, ready, now_s, due_s)
        if urgent is not None:
            self._after_text = False
            self._backlog.chose(urgent, now_s)
            self._acts |= urgent.requests[-1].want == ACT
        return urgent

    def _has_earned(self, text: MicroBatch, ready: Sequence[Request], now_s: float, due_s: float) -> bool:
        """Whether further chunks wait for this token or group: text has had less than its share, and it ends
        before the next frame."""
        if not self._share or any(_goes_first(request) for request in ready):
            return False
        return self._earned_s >= 0.0 and self._fits(text, due_s - MARGIN_S, now_s)

    def _earn(self, seconds: float) -> None:
        """Add to text's unused share, within bounds: an unused share expires, and slack that text used is not
        owed for long."""
        most_s = self._share * PATIENCE_S
        self._earned_s = min(max(self._earned_s + seconds, -most_s), most_s)

    def _until_s(self, ready: Sequence[Request], now_s: float) -> float:
        """When actions go on; a group of a token may end a little later."""
        if self._groups > 1 and isinstance(self._first, StaggeredChunks):
            return self._first.held_up_until_s(ready, now_s, LATE)
        return self._first.wake_s(ready, now_s)

    def _fits(self, batch: MicroBatch, until_s: float, now_s: float) -> bool:
        if self._groups > 1:
            return self._backlog.ends_s(batch.requests[-1].kind, batch.stage, now_s) <= until_s
        expected_s = self._profile.expected_s(batch.kind, len(batch.requests), TOKEN_S)
        return until_s - self._backlog.free_s(now_s) >= expected_s

    def _overdue_s(self, asks: list[Request]) -> float:
        """When text has waited long enough."""
        waiting = [request.submitted_s for request in asks if not request.begun]
        if waiting:
            return min(waiting) + PATIENCE_S
        begun_s = min(request.begun_s for request in asks)
        return max(begun_s, begun_s if self._wrote_s is None else self._wrote_s) + self._patience_s


class TextAlone(Policy):
    """Text in a lane where only a frame that is computed again for it has priority."""

    def __init__(self) -> None:
        self._begun = 0  # answers since the last token

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        if (frame := next_frame(ready)) is not None:
            return frame
        text = _text([request for request in ready if request.want == ASK], self._begun)
        self._begun = self._begun + 1 if text is not None and text.stage == PREFILL else 0
        return text


def _goes_first(request: Request) -> bool:
    """Whether it goes before text that is not overdue."""
    return request.want == OBSERVE or (request.want == ACT and (request.whole or request.fresh))


def _text(asks: list[Request], begun: int) -> MicroBatch | None:
    """Begin the waiting question with the highest priority, the oldest first; else, or once so many answers
    have `begun` in a row, a token of every open answer."""
    waiting = [request for request in asks if not request.begun]
    opened = tuple(request for request in asks if request.begun)
    if waiting and not (opened and begun >= MOST_BEGUN):
        return MicroBatch(PREFILL, (max(waiting, key=lambda request: request.priority),))
    return MicroBatch(DECODE, opened) if opened else None
