"""The interface of a scheduling rule, and the plan that the rules of an engine share.

A rule only chooses: it has no torch, no clock, no threads. So the same object runs in the engine, in a
scheduler of many robots and in a simulator. `rules.Rules` asks the rules of a lane in turn.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from vla_accel_ros.engine.config import AUTO, EngineConfig
from vla_accel_ros.engine.profile import Profile, Times
from vla_accel_ros.engine.request import MicroBatch, Requests
from vla_accel_ros.extensions import POLICIES, find


class Plan:
    """When the work chosen for each lane should be over, if each stage takes as long as usual; a stage that
    never ran counts as 0 s. profile: durations."""

    def __init__(self, profile: Profile | None = None) -> None:
        self.profile = profile or Profile()
        self._over_s: dict[str, float] = {}

    def free_s(self, lane: str, now_s: float) -> float:
        """When the lane's next micro-batch can begin."""
        return max(now_s, self._over_s.get(lane, -math.inf))

    def idle_s(self, lane: str, now_s: float) -> float:
        """For how long nothing has run in the lane."""
        return max(0.0, now_s - self._over_s.get(lane, -math.inf))

    def ends_s(self, lane: str, batch: MicroBatch, now_s: float) -> float:
        """When a micro-batch chosen now would be over."""
        return self.free_s(lane, now_s) + self.takes_s(batch)

    def takes_s(self, batch: MicroBatch) -> float:
        """Seconds that a micro-batch usually takes."""
        return self.profile.usual_s(batch.kind, len(batch.requests))

    def chose(self, lane: str, batch: MicroBatch, now_s: float) -> None:
        """Note what the lane runs next; it begins when the one before is over."""
        self._over_s[lane] = self.ends_s(lane, batch, now_s)


@dataclass(frozen=True)
class Setup:
    """What a rule is made for. tokens: number of tokens in an action, 0 if it is denoised; times: measured
    seconds of its forwards, if token_mode "auto" needs them; actions: most that share forwards of tokens,
    beside frames that are computed by themselves; 0 = frames share them."""

    config: EngineConfig
    profile: Profile
    tokens: int = 0
    times: Times | None = None
    actions: int = 0


class Rule(ABC):
    """Chooses the next micro-batch. A subclass must define `next`; a class that is not a subclass must define
    all methods. plan: the engine's, set by `rules.Rules`."""

    plan: Plan

    def admitted(self, lane: str, ready: Requests, now_s: float) -> Requests:
        """The requests that may run now, of those that are ready in all lanes."""
        return ready

    def urgent(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        """What goes before all that other rules choose."""
        return None

    @abstractmethod
    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        """What `lane` runs now; None to leave it to the rules after this one, or idle.

        ready: requests whose next micro-request may run, in order of submission. due_s: when the next frame
        is expected.
        """

    def chose(self, lane: str, batch: MicroBatch, now_s: float) -> None:
        """Report what the lane runs now, whichever rule chose it."""
        return None

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        """Report that a micro-batch took took_s; its requests have their results."""
        return None

    def wake_s(self, ready: Requests, now_s: float) -> float:
        """When to call `next` again if nothing changes until then."""
        return math.inf

    def busy_until_s(self, ready: Requests, now_s: float, part: float) -> float:
        """Until when other work may run that this rule does not mind; inf if it waits for nothing. part: how
        much of the time it may take after which this rule would be late."""
        return self.wake_s(ready, now_s)


def chosen(setup: Setup) -> Rule:
    """The rule of frames and actions that the options name, or the one that fits them. Raises ValueError if
    there is none of that name, or if what it made is no rule."""
    config = setup.config
    fits = "tokens" if setup.tokens else "staggered" if config.staggered else "whole"
    name = fits if config.scheduling == AUTO else config.scheduling
    make: Callable[[Setup], Rule] = find(POLICIES, name)
    rule = make(setup)
    methods = [method for method, value in vars(Rule).items() if callable(value) and method[0] != "_"]
    missing = [method for method in methods if not callable(getattr(rule, method, None))]
    if missing:
        raise ValueError(
            f"scheduling is '{name}', which made a {type(rule).__name__} without {' and '.join(missing)}; "
            "let it make a subclass of engine.rules.rule.Rule."
        )
    return rule
