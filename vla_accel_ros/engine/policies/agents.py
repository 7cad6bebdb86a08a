"""Requests of agents: a screen is encoded and prefilled (OBSERVE), then its answer is decoded (ASK).

Encode and prefill are bound by arithmetic and gain nothing by batches, so they go first in, first out, one at
a time; a decode step is bound by reading weights and takes all open answers at once. In one lane,
`PrefillFirst` and `ChunkedPrefill` decide who waits for whom. In two, `SideBySide` decodes beside encode or
prefill, and may divide the multiprocessors between the two: by how many screens wait (`Share`; Nova, arXiv
2509.21301), or by how many wait and how many answers are open (`Table`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.policies.partition import sms_of_actions
from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.request import (
    ASK,
    DECODE,
    ENCODE,
    OBSERVE,
    PREFILL,
    MicroBatch,
    Request,
    by_priority,
)

VISION, LANGUAGE = "vision", "language"
"""Lanes of `SideBySide`: encode and prefill, and decode."""
SHARED, SCREENS_FIRST, PAUSED = 0, -1, -2
"""In place of multiprocessors of decoding: two streams of a GPU that is not divided; the same, where work of
the screen is more urgent; and no decoding until the stage ends."""
ASK_AGAIN_S = 0.0005
"""Between two stages of a screen, when answers that paused ask whether they may go on."""


@dataclass(frozen=True)
class Share:
    """Multiprocessors that decoding has beside encode, or beside prefill (Nova, equation 5).

    most: while one screen is in work. fewer: for each further one that waits. least: never less, which bounds
    the time between two tokens; 0: at none left the GPU is not divided, and decoding has what it can get. A
    most of 0 never divides it.
    Raises ValueError for numbers that cannot be.
    """

    most: int
    least: int = 1
    fewer: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or not 0 <= self.fewer < math.inf:
            raise ValueError(
                f"a share of {self.most} multiprocessors, at least {self.least}, {self.fewer} fewer for each "
                "that waits; give most of 0 or more, least from 0 to most, and fewer of 0 or more."
            )

    def sms(self, pending: int, answers: int = 0) -> int:
        """pending: screens in encode or prefill and those that wait for it, at least 1. answers: that are
        open, which do not matter."""
        return math.floor(sms_of_actions(pending, self.most, self.least, self.fewer))

    @property
    def largest(self) -> int:
        """That there can be."""
        return self.most


@dataclass(frozen=True)
class Table:
    """The same by the screens that wait and the answers that are open: what a step is worth grows with the
    answers that it advances, what it costs with the screens that it delays.

    rows: of 1, 2, ... screens, in each of 0, 1, ... answers: multiprocessors of decoding, SHARED,
    SCREENS_FIRST or PAUSED. More than there are rows or columns are as the last. Raises ValueError for none.
    """

    rows: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.rows or not all(self.rows) or min(map(min, self.rows)) < PAUSED:
            raise ValueError(
                f"a table has {self.rows}; give a row for each number of screens, of {PAUSED} or more."
            )

    def sms(self, pending: int, answers: int = 0) -> int:
        """pending: as of a share. answers: that are open."""
        row = self.rows[min(pending, len(self.rows)) - 1]
        return row[min(answers, len(row) - 1)]

    @property
    def largest(self) -> int:
        """That there can be."""
        return max(map(max, self.rows))


@dataclass(frozen=True)
class Beside:
    """Seconds of encode and of prefill beside decoding, and of a decode step beside each of them."""

    encode_s: float
    decode_in_encode_s: float
    prefill_s: float
    decode_in_prefill_s: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; a stage takes a positive number of seconds.")


def expected_s(encode: Beside, prefill: Beside, tokens: float) -> float:
    """Time from a screen to the end of its answer where nobody waits (Nova, equations 1 and 2).

    encode, prefill: measured with the split that decoding has beside each. tokens: of an answer.
    """
    front_s = encode.encode_s + prefill.prefill_s
    steps_s = encode.encode_s * encode.decode_in_encode_s + prefill.prefill_s * prefill.decode_in_prefill_s
    return front_s + tokens * steps_s / front_s


def best_splits(measured: Mapping[int, Beside], tokens: float) -> tuple[int, int]:
    """The splits beside encode and beside prefill for which `expected_s` is least (Nova, equation 3).

    measured: by the multiprocessors that decoding has. Raises ValueError if there are none.
    """
    if not measured:
        raise ValueError("no split was measured, so none is the best; measure one or more.")
    pairs = [(encode, prefill) for encode in sorted(measured) for prefill in sorted(measured)]
    return min(pairs, key=lambda pair: expected_s(measured[pair[0]], measured[pair[1]], tokens))


class PrefillFirst(Policy):
    """One lane: screens go first, and answers are decoded when none waits or more than `limit` are open.

    limit 0 finishes each request before the next begins.
    """

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError(f"limit is {limit}; give how many open answers may wait, 0 or more.")
        self._limit = limit

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        screen, asks = _screen(ready), _asks(ready)
        return _decode(asks) if screen is None or len(asks) > self._limit else screen


class ChunkedPrefill(Policy):
    """One lane: a prompt is prefilled `chunk` tokens at a time, and each forward decodes a token of every
    open answer as well (Sarathi-Serve). Nothing is decoded while a screen is encoded."""

    def __init__(self, chunk: int) -> None:
        if chunk < 1:
            raise ValueError(f"chunk is {chunk}; give the tokens of a prompt in a forward, 1 or more.")
        self._chunk = chunk

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        screen, asks = _screen(ready), _asks(ready)
        if screen is None:
            return _decode(asks)
        if screen.stage == ENCODE:
            return screen
        return MicroBatch(PREFILL, (*asks, *screen.requests), steps=self._chunk)


class SideBySide(Policy):
    """Two lanes, VISION and LANGUAGE: answers are decoded beside encode and prefill.

    shares: of decoding beside ENCODE and beside PREFILL; empty: two streams of one GPU that is not divided.
    A share that does not change with the number of screens is a static split. A split is chosen when encode
    or prefill begins and holds until it ends, so that the two sets never overlap then; decoding alone has the
    whole GPU, and a step that began so runs to its end beside a screen that begins meanwhile. Of a Split,
    `actions` is decoding's; where it is 0 the GPU is not divided, and the screen is more urgent.
    sms: multiprocessors of the GPU. Raises ValueError if only one of the two has a share, or one of all.
    """

    def __init__(self, shares: Mapping[str, Share | Table] | None = None, sms: int = 0) -> None:
        self._shares = dict(shares or {})
        if self._shares and self._shares.keys() != {ENCODE, PREFILL}:
            raise ValueError(
                f"shares are of {sorted(self._shares)}; give one of {ENCODE} and one of {PREFILL}, or none."
            )
        most = max((share.largest for share in self._shares.values()), default=0)
        if most and most >= sms:
            raise ValueError(f"a share is {most} of {sms} multiprocessors; leave some to the screens.")
        self._sms = sms
        self._split: Split | None = None
        self._running = self._paused = self._holds = False
        self._open = 0

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        screens, asks = sum(request.want == OBSERVE for request in ready), _asks(ready)
        if lane == LANGUAGE:
            return self._answers(asks, screens)
        screen = _screen(ready)
        self._running = screen is not None
        if screen is None:
            return None
        # No answer is ready in the eyes of this lane while the other runs them.
        mode = self._shares[screen.stage].sms(screens, max(self._open, len(asks))) if self._shares else SHARED
        self._paused, self._split = mode == PAUSED, self._split_of(mode)
        return replace(screen, split=self._split)

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        if batch.requests[-1].want == OBSERVE:
            self._running = False
            self._open += batch.stage == PREFILL
        else:
            self._open = max(0, self._open - sum(request.finished for request in batch.requests))

    def wake_s(self, ready: Sequence[Request], now_s: float) -> float:
        return now_s + ASK_AGAIN_S if self._holds else math.inf

    def _answers(self, asks: tuple[Request, ...], screens: int) -> MicroBatch | None:
        """Not while they pause, nor before it is known whether they do beside the stage that is about to
        begin."""
        self._holds = self._paused and screens > 0 and not self._running
        if self._holds or (self._paused and self._running):
            return None
        self._open = len(asks)
        batch = _decode(asks)
        divided = self._running or screens > 0
        return None if batch is None else replace(batch, split=self._split if divided else None)

    def _split_of(self, mode: int) -> Split | None:
        if mode in (SHARED, PAUSED):
            return None
        decoding = max(0, mode)
        return Split(decoding, self._sms - decoding)


def _screen(ready: Sequence[Request]) -> MicroBatch | None:
    """Prefill what is encoded, else encode the oldest of the highest priority."""
    screens = [request for request in ready if request.want == OBSERVE]
    encoded = [request for request in screens if request.stage == PREFILL]
    for request in encoded or by_priority(screens):
        return MicroBatch(request.stage, (request,), steps=0)
    return None


def _asks(ready: Sequence[Request]) -> tuple[Request, ...]:
    return tuple(request for request in ready if request.want == ASK)


def _decode(asks: tuple[Request, ...]) -> MicroBatch | None:
    """A token of every open answer."""
    return MicroBatch(DECODE, asks) if asks else None
