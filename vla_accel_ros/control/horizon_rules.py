"""The built-in rules of control.horizon, and the uncertainty signal that one uses.

A rule is a pure function of a chunk (HorizonInputs). Each `make_...` builds a rule from the
numbers behind its name, and raises ValueError, with one sentence, if it cannot take them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_accel_ros.control.horizon import ALL, LEAST, HorizonInputs, whole
from vla_accel_ros.types import Chunk


@dataclass(frozen=True)
class Static:
    """Executes the first `actions` of every chunk; None means all."""

    actions: int | None = None
    updates: int = 0
    least: int = 1

    def __call__(self, inputs: HorizonInputs) -> int:
        return inputs.chunk.horizon if self.actions is None else self.actions


@dataclass(frozen=True)
class UpdateRatio:
    """Executes the actions before the first one whose update ratio exceeds `limit` or is NaN."""

    limit: float
    updates: int = 2
    least: int = LEAST

    def __call__(self, inputs: HorizonInputs) -> int:
        ratios = update_ratio(inputs.chunk)
        if ratios is None:
            return inputs.chunk.horizon
        doubtful = np.flatnonzero(~(ratios <= self.limit))
        return int(doubtful[0]) if len(doubtful) else inputs.chunk.horizon


def update_ratio(chunk: Chunk) -> np.ndarray | None:
    """Each action's last denoise update over the mean of its earlier ones, minus 1 [H]; None with fewer than
    two."""
    sizes = chunk.step_magnitudes
    if sizes is None or len(sizes) < 2:
        return None
    last, earlier = sizes[-1].astype(np.float64), sizes[:-1].mean(axis=0, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = last / earlier - 1.0
    return np.where((last == 0.0) & (earlier == 0.0), -1.0, ratio)


def _only(numbers: tuple[float, ...], form: str) -> float:
    if len(numbers) != 1:
        raise ValueError(f"{form} takes one number, not {len(numbers)}.")
    return numbers[0]


def make_all(numbers: tuple[float, ...]) -> Static:
    """Make `all`."""
    if numbers:
        raise ValueError(f"{ALL} takes no number: use static:N for the first N actions.")
    return Static()


def make_static(numbers: tuple[float, ...]) -> Static:
    """Make `static:N`."""
    return Static(whole(_only(numbers, "static:N"), "static:N"))


def make_update_ratio(numbers: tuple[float, ...]) -> UpdateRatio:
    """Make `update_ratio:T`; T must be above -1, the smallest possible ratio."""
    limit = _only(numbers, "update_ratio:T")
    if limit <= -1.0:
        raise ValueError(f"update_ratio:T takes a share above -1, such as 0.4, not {limit:g}.")
    return UpdateRatio(limit)
