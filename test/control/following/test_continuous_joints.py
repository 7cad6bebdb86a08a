"""A joint that turns without end, whose driver reports it in -pi..pi, and whose policy thinks so, too.

The robot is a controller that turns as it is told, on and on; its angle on the circle is all that its driver
says. Time is given.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from follower_robot import MS, Robot, S
from numpy.typing import ArrayLike

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.chunking.rtc import RealTimeChunking
from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.joint_faults import LeapWatch
from vla_accel_ros.control.following.watchdog import MotionState, Safety, Watchdog
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.types import Chunk

SPEED = 1.5
TURN = 2 * np.pi


def wrapped(angle: ArrayLike) -> np.ndarray:
    """The same angles in -pi..pi."""
    return np.angle(np.exp(1j * np.asarray(angle)))


class Wheel(Robot):
    """Joint a turns without end, b does not."""

    def __init__(self, bound: float = 50.0) -> None:
        super().__init__()
        range_ = np.array([bound, 2.0])
        self.limits = JointLimits(-range_, range_, np.full(2, 3.0), np.full(2, 20.0), np.array([True, False]))
        buffer = TrajectoryBuffer(("a", "b"), self.limits, max_age_s=0.8)
        watched = {"camera/front": 0.5, "joint_states": 0.3, "chunk": 0.8}
        self.follower = ChunkFollower(buffer, Safety(Watchdog(watched)), 0.8)

    def measured(self) -> np.ndarray:
        angle = self.controller.desired(self.now).position
        return np.array([wrapped(angle[0]), angle[1]])

    def send(self, speed: float, stamp_ns: int) -> None:
        """A chunk that turns on from where the joint was on the circle, each action in -pi..pi."""
        self.request += 1
        start = self.controller.desired(stamp_ns).position[0]
        turning = wrapped(start + speed * np.arange(1, 33) / 30)
        actions = np.stack([turning, np.zeros(32)], axis=1).astype(np.float32)
        chunk = Chunk(actions, stamp_ns, 1 / 30, self.request, self.request, np.zeros(32, np.float32))
        self.deliver(self.follower.follow(chunk, self.now))

    @property
    def angle(self) -> float:
        return float(self.controller.desired(self.now).position[0])


@pytest.mark.parametrize("speed", [SPEED, -SPEED])
def test_a_wheel_turns_on_across_pi_without_a_leap_or_a_step(speed):
    wheel = Wheel()
    wheel.run(9.0, goal=speed)
    assert not wheel.follower.faults and wheel.states == [MotionState.RUNNING]
    assert wheel.angle / speed > 5.0, "it stands still somewhere: more than a turn takes 4.2 s"
    wheel.assert_within_limits()
    wheel.run(1.0)  # no chunk any more: it brakes, by less than a second's way
    stop = wheel.sent[-1].positions[-1]
    assert abs(stop[0] - wheel.angle) < 1e-6 and wheel.states[-1] is MotionState.HOLDING


def test_it_stops_at_the_end_of_its_range_though_there_is_the_same_place_a_turn_before():
    wheel = Wheel(bound=4.0)
    wheel.run(8.0, goal=1.0)
    assert wheel.angle == pytest.approx(4.0, abs=0.01)
    wheel.assert_within_limits()


@pytest.mark.parametrize("turned", [2.5, 4.0, 7.0])
def test_a_wheel_that_was_turned_while_nobody_looked_goes_on_from_there_without_a_turn_back(turned):
    wheel = Wheel()
    wheel.run(3.0, goal=SPEED)
    wheel.run(2.0)
    angle = wheel.angle
    wheel.silent = True
    wheel.run(1.0)
    wheel.controller.start(np.array([angle + wrapped(turned), 0.0]), wheel.now)
    wheel.silent = False
    count = len(wheel.sent)
    wheel.run(4.0, goal=0.01)
    assert not wheel.follower.faults and wheel.states[-1] is MotionState.RUNNING
    join = wheel.sent[count].positions[-1][0]
    assert wrapped(join - angle - turned) == pytest.approx(0.0, abs=0.02)
    assert abs(join - angle) <= np.pi + 0.02


def test_what_was_commanded_and_what_is_measured_are_compared_on_the_circle():
    """A drive that stands still is a fault on a wheel, too, and says by how much it lags."""
    wheel = Wheel()
    wheel.run(2.0, goal=SPEED)
    stood = wheel.measured()
    wheel.measured = lambda: stood  # type: ignore[method-assign]
    wheel.run(1.0, goal=SPEED)
    (fault,) = wheel.follower.faults
    assert fault.startswith("a does not follow")
    commanded, measured = (float(word) for word in fault.replace(",", "").split() if word[-1].isdigit())
    assert 0.45 <= abs(commanded - measured) < 1.0


def test_a_leap_that_is_no_turn_is_still_a_leap():
    """shared/cases/continuous_wrap.py"""
    limits = JointLimits(*np.array([[-6.28], [6.28], [1.0], [5.0]]))
    limits = replace(limits, continuous=np.array([True]))
    watch = LeapWatch(limits)
    for k in range(60):
        assert watch.take(wrapped([3.10 + 0.005 * k]), 1000 * S + 10 * k * MS) is None
    assert not watch.lasting
    leaps = [watch.take(wrapped([5.0]), 1001 * S + 10 * k * MS) for k in range(5)]
    assert [leap.by for leap in leaps if leap] == [pytest.approx(5.0 - 3.395)]


def test_the_executing_chunk_of_relative_actions_is_told_in_the_turn_of_the_new_state():
    """In the policy's degrees: chunk and state by the same driver, before and after it wraps."""
    chunking = object.__new__(RealTimeChunking)
    chunking._turns = np.array([360.0, 0.0])
    previous = Chunk(
        np.array([[178.0, 5.0], [181.0, 6.0]], np.float32), 0, 1 / 30, 1, 1, np.zeros(2, np.float32)
    )
    turned = chunking._turned(previous, np.array([-179.5, 700.0, 1.0]))
    np.testing.assert_allclose(turned.actions, [[-182.0, 5.0], [-179.0, 6.0]])
