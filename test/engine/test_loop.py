"""A loop's bookkeeping, with the time given from outside; and its thread, synchronised by events."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from vla_accel_ros.engine.loop import PART, WINDOW_S, Loop


class Clock:
    """Time that stands still until moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_loop(
    clock: Clock,
    body: Callable[[], bool],
    rate_hz: float = 10.0,
    deadline_s: float = 0.05,
    **arguments: object,
) -> Loop:
    return Loop("vision", rate_hz, deadline_s, body, clock, **arguments)


def drive(loop: Loop, clock: Clock, until: float) -> None:
    """What the thread does, without waiting."""
    while clock.now < until:
        clock.now = max(clock.now, loop.tick(clock.now))


def test_it_runs_on_a_grid_of_periods() -> None:
    clock, starts = Clock(), []

    def body() -> bool:
        starts.append(clock.now)
        clock.now += 0.03
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
        starts.append(clock.now)
        clock.now += durations[len(starts) - 1]
        return True

    loop = make_loop(clock, body)
    drive(loop, clock, until=100.55)
    assert starts == pytest.approx([100.0, 100.3, 100.4, 100.5])
    assert loop.stats().misses == 2


def test_a_late_start_counts_against_the_deadline() -> None:
    clock = Clock()
    loop = make_loop(clock, lambda: True)
    loop.tick(100.0)
    clock.now = 100.16  # due at 100.1, deadline 0.05
    assert loop.tick(clock.now) == pytest.approx(100.2)
    assert loop.stats().misses == 1


def test_idle_is_neither_a_run_nor_a_miss() -> None:
    clock = Clock()

    def body() -> bool:
        clock.now += 0.07
        return False

    loop = make_loop(clock, body)
    drive(loop, clock, until=100.95)
    stats = loop.stats()
    assert (stats.runs, stats.misses, stats.measured_hz, stats.p50_s) == (0, 0, 0.0, 0.0)
    assert stats.idle == 10


def test_rates_are_of_the_last_seconds() -> None:
    clock, durations = Clock(), iter([*[0.01] * 50, *[0.02] * 50])

    def body() -> bool:
        clock.now += next(durations)
        return True

    loop = make_loop(clock, body)
    drive(loop, clock, until=109.95)
    stats = loop.stats()
    assert stats.measured_hz == pytest.approx(10.0, rel=0.05)
    assert stats.p50_s == pytest.approx(0.02)
    clock.now += WINDOW_S / 2
    assert loop.stats().measured_hz == pytest.approx(5.0, rel=0.1)
    clock.now += WINDOW_S
    stats = loop.stats()
    assert (stats.measured_hz, stats.p99_s, stats.runs) == (0.0, 0.0, 100)


def test_the_slowest_runs_are_seen() -> None:
    clock, count = Clock(), iter(range(50))

    def body() -> bool:
        clock.now += 0.09 if next(count) == 7 else 0.01
        return True

    loop = make_loop(clock, body)
    drive(loop, clock, until=104.95)
    stats = loop.stats()
    assert stats.p50_s == pytest.approx(0.01)
    assert stats.p99_s > 0.04
    assert stats.misses == 1


def test_stats_before_the_first_run() -> None:
    stats = make_loop(Clock(), lambda: True).stats()
    assert (stats.measured_hz, stats.p50_s, stats.runs) == (0.0, 0.0, 0)


@pytest.mark.parametrize("go_on", [True, False])
def test_an_error_is_handed_over(go_on: bool) -> None:
    clock, seen = Clock(), []

    def body() -> bool:
        raise RuntimeError("lens cap")

    def on_error(error: Exception) -> bool:
        seen.append(str(error))
        return go_on

    loop = make_loop(clock, body, on_error=on_error)
    assert loop.tick(100.0) == pytest.approx(100.1)
    assert seen == ["lens cap"]
    stats = loop.stats()
    assert (stats.runs, stats.idle) == (0, 0)
    loop.stop()


def test_the_thread_runs_until_stopped_and_can_start_again() -> None:
    runs, enough = [], threading.Event()

    def body() -> bool:
        runs.append(threading.current_thread().name)
        if len(runs) % 3 == 0:
            enough.set()
        return True

    loop = Loop("action", 1000.0, 1.0, body)
    for _ in range(2):
        enough.clear()
        loop.start()
        with pytest.raises(RuntimeError, match="the loop 'action' is running already"):
            loop.start()
        assert enough.wait(timeout=30)
        loop.stop()
        assert not loop.running
        count = len(runs)
        assert count >= 3
    assert set(runs) == {"action"}
    assert loop.stats().runs == count


def test_stopping_a_thread_does_not_wait_for_its_period() -> None:
    once = threading.Event()

    def body() -> bool:
        once.set()
        return True

    loop = Loop("language", 0.001, 1.0, body)
    loop.start()
    assert once.wait(timeout=30)
    loop.stop()
    assert not loop.running


