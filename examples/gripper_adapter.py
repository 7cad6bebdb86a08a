"""The adapter of `kind: my_gripper` (add_controller.py): sends what the trajectory node has decided.

An adapter decides nothing about motion. It gets absolute trajectories that keep the limits of the contract,
each in place of the one before, and hands them on in the controller's own way. What it adds itself, such as a
gain, must keep the limits, too.
"""

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
        """Called when the node configures. Raise ValueError here if something is missing."""
        return cls(setup)

    def send(self, trajectory: Trajectory, decided_ns: int) -> None:
        # A trajectory may have other joints, too; `select` gives this controller's, in its own order.
        target = trajectory.select(self.controller.joints).positions[-1]
        self._publisher.publish(Float64MultiArray(data=target.tolist()))

    def close(self) -> None:
        # The last command has arrived before the node ends.
        self._publisher.wait_for_all_acked(Duration(seconds=0.5))
