"""Asks the robot's trajectory controllers whether they will do what we send them.

A joint_trajectory_controller with other joints, or one that refuses a last point in motion which we would
send, moves nothing and says so only in its own log; one that interpolates from the measured state jerks at
hand-overs. Its parameters tell. They are asked for without waiting, again until there is an answer: a
controller may start after us, and one that is no joint_trajectory_controller may never answer.
"""

from __future__ import annotations

from functools import partial

from rcl_interfaces.msg import ParameterType, ParameterValue
from rcl_interfaces.srv import GetParameters
from rclpy.client import Client
from rclpy.node import Node
from rclpy.task import Future

from vla_accel_ros.sensing.contract import Controller

_ASKED = ("joints", "interpolate_from_desired_state", "allow_nonzero_velocity_at_trajectory_end")


class ControllerCheck:
    """Asks each controller once and keeps what is wrong in `findings`: topic -> sentences, empty when all
    is well."""

    def __init__(self, node: Node, controllers: tuple[Controller, ...], zero_end: bool) -> None:
        self.findings: dict[str, list[str]] = {}
        self._node, self._zero_end = node, zero_end
        self._waiting: dict[str, tuple[Controller, Client]] = {}
        for controller in controllers:
            service = f"{controller.topic.rpartition('/')[0]}/get_parameters".lstrip("/")
            self._waiting[controller.topic] = (controller, node.create_client(GetParameters, service))

    def poll(self) -> None:
        """Ask the controllers that are there and have not been asked yet."""
        for topic, (controller, client) in list(self._waiting.items()):
            if client.service_is_ready():
                del self._waiting[topic]
                future = client.call_async(GetParameters.Request(names=list(_ASKED)))
                future.add_done_callback(partial(self._answered, controller, client))

    def close(self) -> None:
        """Stop asking."""
        for _, client in self._waiting.values():
            self._node.destroy_client(client)
        self._waiting.clear()

    def _answered(self, controller: Controller, client: Client, future: Future) -> None:
        self._node.destroy_client(client)
        values = dict(zip(_ASKED, future.result().values))
        found = self.findings[controller.topic] = judge(controller, values, self._zero_end)
        for sentence in found:
            self._node.get_logger().warning(f"{controller.topic}: {sentence}")


def judge(controller: Controller, values: dict[str, ParameterValue], zero_end: bool) -> list[str]:
    """What of a controller's parameters breaks our motion, one sentence each."""
    found = []
    joints, desired, moving_end = (values.get(name, ParameterValue()) for name in _ASKED)
    if joints.type == ParameterType.PARAMETER_STRING_ARRAY and set(joints.string_array_value) != set(
        controller.joints
    ):
        found.append(
            f"the controller moves {', '.join(joints.string_array_value)} but the contract gives it "
            f"{', '.join(controller.joints)}: mend controllers[].joints"
        )
    if desired.type == ParameterType.PARAMETER_BOOL and not desired.bool_value:
        found.append(
            "interpolate_from_desired_state is false, so that hand-overs may jerk: set it to true in the "
            "controller's parameters"
        )
    if moving_end.type == ParameterType.PARAMETER_BOOL and not moving_end.bool_value and not zero_end:
        found.append(
            "allow_nonzero_velocity_at_trajectory_end is false, so that trajectories ending in motion are "
            "refused: set our parameter zero_end to true"
        )
    return found
