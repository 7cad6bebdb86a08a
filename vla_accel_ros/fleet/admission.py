"""Whether a fleet takes one more robot, before it is tried: predicted from measured times and asked rates.

A GPU that serves one robot too many serves none of them well: all chunks come late. So a robot is taken at
the rate it asks for if that leaves the replicas some idle time, at a lower rate if that is still enough for
it, and refused otherwise, with a sentence that says how much there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.replicas.replica import SERVE

UNTOLD_HZ = 1.0
"""Counted for a robot that does not tell how many chunks a second it needs."""


@dataclass(frozen=True)
class Rules:
    """most_robots: whatever they ask for. load: the share of the replicas' time that may be promised. least:
    the share of what a robot asks for that it is taken for."""

    most_robots: int = 64
    load: float = 0.9
    least: float = 0.5


@dataclass(frozen=True)
class Verdict:
    """Of one robot. chunks_per_s: how many it may ask for, 0 if it is refused. reason: why not, or why fewer;
    empty if it is served as it asked."""

    admitted: bool
    chunks_per_s: float = 0.0
    reason: str = ""


def capacity_hz(profiles: Iterable[Profile]) -> float:
    """Chunks a second of these replicas together, each at its best batch; inf if one was never measured."""
    total = 0.0
    for profile in profiles:
        rates = [batch / seconds for (stage, batch), seconds in profile.known().items() if stage == SERVE]
        total += max(rates, default=math.inf)
    return total


def robots_that_fit(profiles: Iterable[Profile], chunks_per_s: float, rules: Rules = Rules()) -> int:
    """How many robots that all ask for so many chunks a second are taken at that rate."""
    fit = rules.load * capacity_hz(profiles) / (chunks_per_s or UNTOLD_HZ)
    return rules.most_robots if math.isinf(fit) else min(rules.most_robots, math.floor(fit * (1 + 1e-9)))


def admit(asked_hz: float, taken_hz: Iterable[float], capacity_hz: float, rules: Rules = Rules()) -> Verdict:
    """Whether a robot that asks for asked_hz chunks a second is taken beside those that were promised
    taken_hz each. Refuses a rate that is no rate."""
    taken = tuple(taken_hz)
    if not 0.0 <= asked_hz < math.inf:
        return Verdict(False, reason=f"chunks_per_s is {asked_hz}; tell how many chunks a second are needed")
    if len(taken) >= rules.most_robots:
        return Verdict(
            False, reason=f"{len(taken)} robots are served, which is most_robots; raise it or wait for one"
        )
    wanted = asked_hz or UNTOLD_HZ
    free = rules.load * capacity_hz - sum(taken)
    if wanted <= free * (1 + 1e-9):
        return Verdict(True, wanted)
    have = (
        f"{wanted:.3g} chunks a second are asked for, {max(0.0, free):.3g} of the {capacity_hz:.3g} that the "
        f"replicas make are left ({len(taken)} robots have {sum(taken):.3g})"
    )
    if free >= rules.least * wanted and free > 0.0:
        return Verdict(True, free, f"{have}; it is served at that rate")
    return Verdict(False, reason=f"{have}; ask for fewer, or add a replica")
