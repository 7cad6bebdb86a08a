"""Execution horizons: how many leading actions of a chunk may be executed before another comes.

A long horizon spares the GPU, a short one keeps motion fresh. A policy is a pure function of a chunk and what
is known beside it; it is chosen by a word, the parameter `horizon`:

    all                 every action
    static:N            the first N
    update_ratio:T      until an action's last denoising update exceeds (1 + T) x the mean of its earlier ones
                        (Kairos, section 3.1)
    last_update:M       until an action's last denoising update exceeds M [normalised units]
    spread:M            until 2 further samples from the same prefix (spread:M:K: K) and the chunk lie further
                        than M apart [the contract's units]
    agreement:M         until an action lies further than M from what the previous chunk has for its time
                        [the contract's units] (A3's verification, without another pass)
    ...+least:N         but at least N actions (Kairos' H_min; the last four have at least 8 without it)
    ...+elastic:N       and up to N more while the next chunk is late

Distances are RMS over the joints. An action whose signal is NaN ends the prefix; a chunk without the signal
(no denoising updates, no previous chunk, no samples) is executed whole. docs/horizon.md says how well each
signal predicts errors; fleet.horizon_policies computes them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol

import numpy as np

from vla_accel_ros.extensions import HORIZONS, find
from vla_accel_ros.types import Chunk

ALL = "all"
LEAST = 8
"""Actions that a dynamic horizon has at least: a shorter one may be past when its chunk comes."""
MOST_NUMBER = 10_000


@dataclass(frozen=True)
class Made:
    """A chunk and what is known beside it. previous: the robot's chunk before, of the same task. samples:
    float [H, D] each, further actions from the same prefix."""

    chunk: Chunk
    previous: Chunk | None = None
    samples: Sequence[np.ndarray] = ()


@dataclass(frozen=True)
class Horizon:
    """wanted: actions until the next chunk should be there; most: actions that may be executed until it is.
    1 <= wanted <= most <= H."""

    wanted: int
    most: int


class HorizonPolicy(Protocol):
    """A pure choice. updates: denoising updates that it needs of a chunk; samples: further samples that it
    needs; least: actions that it executes at least where nothing else is said."""

    @property
    def updates(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def least(self) -> int: ...
    def __call__(self, made: Made) -> int:
        """How many leading actions may be executed; what is not in 1 to H is raised or cut to it."""
        ...


@dataclass(frozen=True)
class Rule:
    """A policy with its bounds. least: None = the policy's own; elastic: see the module."""

    policy: HorizonPolicy
    least: int | None = None
    elastic: int = 0

    def of(self, made: Made) -> Horizon:
        """Of a chunk of at least one action."""
        total = made.chunk.horizon
        least = self.policy.least if self.least is None else self.least
        wanted = min(max(int(self.policy(made)), least, 1), total)
        return Horizon(wanted, min(wanted + self.elastic, total))

    def lacking(self, updates: int, samples: int = 0) -> str:
        """Why chunks with that many denoising updates and further samples have no signal for it, as half a
        sentence; empty when they have."""
        if self.policy.updates > updates:
            return f"needs {self.policy.updates} denoising updates a chunk, and there are {updates}"
        if self.policy.samples > samples:
            return f"needs {self.policy.samples} further samples a chunk, and there are {samples}"
        return ""


class Horizons:
    """The horizons of one robot's chunks, one rule for each task. Safe to use from several threads.

    spec: "RULE", or "RULE; PATTERN=RULE; ...": the first pattern that an instruction matches decides, written
    as a file name's (`*`, `?`), in any case.
    Raises ValueError, in one sentence, for what is no rule.
    """

    def __init__(self, spec: str = ALL) -> None:
        first, *others = (clause.strip() for clause in spec.split(";"))
        self.spec, self._rule = spec, parse(first)
        self._tasks: list[tuple[str, Rule]] = []
        for clause in others:
            pattern, sign, word = clause.rpartition("=")
            if not sign or not pattern.strip():
                raise ValueError(
                    f"horizon has {clause!r} after a ';': give the instructions it is for, such as "
                    "'put *=static:12'."
                )
            self._tasks.append((pattern.strip().casefold(), parse(word)))
        self._lock = threading.Lock()
        self._previous: tuple[Chunk, str] | None = None

    def check(self, updates: int) -> None:
        """Raise ValueError, in one sentence, if chunks with that many denoising updates lack the signal of a
        rule. updates: 0 of a model that acts by tokens."""
        for rule in (self._rule, *(rule for _, rule in self._tasks)):
            if why := rule.lacking(updates):
                raise ValueError(f"horizon is {self.spec!r}, but it {why}: use all or static:N.")

    def rule(self, instruction: str) -> Rule:
        """Of a task."""
        word = instruction.strip().casefold()
        return next((rule for pattern, rule in self._tasks if fnmatchcase(word, pattern)), self._rule)

    def of(self, chunk: Chunk, instruction: str = "", samples: Sequence[np.ndarray] = ()) -> Horizon:
        """Of the robot's next chunk, which is the previous one of those that come."""
        with self._lock:
            previous = self._previous
            if previous is None or chunk.stamp_ns >= previous[0].stamp_ns:
                self._previous = (chunk, instruction)
        same = previous[0] if previous is not None and previous[1] == instruction else None
        return self.rule(instruction).of(Made(chunk, same, samples))

    def limit(self, chunk: Chunk, instruction: str = "") -> Chunk:
        """The robot's next chunk, to be executed as far as its horizon allows."""
        return limited(chunk, self.of(chunk, instruction))

    def forget(self) -> None:
        """Compare with nothing that was made so far."""
        with self._lock:
            self._previous = None


def limited(chunk: Chunk, horizon: Horizon) -> Chunk:
    """The chunk, to be executed as far as its horizon allows; itself where that is all."""
    return chunk if horizon.most >= chunk.horizon else replace(chunk, execution_horizon=horizon.most)


def parse(word: str) -> Rule:
    """The rule of a word such as "update_ratio:0.4+least:8+elastic:4". Raises ValueError, in one sentence."""
    base, *bounds = (part.strip() for part in word.split("+"))
    name, *numbers = base.split(":")
    given: dict[str, int] = {}
    try:
        for bound in bounds:
            key, _, number = bound.partition(":")
            if key not in ("least", "elastic") or key in given:
                raise ValueError(f"{bound!r} is no bound or is there twice: use +least:N and +elastic:N")
            given[key] = whole(_number(number), f"{key}:N")
        policy = find(HORIZONS, name)(tuple(map(_number, numbers)))
    except (ValueError, TypeError) as error:
        raise ValueError(f"horizon is {word.strip()!r}, but {error}") from None
    return Rule(policy, **given)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is no number.")
    return value


def whole(value: float, form: str) -> int:
    """A number of actions. Raises ValueError for what is none; form: how it is written."""
    if value != int(value) or not 1 <= value <= MOST_NUMBER:
        raise ValueError(f"{form} takes a whole number of actions from 1 to {MOST_NUMBER}, not {value:g}.")
    return int(value)
