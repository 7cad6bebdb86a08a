"""Durations of stages by batch size: the basis of scheduling policies and of the simulator.

They are measured while the engine runs, or given (`Profile(known)`), e.g. from another machine or a
projection. An expectation rises at once with a longer run and falls slowly, because an estimate that is too
short delays a robot and one that is too long only wastes some time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FORGET = 0.05
"""Weight of a run that took less time than expected."""


class Profile:
    """Expected seconds of a stage for a number of requests. known: (stage, batch) -> seconds. Raises
    ValueError if one is not positive and finite."""

    def __init__(self, known: Mapping[tuple[str, int], float] | None = None) -> None:
        self._expected_s: dict[tuple[str, int], float] = {}
        for (stage, batch), seconds in (known or {}).items():
            if not 0 < seconds < float("inf"):
                raise ValueError(f"{stage} of {batch} takes {seconds} s; give a positive number of seconds.")
            self._expected_s[stage, batch] = seconds

    def note(self, stage: str, batch: int, took_s: float) -> None:
        """Record how long a micro-batch took."""
        before_s = self._expected_s.get((stage, batch), took_s)
        weight = 1.0 if took_s > before_s else FORGET
        self._expected_s[stage, batch] = before_s + weight * (took_s - before_s)

    def scale(self, factor: float) -> None:
        """Multiply all durations by a factor, e.g. to change the unit of time."""
        self._expected_s = {what: factor * seconds for what, seconds in self._expected_s.items()}

    def expected_s(self, stage: str, batch: int, otherwise_s: float) -> float:
        """The expected seconds: of the batch size, else of the next larger one, else of the nearest smaller
        one; otherwise_s if the stage is unknown."""
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
    """Measured seconds of a forward: a prefill alone, one with a draft of K - 1 tokens, one with K - 1 riders
    (frames that decode in it), and a decode alone. Raises ValueError if one is not positive and finite."""

    prefill_s: float
    drafted_s: float
    packed_s: float
    decode_s: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value}; a forward takes a positive number of seconds.")
