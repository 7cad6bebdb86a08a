"""joint_trajectory_controller, by its topic: the default.

The controller interpolates, and holds the end by itself; a trajectory is sent when there is another one.
"""

from __future__ import annotations

from rclpy.duration import Duration
from trajectory_msgs.msg import JointTrajectory

from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes import convert, qos
from vla_accel_ros.nodes.adapters.adapter import Adapter
from vla_accel_ros.nodes.lifecycle import ManagedNode
from vla_accel_ros.sensing.contract import Controller


class JointTrajectoryAdapter(Adapter):
    """stamp: "now" or "zero", see the parameter of the trajectory node."""

    def __init__(self, node: ManagedNode, controller: Controller, stamp: str) -> None:
        super().__init__(controller)
        self._publisher = node.output(JointTrajectory, controller.topic, qos.COMMAND)
        self._message = convert.TrajectoryMessage(controller.joints, stamp)

    def send(self, trajectory: Trajectory, now_ns: int) -> None:
        self._publisher.publish(self._message.fill(trajectory))

    def stop(self, braking: Trajectory | None, now_ns: int) -> None:
        if braking is not None:  # on arrival: the controller may not have heard of the new time yet
            self._publisher.publish(self._message.fill(braking, on_arrival_ns=now_ns))

    def close(self) -> None:
        # The publisher may be destroyed next, and with it a stop that has not arrived.
        self._publisher.wait_for_all_acked(Duration(seconds=0.5))
