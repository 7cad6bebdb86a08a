"""A trajectory node that is not scheduled between a decision and its message: whatever it decided, chunks,
stops, joins, the way home, what the controllers execute by the messages that reach them keeps the limits, and
joints that lag behind what was decided, because what was sent does, are not taken for a drive that is off.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from calling import call
from chunks import Policy
from held_up import HELD_UP_S, SAYS
from running import NodeProcess
from stand_ins import ALL, motion_of
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import TrajectoryPoint
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.sim.executed import Broken, TrajectoryController, judge_path

PROGRAM = Path(__file__).parents[1] / "held_up.py"
LEAD_MAX_S = 0.1
GOALS = np.array([[0.3, 0.2, 1.0, 0.1, 0.2, 0.5], [0.0, -0.1, 0.7, 0.4, -0.1, 0.3]])
assert HELD_UP_S > 2 * LEAD_MAX_S


class Executed:
    """What joint_trajectory_controllers would execute of what was sent, from when it was sent on."""

    def __init__(self, operator: Operator, begin: dict[str, float]) -> None:
        self._operator, self.sent = operator, 0
        self._controllers = []
        for controller in operator.contract.controllers:
            position = np.array([begin[name] for name in controller.joints])
            own = TrajectoryController(tuple(controller.joints), position, True)
            own.starts[0] = operator.now_ns()
            self._controllers.append(own)
            heard = partial(self._add, own)
            # rclpy looks at a callback's signature to see whether it wants to know when a message was sent
            operator.node.create_subscription(
                JointTrajectory, controller.topic, lambda m, info, heard=heard: heard(m, info), ALL
            )

    def _add(self, controller: TrajectoryController, message: JointTrajectory, info: dict[str, int]) -> None:
        at_ns = max(info["source_timestamp"], controller.starts[-1] + 1)
        path = convert.trajectory_from_message(message, at_ns).select(controller.joints)
        assert controller.accept(path, at_ns, TrajectoryPoint(at_ns, controller.state(at_ns).position))
        self.sent += len(controller.joints) > 1

    def broken(self) -> list[Broken]:
        """Limits that were exceeded."""
        joints, found = {joint.name: joint for joint in self._operator.contract.joints}, []
        for controller in self._controllers:
            assert not controller.rejected
            limits = JointLimits.of(joints[name] for name in controller.joints)
            times, positions = controller.path(self._operator.now_ns())
            found += judge_path(times, positions, limits, *controller.exceptions)
        return found


@pytest.fixture
def executed(operator, arm) -> Executed:
    return Executed(operator, arm.position)


@pytest.fixture
def node(start, executed) -> NodeProcess:
    return start("trajectory", autostart=True, lead_max_s=LEAD_MAX_S, move_speed=1.0, program=PROGRAM)


def test_whatever_is_held_up_the_controllers_keep_the_limits(node, operator, arm, executed):
    policy = Policy(operator)

    def moves(more: int) -> None:
        """Wait until the arm has been sent so many more trajectories, and another was held up."""
        until, held_up = executed.sent + more, node.log.count(SAYS)

        def done() -> bool:
            policy.goal = GOALS[executed.sent // 2 % 2]
            return executed.sent >= until and node.log.count(SAYS) > held_up

        operator.wait(policy.drives(done), 180.0, "motion")
        assert executed.broken() == []

    def says(word: str) -> None:
        operator.wait(policy.drives(lambda: motion_of(operator).startswith(word)), 90.0, word)

    for _ in range(2):  # so that of stops, of joins and of ways home some are held up
        moves(8)
        operator.hold()
        says("holding")
        operator.resume()
        moves(4)
        home = call(operator, Trigger, "trajectory/home", Trigger.Request())
        assert home.success, home.message
        operator.resume()
    moves(8)
    assert node.end() == 0
    assert executed.broken() == []
