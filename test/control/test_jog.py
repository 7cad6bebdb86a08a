"""Velocities that follow a path: they change within limits, and what is lost on the way is made good.
Whatever is measured, joints that do as they are told stay within their range.
"""

from __future__ import annotations

import numpy as np
import pytest
from executed import integrated, judge_integrated
from motion import JOINTS, LIMITS, make_chunk, make_ramp

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


class Healthy(Servo):
    """Does exactly what it is told, between the ends of its range. feedback: (time [s], where it was a time
    [s] before) -> (measured, age by its stamp [s])."""

    def __init__(self, gain: float, rate_hz: int, feedback) -> None:
        self.period = S // rate_hz
        super().__init__(gain, period_s=self.period / S)
        self.feedback, self.asked = feedback, [np.zeros(3)]
        self.ticks: list[tuple[int, np.ndarray]] = []
        self.was = [(START - S, self.position)]

    def sweep(self, seconds: float) -> None:
        buffer = TrajectoryBuffer(JOINTS, LIMITS)
        buffer.reset(self.position)
        for tick in range(round(seconds * S) // self.period):
            passed_s = tick * self.period / S
            if tick * self.period % (S // 10) < self.period:
                goal = (LIMITS.lower, LIMITS.upper)[int(passed_s / 2.9) % 2]
                chunk = make_chunk(np.repeat(goal[None], 30, axis=0), self.now - 30 * MS, 1 / 30, tick)
                path = buffer.update(chunk, self.now)
                if path is not None:
                    self.jog.follow(path, self.now)
            velocity = self.jog.tick(self.now)
            if velocity is not None:
                self.ticks.append((self.now, velocity))
                self.position = self.position + velocity * self.period / S
            self.now += self.period
            self.was.append((self.now, self.position))
            self.asked.append(buffer.reference(self.now)[0])
            measured, age_s = self.feedback(passed_s, self.before)
            self.jog.measured(measured, self.now - round(age_s * S))

    def before(self, age_s: float) -> np.ndarray:
        return next(p for t, p in reversed(self.was) if t <= self.now - round(age_s * S))


WRONG = {
    "stamped, 60 ms old": lambda t, before: (before(0.06), 0.06),
    "stamped, 200 ms old": lambda t, before: (before(0.2), 0.2),
    "60 ms old": lambda t, before: (before(0.06), 0.0),
    "200 ms old": lambda t, before: (before(0.2), 0.0),
    "frozen": lambda t, before: (before(max(t - 2.3, 0.0)), 0.0),
    "frozen, then 60 ms old": lambda t, before: (before(0.06 if t < 2.3 or t > 4.9 else t - 2.24), 0.0),
    "off by 0.1": lambda t, before: (before(0.0) + 0.1 * (t > 2.3), 0.0),
    "off by -0.1": lambda t, before: (before(0.0) - 0.1 * (t > 2.3), 0.0),
    "too far": lambda t, before: (1.1 * before(0.0), 0.0),
    "noisy": lambda t, before: (before(0.0) + 0.1 * np.sin(1e4 * t), 0.0),
}


@pytest.mark.parametrize(("gain", "rate_hz"), [(2.0, 100), (20.0, 50)])
@pytest.mark.parametrize("feedback", WRONG)
def test_whatever_is_measured_velocities_lead_no_joint_out_of_its_range(feedback, gain, rate_hz):
    servo = Healthy(gain, rate_hz, WRONG[feedback])
    servo.sweep(8.7)
    longest_s = 2.0 * servo.period / S
    assert judge_integrated(servo.ticks, np.zeros(3), LIMITS, longest_s) == []
    swept = np.ptp(integrated(servo.ticks, np.zeros(3)), axis=0)
    assert (swept > 1.6 * LIMITS.upper).all(), "it does move"


@pytest.mark.parametrize("feedback", ["stamped, 60 ms old", "stamped, 200 ms old", "60 ms old"])
def test_a_delay_of_the_samples_pulls_nothing(feedback):
    """A healthy arm is where it would be if nothing were measured, but for the ticks between."""
    servo = Healthy(2.0, 250, WRONG[feedback])
    servo.sweep(8.7)
    assert np.abs(np.array([p for _, p in servo.was]) - servo.asked).max() < 0.015


def test_joints_that_stand_still_although_they_should_move_are_not_pulled():
    """Nobody knows where they are, so what was measured last moves nothing."""
    servo = Servo()
    follow(servo, horizon=10)
    servo.run(0.3)
    stuck = servo.position
    while servo.now < START + 4 * S:
        servo.now += PERIOD
        servo.jog.measured(stuck, servo.now)
        velocity = servo.jog.tick(servo.now)
        assert velocity is not None
        servo.position = servo.position + velocity * PERIOD / S
    assert servo.jog.standing.all() and not velocity.any()
    commanded = servo.jog.commanded(servo.now)
    assert commanded is not None and np.abs(servo.position - commanded).max() < 0.04


def test_joints_that_others_moved_while_they_rested_begin_where_they_stand():
    servo = Servo()
    follow(servo, horizon=3)
    servo.run(1.0)
    servo.jog.rest()
    servo.position = np.array([-0.9, 1.9, -0.4])
    servo.run(1.0)
    buffer = TrajectoryBuffer(JOINTS, LIMITS)
    buffer.reset(servo.position)
    servo.jog.follow(buffer.go_to(LIMITS.upper, LIMITS.upper - servo.position, servo.now), servo.now)
    servo.run(5.0)
    np.testing.assert_allclose(servo.position, LIMITS.upper, atol=2e-3)
