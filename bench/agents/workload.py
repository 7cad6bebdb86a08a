"""Poisson arrivals of agents' requests, the outcome of each, and what queueing theory predicts.

Arrivals are open-loop: a request comes whatever waits, and its latency counts from then. The queueing delay
is the time until its screen begins. One server that takes screens one after another is an M/G/1 queue (Nova,
equation 6): `mg1_s` is its mean delay from the moments of the service times, `same_s` the mean delay for the
actual arrivals and service times, a closer comparison for a short run.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from vla_accel_ros.engine.kv.pool import Prefix
from vla_accel_ros.engine.request import ASK, OBSERVE, Request
from vla_accel_ros.engine.scheduling.queue import QueueFull
from vla_accel_ros.engine.scheduling.scheduler import Scheduler
from vla_accel_ros.types import Observation

TOKENS = (30, 80)
"""Of an answer: Android instructions, as Nova has them."""


@dataclass(frozen=True)
class Arrival:
    """at_s: time since the start of the run. tokens: length of its answer."""

    at_s: float
    tokens: int


@dataclass
class Served:
    """One request. Times by the scheduler's clock: its arrival, the beginning and the prefill of its screen,
    and the end of its answer; NaN if it did not get there. gap_s: longest time between two tokens. said:
    number of tokens. lost: the reason."""

    came_s: float
    tokens: int
    began_s: float = math.nan
    prefilled_s: float = math.nan
    ended_s: float = math.nan
    gap_s: float = 0.0
    lost: str = ""
    said: tuple[int, ...] = ()
    told_s: float = math.nan

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.came_s


def poisson(
    rate_hz: float, count: int, seed: int = 0, tokens: tuple[int, int] = TOKENS
) -> tuple[Arrival, ...]:
    """Return `count` Poisson arrivals with uniformly distributed answer lengths. Raises ValueError for an
    invalid rate."""
    if not 0 < rate_hz < math.inf:
        raise ValueError(f"the rate of arrivals is {rate_hz}; give requests a second, more than 0.")
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate_hz, count))
    lengths = rng.integers(tokens[0], tokens[1] + 1, count)
    return tuple(Arrival(float(at_s), int(length)) for at_s, length in zip(times, lengths, strict=True))


def at_once(count: int, seed: int = 0, tokens: tuple[int, int] = TOKENS) -> tuple[Arrival, ...]:
    """Return this many requests that all arrive at once."""
    lengths = np.random.default_rng(seed).integers(tokens[0], tokens[1] + 1, count)
    return tuple(Arrival(0.0, int(length)) for length in lengths)


def within(arrivals: Sequence[Arrival], seconds: float) -> tuple[Arrival, ...]:
    """Return the arrivals of the first seconds, and at least the first arrival."""
    return tuple(one for one in arrivals if one.at_s < seconds) or tuple(arrivals[:1])


@dataclass
class Agents:
    """Submits requests to a scheduler and notes what becomes of them.

    served: all so far. Requests that a full queue refuses, that fail or are cancelled are lost, and say why.
    """

    scheduler: Scheduler
    served: list[Served] = field(default_factory=list)
    left: int = 0
    idle: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, arrival: Arrival, came_s: float) -> Served:
        """Submit a request with this arrival."""
        served = Served(came_s, arrival.tokens)
        with self._lock:
            self.left += 1
            self.idle.clear()
        self.served.append(served)
        screen = Observation({}, np.zeros(0, np.float32), "", stamp_ns=0)
        told = partial(self._screen_told, served)
        self._take(served, Request(OBSERVE, observation=screen, waits=True, on_progress=told))
        return served

    def _take(self, served: Served, request: Request) -> bool:
        try:
            self.scheduler.submit(request)
        except QueueFull as error:
            self._end(served, str(error))
            return False
        return True

    def _screen_told(self, served: Served, request: Request) -> None:
        served.began_s = request.begun_s
        if not request.finished:
            return
        prefix = request.result
        if not isinstance(prefix, Prefix):
            self._end(served, _why(request))
            return
        served.prefilled_s = served.told_s = self.scheduler.now_s()
        told = partial(self._answer_told, served, prefix)
        if not self._take(served, Request(ASK, prefix=prefix, max_tokens=served.tokens, on_progress=told)):
            prefix.release()

    def _answer_told(self, served: Served, prefix: Prefix, request: Request) -> None:
        now_s = self.scheduler.now_s()
        served.gap_s, served.told_s = max(served.gap_s, now_s - served.told_s), now_s
        if not request.finished:
            return
        prefix.release()
        if request.result is None:
            self._end(served, _why(request))
            return
        served.ended_s, served.said = now_s, tuple(request.tokens)
        self._end(served)

    def _end(self, served: Served, lost: str = "") -> None:
        served.lost = lost
        with self._lock:
            self.left -= 1
            if not self.left:
                self.idle.set()


def _why(request: Request) -> str:
    return repr(request.error) if request.error is not None else "it was cancelled"


def mg1_s(rate_hz: float, services_s: Sequence[float]) -> float:
    """Return the mean delay in an M/G/1 queue (Pollaczek-Khinchine); infinite if the utilisation is 1 or
    more."""
    services = np.asarray(services_s)
    utilisation = rate_hz * float(services.mean())
    if utilisation >= 1:
        return math.inf
    return rate_hz * float((services**2).mean()) / (2 * (1 - utilisation))


def same_s(came_s: Sequence[float], services_s: Sequence[float]) -> float:
    """Return the mean delay at one first-in, first-out server for these arrivals and durations (Lindley)."""
    free_s, waited_s = -math.inf, 0.0
    for came, service in zip(came_s, services_s, strict=True):
        begin_s = max(free_s, came)
        waited_s += begin_s - came
        free_s = begin_s + service
    return waited_s / len(came_s)


def figures(served: Sequence[Served], rate_hz: float, whole: bool = False) -> dict[str, Any]:
    """Of a run, in seconds: latencies, time to the first token and between tokens, requests a second, the
    delay in the queue beside what theory says. Lost requests are counted and in nothing else.

    rate_hz: of arrivals. whole: a request is served until its answer is whole, and not only until its screen
    is prefilled. queue_mg1_s is None where the queue would grow for ever; why: the first lost request was.
    """
    done = [one for one in served if not one.lost]
    found: dict[str, Any] = {
        "requests": len(served),
        "lost": len(served) - len(done),
        "why": next((one.lost for one in served if one.lost), None),
    }
    if not done:
        return found
    came, began, prefilled, ended = (
        np.array([getattr(one, name) for one in done])
        for name in ("came_s", "began_s", "prefilled_s", "ended_s")
    )
    latency, services = ended - came, (ended if whole else prefilled) - began
    after_first = np.array([max(1, one.tokens - 1) for one in done])
    predicted = mg1_s(rate_hz, services.tolist())
    p50, p99 = np.quantile(latency, (0.5, 0.99))
    return found | {
        "average_s": _short(latency.mean()),
        "p50_s": _short(p50),
        "p99_s": _short(p99),
        "max_s": _short(latency.max()),
        "requests_s": _short(len(done) / (ended.max() - came.min())),
        "first_token_s": _short((prefilled - came).mean()),
        "between_tokens_s": _short(((ended - prefilled) / after_first).mean()),
        "longest_gap_s": _short(max(one.gap_s for one in done)),
        "service_s": _short(services.mean()),
        "utilisation": _short(rate_hz * services.mean()),
        "queue_s": _short((began - came).mean()),
        "queue_mg1_s": _short(predicted) if math.isfinite(predicted) else None,
        "queue_same_s": _short(same_s(came.tolist(), services.tolist())),
    }


def _short(value: float) -> float:
    return round(float(value), 5)
