"""What a joint_trajectory_controller reports on controller_state, if control_msgs is installed.

Since Jazzy it reports at the rate of its updates, 500 Hz and more, while the trajectory node needs the newest
state only sometimes. So the subscription is in no executor's wait set: it keeps one message, and `newest`
takes it.
"""

from __future__ import annotations

from typing import Any

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup

from vla_accel_ros.contract.checks.controller_check import node_of
from vla_accel_ros.contract.parts import Controller
from vla_accel_ros.control.outputs.reports import Execution, ReportedState, Reports
from vla_accel_ros.control.trajectory import TrajectoryPoint
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.lifecycle import ManagedNode


def state_type() -> Any | None:
    """control_msgs/msg/JointTrajectoryControllerState; None where it is not installed."""
    try:
        return interface("control_msgs/msg/JointTrajectoryControllerState", "controller_state")
    except ValueError:
        return None


class ControllerState:
    """The state of one controller, polled. Closed with the node's `release`."""

    def __init__(self, node: ManagedNode, controller: Controller) -> None:
        self._subscription, self._reports = None, Reports()
        kind = state_type()
        if kind is not None:
            topic = f"{node_of(controller)}/controller_state"
            self._subscription = node.create_subscription(
                kind, topic, _unused, qos.SENSOR, callback_group=_Polled()
            )
            node.on_release(lambda: node.destroy_subscription(self._subscription))

    @property
    def listens(self) -> bool:
        """Whether there is a subscription."""
        return self._subscription is not None

    def newest(self) -> ReportedState | None:
        """The newest state; None if there is no new one."""
        if self._subscription is None:
            return None
        with self._subscription.handle:
            message = self._subscription.handle.take_message(self._subscription.msg_type, False)
        if message is None:
            return None
        return self._reports.read(_plain(message[0]))


def _plain(message: Any) -> Execution:
    """What a state says of the execution."""
    reference, feedback = message.reference, message.feedback
    return Execution(
        convert.stamp_ns(message.header.stamp),
        convert.stamp_ns(feedback.time_from_start),
        convert.stamp_ns(reference.time_from_start),
        dict(zip(message.joint_names, reference.positions)),
        any(reference.velocities),
    )


def fill(message: Any, began_ns: int, desired: TrajectoryPoint, measured: TrajectoryPoint) -> None:
    """Write the state at desired.stamp_ns of a controller that executes a trajectory that began at
    began_ns."""
    convert.set_stamp(message.header.stamp, desired.stamp_ns)
    for point, state in (
        (message.reference, desired),
        (message.feedback, measured),
        (message.output, desired),
    ):
        point.positions = state.position.tolist()
        point.velocities = [] if state.velocity is None else state.velocity.tolist()
    for point in (message.reference, message.feedback):
        convert.set_stamp(point.time_from_start, desired.stamp_ns - began_ns)
    message.error.positions = (desired.position - measured.position).tolist()


class _Polled(MutuallyExclusiveCallbackGroup):
    """A group that an executor never waits for."""

    def can_execute(self, entity: Any) -> bool:
        return False


def _unused(_: Any) -> None:
    """rclpy requires a callback; a polled subscription never calls it."""
