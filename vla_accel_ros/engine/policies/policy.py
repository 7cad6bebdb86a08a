"""The interface of a scheduling policy, and what the built-in ones plan with.

A policy only chooses: it has no torch, no clock, no threads. So the same object runs in the engine, in a
scheduler of many robots and in a simulator.
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
    """What a policy is made for. tokens: number of tokens in an action, 0 if it is denoised; times: measured
    seconds of its forwards, if token_mode "auto" needs them."""

    config: EngineConfig
    profile: Profile
    tokens: int = 0
    times: Times | None = None


class Policy(Protocol):
    """Chooses the next micro-batch. A subclass must define `next`; a class that is not a subclass must define
    all three methods."""

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        """What `lane` runs now; None to leave it idle.

        ready: requests whose next micro-request may run, in order of submission. due_s: when the next frame
        is expected.
        """
        ...

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        """Report that a micro-batch took took_s; its requests have their results."""
        return None

    def wake_s(self, ready: Sequence[Request], now_s: float) -> float:
        """When to call `next` again if nothing changes until then."""
        return math.inf


def chosen(setup: Setup) -> Policy:
    """The policy of frames and actions that the options name, or the one that fits them. Raises ValueError if
    there is none of that name, or if what it made is no policy."""
    config = setup.config
    fits = "tokens" if setup.tokens else "staggered" if config.staggered else "whole"
    name = fits if config.scheduling == AUTO else config.scheduling
    make: Callable[[Setup], Policy] = find(POLICIES, name)
    made = make(setup)
    missing = [method for method in ("next", "ran", "wake_s") if not callable(getattr(made, method, None))]
    if missing:
        raise ValueError(
            f"scheduling is '{name}', which made a {type(made).__name__} without {' and '.join(missing)}; "
            "let it make a subclass of engine.policies.policy.Policy."
        )
    return made


class Backlog:
    """Predicts when the work chosen for a lane is over, assuming that each stage of a kind takes as long as
    it did lately."""

    def __init__(self) -> None:
        self._took_s: dict[tuple[str, str], float] = {}
        self._over_s = -math.inf

    def free_s(self, now_s: float) -> float:
        """When the next micro-batch can begin."""
        return max(now_s, self._over_s)

    def idle_s(self, now_s: float) -> float:
        """For how long nothing has run."""
        return max(0.0, now_s - self._over_s)

    def takes_s(self, kind: str, stage: str) -> float:
        """Seconds that one takes; 0 if none has run."""
        return self._took_s.get((kind, stage), 0.0)

    def ends_s(self, kind: str, stage: str, now_s: float) -> float:
        """When a micro-batch chosen now would be over; one that never ran counts as 0 s."""
        return self.free_s(now_s) + self.takes_s(kind, stage)

    def chose(self, batch: MicroBatch, now_s: float) -> None:
        """Note a chosen micro-batch, which begins when the one before is over."""
        self._over_s = self.ends_s(batch.requests[-1].kind, batch.stage, now_s)

    def until(self, until_s: float) -> None:
        """The next micro-batch begins no earlier than this."""
        self._over_s = max(self._over_s, until_s)

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        """Update the expected time: a longer one counts at once, a shorter one by half."""
        what = batch.requests[-1].kind, batch.stage
        self._took_s[what] = max(took_s, (self._took_s.get(what, took_s) + took_s) / 2.0)
