"""Decides how many of a GPU's multiprocessors actions have to themselves: from measured times, and by load.

A split gives actions some multiprocessors and the other lanes the rest. The times with each split are
measured (`Measured`), and so are those without a split, when all streams share the GPU. `choose` takes the
split that meets both requested rates with the shortest time of a frame. Without a split frames are nearly
always faster, so it takes one only if actions would be late without it.

A split that is right for one frame is wrong when several wait (Nova, section III-C, equation 5): actions then
give up alpha multiprocessors for each further frame, down to the split with which they take PATIENCE times
the requested period. All splits are captured beforehand; a micro-batch names its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.request import ASK, OBSERVE, PREFILL, MicroBatch, Request, Requests
from vla_accel_ros.engine.rules.chunks import in_progress
from vla_accel_ros.engine.rules.rule import Rule

GAIN = 0.95
"""A split is taken for its time alone if that is at most this share of the time without a split."""
PATIENCE = 2.0
"""Longest time of an action while several frames wait, in requested periods."""
SHARES = (1 / 4, 1 / 2, 2 / 3, 3 / 4)
"""The splits that are tried: shares of the multiprocessors for actions."""
STEP = 8
"""The numbers are rounded to a multiple of this; the driver may round further."""


@dataclass(frozen=True)
class Measured:
    """Times of a split in seconds; split None: without one.

    frame_s: encode and prefill of a frame, the median; action_s: from one chunk to the next, a staggered step
    or a whole chunk, the 99th percentile; each while the other side runs without a break.
    """

    split: Split | None
    frame_s: float
    action_s: float

    def load(self, frame_hz: float, action_hz: float) -> float:
        """The share of its time that the busier side needs for these rates [Hz]; more than 1 is too much."""
        return max(self.frame_s * frame_hz, self.action_s * action_hz)


@dataclass(frozen=True)
class Choice:
    """split: the split to use, None = none. sets: the splits between which equation 5 chooses at run time,
    including `split`, by growing numbers for actions. reason: one sentence for the log."""

    split: Split | None
    sets: tuple[Split, ...]
    reason: str


def candidates(multiprocessors: int) -> list[int]:
    """Numbers of multiprocessors for actions to try on a GPU with so many; none on a very small one."""
    sizes = {round(share * multiprocessors / STEP) * STEP for share in SHARES}
    return sorted(number for number in sizes if 0 < number < multiprocessors)


def front(measured: Sequence[Measured]) -> list[Measured]:
    """The Pareto front of frame and action times, by growing time of a frame."""
    best: list[Measured] = []
    for measurement in sorted(measured, key=lambda m: (m.frame_s, m.action_s)):
        if not best or measurement.action_s < best[-1].action_s:
            best.append(measurement)
    return best


def choose(measured: Sequence[Measured], frame_hz: float, action_hz: float) -> Choice:
    """The split for these rates [Hz]; 0 = no rate is requested. One measurement is without a split."""
    plain = next(measurement for measurement in measured if measurement.split is None)
    best = front(measured)
    met = [measurement for measurement in best if measurement.load(frame_hz, action_hz) <= 1.0]
    if met:
        fastest = min(met, key=lambda measurement: measurement.frame_s)
        better = plain.load(frame_hz, action_hz) > 1.0 or _gains(fastest.frame_s, plain.frame_s)
    else:
        fastest = min(best, key=lambda measurement: measurement.load(frame_hz, action_hz))
        better = _gains(fastest.load(frame_hz, action_hz), plain.load(frame_hz, action_hz))
    if fastest.split is None or not better:
        return Choice(None, (), f"partition: auto takes none. {_compared(plain, measured)}")
    fewer = [
        measurement.split
        for measurement in best
        if measurement.split is not None
        and measurement.split.actions < fastest.split.actions
        and measurement.action_s * action_hz <= PATIENCE
    ]
    down = f" While several frames wait: down to {min(fewer)}." if fewer else ""
    reason = (
        f"partition: auto takes {fastest.split} multiprocessors (actions : the rest). {_times(fastest)}; "
        f"{_times(plain)}.{down}"
    )
    return Choice(fastest.split, (*sorted(fewer), fastest.split), reason)


def sms_of_actions(pending: int, most: int, least: int, alpha: float) -> float:
    """Nova, equation 5: SMdec = max(SMmin, SMop - alpha (Npend - 1)); SMop if no frame waits."""
    return max(least, most - alpha * (max(pending, 1) - 1))


def split_for(pending: int, sets: Sequence[Split]) -> Split:
    """The captured split that equation 5 asks for, rounded up to the next larger one.

    alpha is the smallest difference between two captured splits, so that each further frame counts.
    """
    sizes = sorted(sets)
    alpha = min((b.actions - a.actions for a, b in pairwise(sizes)), default=0)
    sms = sms_of_actions(pending, sizes[-1].actions, sizes[0].actions, alpha)
    return next(split for split in sizes if split.actions >= sms)


class Partitions(Rule):
    """Chooses the split of all that runs, by the number of waiting frames.

    frames: the lane of frames. sets: the captured splits; with fewer than two, there is no choice. Waiting
    frames are counted when the lane of frames chooses, including the chosen one, so both sides keep one split
    until that frame is computed. What another lane runs at that moment ends in the split in which it began.
    """

    def __init__(self, frames: str) -> None:
        self._frames = frames
        self.sets: tuple[Split, ...] = ()
        self._pending = 0
        self.switched = 0

    @property
    def split(self) -> Split | None:
        """Split of the next micro-batch; None: its lane's own."""
        return split_for(self._pending, self.sets) if len(self.sets) > 1 else None

    def admitted(self, lane: str, ready: Requests, now_s: float) -> Requests:
        if lane == self._frames and len(self.sets) > 1 and not in_progress(ready):
            previous, self._pending = self.split, sum(map(_computes_prefix, ready))
            self.switched += self.split != previous
        return ready

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        return None


def _computes_prefix(request: Request) -> bool:
    return request.want == OBSERVE or (request.want == ASK and request.stage == PREFILL)


def _gains(time: float, otherwise: float) -> bool:
    return time <= GAIN * otherwise


def _compared(plain: Measured, measured: Sequence[Measured]) -> str:
    splits = [measurement for measurement in measured if measurement.split is not None]
    return f"{'; '.join(map(_times, (plain, *splits)))}."


def _times(measured: Measured) -> str:
    setting = "without a split" if measured.split is None else f"with {measured.split}"
    frame_ms, action_ms = measured.frame_s * 1e3, measured.action_s * 1e3
    return (
        f"{setting}, a frame takes {frame_ms:.1f} ms and an action (p99) {action_ms:.1f} ms beside each other"
    )
