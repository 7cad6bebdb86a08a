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

from vla_accel_ros.engine.request import (
    ACT,
    ASK,
    DECODE,
    OBSERVE,
    PREFILL,
    WAITING,
    MicroBatch,
    Request,
    Requests,
)
from vla_accel_ros.engine.rules.chunks import in_progress
from vla_accel_ros.engine.rules.rule import Plan, Rule

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
TOKEN = f"{ASK}.{DECODE}"
"""Stage of a token, or of a group of its layers, in a profile."""
TOKEN_S = 0.001
"""Expected time of a token before one was measured: short, so that the first is measured soon."""


def pause_s(plan: Plan, groups: int) -> float:
    """Seconds from one token to the next if there is no slack, for a token in so many groups of layers."""
    return max(PATIENCE_S, groups * plan.profile.usual_s(TOKEN, 1) / SHARE)


class TextInSlack(Rule):
    """Chooses text, after the rule `first` has chosen. groups: of a token. share: of the time that text gets
    before further chunks."""

    def __init__(self, first: Rule, groups: int = 1, share: float = 0.0) -> None:
        self.plan, self._first, self._groups, self._share = Plan(), first, groups, share
        self._wrote_s: float | None = None
        self._earned_s, self._asked_s = 0.0, math.inf  # of the share, what text has not taken, as of then
        self._overdue = self._hurries = False  # text waits too long; the token in progress did
        self._after_text = False  # text ran last
        self._begun = 0  # answers since the last token

    def urgent(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        """Text that is overdue, or that has had less than its share."""
        asks = [request for request in ready if request.want == ASK]
        self._earn(self._share * max(0.0, now_s - self._asked_s))
        self._asked_s = now_s
        text = _text(asks, self._begun)
        if text is None:
            return None
        partial = any(request.partial for request in text.requests)
        self._overdue = now_s >= self._overdue_s(asks) or (partial and self._hurries)
        if text.stage == PREFILL and in_progress(ready):
            self._overdue = False
        goes_first = self._overdue or self._has_earned(lane, text, ready, now_s, due_s)
        return text if goes_first and not (partial and self._after_text) else None

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        text = _text([request for request in ready if request.want == ASK], self._begun)
        if text is None:
            return None
        part = LATE if self._groups > 1 else 0.0  # a group of a token may end a little later
        until_s = min(due_s - MARGIN_S, self._first.busy_until_s(ready, now_s, part))
        at_once = text.stage == PREFILL and self._groups == 1
        goes = self._overdue or at_once or self._has_earned(lane, text, ready, now_s, due_s)
        return text if goes or self._fits(lane, text, until_s, now_s) else None

    def chose(self, lane: str, batch: MicroBatch, now_s: float) -> None:
        self._after_text = batch.requests[-1].want == ASK
        if not self._after_text:
            return
        self._begun = self._begun + 1 if batch.stage == PREFILL else 0
        self._earn(-self.plan.takes_s(batch))
        if batch.stage == DECODE:
            self._hurries = self._overdue
            if not any(request.partial for request in batch.requests):
                self._wrote_s = now_s

    def wake_s(self, ready: Requests, now_s: float) -> float:
        asks = [request for request in ready if request.want == ASK]
        return min(self._overdue_s(asks), now_s + AGAIN_S) if asks else math.inf

    def _has_earned(self, lane: str, text: MicroBatch, ready: Requests, now_s: float, due_s: float) -> bool:
        """Whether further chunks wait for this token or group: text has had less than its share, and it ends
        before the next frame."""
        if not self._share or any(_goes_first(request) for request in ready):
            return False
        return self._earned_s >= 0.0 and self._fits(lane, text, due_s - MARGIN_S, now_s)

    def _earn(self, seconds: float) -> None:
        """Add to text's unused share, within bounds: an unused share expires, and slack that text used is not
        owed for long."""
        most_s = self._share * PATIENCE_S
        self._earned_s = min(max(self._earned_s + seconds, -most_s), most_s)

    def _fits(self, lane: str, text: MicroBatch, until_s: float, now_s: float) -> bool:
        if self._groups > 1:
            return self.plan.ends_s(lane, text, now_s) <= until_s
        expected_s = self.plan.profile.latest_s(text.kind, len(text.requests), TOKEN_S)
        return until_s - self.plan.free_s(lane, now_s) >= expected_s

    def _overdue_s(self, asks: list[Request]) -> float:
        """When text has waited long enough."""
        waiting = [request.submitted_s for request in asks if request.status is WAITING]
        if waiting:
            return min(waiting) + PATIENCE_S
        begun_s = min(request.begun_s for request in asks)
        last_s = begun_s if self._wrote_s is None else max(begun_s, self._wrote_s)
        return last_s + pause_s(self.plan, self._groups)


class TextAlone(Rule):
    """Text in a lane of its own."""

    def __init__(self) -> None:
        self._begun = 0  # answers since the last token

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        return _text([request for request in ready if request.want == ASK], self._begun)

    def chose(self, lane: str, batch: MicroBatch, now_s: float) -> None:
        if batch.requests[-1].want == ASK:
            self._begun = self._begun + 1 if batch.stage == PREFILL else 0


def _goes_first(request: Request) -> bool:
    """Whether it goes before text that is not overdue."""
    return request.want == OBSERVE or (request.want == ACT and (request.whole or request.fresh))


def _text(asks: list[Request], begun: int) -> MicroBatch | None:
    """Begin the waiting question with the highest priority, the oldest first; else, or once so many answers
    have `begun` in a row, a token of every open answer."""
    waiting = [request for request in asks if request.status is WAITING]
    opened = tuple(request for request in asks if request.status is not WAITING)
    if waiting and not (opened and begun >= MOST_BEGUN):
        return MicroBatch(PREFILL, (max(waiting, key=lambda request: request.priority),))
    return MicroBatch(DECODE, opened) if opened else None
