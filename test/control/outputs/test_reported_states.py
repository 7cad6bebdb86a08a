"""What controllers say of themselves, as Humble, Jazzy and UR fill it, and as some that say little do."""

from __future__ import annotations

import pytest

from vla_accel_ros.control.outputs.reports import Execution, Reports

MS = 1_000_000
BEGAN = 1000 * 1_000_000_000


def make_state(
    passed_ms: float,
    at: float,
    velocity: float | None = None,
    feedback_ms: float | None = None,
    began: int = BEGAN,
) -> Execution:
    """Of two joints, so long after a trajectory began; feedback_ms: since then by its clock, where it is not
    the same."""
    since_ns, passed_ns = (round((passed_ms if ms is None else ms) * MS) for ms in (feedback_ms, None))
    return Execution(began + since_ns, since_ns, passed_ns, {"a": at, "b": -at}, bool(velocity))


def test_when_its_trajectory_began_and_where_it_is():
    report = Reports().read(make_state(40.0, 0.3, 1.0))
    assert report.began_ns == BEGAN and report.stamp_ns == BEGAN + 40 * MS
    assert report.reference == {"a": 0.3, "b": -0.3} and not report.rests and report.speed == 1.0


def test_one_that_always_tells_no_time_says_nothing_of_when_it_began():
    """Releases before Humble, and UR's scaled controller: the reference has the next point's time."""
    reports = Reports()
    for k in range(5):
        report = reports.read(make_state(100.0 * (k + 1), 0.1 * k, 1.0)._replace(since_ns=0))
        assert report.began_ns is None and report.speed == 1.0 and not report.rests


@pytest.mark.parametrize("velocity", [None, 0.0])
def test_one_that_tells_no_velocity_rests_where_two_states_are_the_same(velocity):
    reports = Reports()
    moved = [reports.read(make_state(20.0 * k, 0.1 * min(k, 3), velocity)).rests for k in range(1, 7)]
    assert moved == [False, False, False, True, True, True]


def test_one_that_has_told_velocities_rests_where_they_are_zero():
    reports = Reports()
    rests = [
        reports.read(make_state(20.0 * k, 0.1 * k, v)).rests for k, v in enumerate((1.0, 1.0, 0.0, 0.5), 1)
    ]
    assert rests == [False, False, True, False]


def test_one_state_of_a_rest_that_is_told_again_and_again_with_new_stamps_is_none():
    """A relay or a bridge that is stuck: the controller has moved on since."""
    reports = Reports()
    for k in range(1, 5):
        reports.read(make_state(20.0 * k, 0.1 * k, 1.0))
    assert not any(
        reports.read(make_state(500.0, 0.4, 0.0, began=BEGAN + 20 * k * MS)).rests for k in range(1, 9)
    )


@pytest.mark.parametrize("share", [0.5, 0.0, 1.3])
def test_how_fast_it_executes_shows_in_what_has_passed(share):
    reports = Reports()
    for k in range(1, 4):
        assert reports.read(make_state(10.0 * k, 0.1 * k, 1.0)).speed == 1.0
    states = [make_state(30.0 + share * 20.0 * k, 0.3, 1.0, 30.0 + 20.0 * k) for k in range(1, 5)]
    assert all(abs(reports.read(state).speed - 1.0) > 0.05 for state in states)
    anew = [make_state(10.0 * k, 0.3, 1.0, began=BEGAN + 500 * MS) for k in (1, 2)]
    assert [reports.read(state).speed for state in anew][-1] == 1.0, "another trajectory"


@pytest.mark.parametrize("share", [0.9, 0.0])
def test_how_fast_it_executes_shows_in_three_states_where_it_rests_or_is_a_little_slower(share):
    reports = Reports()
    states = [make_state(share * 20.0 * k, 0.3, 0.1 * (share > 0), 20.0 * k) for k in range(1, 5)]
    speeds = [reports.read(state).speed for state in states]
    assert speeds[:2] == [1.0, 1.0] and speeds[2:] == pytest.approx([share, share])
    # At rest again by its own clock, however much of its time was lost.
    for k in range(5, 9):
        speed = reports.read(make_state(share * 80.0 + 20.0 * (k - 4), 0.3, 0.0, 20.0 * k)).speed
    assert speed == 1.0


def test_states_that_come_at_500_hz_and_jitter_are_of_its_own_speed():
    reports = Reports()
    for k in range(1, 200):
        state = make_state(2.0 * k, 0.001 * k, 0.5)
        state = state._replace(stamp_ns=BEGAN + 2 * k * MS + (k % 7) * MS // 4)  # as Humble's
        assert reports.read(state).speed == 1.0


def test_what_is_not_filled_is_not_there():
    report = Reports().read(Execution(0, 0, 0, {}, False))
    assert report.reference == {} and report.began_ns is None and not report.rests
    reports = Reports()
    states = [make_state(ms, 0.1, 0.0)._replace(passed_ns=0, reference={}) for ms in (20.0, 40.0)]
    assert [reports.read(state).rests for state in states] == [False, False]
