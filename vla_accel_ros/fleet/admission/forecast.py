"""Predict how many robots get their chunks in time, by simulation with the engine's own scheduling rule.

Robots send requests nearly periodically, and only after the previous chunk has arrived, so they wait for less
time than random arrivals would. The waiting time depends on the phases of the robots' requests. If a
scheduler has observed when its robots send (`Rhythm`), the simulation continues from there; the phase of any
other robot is drawn at random. Several fleets are drawn, and each is simulated for ROUNDS rounds with the
durations that the replica measured (fleet.admission.replica_model). The robots fit if, in half of the draws,
SHARE of the chunks come in time and arms stand still for at most STALL of the time.
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
"""Share of chunks that must come in time."""
STALL = 0.001
"""Share of the time that arms may stand still."""
JITTER = 0.1
"""Relative variation, to either side, of the interval between a robot's requests, where it was not
observed."""
DRAWS, ROUNDS, WARM_UP = 24, 12, 1
"""Most fleets that are drawn, and the rounds that each is simulated for, after the warm-up rounds."""
CLEAR = 5
"""Stop drawing once one result leads the other by so many draws."""
LEAST_DRAWS, MOST_REQUESTS = 8, 12_000
"""For many robots fewer fleets are drawn, with about MOST_REQUESTS requests in all."""
MOST_OF_A_DRAW = 3_000
"""Most requests of one draw: beside a robot that asks once in minutes the others are simulated for less than
its rounds."""
MOST_ROBOTS = 96
"""More robots than this are simulated as this many that ask more often."""
PACES, PACE_DRAWS = (0.8, 2.0), 4
"""Range of factors by which a replica may be slower than measured, and the number of draws that
`pace` uses."""
LOWER = (0.85, 0.7, 0.6, 0.5)
"""Shares of the requested rate that are tried when the whole rate does not fit."""

Value = TypeVar("Value")


class Forecasting(Exception):
    """The result is still being computed; ask again."""


class Forecast(Protocol):
    """Calls a function of this module, perhaps in another thread. May raise Forecasting."""

    def __call__(self, function: Callable[..., Value], *arguments: object) -> Value:
        """Return function(*arguments); the arguments must be hashable."""


def at_once(function: Callable[..., Value], *arguments: object) -> Value:
    """The Forecast that computes in the calling thread."""
    return function(*arguments)


@dataclass(frozen=True)
class Rhythm:
    """When a robot sends requests. period_s: between two requests. jitter: relative variation of that
    interval, to either side. next_s: seconds until its next request, None if unknown. buffer_s: for how long
    its arm can still move at the time of a request."""

    period_s: float
    jitter: float = JITTER
    next_s: float | None = None
    buffer_s: float = math.inf


@dataclass(frozen=True)
class Outlook:
    """Result of one simulated draw. in_time: share of chunks. stall: share of the time that arms stand still.
    p50_s, p99_s: percentiles of the request durations."""

    in_time: float
    stall: float
    p50_s: float
    p99_s: float

    @property
    def fits(self) -> bool:
        """Whether the robots get enough chunks in time."""
        return self.in_time >= SHARE and self.stall <= STALL


@dataclass(frozen=True)
class Room:
    """What is left for one more robot. rate_hz: the largest tried rate that fits, 0 if none does. in_time:
    share of chunks in time in the median draw, at the rate that the robot asks for. pace: the factor by which
    the replica is slower than it was measured."""

    rate_hz: float
    in_time: float
    pace: float = 1.0


def drawn(model: ReplicaModel, robots: Sequence[Rhythm], within_s: float, seed: int) -> Outlook:
    """Simulate these robots once, with phases and jitter drawn from `seed`."""
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
    until_s = count * min(float(periods_s.max()), _round_s(robots))
    warm_s = until_s * WARM_UP / count
    rounds, done, stood_s = [0] * len(robots), list[float](), 0.0
    came_s = [times[0] for times in planned]

    def again(robot: int, now_s: float) -> float:
        nonlocal stood_s
        if came_s[robot] >= warm_s:
            took_s = now_s - came_s[robot]
            done.append(took_s)
            stood_s += max(0.0, took_s - robots[robot].buffer_s)
        rounds[robot] += 1
        times = planned[robot]
        if rounds[robot] >= len(times):  # the robot sends more often than planned for
            times.append(times[-1] + robots[robot].period_s)
        came_s[robot] = at_s = max(now_s, times[rounds[robot]])
        return at_s if at_s < until_s else math.inf

    model.play(came_s, again)
    durations_s = np.array(done or [0.0])
    stall = stood_s / (len(robots) * (until_s - warm_s))
    p50_s, p99_s = np.percentile(durations_s, (50, 99)).tolist()
    return Outlook(float(np.mean(durations_s <= within_s)), stall, p50_s, p99_s)


def _round_s(robots: Sequence[Rhythm]) -> float:
    """Return how long a round may last at most, so that a draw has MOST_OF_A_DRAW requests."""
    return MOST_OF_A_DRAW / (ROUNDS + WARM_UP) / sum(1.0 / robot.period_s for robot in robots)


def fits(model: ReplicaModel, robots: Sequence[Rhythm], within_s: float) -> tuple[bool, float]:
    """Return whether these robots fit, and the median share of chunks in time over the draws that were
    needed."""
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
    """Return the factor, within PACES, by which the replica is slower than measured, so that the simulated
    median request duration of these robots equals took_s. Other programs on the machine and image decoding
    slow it down."""

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
    """Return how many chunks a second a replica delivers within_s to robots that each ask for rate_hz, at
    unknown phases: whole robots times their rate, 0 if not even one robot fits. Returns inf if nothing was
    measured, or if within_s is inf."""
    if not measured.serve or math.isinf(within_s):
        return math.inf
    model, capacity = ReplicaModel.of(measured), max(1, math.floor(measured.capacity_hz / rate_hz))
    robots = min(capacity, MOST_ROBOTS)
    each_hz = rate_hz * capacity / robots

    def enough(count: int) -> bool:
        return fits(model, [Rhythm(1.0 / each_hz, buffer_s=buffer_s)] * count, within_s)[0]

    low, high = 0, robots + 1
    guess, step = max(1, round(0.85 * robots)), max(1, robots // 12)
    while high - low > 1:  # search outwards from the guess, then bisect
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
    """Return the rate that is left for one more robot beside `robots`, whose phase is drawn.

    wanted_hz: the rate that it asks for [chunks/s]. least: the smallest acceptable share of that rate.
    took_s: the measured median duration of the robots' requests. slower: the least factor by which the
    replica is slower than it was measured.
    """
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
    """Return the sum of chunks_hz over several replicas, each `slower` times slower than measured. Rates are
    rounded, so that small changes need no new forecast. Raises Forecasting once all missing forecasts are
    started."""
    rate_hz, total_hz, missing = float(f"{rate_hz:.2e}"), 0.0, False
    for replica in replicas:
        try:
            total_hz += forecast(chunks_hz, replica.slower(slower), rate_hz, within_s)
        except Forecasting:
            missing = True
    if missing:
        raise Forecasting
    return total_hz
