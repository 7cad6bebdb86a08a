"""A loop that awaits what it works on or is woken for it, with the time given from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from simulated_loop import Clock, drive, ignore, make_loop

from vla_accel_ros.engine.streaming.loop import PART, Loop

ASKING_S = 5e-6
"""What it takes to ask whether there is something to wait for."""


class Frames:
    """Frames every 1 / hz seconds from `first` on, which a loop awaits: waiting moves the clock."""

    def __init__(self, clock: Clock, first: float, hz: float = 30.0) -> None:
        self.clock, self.first, self.period = clock, first, 1 / hz
        self.lead_s = self.period / 8
        self.patiences: list[float] = []

    def wait(self, patience_s: float, given_up: Callable[[], bool]) -> None:
        self.patiences.append(patience_s)
        self.clock.now_s += ASKING_S
        if self.age_s() > 0.25 * self.period and self.period - self.age_s() <= patience_s:
            self.clock.now_s += self.period - self.age_s() + 1e-6

    def wake(self) -> None:
        pass

    def age_s(self) -> float:
        return (self.clock.now_s - self.first + 1e-9) % self.period


def watched(
    clock: Clock, frames: Frames, run_s: float, rate_hz: float
) -> tuple[Loop, list[float], list[float]]:
    """A loop that awaits frames; its starts, and the frames' ages then."""
    starts: list[float] = []
    ages: list[float] = []

    def body() -> bool:
        starts.append(clock.now_s)
        ages.append(frames.age_s())
        clock.now_s += run_s
        return True

    return make_loop(clock, body, rate_hz, deadline_s=1 / rate_hz, awaited=frames), starts, ages


@pytest.mark.parametrize("phase", [0.0, 0.001, 0.008, 0.016, 0.025, 0.033])
def test_a_loop_that_awaits_frames_takes_them_fresh_whatever_its_phase(phase: float) -> None:
    clock = Clock()
    frames = Frames(clock, 90.0 + phase)
    loop, _, ages = watched(clock, frames, run_s=0.03, rate_hz=10.0)
    drive(loop, clock, until=110.0)
    assert max(ages) <= 0.25 * frames.period
    assert loop.stats().misses == 0 and loop.stats().runs == pytest.approx(100, abs=1)
    assert loop.stats().p50_s == pytest.approx(0.03)


@pytest.mark.parametrize("phase", [0.0, 0.005, 0.01, 0.02, 0.032])
def test_the_grid_moves_to_a_little_before_the_frames(phase: float) -> None:
    clock = Clock()
    frames = Frames(clock, 90.0 + phase)
    loop, starts, ages = watched(clock, frames, run_s=0.03, rate_hz=10.0)
    drive(loop, clock, until=110.0)
    assert loop._due is not None
    early = (frames.first - loop._due) % frames.period
    assert early <= 2.0 * frames.lead_s + 1e-4
    assert loop.expects_s == pytest.approx(loop._due + frames.lead_s)
    assert starts[-1] - starts[-2] == pytest.approx(0.1)
    assert max(ages[-10:]) < 1e-4


@pytest.mark.parametrize("phase", [0.001, 0.005, 0.01, 0.02, 0.032])
def test_a_loop_as_fast_as_its_camera_takes_its_frames_as_they_come(phase: float) -> None:
    clock = Clock()
    frames = Frames(clock, 90.0 + phase)
    loop, starts, ages = watched(clock, frames, run_s=0.005, rate_hz=30.0)
    drive(loop, clock, until=115.0)
    assert max(ages[-100:]) < 1e-4
    assert len(starts) == pytest.approx(15 * 30, rel=0.02)


@pytest.mark.parametrize("phase", [0.001, 0.01, 0.032])
def test_a_loop_that_has_no_time_to_wait_is_due_a_little_after_the_frames(phase: float) -> None:
    clock = Clock()
    frames = Frames(clock, 90.0 + phase)
    loop, starts, ages = watched(clock, frames, run_s=0.028, rate_hz=30.0)
    drive(loop, clock, until=115.0)
    assert max(ages[-100:]) <= 2.0 * frames.lead_s + 1e-4
    assert loop.expects_s == loop._due
    assert len(starts) == pytest.approx(15 * 30, rel=0.02)


@pytest.mark.parametrize("rate", [7.0, 12.0, 20.0, 29.0])
def test_awaiting_costs_no_runs_at_a_rate_that_does_not_divide_the_cameras(rate: float) -> None:
    clock = Clock()
    loop, starts, _ = watched(clock, Frames(clock, 90.01), run_s=0.01, rate_hz=rate)
    drive(loop, clock, until=120.0)
    assert len(starts) == pytest.approx(20 * rate, rel=0.02)
    assert loop.stats().misses == 0


def test_a_loop_that_fills_its_period_waits_for_nothing() -> None:
    clock = Clock()
    frames = Frames(clock, 90.0)
    loop, starts, _ = watched(clock, frames, run_s=0.095, rate_hz=10.0)
    drive(loop, clock, until=110.0)
    assert len(starts) == pytest.approx(100, abs=1)
    assert max(frames.patiences[1:]) <= 0.0051
    assert frames.patiences[0] == PART * 0.1


def test_frames_that_do_not_come_leave_the_loop_its_period() -> None:
    clock = Clock()
    frames = Frames(clock, 90.0, hz=0.001)
    loop, starts, _ = watched(clock, frames, run_s=0.03, rate_hz=10.0)
    drive(loop, clock, until=101.95)
    assert starts == pytest.approx([100 + i / 10 for i in range(20)])


def test_stopping_a_thread_that_awaits_does_not_wait_for_what_it_awaits() -> None:
    class Never:
        def __init__(self) -> None:
            self.changed, self.asked = threading.Condition(), threading.Event()
            self.lead_s = 0.0

        def age_s(self) -> float:
            return 0.0

        def wait(self, patience_s: float, given_up: Callable[[], bool]) -> None:
            with self.changed:
                self.asked.set()
                self.changed.wait_for(given_up, patience_s)

        def wake(self) -> None:
            with self.changed:
                self.changed.notify_all()

    never, runs = Never(), []

    def run() -> bool:
        runs.append(1)
        return True

    loop = Loop("vision", 0.001, 1000.0, run, ignore, awaited=never)
    loop.start()
    assert never.asked.wait(timeout=30)
    loop.stop()
    assert not loop.running and not runs


def test_one_slow_run_does_not_end_the_waiting() -> None:
    clock = Clock()
    frames = Frames(clock, 90.0)
    durations = iter([0.03] * 20 + [0.2] + [0.03] * 100)

    def body() -> bool:
        clock.now_s += next(durations)
        return True

    drive(make_loop(clock, body, deadline_s=0.1, awaited=frames), clock, until=108.0)
    assert min(frames.patiences) == PART * 0.1


def test_frames_that_drift_against_the_loop_are_followed() -> None:
    """Cameras at 29.9 and 30.1 Hz: the grid moves with them, and next to no runs are lost."""
    for hz in (29.9, 30.1):
        clock = Clock()
        frames = Frames(clock, 90.0, hz)
        loop, starts, ages = watched(clock, frames, run_s=0.03, rate_hz=10.0)
        drive(loop, clock, until=200.0)
        assert len(starts) == pytest.approx(1000, rel=0.015)
        assert max(ages) <= 0.26 * frames.period
        assert loop.stats().misses == 0
