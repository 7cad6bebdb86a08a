"""How many robots get their chunks in time, before one more is tried: simulated with the engine's policy.

Robots ask nearly periodically, and for a chunk only when they have the one before: so they wait for less than
the same number of requests at random would. What they wait for depends on how their requests happen to lie
beside each other. Where a scheduler has seen when its robots ask (`Rhythm`), they are simulated from there
on; when others ask, as a robot that is not served yet, is drawn. Several fleets are drawn and each is
simulated for ROUNDS rounds on the times that the replica measured (fleet.admission.replica_model). They fit
if in half of the draws SHARE of the chunks come in time, and arms stand no longer than STALL of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar

import numpy as np

from vla_accel_ros.fleet.admission.replica_model import Measured, ReplicaModel

SHARE = 0.99
"""Of chunks that are in time."""
STALL = 0.001
"""Of the time, how long arms may stand."""
JITTER = 0.1
"""By which intervals between a robot's requests vary, to either side, where that was not seen."""
DRAWS, ROUNDS, WARM_UP = 24, 12, 1
"""Fleets that are drawn at most, and rounds of each that are simulated, after those of the warm-up."""
CLEAR = 5
"""So many more draws of the one kind than of the other need no further ones."""
LEAST_DRAWS, MOST_REQUESTS = 8, 12_000
"""Of many robots fewer fleets are drawn, of about so many requests."""
MOST_ROBOTS = 96
"""More robots are simulated as so many that ask more often."""
PACES, PACE_DRAWS = (0.8, 2.0), 4
"""By which factor a replica may be slower than it was measured, and the draws by which it is found."""
LOWER = (0.85, 0.7, 0.6, 0.5)
"""Parts of the rate that is asked for, which are tried where it does not fit."""

Value = TypeVar("Value")


class Forecasting(Exception):
    """It is being computed: ask again."""


class Forecast(Protocol):
    """Computes a function of this module; it may raise Forecasting."""

    def __call__(self, function: Callable[..., Value], *arguments: object) -> Value:
        """What the function returns for these arguments, which are hashable."""
        ...


def at_once(function: Callable[..., Value], *arguments: object) -> Value:
    """The Forecast that computes when it is asked."""
    return function(*arguments)


@dataclass(frozen=True)
class Rhythm:
    """How a robot asks. period_s: between two requests; jitter: by which share of it that varies, to either
    side; next_s: in how many seconds it asks next, None where that is not known; buffer_s: for how long its
    arm still moves then."""

    period_s: float
    jitter: float = JITTER
    next_s: float | None = None
    buffer_s: float = math.inf


@dataclass(frozen=True)
class Outlook:
    """Of one draw. in_time: share of chunks; stall: share of the time that arms stand; p50_s, p99_s: of how
    long requests take."""

    in_time: float
    stall: float
    p50_s: float
    p99_s: float

    @property
    def fits(self) -> bool:
        """Whether robots get what they need."""
        return self.in_time >= SHARE and self.stall <= STALL


@dataclass(frozen=True)
class Room:
    """For a further robot. rate_hz: the largest of the rates tried that fits, 0 if none does. in_time: share
    of chunks in the median draw, at the rate that it asks for. pace: by which factor the replica is slower
    than it was measured."""

    rate_hz: float
    in_time: float
    pace: float = 1.0


def drawn(model: ReplicaModel, robots: Sequence[Rhythm], within_s: float, seed: int) -> Outlook:
    """Of one draw of what is not known of these robots."""
    chance, count = np.random.default_rng(seed), ROUNDS + WARM_UP
    phases, gaps = chance.uniform(0.0, 1.0, len(robots)), np.random.default_rng([seed, 1])
    vary = gaps.uniform(-1.0, 1.0, (len(robots), count + 1))
    periods_s = np.array([robot.period_s for robot in robots])
    jitter = np.array([robot.jitter for robot in robots])
    first_s = [
        phase * robot.period_s if robot.next_s is None else robot.next_s
        for robot, phase in zip(robots, phases, strict=True)
    ]
    times_s = periods_s[:, None] * (1.0 + jitter[:, None] * vary)
    times_s[:, 0] = first_s
    planned: list[list[float]] = times_s.cumsum(axis=1).tolist()
    longest_s = float(periods_s.max())
    warm_s, until_s = WARM_UP * longest_s, count * longest_s
    asked, done, stood_s = [0] * len(robots), list[float](), 0.0
    came_s = [times[0] for times in planned]

    def again(robot: int, now_s: float) -> float:
        nonlocal stood_s
        if came_s[robot] >= warm_s:
            took_s = now_s - came_s[robot]
            done.append(took_s)
            stood_s += max(0.0, took_s - robots[robot].buffer_s)
        asked[robot] += 1
        times = planned[robot]
        if asked[robot] >= len(times):  # asks more often than others, or those before lasted
            times.append(times[-1] + robots[robot].period_s)
        came_s[robot] = at_s = max(now_s, times[asked[robot]])
        return at_s if at_s < until_s else math.inf

    model.play(came_s, again)
    took = np.array(done or [0.0])
    stall = stood_s / (len(robots) * (until_s - warm_s))
    p50_s, p99_s = np.percentile(took, (50, 99)).tolist()
    return Outlook(float(np.mean(took <= within_s)), stall, p50_s, p99_s)


