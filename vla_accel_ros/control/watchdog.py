"""Who has gone silent, and what the robot does about it.

Every input that motion depends on has an age limit, by its own stamp: a frame that arrives on time but was
taken a second ago is a second old. When one is late the robot stops and holds, and goes on by itself when all
have been fresh for a moment; a hold, an operator's or for any other reason, stays until it is taken back. A
stamp further in the future than the limit counts as late too, so that after a clock has jumped back nothing
moves before fresh stamps arrive. Time is given, never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Late:
    """An input beyond its limit. age_s: None if it was never seen, negative if its stamp is in the future."""

    name: str
    age_s: float | None
    limit_s: float

    def __str__(self) -> str:
        if self.age_s is None:
            return f"{self.name} has not come yet"
        if self.age_s < 0:
            return (
                f"{self.name} is stamped {-self.age_s:.2f} s in the future, the clock was set back or differs"
            )
        return f"{self.name} is {self.age_s:.2f} s old, the limit is {self.limit_s:.2f} s"


class Watchdog:
    """Knows the last stamp of each input. limits_s: name -> greatest age in seconds (Contract.max_ages_s)."""

    def __init__(self, limits_s: Mapping[str, float]):
        wrong = [name for name, limit in limits_s.items() if not limit > 0]
        if wrong:
            raise ValueError(f"age limit of {wrong[0]} is {limits_s[wrong[0]]}: give seconds above zero")
        self._limits_s = dict(limits_s)
        self._stamps_ns: dict[str, int] = {}

    def seen(self, name: str, stamp_ns: int) -> None:
        """An input arrived; the last to arrive counts, not the largest. KeyError for a name not watched."""
        if name not in self._limits_s:
            raise KeyError(f"{name} is not watched: the watchdog knows {', '.join(self._limits_s)}")
        self._stamps_ns[name] = stamp_ns

    def age_s(self, name: str, now_ns: int) -> float | None:
        """Age of an input by its stamp, None when it was never seen."""
        stamp_ns = self._stamps_ns.get(name)
        return None if stamp_ns is None else (now_ns - stamp_ns) * 1e-9

    def ahead(self, name: str, now_ns: int) -> bool:
        """Whether an input's last stamp is further in the future than its limit."""
        age_s = self.age_s(name, now_ns)
        return age_s is not None and age_s < -self._limits_s[name]

    def late(self, now_ns: int) -> list[Late]:
        """The inputs that are beyond their limits, in the order they were given."""
        ages = ((name, self.age_s(name, now_ns), limit) for name, limit in self._limits_s.items())
        return [Late(name, age, limit) for name, age, limit in ages if age is None or abs(age) > limit]


class Motion(Enum):
    """What the robot is allowed to do."""

    RUNNING = "running"
    STOPPING = "stopping"
    HOLDING = "holding"


@dataclass(frozen=True)
class Change:
    """A change of what is allowed. reasons: sentences, empty when it starts running."""

    before: Motion
    after: Motion
    reasons: tuple[str, ...]


OPERATOR = "held by the operator"


class Safety:
    """RUNNING -> STOPPING -> HOLDING -> RUNNING, by a watchdog and whoever holds it. Starts HOLDING.

    settle_s: how long everything must have been fresh before it runs again, so that an input at the edge of
    its limit does not make the robot stutter.
    """

    def __init__(self, watchdog: Watchdog, settle_s: float = 0.2):
        self.watchdog = watchdog
        self.state = Motion.HOLDING
        self.reasons: tuple[str, ...] = ()
        self._settle_ns = round(settle_s * 1e9)
        self._fresh_since_ns: int | None = None
        self._holds: dict[str, None] = {}

    def hold(self, reason: str = OPERATOR) -> None:
        """Stop at the next step and stay stopped until this reason is taken back by `resume`."""
        self._holds[reason] = None

    def resume(self, reason: str = OPERATOR) -> None:
        """Take a hold back; it runs when there is none and the inputs are fresh."""
        self._holds.pop(reason, None)

    def step(self, now_ns: int, at_rest: bool) -> Change | None:
        """Look at the inputs; a change if what is allowed has changed, at most one a step.

        at_rest: the commanded motion has ended. On a change to STOPPING, send a stop.
        """
        late = [str(late) for late in self.watchdog.late(now_ns)]
        self.reasons = (*self._holds, *late)
        if self.reasons:
            self._fresh_since_ns = None
        elif self._fresh_since_ns is None or self._fresh_since_ns > now_ns:
            self._fresh_since_ns = now_ns
        before, self.state = self.state, self._next(now_ns, at_rest)
        return None if self.state is before else Change(before, self.state, self.reasons)

    def _next(self, now_ns: int, at_rest: bool) -> Motion:
        if self.state is Motion.RUNNING:
            return Motion.STOPPING if self.reasons else Motion.RUNNING
        if self.state is Motion.STOPPING:
            return Motion.HOLDING if at_rest else Motion.STOPPING
        settled = self._fresh_since_ns is not None and now_ns - self._fresh_since_ns >= self._settle_ns
        return Motion.RUNNING if settled else Motion.HOLDING
