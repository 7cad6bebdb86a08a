"""How many chunks a second a replica makes so that nearly all of them come in time, before a robot is tried.

Robots ask nearly periodically, and for a chunk only when they have the one before: so they wait for less than
the same number of requests at random would. What they wait for depends on how their requests happen to lie
beside each other, so many fleets are drawn and each is simulated for a few rounds.

A replica is simulated as one GPU that computes a frame at a time and then a step of all chunks that it has
begun (fleet/replicas/local.py). How long either takes follows from what was measured: b requests that are
always there make a chunk every T(b) / b, which is a frame and S / b steps of b chunks, up to S chunks. One
equation is missing: a step of S chunks is taken to last FULL times as long as one of a single chunk; on an
H200 it is 2 to 3 times, between which the number of robots changes by less than one in twenty. Where frames
take no time, as many begin in a step as are there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.replicas.replica import SERVE

STEPS = 10
"""Of a chunk."""
FULL = 2.0
SHARE = 0.99
"""Of chunks that are in time."""
JITTER = 0.1
"""By which intervals between a robot's requests vary, to either side."""
DRAWS, LEAST_DRAWS, ROUNDS, WARM_UP = 160, 8, 3, 1
"""Fleets that are drawn, and rounds of each that are simulated, without those of the warm-up."""
MOST_ROBOTS, MOST_REQUESTS = 96, 12_000
"""More robots are simulated as so many that ask more often."""
CLEAR = 4.0
"""Times as many late chunks as are allowed need no further draws."""

Curve = tuple[tuple[int, float], ...]
"""Requests that are always there, and seconds that each of them then takes."""
Forecast = Callable[[Curve, float, float], float]
"""chunks_hz, or what stands for it; it may raise Forecasting."""


class Forecasting(Exception):
    """It is being computed: ask again."""


@dataclass(frozen=True)
class Gpu:
    """One replica. frame_s: of a frame; step_s: of a step of 0, 1, 2, ... chunks; seats: most chunks; steps:
    of a chunk."""

    frame_s: float
    step_s: tuple[float, ...]
    seats: int
    steps: int = STEPS

    @classmethod
    def of(cls, curve: Curve) -> Gpu:
        """As it was measured."""
        alone_s, most = curve[0][1], curve[-1][0]
        often_s = min(seconds / batch for batch, seconds in curve)
        single_s = (alone_s - often_s) / (STEPS - FULL)
        if single_s < 1e-3 * alone_s:  # one after another, nothing is shared
            return cls(alone_s, (0.0,) * (most + 1), most, 1)
        frame_s = max(0.0, alone_s - STEPS * single_s)
        sizes, steps_s = [], []
        for batch, seconds in curve:
            share = batch if frame_s == 0.0 else min(batch, STEPS)
            sizes.append(batch)
            steps_s.append((seconds / batch - frame_s) * share / STEPS)
        found = np.maximum(1e-9, np.interp(np.arange(most + 1), sizes, steps_s))
        return cls(frame_s, tuple(found.tolist()), most)


def curve_of(profile: Profile) -> Curve:
    """What was measured of whole requests; empty where nothing was."""
    known = profile.known().items()
    return tuple(sorted((batch, seconds) for (stage, batch), seconds in known if stage == SERVE))


def waits_s(gpu: Gpu, asked_s: Sequence[float]) -> list[float]:
    """How long each of these requests, in order of time, takes on one GPU."""
    now_s, next_, step, count = 0.0, 0, 0, len(asked_s)
    waiting: deque[float] = deque()
    begun: deque[tuple[float, int]] = deque()
    took_s: list[float] = []
    frame_s, step_s, seats = gpu.frame_s, gpu.step_s, gpu.seats
    together = 1 if frame_s > 0.0 else seats
    coming = [*asked_s, math.inf]
    while True:
        while coming[next_] <= now_s:
            waiting.append(coming[next_])
            next_ += 1
        if waiting and len(begun) < seats:
            for _ in range(min(together, len(waiting), seats - len(begun))):
                now_s += frame_s
                begun.append((waiting.popleft(), step + gpu.steps))
            steps = 1
        elif begun:  # as many steps as nothing else happens in
            steps = begun[0][1] - step
            if coming[next_] < now_s + steps * step_s[len(begun)]:
                steps = int((coming[next_] - now_s) / step_s[len(begun)]) + 1
        elif next_ < count:
            now_s = coming[next_]
            continue
        else:
            return took_s
        now_s, step = now_s + steps * step_s[len(begun)], step + steps
        while begun and begun[0][1] <= step:
            took_s.append(now_s - begun.popleft()[0])