def fits(model: ReplicaModel, robots: Sequence[Rhythm], within_s: float) -> tuple[bool, float]:
    """Whether these robots get what they need, and the share of chunks in time in the median of the draws
    that were needed to tell."""
    shares, well, badly = list[float](), 0, 0
    requests = sum(robots[0].period_s / robot.period_s for robot in robots) * (ROUNDS + WARM_UP)
    draws = int(min(DRAWS, max(LEAST_DRAWS, MOST_REQUESTS / requests)))
    for seed in range(draws):
        outlook = drawn(model, robots, within_s, seed)
        shares.append(outlook.in_time)
        well, badly = well + outlook.fits, badly + (not outlook.fits)
        if abs(well - badly) >= CLEAR or max(well, badly) > draws / 2:
            break
    return well >= badly, float(np.median(shares))


def pace(model: ReplicaModel, robots: Sequence[Rhythm], took_s: float) -> float:
    """By which factor it is slower than it was measured, where half of the requests of these robots took less
    than took_s: other programs use the machine, pictures are decoded."""

    def median_s(factor: float) -> float:
        slower = model.slower(factor)
        draws = (drawn(slower, robots, math.inf, seed).p50_s for seed in range(PACE_DRAWS))
        return float(np.median(list(draws)))

    low, high = PACES
    for _ in range(6):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if median_s(middle) < took_s else (low, middle)
    return math.sqrt(low * high)


@lru_cache(1024)
def chunks_hz(measured: Measured, rate_hz: float, within_s: float, buffer_s: float = math.inf) -> float:
    """How many chunks a second a replica makes for robots that each ask for rate_hz of them, nobody knows
    when, so that they come within_s: a multiple of rate_hz, 0 if not even one robot's do; inf where nothing
    is known, or no time is told."""
    if not measured.serve or math.isinf(within_s):
        return math.inf
    model, most = ReplicaModel.of(measured), max(1, math.floor(measured.capacity_hz / rate_hz))
    robots = min(most, MOST_ROBOTS)
    each_hz = rate_hz * most / robots

    def enough(count: int) -> bool:
        return fits(model, [Rhythm(1.0 / each_hz, buffer_s=buffer_s)] * count, within_s)[0]

    low, high = 0, robots + 1
    guess, step = max(1, round(0.85 * robots)), max(1, robots // 12)
    while high - low > 1:  # from the guess outwards, then halves
        if enough(guess):
            low = guess
        else:
            high = guess
        guess = low + step if high > robots else high - step if low == 0 else (low + high) // 2
        guess, step = min(max(guess, low + 1), high - 1), 2 * step
    return low * each_hz


def room(
    measured: Measured,
    robots: tuple[Rhythm, ...],
    wanted_hz: float,
    least: float,
    within_s: float,
    took_s: float | None = None,
    slower: float = 1.0,
) -> Room:
    """For one more beside these robots, that asks for wanted_hz chunks a second, or at least for that part of
    them; when it will ask is drawn. took_s: the median of how long their requests took; slower: by which
    factor at least the replica is slower than it was measured."""
    model, share = ReplicaModel.of(measured), 1.0
    if took_s is not None:
        slower = max(slower, pace(model, robots, took_s))
    model = model.slower(slower)
    for part in (1.0, *LOWER):
        if part < least:
            break
        rate_hz = part * wanted_hz
        well, in_time = fits(model, (*robots, Rhythm(1.0 / rate_hz)), within_s)
        if part == 1.0:
            share = in_time
        if well:
            return Room(rate_hz, share, slower)
    return Room(0.0, share, slower)


def fleet_hz(
    replicas: Sequence[Measured],
    rate_hz: float,
    within_s: float,
    slower: float = 1.0,
    forecast: Forecast = at_once,
) -> float:
    """Of several replicas together, each so many times slower than it was measured. Small changes of what is
    measured need no new forecast. Raises Forecasting, once all that are needed are begun."""
    rate_hz, total_hz, missing = float(f"{rate_hz:.2e}"), 0.0, False
    for one in replicas:
        try:
            total_hz += forecast(chunks_hz, one.slower(slower), rate_hz, within_s)
        except Forecasting:
            missing = True
    if missing:
        raise Forecasting
    return total_hz
