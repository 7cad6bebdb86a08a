"""Schedules requests of agents: a screen is encoded and prefilled (OBSERVE), then its answer is decoded
(ASK).

Encode and prefill are compute-bound and gain nothing from batches, so they run first in, first out, one at a
time. A decode step is bound by reading weights and takes all open answers at once. With one lane,
`PrefillFirst` and `ChunkedPrefill` decide which of them waits. With two lanes, `SideBySide` decodes beside
encode or prefill, and may divide the multiprocessors between them: by the number of waiting screens (`Share`;
Nova, arXiv 2509.21301), or by the numbers of waiting screens and open answers (`Table`).
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
"""Lanes of `SideBySide`: one for encode and prefill, one for decode."""
SHARED, SCREENS_FIRST, PAUSED = 0, -1, -2
"""Special values of the number of multiprocessors for decoding. SHARED: two streams share the whole GPU.
SCREENS_FIRST: the same, but the screen's stream has priority. PAUSED: no decoding until the stage ends."""
ASK_AGAIN_S = 0.0005
"""While answers are paused between two stages of a screen, the policy is asked again after this."""


@dataclass(frozen=True)
class Share:
    """Number of multiprocessors for decoding beside encode, or beside prefill (Nova, equation 5).

    most: while one screen is in work. fewer: reduction for each further screen that waits. least: lower
    bound, which limits the time between two tokens. A result of 0 does not divide the GPU; decoding then uses
    what is free.
    Raises ValueError unless 0 <= least <= most and fewer is 0 or more and finite.
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
        """The number for decoding. pending: screens in encode or prefill or waiting for it, at least 1.
        answers: ignored."""
        return math.floor(sms_of_actions(pending, self.most, self.least, self.fewer))

    @property
    def largest(self) -> int:
        """The largest number that `sms` returns."""
        return self.most


@dataclass(frozen=True)
class Table:
    """Like Share, by the numbers of waiting screens and open answers: a step gains with each answer that it
    advances, and costs with each screen that it delays.

    rows: one row for 1, 2, ... screens, with one column for 0, 1, ... answers: multiprocessors for decoding,
    SHARED, SCREENS_FIRST or PAUSED. The last row and column also stand for all larger numbers. Raises
    ValueError if there is no row, a row is empty, or a value is below PAUSED.
    """

    rows: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.rows or not all(self.rows) or min(map(min, self.rows)) < PAUSED:
            raise ValueError(
                f"a table has {self.rows}; give a row for each number of screens, of {PAUSED} or more."
            )

    def sms(self, pending: int, answers: int = 0) -> int:
        """The number for decoding. pending: as in Share.sms. answers: number of open answers."""
        row = self.rows[min(pending, len(self.rows)) - 1]
        return row[min(answers, len(row) - 1)]

    @property
    def largest(self) -> int:
        """The largest number that `sms` returns."""
        return max(map(max, self.rows))


@dataclass(frozen=True)
class Beside:
    """Seconds of encode and of prefill beside decoding, and of a decode step beside each of them. Raises
    ValueError if one is not positive and finite."""

    encode_s: float
    decode_in_encode_s: float
    prefill_s: float
    decode_in_prefill_s: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; a stage takes a positive number of seconds.")


def expected_s(encode: Beside, prefill: Beside, tokens: float) -> float:
    """Time from a screen to the end of its answer without queueing (Nova, equations 1 and 2).

    encode, prefill: measured with the split beside each. tokens: of an answer.
    """
    front_s = encode.encode_s + prefill.prefill_s
    steps_s = encode.encode_s * encode.decode_in_encode_s + prefill.prefill_s * prefill.decode_in_prefill_s
    return front_s + tokens * steps_s / front_s


def best_splits(measured: Mapping[int, Beside], tokens: float) -> tuple[int, int]:
    """The splits beside encode and beside prefill with the least `expected_s` (Nova, equation 3).

    measured: by the number of multiprocessors for decoding. Raises ValueError if it is empty.
    """
    if not measured:
        raise ValueError("no split was measured, so none is the best; measure one or more.")
    pairs = [(encode, prefill) for encode in sorted(measured) for prefill in sorted(measured)]
    return min(pairs, key=lambda pair: expected_s(measured[pair[0]], measured[pair[1]], tokens))


class PrefillFirst(Policy):
    """One lane: screens go first; answers are decoded when no screen waits or more than `limit` answers are
    open.

    With limit 0 each request is finished before the next begins. Raises ValueError if limit is negative.
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
    """One lane: prefills a prompt `chunk` tokens at a time, and each forward also decodes a token of every
    open answer (Sarathi-Serve). Decodes nothing while a screen is encoded. Raises ValueError if chunk is
    below 1."""

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

    shares: of decoding beside ENCODE and beside PREFILL; empty: two streams share the whole GPU. A share that
    ignores the number of screens is a static split. The split is chosen when encode or prefill begins and
    holds until that ends, so the two sets never overlap then. Decoding alone has the whole GPU; a step that
    began so runs to its end beside a screen that begins meanwhile. In a Split, `actions` is the number for
    decoding; with 0 the GPU is not divided and the screen has priority.
    sms: multiprocessors of the GPU. Raises ValueError if only one of the two stages has a share, or if a
    share takes all multiprocessors.
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
        # Answers that the other lane runs now are not in `ready`.
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
        """A decode step; None while answers are paused, or until it is known whether the next stage pauses
        them."""
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
    """Prefill an encoded screen, else encode the oldest of the highest priority."""
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
