"""A loop's bookkeeping, with the time given from outside; and its thread, synchronised by events."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from simulated_loop import Clock, drive, ignore, make_loop

from vla_accel_ros.engine.streaming.loop import WINDOW_S, Loop


def test_it_runs_on_a_grid_of_periods() -> None:
    clock, starts = Clock(), []

    def body() -> bool:
        starts.append(clock.now_s)
        clock.now_s += 0.03
        return True

    loop = make_loop(clock, body)
    drive(loop, clock, until=100.95)
    assert starts == pytest.approx([100 + i / 10 for i in range(10)])
    stats = loop.stats()
    assert (stats.name, stats.target_hz, stats.runs, stats.idle, stats.misses) == ("vision", 10.0, 10, 0, 0)
    assert stats.p50_s == pytest.approx(0.03)
    assert stats.measured_hz == pytest.approx(10.0, rel=0.05)


def test_before_it_is_due_nothing_happens() -> None:
    clock = Clock()
    loop = make_loop(clock, lambda: True)
    due = loop.tick(100.0)
    assert due == pytest.approx(100.1)
    assert loop.tick(100.05) == due
    assert loop.stats().runs == 1


def test_late_runs_are_misses_and_lost_times_are_not_made_up() -> None:
    """A run of 0.25 s at 10 Hz: the next is due at 0.3 s, not three at once."""
    clock, durations, starts = Clock(), [0.25, 0.01, 0.06, 0.01], []

    def body() -> bool:
        starts.append(clock.now_s)
        clock.now_s += durations[len(starts) - 1]
        return True

    loop = make_loop(clock, body)
    drive(loop, clock, until=100.55)
    assert starts == pytest.approx([100.0, 100.3, 100.4, 100.5])
    stats = loop.stats()
    assert stats.misses == 2 and stats.p50_s < 0.06 < 0.2 < stats.p99_s


def test_a_late_start_counts_against_the_deadline() -> None:
    clock = Clock()
    loop = make_loop(clock, lambda: True)
    loop.tick(100.0)
    clock.now_s = 100.16  # due at 100.1, deadline 0.05
    assert loop.tick(clock.now_s) == pytest.approx(100.2)
    assert loop.stats().misses == 1


def test_idle_is_neither_a_run_nor_a_miss() -> None:
    clock = Clock()

    def body() -> bool:
        clock.now_s += 0.07
        return False

    loop = make_loop(clock, body)
    drive(loop, clock, until=100.95)
    stats = loop.stats()
    assert (stats.runs, stats.misses, stats.measured_hz, stats.p50_s) == (0, 0, 0.0, 0.0)
    assert stats.idle == 10


def test_rates_are_of_the_last_seconds() -> None:
    clock, durations = Clock(), iter([*[0.01] * 50, *[0.02] * 50])

    def body() -> bool:
        clock.now_s += next(durations)
        return True

    loop = make_loop(clock, body)
    drive(loop, clock, until=109.95)
    stats = loop.stats()
    assert stats.measured_hz == pytest.approx(10.0, rel=0.05)
    assert stats.p50_s == pytest.approx(0.02)
    clock.now_s += WINDOW_S / 2
    assert loop.stats().measured_hz == pytest.approx(5.0, rel=0.1)
    clock.now_s += WINDOW_S
    stats = loop.stats()
    assert (stats.measured_hz, stats.p99_s, stats.runs) == (0.0, 0.0, 100)


def test_an_error_is_handed_over() -> None:
    clock, seen = Clock(), []

    def body() -> bool:
        raise RuntimeError("lens cap")

    loop = make_loop(clock, body, on_error=lambda error: seen.append(str(error)))
    assert loop.tick(100.0) == pytest.approx(100.1)
    assert seen == ["lens cap"]
    stats = loop.stats()
    assert (stats.runs, stats.idle) == (0, 0)
    loop.stop()


def test_an_error_that_cannot_be_handed_over_is_logged_and_the_loop_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    again, runs = threading.Event(), list[Any]()

    def body() -> bool:
        runs.append(None)
        if len(runs) == 3:
            again.set()
        raise RuntimeError("lens cap")

    def on_error(error: Exception) -> None:
        raise OSError("no publisher")

    loop = Loop("vision", 1000.0, 1.0, body, on_error=on_error)
    loop.start()
    assert again.wait(timeout=30)
    loop.stop()
    assert "the loop 'vision' goes on" in caplog.text
    assert "lens cap" in caplog.text and "no publisher" in caplog.text


def test_the_thread_runs_until_stopped_and_can_start_again() -> None:
    runs, enough = [], threading.Event()

    def body() -> bool:
        runs.append(threading.current_thread().name)
        if len(runs) % 3 == 0:
            enough.set()
        return True

    loop = Loop("action", 1000.0, 1.0, body, ignore)
    for _ in range(2):
        enough.clear()
        loop.start()
        with pytest.raises(RuntimeError, match=r"'action' .*already"):
            loop.start()
        assert enough.wait(timeout=30)
        loop.stop()
        assert not loop.running
        count = len(runs)
        assert count >= 3
    assert set(runs) == {"action"}
    assert loop.stats().runs == count


def test_a_loop_may_stop_itself() -> None:
    loop: Loop

    def body() -> bool:
        loop.stop()
        return True

    loop = Loop("vision", 100.0, 1.0, body, ignore)
    loop.start()
    assert loop._thread is not None
    loop._thread.join(timeout=30)
    assert loop.stats().runs == 1


@pytest.mark.parametrize(
    ("rate", "deadline"), [(0, 1), (-1, 1), (float("inf"), 1), (1, 0), (1, float("nan"))]
)
def test_rates_and_deadlines_are_checked(rate: float, deadline: float) -> None:
    with pytest.raises(ValueError, match="'vision'"):
        Loop("vision", rate, deadline, lambda: True, ignore)
