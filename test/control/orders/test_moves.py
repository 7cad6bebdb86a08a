"""Discrete moves: from rest to rest, as fast as the limits allow and no faster."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from motion import JOINTS, LIMITS, S, assert_within_limits

from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.orders.moves import move

shares = arrays(np.float64, 3, elements=st.floats(0.0, 1.0))


@given(shares, shares, st.floats(0.05, 1.0))
def test_a_move_keeps_its_share_of_the_limits_and_ends_at_the_goal(begin, end, speed):
    span = LIMITS.upper - LIMITS.lower
    start, goal = LIMITS.lower + begin * span, LIMITS.lower + end * span
    path = move(JOINTS, start, goal, LIMITS, speed, start_ns=5 * S)
    share = JointLimits(LIMITS.lower, LIMITS.upper, speed * LIMITS.velocity, speed * LIMITS.acceleration)
    assert_within_limits(path, share)
    assert path.start_ns == 5 * S
    np.testing.assert_array_equal(path.positions[0], start)
    np.testing.assert_array_equal(path.positions[-1], goal)
    assert path.velocities is not None
    assert not path.velocities[0].any() and not path.velocities[-1].any()


def test_a_long_move_takes_what_the_slowest_joint_needs():
    path = move(JOINTS, np.zeros(3), np.array([0.1, 1.5, 0.1]), LIMITS)
    at_least = 1.875 * 1.5 / LIMITS.velocity[1]
    assert at_least <= (path.end_ns - path.start_ns) * 1e-9 < 1.05 * at_least


def test_a_move_to_where_it_is_is_short_and_still():
    path = move(JOINTS, np.zeros(3), np.zeros(3), LIMITS)
    assert path.end_ns == S // 5 and not path.positions.any()


def test_a_move_that_takes_hours_has_no_more_points_than_it_needs_and_keeps_the_limits():
    slow = JointLimits(LIMITS.lower, LIMITS.upper, 4e-4 * LIMITS.velocity, LIMITS.acceleration)
    path = move(JOINTS, np.zeros(3), np.array([0.1, 1.5, 0.1]), slow)
    assert (path.end_ns - path.start_ns) * 1e-9 > 3600.0 and len(path) < 3000
    assert_within_limits(path, slow)


def test_a_goal_outside_the_limits_and_a_speed_that_is_none_are_refused():
    with pytest.raises(ValueError, match=r"'b' is 2\.5, .*-2 to 2"):
        move(JOINTS, np.zeros(3), np.array([0.0, 2.5, 0.0]), LIMITS)
    with pytest.raises(ValueError, match="share"):
        move(JOINTS, np.zeros(3), np.zeros(3), LIMITS, speed=1.5)
