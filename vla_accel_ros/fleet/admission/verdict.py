"""Decide whether a fleet admits one more robot, from measured durations and requested rates.

A GPU with one robot too many serves none of them well: all chunks come late. A robot is admitted at the rate
it asks for if the replicas keep some idle time and 99 of 100 chunks are predicted to come in time
(fleet.admission.forecast). Otherwise it is admitted at a lower rate, if that is still enough for it, or
refused with a sentence that says how much is left. A robot uses a share of the timely rate: if n robots like
it would fit alone, it uses 1/n. A single robot is never refused for lateness, since its replicas may have
been measured on a busy machine, and learn from what they serve.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vla_accel_ros.fleet.admission.forecast import Forecast, Room, at_once, fleet_hz
from vla_accel_ros.fleet.admission.replica_model import Measured

UNTOLD_HZ = 1.0
"""Rate assumed for a robot that does not say how many chunks a second it needs."""
ROUNDING = 1 + 1e-9

InTime = Callable[[float], float]
"""Returns, for the rate of each robot, how many chunks a second come in time if all ask at that rate."""


@dataclass(frozen=True)
class Limits:
    """most_robots: upper limit of robots. load: the share of the replicas' time that may be promised. least:
    the smallest share of its requested rate at which a robot is admitted. within_s: 99 of 100 chunks must
    come within this time of their request."""

    most_robots: int = 64
    load: float = 0.9
    least: float = 0.5
    within_s: float = math.inf


@dataclass(frozen=True)
class Verdict:
    """The decision on one robot. chunks_per_s: the rate that it may ask for, 0 if refused. reason: why it is
    refused or slowed; empty if it gets its requested rate."""

    admitted: bool
    chunks_per_s: float = 0.0
    reason: str = ""


def capacity_hz(replicas: Iterable[Measured]) -> float:
    """Return the chunks a second of all replicas, each at its best batch size; inf if one was never
    measured."""
    return sum(replica.capacity_hz for replica in replicas)


def in_time_of(
    replicas: Sequence[Measured], limits: Limits, slower: float = 1.0, forecast: Forecast = at_once
) -> InTime:
    """Return the InTime of these replicas, each `slower` times slower than measured."""
    return lambda rate_hz: fleet_hz(replicas, rate_hz, limits.within_s, slower, forecast)


def robots_that_fit(replicas: Sequence[Measured], chunks_per_s: float, limits: Limits = Limits()) -> int:
    """Return how many robots, each asking for chunks_per_s, are admitted at that rate."""
    rate_hz = chunks_per_s or UNTOLD_HZ
    most_hz = min(limits.load * capacity_hz(replicas), fleet_hz(replicas, rate_hz, limits.within_s))
    fit = most_hz / rate_hz
    return limits.most_robots if math.isinf(fit) else min(limits.most_robots, math.floor(fit * ROUNDING))


def taken_share(taken: Mapping[float, int], in_time: InTime) -> float:
    """Return the share of the timely rate that the admitted robots use. taken: rate -> number of robots.
    Returns inf if one of the rates can never be served in time."""
    share = 0.0
    for rate_hz, robots in taken.items():
        if robots:
            most_hz = in_time(rate_hz)
            share += robots * rate_hz / most_hz if most_hz > 0.0 else math.inf
    return share


def admit(
    asked_hz: float,
    taken_hz: Mapping[float, int] | Iterable[float],
    capacity_hz: float,
    limits: Limits = Limits(),
    in_time: InTime = lambda rate_hz: math.inf,
    room: Room | None = None,
) -> Verdict:
    """Decide whether a robot that asks for asked_hz chunks a second is admitted.

    taken_hz: the promised rate of each admitted robot, or rate -> number of robots. room: the forecast beside
    the admitted robots with their observed rhythms; it takes precedence over in_time, which knows only rates.
    Refuses an asked_hz that is negative or not finite.
    """
    promises = Counter(taken_hz)
    robots = sum(promises.values())
    if not 0.0 <= asked_hz < math.inf:
        return Verdict(False, reason=f"chunks_per_s is {asked_hz}; tell how many chunks a second are needed")
    if robots >= limits.most_robots:
        return Verdict(
            False, reason=f"{robots} robots are served, which is most_robots; raise it or wait for one"
        )
    wanted_hz = asked_hz or UNTOLD_HZ
    promised = sum(rate_hz * count for rate_hz, count in promises.items())
    free = limits.load * capacity_hz - promised
    remainder = f"the {capacity_hz:.3g} that the replicas make are left"
    if room is not None and room.rate_hz < min(wanted_hz, free):
        have = (
            f"{wanted_hz:.3g} chunks a second are asked for, but beside the {robots} robots that are served, "
            f"as they ask now, {100 * room.in_time:.3g} in 100 chunks would come within "
            f"{limits.within_s:.3g} s, where 99 are wanted"
        )
        return _lower(wanted_hz, room.rate_hz, limits, have)
    timely_hz = math.inf if room is not None else in_time(wanted_hz)
    if robots and timely_hz < math.inf:
        timely = (1.0 - taken_share(promises, in_time)) * timely_hz if timely_hz else 0.0
        if timely < free:
            free = timely
            remainder = f"the {timely_hz:.3g} of which 99 in 100 come within {limits.within_s:.3g} s are left"
    if wanted_hz <= free * ROUNDING:
        return Verdict(True, wanted_hz)
    have = (
        f"{wanted_hz:.3g} chunks a second are asked for, {max(0.0, free):.3g} of {remainder} "
        f"({robots} robots have {promised:.3g})"
    )
    return _lower(wanted_hz, free, limits, have)


def _lower(wanted_hz: float, left_hz: float, limits: Limits, have: str) -> Verdict:
    """Admit at the rate that is left if that is enough, or refuse. have: says how much there is."""
    if left_hz >= limits.least * wanted_hz * (2.0 - ROUNDING) and left_hz > 0.0:
        return Verdict(True, left_hz, f"{have}; it is served at that rate, {left_hz:.3g} a second")
    return Verdict(False, reason=f"{have}; ask for fewer, or add a replica")
