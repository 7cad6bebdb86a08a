"""The stop of a joint_trajectory_controller after ROS time was set, by what it says itself. Time is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from homing import CONTROLLERS, NAMES, Node, S

from vla_accel_ros.control.delivery import Delivery
from vla_accel_ros.control.limits.joint_limits import JointLimits, brake_on_arrival
from vla_accel_ros.control.moves import move
from vla_accel_ros.nodes.adapters import joint_trajectory
from vla_accel_ros.nodes.controllers.state import ReportedState

MS = S // 1000
LIMITS = JointLimits(*(np.full(2, value) for value in (-2.0, 2.0, 3.0, 20.0)))
ANEW = np.array([0.1, -0.1])
"""Where the controller was activated, in the middle of a motion."""


class Said:
    """The newest state, once."""

    def __init__(self, *_: object) -> None:
        self.next: list[ReportedState] = []

    def newest(self) -> ReportedState | None:
        return self.next.pop() if self.next else None


@pytest.mark.parametrize("set_by_s", [-0.3, 50.0])
@pytest.mark.parametrize("said", ["before the clock was set", "in the new time", "long ago", "nothing"])
def test_a_controller_that_says_that_it_is_elsewhere_is_not_led_away_by_a_stop(monkeypatch, set_by_s, said):
    heard: list = []
    monkeypatch.setattr(joint_trajectory, "ControllerState", Said)
    node: Any = Node(heard.append)
    delivery = Delivery(0.03, 0.1)
    adapter = joint_trajectory.JointTrajectoryAdapter(
        node, CONTROLLERS["joint_trajectory"], "now", delivery, LIMITS
    )
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=node.now)
    adapter.send(path, node.now)
    was_ns = node.now = path.start_ns + (path.end_ns - path.start_ns) // 2
    node.jumped_ns = round(set_by_s * S)
    node.now += node.jumped_ns
    stamps = {"before the clock was set": was_ns - 5 * MS, "in the new time": node.now - 5 * MS}
    if said != "nothing":
        stamp_ns = stamps.get(said, was_ns - 20 * S)
        adapter._state.next.append(ReportedState(0, stamp_ns, dict(zip(NAMES, ANEW.tolist()))))
    braking = brake_on_arrival(NAMES, path.sample, was_ns, node.now, 0.06, LIMITS)
    adapter.stop(braking, node.now)
    goal = np.array(heard[-1].points[-1].positions)
    np.testing.assert_allclose(goal, ANEW if said in stamps else braking.positions[-1])
    assert (np.abs(goal - ANEW) > 0.4).any() == (said not in stamps)
