"""Whatever is asked, the sampled path keeps every limit; what keeps them already is not touched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from motion import JOINTS, LIMITS, S, assert_within_limits, safe_states

from vla_accel_ros.control.limits.joint_limits import JointLimits, brake
from vla_accel_ros.control.limits.trajectory_limits import enforce
from vla_accel_ros.control.trajectory import (
    Trajectory,
    TrajectoryPoint,
    check_finite,
    extremes,
    knot_velocities,
)

REST = TrajectoryPoint(0, np.zeros(3), np.zeros(3))


def make_asked(positions, step_s: float = 0.05) -> Trajectory:
    positions = np.asarray(positions, dtype=np.float64)
    return Trajectory(JOINTS, np.round(np.arange(1, len(positions) + 1) * step_s * S).astype(int), positions)


def wild_positions():
    """Point clouds, walks with jumps and absurd values: what a broken policy might say."""
    size = st.tuples(st.integers(1, 25), st.just(3))
    return arrays(
        np.float64, size, elements=st.one_of(st.floats(-3, 3), st.sampled_from([0.0, 1.0, -1e38, 1e38]))
    )


@given(wild_positions(), safe_states(), st.sampled_from([0.01, 1 / 30, 0.1, 0.37]))
def test_any_request_is_led_within_limits_to_rest_where_it_ends(positions, start, step_s):
    target = make_asked(positions, step_s)
    sent, report = enforce(target, start, LIMITS)
    assert_within_limits(sent, start=start)
    goal = np.clip(positions[-1], LIMITS.lower, LIMITS.upper)
    np.testing.assert_allclose(sent.positions[-1], goal, atol=1e-12)
    for j, name in enumerate(JOINTS):
        if name not in report.limited:
            at_asked = np.searchsorted(sent.times_ns, target.times_ns)
            np.testing.assert_array_equal(sent.positions[at_asked, j], positions[:, j])


@given(
    safe_states(),
    arrays(np.float64, 3, elements=st.floats(0.1, 0.9)),
    arrays(np.float64, 3, elements=st.floats(-1.0, 1.0)),
)
def test_what_is_within_limits_passes_bit_for_bit(start, share, end_share):
    times = np.arange(1, 30) * S // 30
    s = np.clip(np.arange(1, 30)[:, None] / 25, 0, 1)
    ease = s * s * s * (10 - 15 * s + 6 * s * s)
    begin = np.clip(start.position, -0.3, 0.3)
    positions = begin + ease * (0.1 * end_share - begin) * share
    velocities = knot_velocities(times, positions, first=np.zeros(3))
    target = Trajectory(JOINTS, times, positions, velocities)
    sent, report = enforce(target, TrajectoryPoint(0, begin, np.zeros(3)), LIMITS)
    assert report.limited == () and str(report) == "all joints within limits"
    for name in ("times_ns", "positions", "velocities"):
        np.testing.assert_array_equal(getattr(sent, name), getattr(target, name))


def test_what_was_sent_is_within_limits_and_passes_unchanged():
    sent, _ = enforce(make_asked(np.tile([2.0, -3.0, 0.3], (10, 1))), REST, LIMITS)
    repeated, report = enforce(sent, REST, LIMITS)
    assert report.limited == ()
    np.testing.assert_array_equal(repeated.positions, sent.positions)


def test_only_the_joint_that_breaks_its_limits_is_changed_and_named():
    positions = np.zeros((10, 3))
    positions[5:, 1] = 1.0
    target = make_asked(positions)
    sent, report = enforce(target, REST, LIMITS)
    assert report.limited == ("b",)
    assert report.velocity[1] > 1 and report.acceleration[1] > 1 and report.position[1] == 0
    assert 0 < report.deviation[1] <= 1.0 and report.deviation[[0, 2]].max() == 0
    assert str(report).startswith("b: asked ")
    np.testing.assert_array_equal(sent.positions[:, [0, 2]], 0.0)


def test_a_jump_takes_about_the_least_time_it_can():
    sent, _ = enforce(make_asked([[0.8, 0.0, 0.0]] * 2, step_s=0.01), REST, LIMITS)
    reached = sent.times_ns[np.argmax(np.isclose(sent.positions[:, 0], 0.8, atol=1e-9))] / S
    accelerating, braking_gently = 3.0 / 20.0, 3.0 / 10.0
    least = 0.8 / 3.0 + (accelerating + braking_gently) / 2
    assert reached <= least + 0.05


def test_a_lagging_joint_rejoins_the_asked_path_and_then_follows_it_exactly():
    t = np.arange(1, 61) * 0.05
    positions = np.zeros((60, 3))
    positions[:, 0] = 0.6 * np.sin(1.5 * t)
    positions[10:14, 0] += 0.3
    sent, report = enforce(make_asked(positions), REST, LIMITS)
    assert report.limited == ("a",)
    np.testing.assert_array_equal(sent.positions[25:60, 0], positions[25:, 0])


def test_points_close_together_do_not_make_the_way_to_rest_many_points():
    times = np.array([S // 20, S // 10, S // 10 + 1_000])
    positions = np.array([[0.0, 0.0, 0.0], [0.0, 1.9, 0.0], [0.0, 1.9, 0.0]])
    sent, report = enforce(Trajectory(JOINTS, times, positions, np.zeros((3, 3))), REST, LIMITS)
    assert report.limited == ("b",) and sent.positions[-1, 1] == 1.9
    assert len(sent) < 60
    assert_within_limits(sent, start=REST)


def test_positions_beyond_a_limit_end_on_it_and_are_reported():
    sent, report = enforce(make_asked([[1.4, 0.0, 0.0]] * 20), REST, LIMITS)
    assert 0.4 <= report.position[0] < 0.6 and report.limited == ("a",)
    assert sent.positions[-1, 0] == 1.0 and sent.positions[:, 0].max() <= 1.0 + 1e-9


def test_a_start_beyond_its_limits_is_brought_back_without_a_jump():
    start = TrajectoryPoint(0, np.array([1.2, 0.0, 0.0]), np.array([0.5, 0.0, 0.0]))
    sent, _ = enforce(make_asked([[1.3, 0.0, 0.0]] * 20), start, LIMITS)
    t = np.arange(0, sent.end_ns, S // 500)
    position, velocity = sent.sample(t, start)
    assert np.abs(np.diff(velocity[:, 0])).max() * 500 <= 20.0 * 1.001
    assert position[0, 0] == 1.2 and position[-1, 0] == pytest.approx(1.0)


def test_an_end_in_motion_keeps_room_to_brake():
    times = np.arange(1, 11) * S // 20
    positions = np.linspace(0.55, 1.0, 10)[:, None] * [1.0, 0.0, 0.0]
    velocities = np.tile([1.0, 0.0, 0.0], (10, 1))
    start = TrajectoryPoint(0, np.array([0.5, 0.0, 0.0]), velocities[0])
    sent, report = enforce(Trajectory(JOINTS, times, positions, velocities), start, LIMITS)
    assert report.position[0] == pytest.approx(1.0 / 40.0)
    room = LIMITS.upper[0] - sent.positions[-1, 0]
    assert sent.velocities is not None and sent.velocities[-1, 0] ** 2 / (2 * 20.0) <= room + 1e-9


def test_the_start_must_be_before_the_first_point():
    with pytest.raises(ValueError, match="first point"):
        enforce(make_asked(np.zeros((3, 3))), TrajectoryPoint(S, np.zeros(3), np.zeros(3)), LIMITS)


@given(safe_states())
def test_braking_ends_at_rest_in_minimal_time_within_limits(start):
    stopped = brake(JOINTS, start, LIMITS)
    assert_within_limits(stopped)
    assert stopped.velocities is not None
    least = (np.abs(start.velocity) / LIMITS.acceleration).max()
    assert least - 2e-6 <= stopped.end_ns / S <= least + 2e-6
    np.testing.assert_array_equal(stopped.positions[0], start.position)
    np.testing.assert_allclose(stopped.velocities[0], start.velocity, atol=1e-12)


def test_each_joint_brakes_on_its_own():
    stopped = brake(JOINTS, TrajectoryPoint(0, np.zeros(3), np.array([1.0, 1.0, 0.0])), LIMITS)
    np.testing.assert_allclose(stopped.times_ns / S, [0.0, 0.05, 0.1], atol=1e-6)
    np.testing.assert_allclose(stopped.positions[-1], [1 / 40, 1 / 20, 0.0], atol=1e-6)


def test_at_rest_it_stays():
    assert len(brake(JOINTS, REST, LIMITS)) == 1
    assert len(brake(JOINTS, TrajectoryPoint(0, np.zeros(3)), LIMITS)) == 1


@given(arrays(np.float64, (4, 3), elements=st.floats(-2, 2)), st.sampled_from([0.02, 0.1, 1.0]))
def test_extremes_are_those_of_the_sampled_cubic(values, duration_s):
    p0, v0, p1, v1 = values
    lowest, highest, fastest, hardest = extremes(p0, v0, p1, v1, duration_s)
    segment = Trajectory(JOINTS, np.array([0, round(duration_s * S)]), np.stack([p0, p1]), np.stack([v0, v1]))
    t = np.linspace(0, round(duration_s * S) - 1, 2001).astype(int)
    position, velocity = segment.sample(t)
    scale = 1e-3 * (1 + np.abs(values).max() / duration_s)
    np.testing.assert_allclose(position.min(0), lowest, atol=scale)
    np.testing.assert_allclose(position.max(0), highest, atol=scale)
    np.testing.assert_allclose(np.abs(velocity).max(0), fastest, atol=scale)
    rate = np.abs(np.diff(velocity, axis=0)).max(0) / (duration_s / 2000)
    np.testing.assert_allclose(rate, hardest, rtol=5e-3, atol=20 * scale / duration_s)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_named(bad):
    with pytest.raises(ValueError, match=r"joint 'b' is (nan|-?inf) at point 2"):
        check_finite("chunk actions", np.array([[0, 0, 0], [0, 0, 0], [0, bad, 0]]), JOINTS)


def test_limits_that_leave_nothing_are_refused():
    with pytest.raises(ValueError, match=r"joint limits \[1\] are empty"):
        JointLimits(*np.array([[0, 1], [1, 1], [1, 1], [1, 1]]))
    with pytest.raises(ValueError, match="lower, upper, velocity, acceleration"):
        JointLimits(np.array([0, 1]), np.ones(1), np.ones(2), np.ones(2))
