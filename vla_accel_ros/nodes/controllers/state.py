"""What a joint_trajectory_controller tells of itself on controller_state, where control_msgs is installed.

Since Jazzy it tells at the rate of its updates, 500 Hz and more, of which the trajectory node needs the
newest one now and then. So the subscription is in no executor's wait set: it keeps one message, and `newest`
takes it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup

from vla_accel_ros.contract.controller_check import node_of
from vla_accel_ros.contract.parts import Controller
from vla_accel_ros.control.trajectory import MotionState
from vla_accel_ros.nodes import convert, qos
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.lifecycle import ManagedNode


def state_type() -> Any | None:
    """control_msgs/msg/JointTrajectoryControllerState; None where it is not installed."""
    try:
        return interface("control_msgs/msg/JointTrajectoryControllerState", "controller_state")
    except ValueError:
        return None


class ReportedState(NamedTuple):
    """When the trajectory that is executed began, and the stamp of the state, in nanoseconds. reference:
    where the controller is commanded to be, by joint name. rests: whether it says that it is at rest."""

    began_ns: int
    stamp_ns: int
    reference: dict[str, float]
    rests: bool = False


class ControllerState:
    """The state of one controller, polled. Closed with the node's `release`."""

    def __init__(self, node: ManagedNode, controller: Controller) -> None:
        self._subscription = None
        kind = state_type()
        if kind is not None:
            topic = f"{node_of(controller)}/controller_state"
            self._subscription = node.create_subscription(
                kind, topic, _unused, qos.SENSOR, callback_group=_Polled()
            )
            node.on_release(lambda: node.destroy_subscription(self._subscription))

    def newest(self) -> ReportedState | None:
        """None when nothing is new."""
        if self._subscription is None:
            return None
        with self._subscription.handle:
            taken = self._subscription.handle.take_message(self._subscription.msg_type, False)
        if taken is None:
            return None
        state = taken[0]
        stamp_ns = convert.stamp_ns(state.header.stamp)
        began_ns = stamp_ns - convert.stamp_ns(state.feedback.time_from_start)
        reference = state.reference
        rests = bool(reference.velocities) and not any(reference.velocities)
        return ReportedState(began_ns, stamp_ns, dict(zip(state.joint_names, reference.positions)), rests)


def fill(message: Any, began_ns: int, desired: MotionState, measured: MotionState) -> None:
    """Write the state at desired.stamp_ns of a controller that executes what began at began_ns."""
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
    """Nothing of it is waited for."""

    def can_execute(self, entity: Any) -> bool:
        return False


def _unused(_: Any) -> None:
    """Polled subscriptions have no callback, and rclpy wants one."""
