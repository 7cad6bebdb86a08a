"""Whether a fleet takes one more robot, before it is tried: predicted from measured times and asked rates.

A GPU that serves one robot too many serves none of them well: all chunks come late. So a robot is taken at
the rate it asks for if that leaves the replicas some idle time, at a lower rate if that is still enough for
it, and refused otherwise, with a sentence that says how much there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.replicas.replica import SERVE

LEAST_WEIGHT = 1e-9
"""Of what is left out of a distribution."""
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


def latency_s(profile: Profile, chunks_per_s: float, share: float = 0.99) -> float:
    """Within which time that share of requests is expected to be served, where so many come a second at
    random; inf where that is more than the replica makes.

    A chain of births and deaths: requests come at that rate and leave at the measured rate of as many as are
    there (`known`, in between linear), and one that finds n there is served when it and they would be.
    """
    served = sorted((batch, seconds) for (stage, batch), seconds in profile.known().items() if stage == SERVE)
    if not served:
        return 0.0
    if not 0.0 < chunks_per_s < math.inf:
        return served[0][1]
    batches = [float(batch) for batch, _ in served]
    rates = [batch / seconds for batch, seconds in served]
    if chunks_per_s >= rates[-1]:
        return math.inf
    weight, weights = 1.0, [1.0]
    while weight > LEAST_WEIGHT * sum(weights) or len(weights) <= batches[-1]:
        weight *= chunks_per_s / _rate(len(weights), batches, rates)
        weights.append(weight)
    wanted, found, there = share * sum(weights), weights[0], 0
    while found < wanted and there + 1 < len(weights):
        there += 1
        found += weights[there]
    return (there + 1) / _rate(there + 1, batches, rates)


def _rate(there: int, batches: Sequence[float], rates: Sequence[float]) -> float:
    """Chunks a second where so many are there; more than the largest batch wait."""
    if there >= batches[-1]:
        return rates[-1]
    after = next(index for index, batch in enumerate(batches) if batch >= there)
    if after == 0 or batches[after] == there:
        return rates[after]
    part = (there - batches[after - 1]) / (batches[after] - batches[after - 1])
    return rates[after - 1] + part * (rates[after] - rates[after - 1])


def robots_in_time(profile: Profile, chunks_per_s: float, within_s: float, most: int = 1024) -> int:
    """How many robots that all ask for so many chunks a second get 99 of 100 in time, of one replica."""
    fit = 0
    while fit < most and latency_s(profile, (fit + 1) * chunks_per_s) <= within_s:
        fit += 1
    return fit


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
