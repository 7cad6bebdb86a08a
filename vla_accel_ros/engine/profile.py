"""Durations of micro-batches by stage and size, the one estimate that all who plan ask: rules, lanes, fleets
and simulators.

They are measured while the engine runs, or given (`Profile(known)`), e.g. from another machine or a
projection. A micro-batch has three durations. `latest_s` rises at once with a longer run and falls slowly,
because an estimate that is too short delays a robot and one that is too long only wastes some time;
`soonest_s` is the other way round, for who must not begin to wait too late; `usual_s` rises at once and falls
by half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

FORGET = 0.05
"""Weight of a run that is shorter than the latest or longer than the soonest."""
HALF = 0.5
"""Weight of a run that is shorter than usual."""


class Duration(NamedTuple):
    """Seconds of a micro-batch."""

    usual: float
    soonest: float
    latest: float


class Profile:
    """Expected seconds of a stage for a number of requests. known: (stage, batch) -> seconds. Raises
    ValueError if one is not positive and finite."""

    def __init__(self, known: Mapping[tuple[str, int], float] | None = None) -> None:
        self._stages: dict[str, dict[int, Duration]] = {}
        for (stage, batch), seconds in (known or {}).items():
            if not 0 < seconds < float("inf"):
                raise ValueError(f"{stage} of {batch} takes {seconds} s; give a positive number of seconds.")
            self.note(stage, batch, seconds)

    def note(self, stage: str, batch: int, took_s: float) -> None:
        """Record how long a micro-batch took."""
        by_size = self._stages.setdefault(stage, {})
        usual, soonest, latest = by_size.get(batch, (took_s,) * 3)
        by_size[batch] = Duration(
            max(took_s, usual + HALF * (took_s - usual)),
            min(took_s, soonest + FORGET * (took_s - soonest)),
            max(took_s, latest + FORGET * (took_s - latest)),
        )

    def scale(self, factor: float) -> None:
        """Multiply all durations by a factor, e.g. to change the unit of time."""
        for by_size in self._stages.values():
            for batch, duration in by_size.items():
                by_size[batch] = Duration(*(factor * seconds for seconds in duration))

    def of(self, stage: str, batch: int, otherwise_s: float = 0.0) -> Duration:
        """The durations of the batch size, else of the next larger one, else of the nearest smaller one;
        otherwise_s if the stage is unknown."""
        by_size = self._stages.get(stage)
        if not by_size:
            return Duration(otherwise_s, otherwise_s, otherwise_s)
        duration = by_size.get(batch)
        return duration or by_size[min(by_size, key=lambda size: (size < batch, abs(size - batch)))]

    def usual_s(self, stage: str, batch: int, otherwise_s: float = 0.0) -> float:
        """See `of`."""
        return self.of(stage, batch, otherwise_s).usual

    def latest_s(self, stage: str, batch: int, otherwise_s: float = 0.0) -> float:
        """See `of`."""
        return self.of(stage, batch, otherwise_s).latest

    def known(self) -> dict[tuple[str, int], float]:
        """(stage, batch) -> latest seconds, a copy."""
        return {
            (stage, batch): duration.latest
            for stage, by_size in self._stages.items()
            for batch, duration in by_size.items()
        }


@dataclass(frozen=True)
class Times:
    """Measured seconds of a forward: a prefill alone, one with a draft of K - 1 tokens, one with K - 1 riders
    (frames that decode in it), and a decode alone."""

    prefill_s: float
    drafted_s: float
    packed_s: float
    decode_s: float