def test_an_error_nobody_takes_stops_the_thread_and_comes_out_of_stop() -> None:
    def body() -> bool:
        raise RuntimeError("lens cap")

    loop = Loop("vision", 100.0, 1.0, body)
    loop.start()
    assert loop._thread is not None
    loop._thread.join(timeout=30)
    assert not loop.running
    with pytest.raises(RuntimeError, match="lens cap"):
        loop.stop()
    loop.stop()


def test_a_loop_may_stop_itself() -> None:
    loop: Loop

    def body() -> bool:
        loop.stop()
        return True

    loop = Loop("vision", 100.0, 1.0, body)
    loop.start()
    assert loop._thread is not None
    loop._thread.join(timeout=30)
    assert loop.stats().runs == 1


@pytest.mark.parametrize(
    ("rate", "deadline"), [(0, 1), (-1, 1), (float("inf"), 1), (1, 0), (1, float("nan"))]
)
def test_rates_and_deadlines_are_checked(rate: float, deadline: float) -> None:
    with pytest.raises(ValueError, match="of the loop 'vision' is"):
        Loop("vision", rate, deadline, lambda: True)


class Frames:
    """Frames every 1 / hz seconds from `first` on, which a loop awaits: waiting moves the clock."""

    def __init__(self, clock: Clock, first: float, hz: float = 30.0) -> None:
        self.clock, self.first, self.period = clock, first, 1 / hz
        self.lead_s = self.period / 8
        self.patiences: list[float] = []

    def wait(self, patience_s: float, given_up: Callable[[], bool]) -> None:
        self.patiences.append(patience_s)
        if self.age_s() > 0.25 * self.period and self.period - self.age_s() <= patience_s:
            self.clock.now += self.period - self.age_s() + 1e-6

    def wake(self) -> None:
        pass

    def age_s(self) -> float:
        return (self.clock.now - self.first + 1e-9) % self.period


def watched(
    clock: Clock, frames: Frames, run_s: float, rate_hz: float
) -> tuple[Loop, list[float], list[float]]:
    """A loop that awaits frames; its starts, and the frames' ages then."""
    starts: list[float] = []
    ages: list[float] = []

    def body() -> bool:
        starts.append(clock.now)
        ages.append(frames.age_s())
        clock.now += run_s
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
def test_the_grid_moves_behind_the_frames_so_that_nothing_is_waited(phase: float) -> None:
    clock = Clock()
    frames = Frames(clock, 90.0 + phase)
    loop, starts, _ = watched(clock, frames, run_s=0.03, rate_hz=10.0)
    drive(loop, clock, until=104.0)
    assert loop.due_s is not None
    assert (loop.due_s - frames.first + 1e-6) % frames.period <= 0.25 * frames.period
    assert starts[-1] - starts[-2] == pytest.approx(0.1)


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


def test_a_loop_is_hastened_and_goes_on_from_there() -> None:
    clock, starts = Clock(), []
    loop = make_loop(clock, lambda: starts.append(clock.now) or True)
    loop.hasten(clock.now)
    loop.tick(100.0)
    clock.now = 100.04
    loop.hasten(clock.now)
    assert loop.tick(clock.now) == pytest.approx(100.14)
    assert starts == [100.0, 100.04]


def test_a_thread_is_woken_for_work_long_before_its_period_ends() -> None:
    ran = threading.Semaphore(0)

    def body() -> bool:
        ran.release()
        return True

    loop = Loop("action", 0.001, 1.0, body)
    loop.start()
    assert ran.acquire(timeout=30)
    for _ in range(3):
        loop.wake()
        assert ran.acquire(timeout=30)
    loop.stop()
    assert loop.stats().runs == 4


def test_stopping_a_thread_that_awaits_does_not_wait_for_what_it_awaits() -> None:
    class Never:
        def __init__(self) -> None:
            self.changed, self.asked = threading.Condition(), threading.Event()
            self.lead_s = 0.0

        def wait(self, patience_s: float, given_up: Callable[[], bool]) -> None:
            with self.changed:
                self.asked.set()
                self.changed.wait_for(given_up, patience_s)

        def wake(self) -> None:
            with self.changed:
                self.changed.notify_all()

    never, runs = Never(), []
    loop = Loop("vision", 0.001, 1000.0, lambda: runs.append(1) or True, awaited=never)
    loop.start()
    assert never.asked.wait(timeout=30)
    loop.stop()
    assert not loop.running and not runs


def test_one_slow_run_does_not_end_the_waiting() -> None:
    clock = Clock()
    frames = Frames(clock, 90.0)
    durations = iter([0.03] * 20 + [0.2] + [0.03] * 100)

    def body() -> bool:
        clock.now += next(durations)
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
