"""The scheduler's time: real, or as simulated time goes, whatever that is set to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.replicas.replica import SERVE
from vla_accel_ros.nodes.fleet.clock import SchedulerClock

S = 1_000_000_000


class Times:
    """Real and simulated time of a test."""

    def __init__(self, ros_ns: int | None) -> None:
        self.steady_s, self.ros_ns = 100.0, ros_ns
        self.clock = SchedulerClock(lambda: self.ros_ns, lambda: self.steady_s)

    def go(self, seconds: float, pace: float) -> None:
        self.steady_s += seconds
        if self.ros_ns is not None:
            self.ros_ns += round(seconds * pace * S)


def replica(**profile: float) -> Any:
    """One that makes a chunk in so many real seconds."""
    return SimpleNamespace(name="local", profile=Profile({(SERVE, 1): profile.get("takes_s", 0.4)}))


def test_real_time_is_steady_time_and_scales_nothing() -> None:
    times, one = Times(None), replica()
    for _ in range(5):
        times.go(0.5, 1.0)
        assert times.clock.look([one])
    assert times.clock.now_s() == 102.5
    assert one.profile.known() == {(SERVE, 1): 0.4}


def test_simulated_time_goes_on_over_jumps() -> None:
    times = Times(0)
    assert times.ros_ns is not None
    times.go(1.0, 0.25)
    times.ros_ns += 1_700_000_000 * S  # the first that is heard of the simulation's clock
    times.clock.jumped(1_700_000_000 * S)
    times.go(1.0, 0.25)
    assert times.clock.now_s() == pytest.approx(0.5)
    times.ros_ns -= 1000 * S
    times.clock.jumped(-1000 * S)
    assert times.clock.now_s() == pytest.approx(0.5)


def test_a_replica_makes_more_chunks_in_slower_seconds() -> None:
    times, one = Times(5 * S), replica(takes_s=0.4)
    assert not times.clock.look([one])
    times.go(0.5, 0.1)
    assert times.clock.look([one])
    for pace in (0.1, 0.5, 1.0):
        for _ in range(6):
            times.clock.look([one])
            times.go(0.5, pace)
        assert one.profile.known()[SERVE, 1] == pytest.approx(0.4 * pace, rel=0.3)
    times.clock.look([one])
    assert one.profile.known()[SERVE, 1] == pytest.approx(0.4, rel=0.06)


def test_one_that_was_measured_anew_is_scaled_anew_and_time_that_stands_still_changes_nothing() -> None:
    times, one = Times(5 * S), replica(takes_s=0.4)
    for _ in range(6):
        times.clock.look([one])
        times.go(0.5, 0.1)
    one.profile = Profile({(SERVE, 1): 0.8})
    times.clock.look([one])
    assert one.profile.known()[SERVE, 1] == pytest.approx(0.08)
    for _ in range(6):
        times.go(0.5, 0.0)
        times.clock.look([one])
    assert one.profile.known()[SERVE, 1] > 0.0
