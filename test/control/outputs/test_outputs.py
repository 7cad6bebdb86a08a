"""What a stream of commands does when its node is deactivated. Time is given."""

from __future__ import annotations

import numpy as np
import pytest
from world import Clock, StreamLine

from vla_accel_ros.contract.parts import Controller
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.outputs.outputs import Outputs
from vla_accel_ros.control.outputs.positions import PositionOutput
from vla_accel_ros.control.trajectory import Trajectory

S, NAMES = 1_000_000_000, ("a", "b")
ARM = Controller("arm/commands", NAMES, "forward_command", rate_hz=100.0)
SPEED = 0.5


def rests_at(position: float, at_ns: int) -> Trajectory:
    return Trajectory(NAMES, np.array([at_ns]), np.full((1, 2), position), np.zeros((1, 2)))


@pytest.mark.parametrize(("away", "acceleration"), [(0.02, 5.0), (0.3, 5.0), (1.8, 5.0), (1.8, 0.2)])
def test_a_stream_that_is_behind_its_path_has_come_to_rest_when_its_node_is_deactivated(away, acceleration):
    """As on the way to where the joints are: 1.8 rad take 3.7 s, or more for joints that brake in 2.5 s."""
    limits = JointLimits(*(np.full(2, value) for value in (-2.0, 2.0, SPEED, acceleration)))
    heard: list[np.ndarray] = []
    now = [1000 * S]
    clock = Clock(lambda: now[0], simulated=True)
    output = PositionOutput(ARM, limits, StreamLine(lambda command: heard.append(command.copy())), clock)
    robot = Outputs(NAMES, NAMES, [output], clock, 0.0)
    output.send(rests_at(0.0, now[0]), now[0])
    output.tick(now[0])
    output.send(rests_at(away, now[0] + 5 * S), now[0])
    for _ in range(round(SPEED / acceleration * 100)):
        now[0] += S // 100
        output.tick(now[0])
    now[0] += S // 100
    for pause_s in robot.close():
        now[0] += round(pause_s * S)
    velocity = np.diff([*heard, heard[-1]], axis=0) * ARM.rate_hz
    assert np.abs(velocity).max() > 0.1
    assert np.abs(np.diff(velocity, axis=0)).max() * 100 <= acceleration * 1.01
