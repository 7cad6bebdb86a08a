"""A gripper that is told where to go in the end, and does the rest by itself."""

from __future__ import annotations

from rclpy.duration import Duration
from std_msgs.msg import Float64MultiArray

from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.adapters.adapter import Adapter, Setup


class GripperAdapter(Adapter):
    """Publishes the last point of every trajectory."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup.controller)
        self._publisher = setup.node.output(Float64MultiArray, setup.controller.topic, qos.COMMAND)

    @classmethod
    def make(cls, setup: Setup) -> Adapter:
        return cls(setup)

    def send(self, trajectory: Trajectory, decided_ns: int) -> None:
        last = trajectory.select(self.controller.joints).positions[-1]
        self._publisher.publish(Float64MultiArray(data=last.tolist()))

    def close(self) -> None:
        self._publisher.wait_for_all_acked(Duration(seconds=0.5))
