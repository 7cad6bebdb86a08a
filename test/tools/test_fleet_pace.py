"""How fast simulated time goes in the fleet's demo: as fast as the machine makes chunks."""

from __future__ import annotations

import pytest

from vla_accel_ros.tools.fleet_demo.pace import AGE_S, LEAST, MOST, changed, first


@pytest.mark.parametrize("makes_hz", [0.0, 0.1, 3.0, 20.0, 1e4])
def test_it_begins_with_what_was_measured_and_never_beyond_real_time(makes_hz: float) -> None:
    assert LEAST <= first(makes_hz, 12.0) <= MOST
    assert first(makes_hz, 12.0) <= first(2 * makes_hz, 12.0)
    assert first(makes_hz, 12.0) <= max(LEAST, makes_hz / 12.0)


@pytest.mark.parametrize("takes_s", [0.05, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("begins", [LEAST, 0.3, MOST])
def test_it_comes_to_where_chunks_are_as_old_as_wanted(takes_s: float, begins: float) -> None:
    """A chunk takes takes_s of real time; simulated time has gone on by less when it comes."""
    factor = begins
    for _ in range(60):
        factor = changed(factor, [0.5 * takes_s * factor, takes_s * factor])
    assert factor == pytest.approx(min(MOST, AGE_S / takes_s))


def test_the_slowest_robot_counts_and_where_none_waits_nothing_changes() -> None:
    assert changed(0.5, []) == 0.5
    assert changed(0.5, [0.1, 2.0]) < 0.5 < changed(0.5, [0.1, 0.1])
    assert changed(0.5, [0.1, 1e9]) > 0.1  # not all at once
