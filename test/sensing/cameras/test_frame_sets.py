"""When the cameras' frames make a set, how long the next is worth waiting for, and threads that wait."""

from __future__ import annotations

import threading

import pytest
from streams import MS, S

from vla_accel_ros.sensing.cameras.frame_sets import FRESH, LATE, LEAST, FrameSets

FRAME_S = 1 / 30


class Clock:
    """Seconds that stand still until moved."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def make_sets(cameras: int = 2, hz: float = 30.0) -> tuple[FrameSets, Clock]:
    clock = Clock()
    return FrameSets({f"camera{i}": hz for i in range(cameras)}, clock), clock


def film(sets: FrameSets, clock: Clock, frames: int, offsets_s=(0.0, 0.003), period_s=FRAME_S) -> None:
    """Frames of all cameras, each `offsets_s` behind the beat; they arrive when taken. The clock ends at the
    last arrival."""
    begin = clock.now
    arrivals = sorted(
        (begin + k * period_s + offset, camera)
        for k in range(frames)
        for camera, offset in enumerate(offsets_s)
    )
    for clock.now, camera in arrivals:
        sets.arrived(f"camera{camera}", round(clock.now * S))


def test_nothing_is_worth_waiting_for_before_the_rhythm_is_known():
    sets, clock = make_sets()
    assert sets.worth_s(1.0) == 0.0 and not sets.wait(1.0)
    film(sets, clock, 1)
    assert sets.worth_s(1.0) == 0.0


def test_the_next_set_is_waited_for_until_half_an_interval_after_it_is_expected():
    sets, clock = make_sets()
    film(sets, clock, 5)
    clock.now += 0.5 * FRAME_S
    assert sets.worth_s(1.0) == pytest.approx((0.5 + LATE) * FRAME_S)
    clock.now += 0.6 * FRAME_S
    assert sets.worth_s(1.0) == pytest.approx((LATE - 0.1) * FRAME_S)
    clock.now += 0.6 * FRAME_S
    assert sets.worth_s(1.0) == 0.0


def test_a_set_that_has_just_come_is_taken():
    sets, clock = make_sets()
    film(sets, clock, 5)
    clock.now += 0.9 * FRESH * FRAME_S
    assert sets.worth_s(1.0) == 0.0 and sets.wait(1.0)
    clock.now += 0.2 * FRESH * FRAME_S
    assert sets.worth_s(1.0) > 0.0


def test_best_is_to_be_due_just_after_a_set_of_an_even_rhythm_and_later_after_an_uneven_one():
    sets, clock = make_sets()
    assert sets.lead_s == 0.0
    for late_s, lead in ((0.0, LEAST), (0.1, 0.1), (0.4, FRESH / 2)):
        clock.now += (1.0 + late_s) * FRAME_S - 0.003
        film(sets, clock, 5)
        assert sets.lead_s == pytest.approx(lead * FRAME_S), "as late as one was lately, while a set is fresh"
    clock.now += sets.lead_s
    assert sets.worth_s(1.0) == 0.0


def test_patience_bounds_the_wait_and_is_not_spent_on_what_comes_later():
    sets, clock = make_sets()
    film(sets, clock, 5)
    clock.now += 0.5 * FRAME_S
    assert sets.worth_s(0.6 * FRAME_S) == pytest.approx(0.6 * FRAME_S)
    assert sets.worth_s(0.4 * FRAME_S) == 0.0 and not sets.wait(0.4 * FRAME_S)


def test_a_silent_camera_is_not_waited_for():
    sets, clock = make_sets()
    film(sets, clock, 5)
    for _ in range(5):
        clock.now += FRAME_S
        sets.arrived("camera0", round(clock.now * S))
    assert sets.worth_s(1.0) == 0.0 and not sets.wait(1.0)


def test_a_camera_that_never_came_is_not_waited_for():
    sets, clock = make_sets()
    film(sets, clock, 5, offsets_s=(0.0,))
    assert sets.worth_s(1.0) == 0.0


@pytest.mark.parametrize("offsets_s", [(0.0,), (0.0, 0.0), (0.0, 0.01), (0.0, 0.0, 0.0)])
def test_there_is_one_set_an_interval(offsets_s):
    sets, clock = make_sets(len(offsets_s))
    film(sets, clock, 20, offsets_s)
    assert sets.count == pytest.approx(20, abs=1)


@pytest.mark.parametrize("offsets_s", [(0.0, 0.015), (0.0, FRAME_S / 2), (0.0, 0.011, 0.022)])
def test_cameras_out_of_step_make_sets_too(offsets_s):
    """Then more than one pairing is as good as can be, and each of them is a set."""
    sets, clock = make_sets(len(offsets_s))
    film(sets, clock, 20, offsets_s)
    assert 19 <= sets.count <= 20 * len(offsets_s)
    clock.now += 0.4 * FRAME_S / len(offsets_s)
    assert 0.0 < sets.worth_s(1.0) <= (1.0 + LATE) * FRAME_S


def test_frames_of_two_beats_are_no_set():
    sets, clock = make_sets()
    film(sets, clock, 5)
    whole = sets.count
    clock.now += 0.9 * FRAME_S
    sets.arrived("camera0", round(clock.now * S))
    assert sets.count == whole
    sets.arrived("camera1", round(clock.now * S))
    assert sets.count == whole + 1


def test_the_slower_camera_gives_the_beat():
    sets, clock = make_sets(2, hz=30.0)
    stamps = sorted([(k / 30, 0) for k in range(40)] + [(k / 15 + 0.004, 1) for k in range(20)])
    begin = clock.now
    for stamp_ms, camera in stamps:
        clock.now = begin + stamp_ms
        sets.arrived(f"camera{camera}", round(clock.now * S))
    assert sets.count == pytest.approx(20, abs=1)


def test_a_duplicate_and_an_older_frame_are_no_new_set():
    sets, clock = make_sets(1)
    film(sets, clock, 5, offsets_s=(0.0,))
    whole, stamp_ns = sets.count, round(clock.now * S)
    sets.arrived("camera0", stamp_ns)
    sets.arrived("camera0", stamp_ns - 30 * MS)
    assert sets.count == whole


def test_a_clock_set_back_and_a_fresh_start_begin_anew():
    sets, clock = make_sets(1)
    film(sets, clock, 5, offsets_s=(0.0,))
    whole = sets.count
    sets.arrived("camera0", 3 * S)
    assert sets.count == whole + 1
    sets.clear()
    assert sets.worth_s(1.0) == 0.0
    sets.arrived("camera0", S)
    assert sets.count == whole + 2


def waiting(sets: FrameSets, given_up=lambda: False) -> tuple[threading.Thread, list[bool]]:
    """A thread that waits for a set that is expected in minutes; returns once it does."""
    waiting, answers = threading.Event(), []

    def asks() -> bool:
        waiting.set()
        return given_up()

    thread = threading.Thread(target=lambda: answers.append(sets.wait(1000.0, asks)), daemon=True)
    thread.start()
    assert waiting.wait(timeout=30)
    return thread, answers


def test_a_thread_that_waits_goes_on_with_the_set_and_not_with_half_of_it():
    sets, clock = make_sets(hz=0.01)
    film(sets, clock, 4, offsets_s=(0.0, 0.0), period_s=100.0)
    clock.now += 50.0
    thread, answers = waiting(sets)
    clock.now += 50.0
    sets.arrived("camera0", round(clock.now * S))
    assert thread.is_alive() and not answers
    sets.arrived("camera1", round(clock.now * S))
    thread.join(timeout=30)
    assert answers == [True]


def test_a_thread_that_waits_goes_on_when_it_has_given_up():
    sets, clock = make_sets(hz=0.01)
    film(sets, clock, 4, offsets_s=(0.0, 0.0), period_s=100.0)
    clock.now += 50.0
    stopping = threading.Event()
    thread, answers = waiting(sets, stopping.is_set)
    stopping.set()
    sets.wake()
    thread.join(timeout=30)
    assert answers == [False]


def test_a_set_that_was_expected_and_does_not_come_ends_the_wait():
    sets, clock = make_sets(1, hz=1000.0)
    film(sets, clock, 5, offsets_s=(0.0,), period_s=0.001)
    clock.now += 0.0005
    assert not sets.wait(1000.0)
