"""Requests of agents: a screen is encoded and prefilled (OBSERVE), then its answer is decoded (ASK).

Encode and prefill are bound by arithmetic and gain nothing by batches, so they go first in, first out, one at
a time; a decode step is bound by reading weights and takes all open answers at once. In one lane,
`PrefillFirst` and `ChunkedPrefill` decide who waits for whom. In two, `SideBySide` decodes beside encode or
prefill, and may divide the multiprocessors between the two by how many screens wait (Nova, arXiv 2509.21301).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.policies.partition import sms_of_actions
from vla_accel_ros.engine.policies.policy import Policy, by_priority
from vla_accel_ros.engine.request import ASK, DECODE, ENCODE, OBSERVE, PREFILL, MicroBatch, Request

VISION, LANGUAGE = "vision", "language"
"""Lanes of `SideBySide`: encode and prefill, and decode."""


@dataclass(frozen=True)
class Share:
    """Multiprocessors that decoding has beside encode, or beside prefill (Nova, equation 5).

    most: while one screen is in work. fewer: for each further one that waits. least: never less, which bounds
    the time between two tokens; 0: at none left the GPU is not divided, and decoding has what it can get.
    Raises ValueError for numbers that cannot be.
    """

    most: int
    least: int = 1
    fewer: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.most < 1 or not 0 <= self.fewer < math.inf:
            raise ValueError(
                f"a share of {self.most} multiprocessors, at least {self.least}, {self.fewer} fewer for each "
                "that waits; give most of 1 or more, least from 0 to most, and fewer of 0 or more."
            )

    def sms(self, pending: int) -> int:
        """pending: screens in encode or prefill and those that wait for it, at least 1."""
        return math.floor(sms_of_actions(pending, self.most, self.least, self.fewer))


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
    `actions` is decoding's.
    sms: multiprocessors of the GPU. Raises ValueError if only one of the two has a share, or one of all.
    """

    def __init__(self, shares: Mapping[str, Share] | None = None, sms: int = 0) -> None:
        self._shares = dict(shares or {})
        if self._shares and self._shares.keys() != {ENCODE, PREFILL}:
            raise ValueError(
                f"shares are of {sorted(self._shares)}; give one of {ENCODE} and one of {PREFILL}, or none."
            )
        if any(share.most >= sms for share in self._shares.values()):
            most = max(share.most for share in self._shares.values())
            raise ValueError(f"a share is {most} of {sms} multiprocessors; leave some to the screens.")
        self._sms = sms
        self._split: Split | None = None
        self._running = False

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        screens = sum(request.want == OBSERVE for request in ready)
        if lane == LANGUAGE:
            batch = _decode(_asks(ready))
            divided = self._running or screens > 0
            return None if batch is None else replace(batch, split=self._split if divided else None)
        screen = _screen(ready)
        self._running = screen is not None
        if screen is None:
            return None
        decoding = self._shares[screen.stage].sms(screens) if self._shares else 0
        self._split = Split(decoding, self._sms - decoding) if decoding else None
        return replace(screen, split=self._split)

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        if batch.requests[-1].want == OBSERVE:
            self._running = False


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
