"""Durations of stages by batch: what policies plan with, and what a simulator runs on.

Measured while the engine runs, or given (`Profile(known)`), e.g. measured on another machine or projected.
An expectation rises at once with a run that took longer and falls slowly: planning with too little delays a
robot, with too much only wastes some time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FORGET = 0.05
"""Weight of a run that took less than expected."""


class Profile:
    """Expected seconds of a stage for a number of requests. known: (stage, batch) -> seconds."""

    def __init__(self, known: Mapping[tuple[str, int], float] | None = None) -> None:
        self._expected_s: dict[tuple[str, int], float] = {}
        for (stage, batch), seconds in (known or {}).items():
            if not 0 < seconds < float("inf"):
                raise ValueError(f"{stage} of {batch} takes {seconds} s; give a positive number of seconds.")
            self._expected_s[stage, batch] = seconds

    def note(self, stage: str, batch: int, took_s: float) -> None:
        """A micro-batch took so long."""
        before_s = self._expected_s.get((stage, batch), took_s)
        weight = 1.0 if took_s > before_s else FORGET
        self._expected_s[stage, batch] = before_s + weight * (took_s - before_s)

    def scale(self, factor: float) -> None:
        """Everything takes so many times as long, in seconds of another length."""
        self._expected_s = {what: factor * seconds for what, seconds in self._expected_s.items()}

    def expected_s(self, stage: str, batch: int, otherwise_s: float) -> float:
        """What it is expected to take: as measured, else as the nearest larger or smaller batch was, else
        otherwise_s."""
        known = [size for name, size in self._expected_s if name == stage]
        if not known:
            return otherwise_s
        nearest = min(known, key=lambda size: (size < batch, abs(size - batch)))
        return self._expected_s[stage, nearest]

    def known(self) -> dict[tuple[str, int], float]:
        """(stage, batch) -> seconds, a copy."""
        return dict(self._expected_s)


@dataclass(frozen=True)
class Times:
    """Measured seconds of a forward: a prefill alone, one with a draft of K - 1 behind it, one with K - 1
    riders, and a decode alone."""

    prefill_s: float
    drafted_s: float
    packed_s: float
    decode_s: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value}; a forward takes a positive number of seconds.")
