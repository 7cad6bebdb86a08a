"""Execution horizons: how many leading actions of a chunk may be executed before another comes.

A long horizon spares the GPU, a short one keeps motion fresh. A rule is a pure function of a chunk and what
is known beside it; it is chosen by a word, the parameter `horizon`:

    all                 every action
    static:N            the first N
    update_ratio:T      until an action's last denoising update exceeds (1 + T) x the mean of its earlier ones
                        (Kairos, section 3.1)
    ...+least:N         but at least N actions (Kairos' H_min; update_ratio has at least 8 without it)
    ...+elastic:N       and up to N more while the next chunk is late

An action whose signal is NaN ends the prefix; a chunk without denoising updates is executed whole.
docs/lab/horizon.md says how well the signal predicts errors; control.horizon_rules computes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from vla_accel_ros.control.by_task import ByTask
from vla_accel_ros.extensions import HORIZONS, find
from vla_accel_ros.types import Chunk

ALL = "all"
LEAST = 8
"""Least actions of a dynamic horizon: a shorter one may be over before its chunk arrives."""
MOST_NUMBER = 10_000


@dataclass(frozen=True)
class HorizonInputs:
    """What a rule is given: a chunk."""

    chunk: Chunk


@dataclass(frozen=True)
class Horizon:
    """wanted: actions to execute before the next chunk should arrive. most: actions that may be executed
    until it arrives. 1 <= wanted <= most <= H."""

    wanted: int
    most: int


class HorizonRule(Protocol):
    """A pure function. updates: denoise updates of a chunk that it needs. least: its default lower bound
    [actions]."""

    @property
    def updates(self) -> int: ...
    @property
    def least(self) -> int: ...
    def __call__(self, inputs: HorizonInputs) -> int:
        """Return how many leading actions may be executed; the caller clips it to 1 ... H."""
        ...


@dataclass(frozen=True)
class BoundedRule:
    """A rule and its bounds. least: None means the rule's own. elastic: see the module."""

    rule: HorizonRule
    least: int | None = None
    elastic: int = 0

    def of(self, inputs: HorizonInputs) -> Horizon:
        """Return the horizon of a chunk with at least one action."""
        total = inputs.chunk.horizon
        least = self.rule.least if self.least is None else self.least
        wanted = min(max(int(self.rule(inputs)), least, 1), total)
        return Horizon(wanted, min(wanted + self.elastic, total))


class Horizons:
    """Computes the horizons of chunks, with one rule for each task. Thread-safe.

    spec: "RULE", or "RULE; PATTERN=RULE; ..." (by_task.py). Raises ValueError, with one sentence, if a rule
    is invalid.
    """

    def __init__(self, spec: str = ALL) -> None:
        self.spec, self._rules = spec, ByTask("horizon", spec, parse, "put *=static:12")

    def check(self, updates: int) -> None:
        """Raise ValueError, with one sentence, if chunks with that many denoise updates lack the signal of a
        rule. updates: 0 for a token policy."""
        needed = max(bounded.rule.updates for bounded in self._rules.all)
        if needed > updates:
            raise ValueError(
                f"horizon is {self.spec!r}, but it needs {needed} denoising updates a chunk, and there are "
                f"{updates}: use all or static:N."
            )

    def of(self, chunk: Chunk, instruction: str = "") -> Horizon:
        """Return the horizon of a chunk for a task."""
        return self._rules.of(instruction).of(HorizonInputs(chunk))

    def limit(self, chunk: Chunk, instruction: str = "") -> Chunk:
        """Return the chunk with its execution horizon set."""
        return limited(chunk, self.of(chunk, instruction))


def limited(chunk: Chunk, horizon: Horizon) -> Chunk:
    """Return the chunk with its execution horizon set; the same object if that is the whole chunk."""
    return chunk if horizon.most >= chunk.horizon else replace(chunk, execution_horizon=horizon.most)


def parse(word: str) -> BoundedRule:
    """Parse a rule such as "update_ratio:0.4+least:8+elastic:4". Raises ValueError, with one sentence, if
    invalid."""
    base, *words = (part.strip() for part in word.split("+"))
    name, *numbers = base.split(":")
    bounds: dict[str, int] = {}
    try:
        for bound in words:
            key, _, number = bound.partition(":")
            if key not in ("least", "elastic") or key in bounds:
                raise ValueError(f"{bound!r} is not a bound, or is given twice: use +least:N and +elastic:N")
            bounds[key] = whole(_number(number), f"{key}:N")
        rule = find(HORIZONS, name)(tuple(map(_number, numbers)))
    except (ValueError, TypeError) as error:
        raise ValueError(f"horizon is {word.strip()!r}, but {error}") from None
    return BoundedRule(rule, **bounds)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is no number.")
    return value


def whole(value: float, form: str) -> int:
    """Return a number of actions as int. Raises ValueError if it is none. form: the syntax that the error
    names."""
    if value != int(value) or not 1 <= value <= MOST_NUMBER:
        raise ValueError(f"{form} takes a whole number of actions from 1 to {MOST_NUMBER}, not {value:g}.")
    return int(value)
