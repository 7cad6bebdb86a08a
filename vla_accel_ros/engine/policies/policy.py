"""The interface of a scheduling policy, and what the built-in ones plan with.

A policy chooses and does nothing else: no torch, no clock, no threads. So the same object runs in the engine,
in a scheduler of many robots and in a simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from vla_accel_ros.engine.config import AUTO, EngineConfig
from vla_accel_ros.engine.profile import Profile, Times
from vla_accel_ros.engine.request import MicroBatch, Request
from vla_accel_ros.extensions import POLICIES, find


@dataclass(frozen=True)
class Setup:
    """What a policy is made for. tokens: of an action, 0 for one that is denoised; times: measured seconds of
    its forwards, where token_mode "auto" needs them."""

    config: EngineConfig
    profile: Profile
    tokens: int = 0
    times: Times | None = None


class Policy(Protocol):
    """Chooses the next micro-batch. A subclass writes `next`, and of the rest what it decides; what is not a
    subclass has all three."""

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        """What `lane` runs now; None to leave it idle.

        ready: requests whose next micro-request may run, in order of submission. due_s: when the next frame
        is expected.
        """
        ...

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        """A micro-batch took so long; its requests have the results."""
        return None

    def wake_s(self, ready: Sequence[Request], now_s: float) -> float:
        """When to ask again, if nothing new comes until then."""
        return math.inf


def chosen(setup: Setup) -> Policy:
    """Of frames and actions, that the options name, or that fits them."""
    config = setup.config
    fits = "tokens" if setup.tokens else "staggered" if config.staggered else "whole"
    make: Callable[[Setup], Policy] = find(POLICIES, fits if config.scheduling == AUTO else config.scheduling)
    return make(setup)


class Backlog:
    """When what was chosen for a lane is expected to be over, if each stage of a kind of requests takes as
    long as it did lately."""

    def __init__(self) -> None:
        self._took_s: dict[tuple[str, str], float] = {}
        self._over_s = -math.inf

    def free_s(self, now_s: float) -> float:
        """When the next can begin."""
        return max(now_s, self._over_s)

    def idle_s(self, now_s: float) -> float:
        """For how long nothing has run."""
        return max(0.0, now_s - self._over_s)

    def takes_s(self, kind: str, stage: str) -> float:
        """What one takes; 0 if none has run."""
        return self._took_s.get((kind, stage), 0.0)

    def ends_s(self, kind: str, stage: str, now_s: float) -> float:
        """When a micro-batch that is chosen now would be over; one that never ran takes no time."""
        return max(now_s, self._over_s) + self._took_s.get((kind, stage), 0.0)

    def chose(self, batch: MicroBatch, now_s: float) -> None:
        """It begins when the one before is over."""
        self._over_s = self.ends_s(batch.requests[-1].kind, batch.stage, now_s)

    def until(self, until_s: float) -> None:
        """The next begins no earlier."""
        self._over_s = max(self._over_s, until_s)

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        """A longer time counts at once, a shorter one by a half."""
        what = batch.requests[-1].kind, batch.stage
        self._took_s[what] = max(took_s, (self._took_s.get(what, took_s) + took_s) / 2.0)
