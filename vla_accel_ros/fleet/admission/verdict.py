"""Whether a fleet takes one more robot, before it is tried: predicted from measured times and asked rates.

A GPU that serves one robot too many serves none of them well: all chunks come late. So a robot is taken at
the rate it asks for if that leaves the replicas some idle time and 99 of 100 chunks are expected in time
(fleet.admission.forecast), at a lower rate if that is still enough for it, and refused otherwise, with a
sentence that says how much there is. Of what can be made in time a robot takes what its own rate takes: one
of n that would fit alone with their like takes an n-th. One robot alone is never refused for being late:
replicas may have been measured while their machine was busy, and learn from what they serve.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vla_accel_ros.fleet.admission.forecast import Forecast, Room, at_once, fleet_hz
from vla_accel_ros.fleet.admission.replica_model import Measured

UNTOLD_HZ = 1.0
"""Counted for a robot that does not tell how many chunks a second it needs."""
ROUNDING = 1 + 1e-9

InTime = Callable[[float], float]
"""Of a rate of robots: how many chunks a second come in time if all ask so often."""


@dataclass(frozen=True)
class Rules:
    """most_robots: whatever they ask for. load: the share of the replicas' time that may be promised. least:
    the share of what a robot asks for that it is taken for. within_s: 99 of 100 chunks are to come so soon
    after they are asked for."""

    most_robots: int = 64
    load: float = 0.9
    least: float = 0.5
    within_s: float = math.inf


@dataclass(frozen=True)
class Verdict:
    """Of one robot. chunks_per_s: how many it may ask for, 0 if it is refused. reason: why not, or why fewer;
    empty if it is served as it asked."""

    admitted: bool
    chunks_per_s: float = 0.0
    reason: str = ""


def capacity_hz(replicas: Iterable[Measured]) -> float:
    """Chunks a second of these replicas together, each at its best batch; inf if one was never measured."""
    return sum(one.capacity_hz for one in replicas)


def in_time_of(
    replicas: Sequence[Measured], rules: Rules, slower: float = 1.0, forecast: Forecast = at_once
) -> InTime:
    """Of these replicas, as they were measured or so many times slower."""
    return lambda rate_hz: fleet_hz(replicas, rate_hz, rules.within_s, slower, forecast)


def robots_in_time(one: Measured, chunks_per_s: float, within_s: float) -> int:
    """How many robots that all ask for so many chunks a second get 99 of 100 in time, of one replica, if it
    may have no time left and nobody knows when they ask; see fleet.admission.forecast."""
    return math.floor(fleet_hz([one], chunks_per_s, within_s) / chunks_per_s * ROUNDING)


def robots_that_fit(replicas: Sequence[Measured], chunks_per_s: float, rules: Rules = Rules()) -> int:
    """How many robots that all ask for so many chunks a second are taken at that rate."""
    rate_hz = chunks_per_s or UNTOLD_HZ
    most_hz = min(rules.load * capacity_hz(replicas), fleet_hz(replicas, rate_hz, rules.within_s))
    fit = most_hz / rate_hz
    return rules.most_robots if math.isinf(fit) else min(rules.most_robots, math.floor(fit * ROUNDING))


def taken_share(taken: Mapping[float, int], in_time: InTime) -> float:
    """Of what can be made in time, by how many robots have each rate; inf for what cannot be."""
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
    rules: Rules = Rules(),
    in_time: InTime = lambda rate_hz: math.inf,
    room: Room | None = None,
) -> Verdict:
    """Whether a robot that asks for asked_hz chunks a second is taken beside those that were promised
    taken_hz each (or: how many were promised what). room: beside them as they were seen to ask, which goes
    before what is expected of robots that nobody has seen. Refuses a rate that is no rate."""
    taken = Counter(taken_hz)
    robots = sum(taken.values())
    if not 0.0 <= asked_hz < math.inf:
        return Verdict(False, reason=f"chunks_per_s is {asked_hz}; tell how many chunks a second are needed")
    if robots >= rules.most_robots:
        return Verdict(
            False, reason=f"{robots} robots are served, which is most_robots; raise it or wait for one"
        )
    wanted = asked_hz or UNTOLD_HZ
    promised = sum(rate_hz * count for rate_hz, count in taken.items())
    free = rules.load * capacity_hz - promised
    what = f"the {capacity_hz:.3g} that the replicas make are left"
    if room is not None and room.rate_hz < min(wanted, free):
        have = (
            f"{wanted:.3g} chunks a second are asked for, but beside the {robots} robots that are served, as "
            f"they ask now, {100 * room.in_time:.3g} in 100 chunks would come within {rules.within_s:.3g} s, "
            f"where 99 are wanted"
        )
        return _lower(wanted, room.rate_hz, rules, have)
    timely_hz = math.inf if room is not None else in_time(wanted)
    if robots and timely_hz < math.inf:
        timely = (1.0 - taken_share(taken, in_time)) * timely_hz if timely_hz else 0.0
        if timely < free:
            free = timely
            what = f"the {timely_hz:.3g} of which 99 in 100 come within {rules.within_s:.3g} s are left"
    if wanted <= free * ROUNDING:
        return Verdict(True, wanted)
    have = (
        f"{wanted:.3g} chunks a second are asked for, {max(0.0, free):.3g} of {what} ({robots} robots have "
        f"{promised:.3g})"
    )
    return _lower(wanted, free, rules, have)


def _lower(wanted_hz: float, left_hz: float, rules: Rules, have: str) -> Verdict:
    """What is left, if that is enough. have: says how much there is."""
    if left_hz >= rules.least * wanted_hz * (2.0 - ROUNDING) and left_hz > 0.0:
        return Verdict(True, left_hz, f"{have}; it is served at that rate, {left_hz:.3g} a second")
    return Verdict(False, reason=f"{have}; ask for fewer, or add a replica")
