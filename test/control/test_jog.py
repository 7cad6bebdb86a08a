"""Velocities that follow a path: they change within limits, and what is lost on the way is made good."""

from __future__ import annotations

import numpy as np
import pytest
from motion import JOINTS, LIMITS, make_ramp

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.command_stream import JogStream

S = 1_000_000_000
MS = S // 1000
START = 1000 * S
PERIOD = 20 * MS


class Servo:
    """Integrates what it is told, times `share`. period_s: with which ticks are expected."""

    def __init__(self, gain: float = 2.0, share: float = 1.0, period_s: float = PERIOD / S) -> None:
        self.jog = JogStream(JOINTS, LIMITS, period_s, gain)
        self.position, self.share, self.now = np.zeros(3), share, START
        self.velocities: list[np.ndarray] = []

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * S / PERIOD)):
            self.now += PERIOD
            self.jog.measured(self.position, self.now)
            velocity = self.jog.tick(self.now)
            self.velocities.append(np.zeros(3) if velocity is None else velocity)
            self.position = self.position + self.share * self.velocities[-1] * PERIOD / S


def follow(servo: Servo, **ramp) -> TrajectoryBuffer:
    buffer = TrajectoryBuffer(JOINTS, LIMITS)
    buffer.reset(servo.position)
    chunk = make_ramp([0.5, -0.4, 0.2], stamp_ns=servo.now, **ramp)
    trajectory = buffer.update(chunk, servo.now)
    assert trajectory is not None
    servo.jog.follow(trajectory, servo.now)
    return buffer


def assert_within_limits(servo: Servo) -> None:
    velocities = np.array(servo.velocities)
    assert (np.abs(velocities) <= LIMITS.velocity * 1.001).all()
    assert (np.abs(np.diff(velocities, axis=0)) <= LIMITS.acceleration * PERIOD / S * 1.001).all()


def test_nothing_is_commanded_before_the_first_trajectory():
    servo = Servo()
    assert servo.jog.tick(START) is None and servo.jog.at_rest(START)


@pytest.mark.parametrize("share", [1.0, 0.8])
def test_the_joints_arrive_even_where_velocities_are_not_done_in_full(share):
    servo = Servo(share=share)
    buffer = follow(servo)
    servo.run(5.0)
    np.testing.assert_allclose(servo.position, buffer.reference(servo.now)[0], atol=2e-3)
    assert_within_limits(servo)


def test_simulated_time_that_goes_on_in_long_steps_is_kept_up_with():
    servo = Servo(period_s=0.004)
    servo.run(0.2)
    buffer = follow(servo)
    for _ in range(100):
        servo.run(PERIOD / S)
        assert (np.abs(servo.position - buffer.reference(servo.now)[0]) < 0.03).all()
    assert_within_limits(servo)


def test_without_gain_they_drift():
    servo = Servo(gain=0.0, share=0.8)
    buffer = follow(servo)
    servo.run(5.0)
    assert np.abs(servo.position - buffer.reference(servo.now)[0]).max() > 0.05


def test_at_rest_nothing_pulls_any_more_and_the_velocity_is_zero_exactly():
    servo = Servo(share=0.8)
    follow(servo, horizon=5)
    servo.run(0.3)
    servo.jog.rest()
    servo.run(1.5)
    assert servo.jog.at_rest(servo.now) and not servo.velocities[-1].any()
    assert_within_limits(servo)


def test_measured_joints_that_are_old_pull_nothing():
    servo = Servo()
    follow(servo, horizon=3)
    servo.run(1.0)
    servo.jog.measured(servo.position + 0.4, servo.now)
    for _ in range(40):
        servo.now += PERIOD
        velocity = servo.jog.tick(servo.now)
    assert not velocity.any()


def test_joints_pushed_away_are_pulled_back_by_half_of_full_speed_at_most():
    servo = Servo(gain=20.0)
    follow(servo, horizon=3)
    servo.run(1.0)
    servo.position = servo.position + np.array([0.9, -1.5, 0.4])
    servo.run(0.5)
    fastest = np.abs(servo.velocities[-25:]).max(axis=0)
    assert (fastest <= 0.5 * LIMITS.velocity + 1e-9).all() and fastest.max() > 0.5
    assert_within_limits(servo)


def test_after_a_pause_they_start_from_rest():
    servo = Servo()
    follow(servo, horizon=20)
    servo.run(0.4)
    assert np.abs(servo.velocities[-1]).max() > 0.3
    servo.now += S // 2
    velocity = servo.jog.tick(servo.now)
    assert velocity is not None
    assert (np.abs(velocity) <= LIMITS.acceleration * 2 * PERIOD / S).all()


@pytest.mark.parametrize("set_s", [-0.015, 0.015, 0.5])
def test_a_clock_that_is_set_changes_velocities_within_limits(set_s):
    servo = Servo()
    follow(servo, horizon=30)
    for tick in range(60):
        steady = START + (tick + 1) * PERIOD
        velocity = servo.jog.tick(steady + round(set_s * S) * (tick >= 20), steady)
        assert velocity is not None
        servo.velocities.append(velocity)
    assert np.abs(servo.velocities[19]).max() > 0.3
    assert_within_limits(servo)
