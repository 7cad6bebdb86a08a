"""What a stream of commands does when its node is deactivated. Time is given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from homing import CONTROLLERS, NAMES, Node, S

from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.adapters import outputs
from vla_accel_ros.nodes.adapters.forward_command import ForwardCommandAdapter
from vla_accel_ros.nodes.adapters.outputs import Outputs

SPEED = 0.5


def rests_at(position: float, at_ns: int) -> Trajectory:
    return Trajectory(NAMES, np.array([at_ns]), np.full((1, 2), position), np.zeros((1, 2)))


@pytest.mark.parametrize(("away", "acceleration"), [(0.02, 5.0), (0.3, 5.0), (1.8, 5.0), (1.8, 0.2)])
def test_a_stream_that_is_behind_its_path_has_come_to_rest_when_its_node_is_deactivated(
    monkeypatch, away, acceleration
):
    """As on the way to where the joints are: 1.8 rad take 3.7 s, or more for joints that brake in 2.5 s."""
    limits = JointLimits(*(np.full(2, value) for value in (-2.0, 2.0, SPEED, acceleration)))
    heard: list[np.ndarray] = []
    node: Any = Node(lambda message: heard.append(np.array(message.data)))
    node.output = lambda *_: SimpleNamespace(
        publish=node._hear, wait_for_all_acked=lambda _: True, get_subscription_count=lambda: 1
    )
    adapter = ForwardCommandAdapter(node, CONTROLLERS["forward_command"], limits)
    robot = Outputs.__new__(Outputs)
    robot._node, robot.adapters = node, [adapter]
    adapter.send(rests_at(0.0, node.now), node.now)
    adapter.tick(node.now)
    adapter.send(rests_at(away, node.now + 5 * S), node.now)
    for _ in range(round(SPEED / acceleration * 100)):
        node.now += S // 100
        adapter.tick(node.now)
    node.now += S // 100

    clock = SimpleNamespace(now_ns=0)

    def sleep(seconds: float) -> None:
        clock.now_ns += round(seconds * S)

    monkeypatch.setattr(outputs, "time", SimpleNamespace(monotonic_ns=lambda: clock.now_ns, sleep=sleep))
    robot.close()
    velocity = np.diff([*heard, heard[-1]], axis=0) * CONTROLLERS["forward_command"].rate_hz
    assert np.abs(velocity).max() > 0.1
    assert np.abs(np.diff(velocity, axis=0)).max() * 100 <= acceleration * 1.01