def trace(robots: int, period_s: float, rounds: int, seed: int) -> list[float]:
    """When so many robots ask for so many chunks each, in order: each from a phase of its own, nearly
    periodically. Of more robots with the same seed the first ask as they do alone."""
    chance = np.random.default_rng(seed)
    phases, gaps = chance.uniform(0.0, 1.0, robots), np.random.default_rng([seed, 1])
    gaps_s = period_s * (1.0 + gaps.uniform(-JITTER, JITTER, (robots, rounds)))
    gaps_s[:, 0] = period_s * phases
    asked: list[float] = np.sort(gaps_s.cumsum(axis=1).ravel()).tolist()
    return asked


def in_time(gpu: Gpu, robots: int, period_s: float, within_s: float) -> float:
    """The share of chunks that come within_s, of robots that all ask so often."""
    each = robots * (ROUNDS + WARM_UP)
    draws = max(LEAST_DRAWS, min(DRAWS, MOST_REQUESTS // each))
    came = late = 0
    for seed in range(draws):
        took_s = waits_s(gpu, trace(robots, period_s, ROUNDS + WARM_UP, seed))[robots * WARM_UP :]
        came += len(took_s)
        late += sum(seconds > within_s for seconds in took_s)
        if seed + 1 >= LEAST_DRAWS and late > CLEAR * (1.0 - SHARE) * came:
            break
    return 1.0 - late / came


@lru_cache(1024)
def chunks_hz(curve: Curve, rate_hz: float, within_s: float) -> float:
    """How many chunks a second a replica makes for robots that each ask for rate_hz of them, so that SHARE of
    them come within_s: a multiple of rate_hz, 0 if not even one robot's do; inf where nothing is
    known, or no time is told."""
    if not curve or math.isinf(within_s):
        return math.inf
    capacity = max(batch / seconds for batch, seconds in curve)
    gpu, most = Gpu.of(curve), max(1, math.floor(capacity / rate_hz))
    robots = min(most, MOST_ROBOTS)
    each_hz = rate_hz * most / robots

    def fits(count: int) -> bool:
        return in_time(gpu, count, 1.0 / each_hz, within_s) >= SHARE

    low, high = 0, robots + 1
    guess, step = max(1, round(0.85 * robots)), max(1, robots // 12)
    while high - low > 1:  # from the guess outwards, then halves
        if fits(guess):
            low = guess
        else:
            high = guess
        guess = low + step if high > robots else high - step if low == 0 else (low + high) // 2
        guess, step = min(max(guess, low + 1), high - 1), 2 * step
    return low * each_hz


def fleet_hz(
    profiles: Sequence[Profile],
    rate_hz: float,
    within_s: float,
    slower: float = 1.0,
    forecast: Forecast = chunks_hz,
) -> float:
    """Of several replicas together, each so many times slower than it was measured. Small changes of what is
    measured need no new forecast. Raises Forecasting, once all that are needed are begun."""
    rate_hz, total_hz, missing = float(f"{rate_hz:.2e}"), 0.0, False
    for one in profiles:
        try:
            total_hz += forecast(_rounded(curve_of(one), slower), rate_hz, within_s)
        except Forecasting:
            missing = True
    if missing:
        raise Forecasting
    return total_hz


def _rounded(curve: Curve, slower: float) -> Curve:
    return tuple((batch, float(f"{slower * seconds:.2e}")) for batch, seconds in curve)
