"""The two clocks of an output: a step is as long by the steady one as by the stamps of its commands."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vla_accel_ros.control.outputs.output import steady_ns

MS = 1_000_000
STEADY_NS = 7_000 * MS


def clock_at(now_ns: int, passed_ns: int, simulated: bool = False) -> SimpleNamespace:
    """Both clocks, passed_ns after ROS time was now_ns and the steady clock STEADY_NS."""
    return SimpleNamespace(
        now_ns=lambda: now_ns + passed_ns, monotonic_ns=lambda: STEADY_NS + passed_ns, simulated=simulated
    )


@pytest.mark.parametrize("passed_ns", [0, 3 * MS, 900 * MS])
def test_the_steady_time_is_that_of_the_stamp_though_the_process_was_preempted_since(passed_ns: int) -> None:
    assert steady_ns(clock_at(500 * MS, passed_ns), 500 * MS) == STEADY_NS


@pytest.mark.parametrize("set_ns", [-3_600_000 * MS, -MS, 1_100 * MS, 3_600_000 * MS])
def test_a_clock_that_was_set_since_moves_no_steady_time(set_ns: int) -> None:
    clock = clock_at(500 * MS, 0)
    clock.now_ns = lambda: 500 * MS + set_ns
    assert steady_ns(clock, 500 * MS) == STEADY_NS


def test_there_is_no_steady_time_in_simulated_time() -> None:
    assert steady_ns(clock_at(500 * MS, 0, simulated=True), 500 * MS) is None


def test_readings_between_which_the_process_was_preempted_are_made_again() -> None:
    steady = iter([STEADY_NS, STEADY_NS + 3 * MS, STEADY_NS + 3 * MS, STEADY_NS + 3 * MS])
    ros = iter([500 * MS, 503 * MS])
    clock = SimpleNamespace(now_ns=ros.__next__, monotonic_ns=steady.__next__, simulated=False)
    assert steady_ns(clock, 500 * MS) == STEADY_NS
