"""The whole stack on a clock that stands still and jumps: the arm never leaps, and goes on in the new time.

Separate processes on /clock (use_sim_time), real topics, real physics, a policy of random weights.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from rclpy.clock import Clock as RosClock
from rclpy.clock import ClockType
from rclpy.parameter import Parameter
from rosgraph_msgs.msg import Clock
from stack import REST_RAD_S, Stack, set_going, speed

from vla_accel_msgs.msg import Motion
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.sim.robot import STEP_S

S = 1_000_000_000
# Of the speed that the contract allows; an arm that is sent elsewhere at once has many times that.
LEAP = 1.5
# From here the hand does not come down to the blocks.
FREE = {"shoulder_lift": (-0.3, 0.3), "elbow_flex": (1.0, 1.7), "wrist_flex": (1.2, 1.8)}


class SimClock:
    """Publishes /clock a hundred times a second, as fast as real time goes; stands when it is told to."""

    def __init__(self, operator: Operator, now_ns: int) -> None:
        self.now_ns, self.standing = now_ns, False
        self._last = time.monotonic_ns()
        self._publisher = operator.node.create_publisher(Clock, "/clock", 10)
        operator.node.create_timer(0.01, self._tick, clock=RosClock(clock_type=ClockType.STEADY_TIME))

    def _tick(self) -> None:
        now_ns = time.monotonic_ns()
        if not self.standing:
            self.now_ns += now_ns - self._last
        self._last = now_ns
        message = Clock()
        convert.set_stamp(message.clock, self.now_ns)
        self._publisher.publish(message)


@pytest.fixture
def clock(operator) -> Iterator[SimClock]:
    """The clock of the test, which the operator lives by too."""
    operator.node.set_parameters([Parameter("use_sim_time", value=True)])
    yield SimClock(operator, 1000 * S)


def free_space(file: Path) -> Path:
    """A contract within whose limits the arm touches nothing: where it is let go of by what it touched, it
    leaps of itself."""
    contract = yaml.safe_load(demo_contract().read_text())
    for joint in contract["joints"]:
        if joint["name"] in FREE:
            joint["lower"], joint["upper"] = FREE[joint["name"]]
    file.write_text(yaml.safe_dump(contract))
    return file


def greatest_speed(operator: Operator, first: int) -> float:
    """Of the last of the first joint states and those after them, over what the contract allows. Not from
    their positions: stamps jump here, and a busy machine loses states."""
    top = np.array([joint.velocity for joint in operator.contract.joints])
    return max(float((np.abs(state.velocities) / top).max()) for state in operator.joints[first - 1 :])


def pass_seconds(operator: Operator, seconds: int) -> None:
    """Let time pass by statistics, of which four come a second whatever ROS time does."""
    count = len(operator.reports)
    operator.wait(lambda: len(operator.reports) > count + 4 * seconds, 90.0, "statistics")


def begins_anew(operator: Operator, told: int) -> bool:
    """Whether the trajectory node has told of a beginning that is none of the first `told`."""
    return operator.motions[-1].beginning > operator.motions[told - 1].beginning


def brakes(operator: Operator, count: int) -> bool:
    """Whether a stop that counts from its arrival was sent after the first `count` trajectories: all others
    begin before they arrive, or are long."""
    return any(
        sent.received_ns < sent.trajectory.start_ns and sent.trajectory.end_ns - sent.received_ns < 1.5 * S
        for sent in operator.sent[count:]
    )


def moves_after(operator: Operator, count: int, low_ns: int, high_ns: int) -> None:
    """Wait until the arm moves in states that came after the first `count`, of a certain time."""

    def moves() -> bool:
        states = operator.joints[max(count, len(operator.joints) - 50) :]
        return any(speed(j) > 0.3 and low_ns < j.stamp_ns < high_ns for j in states)

    operator.wait(moves, 120.0, "motion in the new time")


def test_a_clock_that_stands_still_and_jumps(start, tmp_path, operator, clock):
    stack = Stack(start, tmp_path, sim_time=True, contract=str(free_space(tmp_path / "contract.yaml")))
    set_going(operator)

    clock.standing = True
    operator.wait(lambda: operator.now_ns() == clock.now_ns, 90.0, "time that stands")
    pass_seconds(operator, 1)
    standing, sent = operator.measured, len(operator.sent)
    pass_seconds(operator, 3)
    assert len(operator.sent) == sent
    np.testing.assert_array_equal(operator.measured.positions, standing.positions)
    clock.standing = False
    moves_after(operator, len(operator.joints), standing.stamp_ns, clock.now_ns + 100 * S)

    for jump_s in (5, -50, -0.3, 100):
        count, motions, sent = len(operator.joints), len(operator.motions), len(operator.sent)
        # Standing until it was seen: for a node that is not scheduled meanwhile a short jump is none.
        clock.standing = True
        # An arm that rests needs no stop.
        stood = not any(speed(state) > REST_RAD_S for state in operator.joints[-5:])
        clock.now_ns += round(jump_s * S)
        at_ns = clock.now_ns
        operator.wait(
            lambda sent=sent, stood=stood: stood or brakes(operator, sent), 90.0, "stop in the new time"
        )
        operator.wait(lambda motions=motions: begins_anew(operator, motions), 90.0, "new beginning")
        clock.standing = False
        operator.wait(lambda: operator.motions[-1].state == Motion.RUNNING, 90.0, "going on")
        guided = len(operator.chunks)
        operator.wait(lambda guided=guided: len(operator.chunks) > guided + 5, 90.0, "chunks")
        # A simulated instant is a whole step of physics, the one nearest to the clock.
        ages_ns = [r.received_ns - r.chunk.stamp_ns for r in operator.chunks[guided:]]
        assert all(-STEP_S * S <= age_ns < S for age_ns in ages_ns), ages_ns
        moves_after(operator, len(operator.joints), at_ns, at_ns + 100 * S)
        assert greatest_speed(operator, count) < LEAP
    for node in (stack.inference, stack.trajectory):
        assert node.log.count("ROS time jumped by") >= 1 + 4  # the first when time began
        assert "Traceback" not in node.log
