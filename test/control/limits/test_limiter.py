"""Led joints: the fast walk is the plain one, its work is bounded by count, and no start makes it break a
limit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from motion import S

from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.limits.trajectory_limits import (
    LONGEST_CHASE_S,
    MOST_CHASE,
    MOST_SPLIT,
    enforce,
)
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint


def make_limits(rng: np.random.Generator, joints: int) -> JointLimits:
    """Of slow rails, arms and quick grippers."""
    middle, half = rng.uniform(-1, 1, joints), 10.0 ** rng.uniform(-1.5, 1, joints)
    fastest = 10.0 ** rng.uniform(-1, 1, joints)
    return JointLimits(middle - half, middle + half, fastest, fastest * 10.0 ** rng.uniform(0, 1.5, joints))


def make_wild(
    rng: np.random.Generator, limits: JointLimits, knots: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, positions and velocities of jumps, pauses and mild stretches, also beyond the limits."""
    joints = len(limits.lower)
    times = np.cumsum(rng.integers(1, 100, knots) * (S // 1000) * rng.integers(1, 4))
    size = (limits.upper - limits.lower) * rng.choice([0.001, 0.1, 1.0])
    p = np.repeat(rng.normal(0, 1, (knots, joints)) * size, rng.integers(1, 5), axis=0)[:knots]
    v = np.gradient(p, times * 1e-9, axis=0) if knots > 1 else np.zeros_like(p)
    v[-1] = 0.0
    return times, p, v


def adversarial_state(rng: np.random.Generator, limits: JointLimits) -> tuple[np.ndarray, np.ndarray]:
    """Each joint anywhere inside, on a limit or beyond it; at rest, at full speed or at twice that, into the
    limit or away from it."""
    width, joints = limits.upper - limits.lower, len(limits.lower)
    inside = limits.lower + rng.random(joints) * width
    p = np.choose(
        rng.integers(0, 5, joints),
        [inside, limits.lower, limits.upper, limits.upper + 0.2 * width, limits.lower - 0.2 * width],
    )
    return p, limits.velocity * rng.choice([-2.0, -1.0, -0.3, 0.0, 0.3, 1.0, 2.0], joints)


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(1, 14), st.integers(1, 60))
def test_from_any_start_it_comes_to_rest_within_limits(seed, joints, knots):
    rng = np.random.default_rng(seed)
    limits = make_limits(rng, joints)
    times, asked_p, asked_v = make_wild(rng, limits, knots)
    start_p, start_v = adversarial_state(rng, limits)
    start = TrajectoryPoint(0, start_p, start_v)
    names = tuple(f"j{i}" for i in range(joints))
    sent, report = enforce(Trajectory(names, times, asked_p, asked_v), start, limits)
    assert len(sent) <= max(knots, MOST_SPLIT) + MOST_CHASE + 2 * joints
    assert (sent.end_ns - times[-1]) / S <= LONGEST_CHASE_S + (limits.velocity / limits.acceleration).max()
    t = np.arange(0, sent.end_ns + S // 10, S // 500)
    position, velocity = sent.sample(t, start)
    rate = np.abs(np.diff(velocity, axis=0)) * 500
    assert (rate <= limits.acceleration * 1.001).all(), report
    assert not velocity[-1].any()
    fast = np.maximum(limits.velocity, np.abs(start_v)) * 1.001
    assert (np.abs(velocity) <= fast).all()
    # Beyond a limit only those that started there, or too fast to stop before it; and not much further.
    brake = start_v * np.abs(start_v) / (2 * limits.acceleration)
    safe = np.clip(start_p + brake, limits.lower, limits.upper) == start_p + brake
    ends = np.stack([start_p, start_p + np.where(safe, 0.0, 1.1 * brake)])
    assert (position <= np.maximum(limits.upper, ends.max(axis=0)) + 1e-8).all()
    assert (position >= np.minimum(limits.lower, ends.min(axis=0)) - 1e-8).all()


@pytest.mark.parametrize("knots", [1, 2, 47, 48, 50, 256])
@pytest.mark.parametrize("step_s", [0.001, 1 / 30, 1.0])
def test_the_work_is_bounded_by_count(knots, step_s):
    rng = np.random.default_rng(knots)
    limits = JointLimits(*np.repeat([[-3.0], [3.0], [3.0], [30.0]], 14, axis=1))
    times = np.round(np.arange(1, knots + 1) * step_s * S).astype(int)
    target = Trajectory(tuple("abcdefghijklmn"), times, rng.choice([-9.0, 9.0], (knots, 14)))
    sent, report = enforce(target, TrajectoryPoint(0, np.zeros(14), np.zeros(14)), limits)
    assert len(report.limited) == 14
    assert len(sent) <= max(knots, MOST_SPLIT) + MOST_CHASE
    assert sent.velocities is not None and not sent.velocities[-1].any()
    np.testing.assert_allclose(sent.positions[-1], np.clip(target.positions[-1], -3, 3), atol=1e-12)


def test_a_way_too_long_for_the_bound_ends_in_a_stop():
    limits = JointLimits(*np.array([[0.0, -1.0], [10.0, 1.0], [0.1, 3.0], [1.0, 30.0]]))
    target = Trajectory(("rail", "arm"), np.array([S // 30, S // 15]), np.array([[9.0, 0.5]] * 2))
    sent, report = enforce(target, TrajectoryPoint(0, np.zeros(2), np.zeros(2)), limits)
    assert report.limited == ("rail", "arm")
    assert len(sent) <= MOST_SPLIT + MOST_CHASE + 4
    assert sent.end_ns / S <= 1.0 + LONGEST_CHASE_S
    assert sent.velocities is not None and not sent.velocities[-1].any()
    assert 0.5 < sent.positions[-1, 0] < 9.0 and sent.positions[-1, 1] == 0.5


def test_a_joint_within_limits_that_ends_in_motion_ends_the_path():
    limits = JointLimits(*np.repeat([[-1.0], [1.0], [3.0], [30.0]], 2, axis=1))
    times = np.arange(1, 6) * S // 20
    positions = np.stack([np.full(5, 0.9), np.arange(1, 6) * 0.05], axis=1)
    velocities = np.tile([0.0, 1.0], (5, 1))
    target = Trajectory(("jumps", "moves"), times, positions, velocities)
    sent, report = enforce(target, TrajectoryPoint(0, np.zeros(2), np.array([0.0, 1.0])), limits)
    assert report.limited == ("jumps",) and sent.end_ns == times[-1]
    np.testing.assert_array_equal(sent.speeds[:, 1], 1.0)
