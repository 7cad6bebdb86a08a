"""The grid of a stream's chunks follows the phase of its joints, whatever single ones do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from joint_arrivals import arrivals

from vla_accel_ros.engine.grid import AHEAD, FIRST, MOST, Grid

PERIOD_S = 0.002
LATE_ONES = {
    "late": {"late": 0.01},
    "more late": {"late": 0.05},
    "missing": {"missing": 0.1},
    "bursts": {"burst_s": 0.006},
    "all": {"late": 0.01, "missing": 0.01, "burst_s": 0.006},
}


def dues_s(grid: Grid, times_s: Iterable[float]) -> np.ndarray:
    """When chunks are due while joints come at these times and each chunk begins when it is due."""
    made = list[float]()
    for time_s in times_s:
        while grid.due_s < time_s:
            if math.isfinite(grid.due_s):
                made.append(grid.due_s)
            grid.began(max(grid.due_s, 0.0))
        grid.arrived(time_s)
    return np.array(made)


def times(*parts: list[tuple[float, int]]) -> list[float]:
    return [time_s for part in parts for time_s, _ in part]


def locked(**kinds: Any) -> Grid:
    """A grid after a second of joints."""
    grid = Grid(PERIOD_S)
    dues_s(grid, times(arrivals(1.0, **kinds)))
    assert grid.is_regular
    return grid


@pytest.mark.parametrize("kinds", LATE_ONES.values(), ids=LATE_ONES)
def test_chunks_are_due_evenly_a_margin_after_joints_come_on_average(kinds: dict[str, Any]) -> None:
    moments_s = dues_s(Grid(PERIOD_S), times(arrivals(10.0, **kinds)))[2 * FIRST :]
    assert len(moments_s) > 4800
    assert np.abs(np.diff(moments_s) / PERIOD_S - 1).max() < 0.1
    phase_s = moments_s[200:] % PERIOD_S
    assert phase_s.min() > 0.0 and phase_s.max() < (MOST + 0.1) * PERIOD_S


def test_the_margin_follows_the_jitter_up_to_a_bound() -> None:
    """Of 0.1 ms twice as much is some 98 % of the arrivals."""
    margins_s = [
        np.median(dues_s(Grid(PERIOD_S), times(arrivals(4.0, jitter_s=jitter_s)))[500:] % PERIOD_S)
        for jitter_s in (0.0, 1e-4, 3e-4)
    ]
    assert 0.0 < margins_s[0] < 1e-4
    assert margins_s[1] == pytest.approx(2e-4, rel=0.3)
    assert margins_s[2] == pytest.approx(MOST * PERIOD_S, rel=0.1)


def test_a_clock_that_drifts_is_followed() -> None:
    period_s = PERIOD_S * np.linspace(1.0, 1.01, 5000)
    coming_s = np.cumsum(period_s) + np.random.default_rng(0).normal(0.0, 1e-4, 5000)
    moments_s = dues_s(Grid(PERIOD_S), coming_s)
    assert np.diff(moments_s)[-100:].mean() == pytest.approx(1.01 * PERIOD_S, rel=0.002)


@pytest.mark.parametrize("period_s", [0.0025, 0.0016, 0.004])
def test_another_rate_and_another_phase_are_found_again(period_s: float) -> None:
    """Rates up to that of chunks; a phase after a gap."""
    for begin_s in (1.0, 1.3003):
        grid = Grid(0.0015)
        dues_s(grid, times(arrivals(1.0)))
        assert grid.is_regular
        moments_s = dues_s(grid, times(arrivals(1.0, period_s, begin_s=begin_s)))
        assert grid.is_regular
        last_s = moments_s[-100:]
        assert np.diff(last_s).mean() == pytest.approx(period_s, rel=0.01)
        assert ((last_s - begin_s) % period_s).max() < (MOST + 0.1) * period_s


def test_joints_that_come_seldom_or_irregularly_make_no_chunk_wait_for_a_phase() -> None:
    random = np.random.default_rng(0)
    for coming_s in (
        np.cumsum(random.exponential(PERIOD_S, 2000)),
        np.arange(200) * 0.02,
        np.arange(FIRST - 1) * PERIOD_S,
    ):
        grid, regular = Grid(PERIOD_S), 0
        for time_s in coming_s:
            grid.arrived(float(time_s))
            regular += grid.is_regular
        assert regular < 0.1 * len(coming_s)
    grid.began(7.0)
    assert grid.due_s == 7.0 + PERIOD_S


def test_joints_that_are_faster_than_chunks_leave_chunks_their_own_period() -> None:
    grid = Grid(PERIOD_S)
    moments_s = dues_s(grid, times(arrivals(1.0, 0.001)))
    np.testing.assert_allclose(np.diff(moments_s), PERIOD_S)
    assert grid.is_regular
    seldom = Grid(1 / 60)
    dues_s(seldom, times(arrivals(1.0)))
    assert not seldom.is_regular, "many joints would be missing where none is new"


def test_joints_that_come_twice_count_once() -> None:
    coming_s = sorted(moment_s + more_s for moment_s in times(arrivals(1.0)) for more_s in (0.0, 1e-4))
    grid = Grid(PERIOD_S)
    assert np.diff(dues_s(grid, coming_s)[2 * FIRST :]).mean() == pytest.approx(PERIOD_S, rel=0.01)
    assert grid.is_regular


def test_a_clock_that_is_set_back_delays_no_chunk_and_the_phase_is_found_again() -> None:
    grid = locked()
    grid.arrived(0.1)
    assert grid.due_s <= 0.1 and not grid.is_regular
    dues_s(grid, times(arrivals(1.0, begin_s=0.1)))
    assert grid.is_regular


def test_a_late_chunk_leaves_the_grid_as_it_is_and_an_early_one_lengthens_no_interval() -> None:
    grid = locked(jitter_s=0.0)
    due_s = grid.due_s
    for late_s in (0.0, 0.0005, 0.0015):
        grid.began(due_s + late_s)
        assert grid.due_s == pytest.approx(due_s + PERIOD_S)
        due_s = grid.due_s
    grid.began(due_s + 5.4 * PERIOD_S)
    assert grid.due_s == pytest.approx(due_s + 6 * PERIOD_S), "the next one, and not five late ones"
    due_s = grid.due_s
    grid.began(due_s - 0.5 * PERIOD_S)
    assert grid.due_s == pytest.approx(due_s), "the first chunk of a frame, which takes nobody's place"
    grid.began(due_s - AHEAD / 2 * PERIOD_S)
    assert grid.due_s == pytest.approx(due_s + PERIOD_S), "but where it is nearly due"


def test_the_same_arrivals_give_the_same_times_to_the_bit() -> None:
    coming_s = times(arrivals(2.0, late=0.01, missing=0.01, burst_s=0.006))
    first, second = (dues_s(Grid(PERIOD_S), coming_s) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert all(before < after for before, after in pairwise(first))
