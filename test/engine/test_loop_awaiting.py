"""A loop that awaits what it works on or is woken for it, with the time given from outside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulated_loop import Clock, drive, make_loop

from vla_accel_ros.engine.streaming.loop import PART

ASKING_S = 5e-6
"""What it takes to ask whether there is something to wait for."""


class Frames:
    """Frames every 1 / hz seconds from `first` on, which a loop awaits: waiting moves the clock."""

    def __init__(self, clock: Clock, first: float, hz: float = 30) -> None:
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


class Watched:
    """A loop that awaits frames, until a time; its starts, and the frames' ages then."""

    def __init__(
        self, frames_s: float, run_s: float, rate_hz: float, until_s: float, hz: float = 30.0
    ) -> None:
        """frames_s: when the first frame comes; run_s: what a run takes."""
        self.clock = Clock()
        self.frames = Frames(self.clock, frames_s, hz)
        self.starts: list[float] = []
        self.ages: list[float] = []
        self.run_s = run_s
        self.loop = make_loop(self.clock, self.run, rate_hz, deadline_s=1 / rate_hz, awaited=self.frames)
        drive(self.loop, self.clock, until_s)
        self.stats = self.loop.stats()

    def run(self) -> bool:
        self.starts.append(self.clock.now_s)
        self.ages.append(self.frames.age_s())
        self.clock.now_s += self.run_s
        return True


@pytest.mark.parametrize("phase", [0.0, 0.001, 0.008, 0.016, 0.025, 0.033])
def test_a_loop_that_awaits_frames_takes_them_fresh_whatever_its_phase(phase: float) -> None:
    watched = Watched(90.0 + phase, run_s=0.03, rate_hz=10.0, until_s=110.0)
    assert max(watched.ages) <= 0.25 * watched.frames.period
    assert watched.stats.misses == 0 and watched.stats.runs == pytest.approx(100, abs=1)
    assert watched.stats.p50_s == pytest.approx(0.03)


@pytest.mark.parametrize("phase", [0.0, 0.005, 0.01, 0.02, 0.032])
def test_the_grid_moves_to_a_little_before_the_frames(phase: float) -> None:
    watched = Watched(90.0 + phase, run_s=0.03, rate_hz=10.0, until_s=110.0)
    loop, frames = watched.loop, watched.frames
    assert loop._due is not None
    early = (frames.first - loop._due) % frames.period
    assert early <= 2.0 * frames.lead_s + 1e-4
    assert loop.expects_s == pytest.approx(loop._due + frames.lead_s)
    assert watched.starts[-1] - watched.starts[-2] == pytest.approx(0.1)
    assert max(watched.ages[-10:]) < 1e-4


@pytest.mark.parametrize("phase", [0.001, 0.005, 0.01, 0.02, 0.032])
def test_a_loop_as_fast_as_its_camera_takes_its_frames_as_they_come(phase: float) -> None:
    watched = Watched(90.0 + phase, run_s=0.005, rate_hz=30.0, until_s=115.0)
    assert max(watched.ages[-100:]) < 1e-4
    assert len(watched.starts) == pytest.approx(15 * 30, rel=0.02)


@pytest.mark.parametrize("phase", [0.001, 0.01, 0.032])
def test_a_loop_that_has_no_time_to_wait_is_due_a_little_after_the_frames(phase: float) -> None:
    watched = Watched(90.0 + phase, run_s=0.028, rate_hz=30.0, until_s=115.0)
    assert max(watched.ages[-100:]) <= 2.0 * watched.frames.lead_s + 1e-4
    assert watched.loop.expects_s == watched.loop._due
    assert len(watched.starts) == pytest.approx(15 * 30, rel=0.02)


@pytest.mark.parametrize("rate", [7.0, 12.0, 20.0, 29.0])
def test_awaiting_costs_no_runs_at_a_rate_that_does_not_divide_the_cameras(rate: float) -> None:
    watched = Watched(90.01, run_s=0.01, rate_hz=rate, until_s=120.0)
    assert len(watched.starts) == pytest.approx(20 * rate, rel=0.02)
    assert watched.stats.misses == 0


def test_a_loop_that_fills_its_period_waits_for_nothing() -> None:
    watched = Watched(90.0, run_s=0.095, rate_hz=10.0, until_s=110.0)
    assert len(watched.starts) == pytest.approx(100, abs=1)
    assert max(watched.frames.patiences[1:]) <= 0.0051
    assert watched.frames.patiences[0] == PART * 0.1


def test_frames_that_do_not_come_leave_the_loop_its_period() -> None:
    watched = Watched(90.0, run_s=0.03, rate_hz=10.0, until_s=101.95, hz=0.001)
    assert watched.starts == pytest.approx([100 + i / 10 for i in range(20)])


def test_one_slow_run_does_not_end_the_waiting() -> None:
    clock = Clock()
    frames = Frames(clock, 90.0)
    durations = iter([0.03] * 20 + [0.2] + [0.03] * 100)

    def body() -> bool:
        clock.now_s += next(durations)
        return True

    drive(make_loop(clock, body, deadline_s=0.1, awaited=frames), clock, until=108.0)
    assert min(frames.patiences) == PART * 0.1


@pytest.mark.parametrize("hz", [29.9, 30.1])
def test_frames_that_drift_against_the_loop_are_followed(hz: float) -> None:
    """The grid moves with them, and next to no runs are lost."""
    watched = Watched(90.0, run_s=0.03, rate_hz=10.0, until_s=200.0, hz=hz)
    assert len(watched.starts) == pytest.approx(1000, rel=0.015)
    assert max(watched.ages) <= 0.26 * watched.frames.period
    assert watched.stats.misses == 0
