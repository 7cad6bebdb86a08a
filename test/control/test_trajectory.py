"""Trajectory sampling is what joint_trajectory_controller does between, before and after its points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint, knot_velocities

S = 1_000_000_000
JOINTS = ("a", "b")


def make_trajectory(velocities: bool = True) -> Trajectory:
    positions = np.array([[0.0, 1.0], [1.0, 1.0], [1.5, -1.0]])
    knots = np.array([[0.5, 0.0], [1.0, -1.0], [0.0, 0.0]])
    return Trajectory(JOINTS, np.array([1, 2, 4]) * S, positions, knots if velocities else None)


def make_state(stamp_ns: int, position: list[float], velocity: list[float] | None = None) -> TrajectoryPoint:
    return TrajectoryPoint(stamp_ns, np.array(position), None if velocity is None else np.array(velocity))


START = make_state(0, [0.5, 1.0], [0.2, 0.0])
SAMPLES = {
    "between points without velocities": (False, 3.0, None, [1.25, 0.0], [0.25, -1.0]),
    # Hermite at the middle: (p0 + p1) / 2 + T (v0 - v1) / 8 and 1.5 (p1 - p0) / T - (v0 + v1) / 4.
    "between points with velocities": (True, 3.0, None, [1.25 + 0.25, -0.25], [0.375 - 0.25, -1.5 + 0.25]),
    "at the last point": (True, 4.0, None, [1.5, -1.0], [0.0, 0.0]),
    "long after the last point": (True, 1e4, None, [1.5, -1.0], [0.0, 0.0]),
    "after the last of points without velocities": (False, 5.0, None, [1.5, -1.0], [0.0, 0.0]),
    "before the first point": (True, 0.0, None, [0.0, 1.0], [0.0, 0.0]),
    "before the start": (True, -1.0, START, [0.5, 1.0], [0.2, 0.0]),
    "at the start": (True, 0.0, START, [0.5, 1.0], [0.2, 0.0]),
    "on the way from the start": (True, 0.5, START, [0.25 - 0.3 / 8, 1.0], [1.5 * -0.5 - 0.7 / 4, 0.0]),
    "from the start to points without velocities": (False, 0.25, START, [0.375, 1.0], [-0.5, 0.0]),
    "from a start without velocity": (True, 0.25, make_state(0, [0.5, 1.0]), [0.375, 1.0], [-0.5, 0.0]),
}
"""Whether points have velocities, when, the start, and the position and velocity then."""


@pytest.mark.parametrize(
    ("velocities", "time_s", "start", "position", "velocity"), SAMPLES.values(), ids=SAMPLES
)
def test_sample_is_a_cubic_a_line_where_a_velocity_is_missing_and_holds_beyond_the_ends(
    velocities, time_s, start, position, velocity
):
    sample = make_trajectory(velocities).sample(round(time_s * S), start)
    np.testing.assert_allclose(sample, [position, velocity], atol=1e-12)


def test_knots_are_met_exactly():
    trajectory = make_trajectory()
    position, velocity = trajectory.sample(trajectory.times_ns[:-1])
    np.testing.assert_array_equal(position, trajectory.positions[:-1])
    np.testing.assert_array_equal(velocity, trajectory.speeds[:-1])


def test_a_start_at_or_after_the_first_point_joins_the_running_segment():
    trajectory, start = make_trajectory(), make_state(3 * S, [9.0, 9.0], [9.0, 9.0])
    for t in (0, S, 3 * S):
        np.testing.assert_array_equal(trajectory.sample(t, start)[0], trajectory.sample(t)[0])


def test_one_point_is_a_trajectory():
    single = Trajectory(JOINTS, np.array([S]), np.array([[1.0, 2.0]]), np.zeros((1, 2)))
    position, _ = single.sample(S // 2, make_state(0, [0.0, 0.0], [0.0, 0.0]))
    np.testing.assert_allclose(position, [0.5, 1.0])
    np.testing.assert_array_equal(single.sample(0)[0], [1.0, 2.0])


@given(
    arrays(np.float64, (5, 2), elements=st.floats(-3, 3)),
    arrays(np.float64, (5, 2), elements=st.floats(-3, 3)),
    st.booleans(),
    st.sampled_from([None, make_state(S // 2, [0.1, 0.2], [1.0, -1.0]), make_state(S // 2, [0.1, 0.2])]),
)
def test_many_times_at_once_are_the_single_times(positions, velocities, with_velocities, start):
    times = np.array([1.0, 1.1, 1.5, 1.6, 3.0]) * S
    trajectory = Trajectory(JOINTS, times, positions, velocities if with_velocities else None)
    t = np.linspace(0, 4 * S, 101).astype(np.int64)
    position, velocity = trajectory.sample(t, start)
    for i in range(0, 101, 5):
        p, v = trajectory.sample(int(t[i]), start)
        np.testing.assert_array_equal(position[i], p)
        np.testing.assert_array_equal(velocity[i], v)


def test_nanosecond_times_of_today_lose_nothing():
    epoch = 1_764_000_000 * S
    trajectory = Trajectory(JOINTS, np.array([1, 2, 4]) * S + epoch, make_trajectory().positions)
    np.testing.assert_array_equal(
        trajectory.sample(epoch + 3 * S)[0], make_trajectory(velocities=False).sample(3 * S)[0]
    )


def test_select_takes_one_controllers_joints_in_its_order():
    chosen = make_trajectory().select(("b",))
    assert chosen.joints == ("b",)
    np.testing.assert_array_equal(chosen.positions[:, 0], [1.0, 1.0, -1.0])
    np.testing.assert_array_equal(make_trajectory().select(("b", "a")).speeds[1], [-1.0, 1.0])
    with pytest.raises(ValueError, match=r"'c': .* a, b"):
        make_trajectory().select(("c",))


def test_arrays_are_read_only_copies():
    source = np.zeros((1, 2))
    trajectory = Trajectory(JOINTS, np.array([S]), source)
    source[:] = 1.0
    np.testing.assert_array_equal(trajectory.positions, [[0.0, 0.0]])
    with pytest.raises(ValueError, match="read-only"):
        trajectory.positions[0, 0] = 1.0


@pytest.mark.parametrize(
    ("times", "positions", "velocities", "sentence"),
    [
        ([1, 1], np.zeros((2, 2)), None, "point 1 is not later than point 0"),
        ([], np.zeros((0, 2)), None, "give N >= 1 times"),
        ([1, 2], np.zeros((2, 3)), None, "give N >= 1 times and N x 2 positions"),
        ([1], np.zeros((1, 2)), np.zeros((2, 2)), "give a velocity for every position"),
        ([1], np.array([[0.0, np.nan]]), None, "joint 'b' is nan at point 0"),
        ([1], np.zeros((1, 2)), np.array([[np.inf, 0.0]]), "velocities: joint 'a' is inf at point 0"),
    ],
)
def test_what_is_no_trajectory_is_refused(times, positions, velocities, sentence):
    with pytest.raises(ValueError, match=sentence):
        Trajectory(JOINTS, times, positions, velocities)


def test_knot_velocities_are_central_differences_and_end_at_rest():
    times = np.array([0, 1, 3]) * S
    positions = np.array([[0.0], [1.0], [6.0]])
    np.testing.assert_allclose(knot_velocities(times, positions), [[1.0], [2.0], [0.0]])
    given_ends = knot_velocities(times, positions, first=np.array([5.0]), last=np.array([7.0]))
    np.testing.assert_allclose(given_ends, [[5.0], [2.0], [7.0]])
