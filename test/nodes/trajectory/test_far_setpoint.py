"""A new process of the trajectory node, whose controllers were left far from where the joints are."""

from __future__ import annotations

import numpy as np
from builders import JOINTS
from chunks import Policy
from control_msgs.msg import JointTrajectoryControllerState

from vla_accel_msgs.msg import Motion
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.messages import convert

HERE, FAR = np.zeros(JOINTS), np.full(JOINTS, -1.2)


def test_the_first_motion_is_as_slow_as_the_controllers_say_that_they_are_off(start, operator):
    """Drives that were off, and joints that sagged: it begins where controllers are commanded to be."""
    states = operator.node.create_publisher(
        JointTrajectoryControllerState, "arm_controller/controller_state", qos.REPORT
    )
    start("trajectory", autostart=True, check_controllers=False)
    policy = Policy(operator)
    arm = next(c for c in operator.contract.controllers if c.topic.startswith("arm_controller"))

    def running() -> bool:
        message = JointTrajectoryControllerState(joint_names=list(arm.joints))
        convert.set_stamp(message.header.stamp, operator.now_ns())
        message.reference.positions = FAR[: len(arm.joints)].tolist()
        states.publish(message)
        return bool(operator.motions) and operator.motions[-1].state == Motion.RUNNING

    operator.wait(policy.drives(running, HERE), 90.0, "motion")
    join = operator.sent[0].trajectory
    limits = JointLimits.of(joint for joint in operator.contract.joints if joint.name in arm.joints)
    # A cubic from rest to rest: its acceleration is 6 d / t^2, its speed 1.5 d / t.
    least_s = max(np.sqrt(6.0 * 1.2 / limits.acceleration).max(), (1.5 * 1.2 / limits.velocity).max())
    np.testing.assert_allclose(join.sample(join.end_ns)[0][: len(arm.joints)], 0.0, atol=1e-6)
    there_s = (join.start_ns - operator.sent[0].received_ns) * 1e-9  # the rest of it only holds
    assert there_s >= least_s
