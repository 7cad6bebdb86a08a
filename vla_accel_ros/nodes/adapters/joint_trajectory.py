"""The topic of a joint_trajectory_controller. What it is sent: control/outputs/trajectory.py.

The message is reused, as building one of 50 x 7 anew takes five times as long. Acknowledgements and states
are polled: rclpy holds the GIL while it waits for acknowledgements, so this never waits for them.
"""

from __future__ import annotations

from array import array

from rclpy.duration import Duration
from rclpy.serialization import serialize_message
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_accel_ros.control.outputs.delivery import Delivery
from vla_accel_ros.control.outputs.output import Output, TrajectoryChannel
from vla_accel_ros.control.outputs.reports import ReportedState
from vla_accel_ros.control.outputs.trajectory import TrajectoryOutput
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.adapters.adapter import CommandTopic, Setup
from vla_accel_ros.nodes.controllers.state import ControllerState
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.messages import convert


class JointTrajectoryAdapter(CommandTopic, TrajectoryChannel):
    """Messages are serialized before their time has come."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, JointTrajectory)
        self._message, self._serialized = TrajectoryMessage(setup.controller.joints), b""
        stamped = value(setup.node, "stamp") == "now"
        self._state = ControllerState(setup.node, setup.controller) if stamped else None

    @classmethod
    def make(cls, setup: Setup) -> Output:
        """See Adapter."""
        node = setup.node
        delivery = Delivery(value(node, "lead_s"), value(node, "lead_max_s"))
        stamped = value(node, "stamp") == "now"
        return TrajectoryOutput(setup.controller, setup.limits, delivery, cls(setup), setup.clock, stamped)

    @property
    def reports(self) -> bool:
        return self._state is not None and self._state.listens

    def write(self, path: Trajectory, start_ns: int, stamped: bool) -> None:
        self._serialized = serialize_message(self._message.fill(path, start_ns, stamped))

    def publish(self) -> None:
        self._publisher.publish(self._serialized)

    def is_heard(self) -> bool:
        return self._publisher.get_subscription_count() > 0

    def is_acknowledged(self) -> bool:
        return self._publisher.wait_for_all_acked(Duration())

    def newest(self) -> ReportedState | None:
        return None if self._state is None else self._state.newest()


class TrajectoryMessage:
    """One controller's JointTrajectory, reused for every trajectory sent to it. joints: in its order."""

    def __init__(self, joints: tuple[str, ...]) -> None:
        self._joints = joints
        self._message = JointTrajectory(joint_names=list(joints))
        self._points: list[JointTrajectoryPoint] = []

    def fill(self, trajectory: Trajectory, start_ns: int, stamped: bool = True) -> JointTrajectory:
        """The message for this controller's share of the motion; valid until the next call.

        Points count from start_ns. The motion begins on what is commanded already, so a controller joins it
        in the middle when the message arrives. stamped: False if it begins when the message arrives, whatever
        the controller's clock says.
        """
        share = trajectory.select(self._joints)
        while len(self._points) < len(share):
            self._points.append(JointTrajectoryPoint())
        for i, point in enumerate(self._points[: len(share)]):
            point.positions = array("d", share.positions[i].tobytes())
            point.velocities = array("d", b"" if share.velocities is None else share.velocities[i].tobytes())
            convert.set_stamp(point.time_from_start, int(share.times_ns[i]) - start_ns)
        self._message.points = self._points[: len(share)]
        convert.set_stamp(self._message.header.stamp, start_ns if stamped else 0)
        return self._message
