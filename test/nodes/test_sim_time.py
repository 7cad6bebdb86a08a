"""The whole stack on a clock that stands still and jumps: the arm never leaps, and goes on in the new time.

Separate processes on /clock (use_sim_time), real topics, real physics, a policy of random weights.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from rclpy.clock import Clock as RosClock
from rclpy.clock import ClockType
from rclpy.parameter import Parameter
from rosgraph_msgs.msg import Clock
from stack import Stack, set_going, speed

from vla_accel_msgs.msg import Motion
from vla_accel_ros.nodes import convert
from vla_accel_ros.nodes.operator import Operator

S = 1_000_000_000
# Of the speed that the contract allows; an arm that is sent elsewhere at once has many times that.
LEAP = 1.5


class SimClock:
    """Publishes /clock a hundred times a second, as fast as real time goes; stands when it is told to."""

    def __init__(self, operator: Operator, now_ns: int) -> None:
        self.now_ns, self.standing = now_ns, False
        self._last = time.monotonic_ns()
        self._publisher = operator.node.create_publisher(Clock, "/clock", 10)
        operator.node.create_timer(0.01, self._tick, clock=RosClock(clock_type=ClockType.STEADY_TIME))

    def _tick(self) -> None:
        now = time.monotonic_ns()
        if not self.standing:
            self.now_ns += now - self._last
        self._last = now
        message = Clock()
        convert.set_stamp(message.clock, self.now_ns)
        self._publisher.publish(message)


@pytest.fixture
def clock(operator) -> Iterator[SimClock]:
    """The clock of the test, which the operator lives by too."""
    operator.node.set_parameters([Parameter("use_sim_time", value=True)])
    yield SimClock(operator, 1000 * S)


def greatest_speed(operator: Operator, first: int) -> float:
    """Of the last of the first joint states and those after them, over what the contract allows. Not from
    their positions: stamps jump here, and a busy machine loses states."""
    top = np.array([joint.velocity for joint in operator.contract.joints])
    return max(float((np.abs(state.velocities) / top).max()) for state in operator.joints[first - 1 :])


def pass_seconds(operator: Operator, seconds: int) -> None:
    """Let time pass by statistics, of which four come a second whatever ROS time does."""
    count = len(operator.reports)
    operator.wait(lambda: len(operator.reports) > count + 4 * seconds, 30.0, "statistics")


def runs_anew(operator: Operator, told: int) -> bool:
    """Whether the trajectory node runs, in a beginning that is none of the first `told`."""
    last, before = operator.motions[-1], operator.motions[told - 1]
    return last.state == Motion.RUNNING and last.beginning > before.beginning


def moves_after(operator: Operator, count: int, low_ns: int, high_ns: int) -> None:
    """Wait until the arm moves in states that came after the first `count`, of a certain time."""

    def moves() -> bool:
        states = operator.joints[max(count, len(operator.joints) - 50) :]
        return any(speed(j) > 0.3 and low_ns < j.stamp_ns < high_ns for j in states)

    operator.wait(moves, 40.0, "motion in the new time")


def test_a_clock_that_stands_still_and_jumps(start, tmp_path, operator, clock):
    stack = Stack(start, tmp_path, sim_time=True)
    set_going(operator)

    clock.standing = True
    operator.wait(lambda: operator.now_ns() == clock.now_ns, 30.0, "time that stands")
    pass_seconds(operator, 1)
    standing, sent = operator.measured, len(operator.sent)
    pass_seconds(operator, 3)
    assert len(operator.sent) == sent
    np.testing.assert_array_equal(operator.measured.positions, standing.positions)
    clock.standing = False
    moves_after(operator, len(operator.joints), standing.stamp_ns, clock.now_ns + 100 * S)

    for jump_s in (5, -50, -0.3, 100):
        count, told = len(operator.joints), len(operator.motions)
        clock.now_ns += round(jump_s * S)
        at_ns = clock.now_ns
        operator.wait(lambda told=told: runs_anew(operator, told), 30.0, "new beginning")
        assert greatest_speed(operator, count) < LEAP
        moves_after(operator, count, at_ns - S // 100, at_ns + 100 * S)
        guided = len(operator.chunks)
        operator.wait(lambda guided=guided: len(operator.chunks) > guided + 5, 30.0, "chunks")
        assert all(0 <= r.received_ns - r.chunk.stamp_ns < S for r in operator.chunks[guided:])
    for node in (stack.inference, stack.trajectory):
        assert node.log.count("ROS time jumped by") >= 1 + 4  # the first when time began
        assert "Traceback" not in node.log
