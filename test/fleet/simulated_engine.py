"""What a replica would measure of an engine whose times are known: the simulated GPU of
test/engine/simulated_fleet.py, with the engine's own scheduler and lane."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from simulated_fleet import FRAMES_MS, SEATS, Fleet, p99_s

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.rules.rule import Rule, Setup, chosen
from vla_accel_ros.fleet.admission.replica_model import Measured
from vla_accel_ros.fleet.replicas.replica import MEASURED

STAGGERED = EngineConfig(fast=True, staggered=SEATS, seats_by_load=True)
BATCHES = EngineConfig(
    fast=True, staggered=SEATS, seats_by_load=True, scheduling="batches", frames_together=4
)


def maker(config: EngineConfig) -> Callable[[], Rule]:
    """Of the policy that such an engine runs."""
    return lambda: chosen(Setup(config, Profile()))


def most_of(config: EngineConfig) -> int:
    """Requests that a replica of it takes."""
    return SEATS + 2 * max(config.frames_together, 2)


@lru_cache
def measured(config: EngineConfig) -> Measured:
    """As LocalReplica.measure does."""
    curve, most = [], most_of(config)
    for batch in sorted({1, 2, 4, 8, 16, most}):
        fleet = Fleet(maker(config)(), batch)
        fleet.play([0.0] * batch * (MEASURED + 2))
        ends_s = sorted(at_s + took_s for at_s, took_s in fleet.took_s)
        begin, end = batch, (MEASURED + 1) * batch
        curve.append((batch, batch * (ends_s[end] - ends_s[begin]) / (end - begin)))
    frames = tuple((n, 1e-3 * ms) for n, ms in FRAMES_MS.items() if n <= config.frames_together)
    return Measured(tuple(curve), frames, most, config)


def waited_s(config: EngineConfig, asked_s: list[float], since_s: float) -> float:
    """The 99th percentile of how long requests took that came since then."""
    return p99_s(maker(config)(), asked_s, most_of(config), since_s)
