"""A slow way to the controllers: what the trajectory node finds out, what it does, what the arm executes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from calling import set_parameter
from chunks import Policy
from control_msgs.msg import JointTrajectoryControllerState
from stack import CALM_SENSORS

from vla_accel_msgs.msg import Motion
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.messages import convert

ARM = "arm_controller/joint_trajectory"
HARDEST = 30.0
"""Between the limit of 20 rad/s^2 and the hundreds with which a trajectory is joined that comes late."""


class Executed:
    """What the arm's controller says that it executes."""

    def __init__(self, operator) -> None:
        self.states: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._looked, self._since_ns = 0, 0
        operator.node.create_subscription(
            JointTrajectoryControllerState, "arm_controller/controller_state", self._add, qos.REPORT
        )

    def _add(self, message: JointTrajectoryControllerState) -> None:
        point = message.reference
        stamp_ns = convert.stamp_ns(message.header.stamp)
        self.states.append((stamp_ns, np.array(point.positions), np.array(point.velocities)))

    def smooth(self, seconds: float) -> bool:
        """Whether the last seconds were, of those since the first call."""
        states = self.states[max(self._looked - 1, 0) :]
        if not self._looked or (len(states) > 1 and hardest(states) >= HARDEST):
            self._since_ns = states[-1][0]
        self._looked = len(self.states)
        return states[-1][0] > self._since_ns + seconds * 1e9


def hardest(states: list[tuple[int, np.ndarray, np.ndarray]]) -> float:
    """The least |acceleration| [rad/s^2] with which a motion could have had all these states.

    From one state to the next, h later, a velocity changes by at most a h, and a position is off the mean
    of both velocities by at most a h^2 / 4.
    """
    worst = 0.0
    for (t0, p0, v0), (t1, p1, v1) in pairwise(states):
        h = (t1 - t0) * 1e-9
        off = np.abs(p1 - p0 - h * (v0 + v1) / 2)
        worst = max(worst, float((np.abs(v1 - v0) / h).max()), float((4 * off / h**2).max()))
    return worst


@pytest.fixture
def lead_max_s() -> float:
    return 0.15


@pytest.fixture
def moving(start, operator, lead_max_s):
    """The simulated arm under a trajectory node of 30 ms, sent to and fro by chunks."""
    start("sim_robot", **CALM_SENSORS)
    node = start("trajectory", autostart=True, lead_max_s=lead_max_s)
    executed, policy = Executed(operator), Policy(operator)
    begin = operator.wait(lambda: operator.measured, 90.0, "joint state").positions
    swing = np.array([0.3, 0.2, -0.2, 0.2, -0.3, 0.1])

    def drives(condition):
        def ticking():
            policy.goal = begin + swing * np.sin(operator.now_ns() * 1e-9)
            policy.tick(operator.now_ns())
            return condition()

        return ticking

    operator.wait(drives(lambda: len(operator.sent) > 20), 90.0, "motion")
    return node, executed, drives


def values(operator) -> dict[str, str]:
    line = operator.diagnostics.get(f"trajectory: {ARM} stream")
    return {} if line is None else {pair.key: pair.value for pair in line.values}


def lead_ms(operator) -> float:
    return float(values(operator).get("lead [ms]", 0.0))


@pytest.mark.parametrize("lead_max_s", [0.4])  # a busy machine is slow besides
def test_a_slow_way_is_measured_by_what_the_controller_executes(moving, operator):
    node, executed, drives = moving
    motions: list[Motion] = []
    operator.node.create_subscription(Motion, "motion", motions.append, qos.LATCHED)
    operator.wait(drives(lambda: values(operator).get("measured by") == "controller_state"), 90.0, "source")
    assert set_parameter(operator, "sim_robot", "command_delay_s", 0.09).successful
    operator.wait(drives(lambda: lead_ms(operator) >= 90.0), 90.0, "lead of a slow way")
    assert "until it is executed" not in node.log
    # A busy machine may deliver one trajectory later than all before it, and that one jerks.
    operator.wait(drives(lambda: executed.smooth(4.0)), 90.0, "four seconds of smooth motion on a slow way")
    assert motions[-1].lead_s >= 0.18, "inference guides chunks by it"


LISTENER = """
import rclpy
from rclpy.node import Node
from trajectory_msgs.msg import JointTrajectory
from vla_accel_ros.nodes import qos
rclpy.init()
node = Node("listener")
node.create_subscription(JointTrajectory, "arm_controller/joint_trajectory", lambda _: None, qos.COMMAND)
rclpy.spin(node)
"""


@pytest.fixture
def listener(operator):
    """Another process that is sent what the arm's controller is."""
    process = subprocess.Popen([sys.executable, "-c", LISTENER])
    yield process.pid
    process.kill()
    process.wait()


def test_without_a_state_a_process_that_stands_still_is_noticed_by_what_it_does_not_acknowledge(
    start, operator, listener
):
    start("sim_robot", **CALM_SENSORS)
    # Stamped zero, the controller may have another clock, and its state says nothing.
    node = start("trajectory", autostart=True, stamp="zero")
    policy = Policy(operator)
    policy.goal = operator.wait(lambda: operator.measured, 90.0, "joint state").positions + 0.1

    def acknowledged():
        return values(operator).get("measured by") == "acknowledgement"

    operator.wait(policy.drives(acknowledged), 90.0, "acknowledgements")
    assert operator.node.count_subscribers(ARM) >= 3, "the controller, the operator and the listener"
    os.kill(listener, signal.SIGSTOP)
    sentence = "by acknowledgement), more than lead_max_s = 0.150 s"
    operator.wait(policy.drives(lambda: sentence in node.log), 90.0, "warning")
