"""Reads what a robot offers from the live graph, for a contract; it commands nothing.

The controller manager says which controllers there are, which of them are active and what they command. Where
it does not answer, or its messages are not installed, the types of command topics say less: not which
controllers are active. Their joints are a parameter of the controller's node.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String

from vla_accel_msgs.msg import FrameHandle
from vla_accel_ros.extensions import BUILT_IN, CONTROLLERS
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.client_node import ClientNode
from vla_accel_ros.nodes.controllers.parameters import values_of
from vla_accel_ros.nodes.graph import name_of
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.service_calls import ServiceCalls
from vla_accel_ros.sensing.survey import DESCRIPTION, ControllerOffer, Stream, Survey

MANAGER_TYPE = "controller_manager_msgs/srv/ListControllers"
_DISCOVERY_S = 1.0
_ANSWER_S = 3.0
_ALL = QoSProfile(depth=100, reliability=ReliabilityPolicy.BEST_EFFORT)
_STREAMED = {
    "JointTrajectoryController": "joint_trajectory",
    "ForwardCommandController": "forward_command",
    "JointGroupPositionController": "forward_command",
    "parallel_gripper_action_controller/GripperActionController": "parallel_gripper",
    "GripperActionController": "gripper_command",
}
"""End of a controller's type -> kind."""
_GRIPPERS = ("gripper_command", "parallel_gripper")
_COMMANDS = {"joint_trajectory": "joint_trajectory", "forward_command": "commands"}
_COMMANDS |= dict.fromkeys(_GRIPPERS, "goals")
_ASKED = ("joints", "interface_name", DESCRIPTION)


class Surveyor(ClientNode):
    """A node in a robot's namespace. A context manager."""

    def read(self, seconds: float) -> Survey:
        """Listen to cameras, joints and the description for so long, then ask for controllers."""
        space = self._node.get_namespace().rstrip("/")
        survey = Survey("the live graph", space)
        opened, end = [], time.monotonic() + _DISCOVERY_S + seconds
        for topic in {f"{space}/{DESCRIPTION}", f"/{DESCRIPTION}"}:
            describe = partial(self._on_description, survey, topic)
            opened.append(self._node.create_subscription(String, topic, describe, qos.LATCHED))
        while (remaining_s := end - time.monotonic()) > 0.0:
            for stream in survey.note(dict(self._node.get_topic_names_and_types())):
                opened.append(self._subscribe(survey, stream))
            self._wait(lambda: False, min(remaining_s, 0.5))
        for subscription in opened:
            self._node.destroy_subscription(subscription)
        with ServiceCalls(self._node) as ask:
            survey.controllers = self._managed(ask) or self._listening(ask)
            if not survey.description:
                self._ask_description(ask, survey)
        return survey

    def _subscribe(self, survey: Survey, stream: Stream) -> Any:
        def on_joints(message: JointState) -> None:
            stamp_ns = convert.stamp_ns(message.header.stamp)
            survey.joints(stream.topic, message.name, message.position, stamp_ns, self._now_ns())

        def on_handle(message: FrameHandle) -> None:
            size, stamp_ns = (message.height, message.width), convert.stamp_ns(message.header.stamp)
            survey.handle(stream.topic, size, message.encoding, stamp_ns, self._now_ns())

        def on_bytes(message: bytes) -> None:
            survey.image(stream.topic, message, self._now_ns())

        kinds = {kind.__name__: kind for kind in (Image, CompressedImage, FrameHandle, JointState)}
        kind = kinds[stream.type.rpartition("/")[2]]
        if kind in (Image, CompressedImage):
            return self._node.create_subscription(kind, stream.topic, on_bytes, _ALL, raw=True)
        callback = on_joints if kind is JointState else on_handle
        return self._node.create_subscription(kind, stream.topic, callback, _ALL)

    def _now_ns(self) -> int:
        return int(self._node.get_clock().now().nanoseconds)

    def _on_description(self, survey: Survey, topic: str, message: String) -> None:
        publishers = sorted(map(name_of, self._node.get_publishers_info_by_topic(topic)))
        survey.description = message.data
        survey.description_origin = f"{topic} of {', '.join(publishers) or 'a node that has ended'}"

    def _ask_description(self, ask: ServiceCalls, survey: Survey) -> None:
        """From the publisher's parameter, as some drivers give it."""
        node = f"{survey.namespace}/robot_state_publisher"
        values = self._parameters(ask, node)
        if isinstance(text := values.get(DESCRIPTION), str):
            survey.description, survey.description_origin = text, f"parameter {DESCRIPTION} of {node}"

    def _managed(self, ask: ServiceCalls) -> list[ControllerOffer]:
        """What the controller managers of the robot's namespace list; empty without an answer."""
        try:
            kind = interface(MANAGER_TYPE, "the list of controllers")
        except ValueError:
            return []
        offers = []
        services = self._node.get_service_names_and_types()
        for service in sorted(
            name for name, kinds in services if MANAGER_TYPE in kinds and self._is_ours(name)
        ):
            manager = service.rpartition("/")[0]
            answer = ask(kind, service, kind.Request(), _ANSWER_S)
            for controller in [] if answer is None else answer.controller:
                offers.append(self._offer(ask, manager, controller))
        return [offer for offer in offers if offer is not None]

    def _offer(self, ask: ServiceCalls, manager: str, controller: Any) -> ControllerOffer | None:
        """A controller that commands joints; None for broadcasters and the like."""
        interfaces = [*controller.required_command_interfaces, *controller.claimed_interfaces]
        joints = dict.fromkeys(name.rpartition("/")[0] for name in interfaces)
        if not joints:
            return None
        name = f"{manager.rpartition('/')[0]}/{controller.name}"
        values = self._parameters(ask, name)
        kind = next((kind for end, kind in _STREAMED.items() if controller.type.endswith(end)), "")
        positions = any(each.endswith("/position") for each in interfaces)
        if kind == "forward_command" and not positions:
            kind = ""
        return ControllerOffer(
            name,
            kind,
            f"{name}/{_COMMANDS[kind]}" if kind else "",
            tuple(values.get("joints") or joints),  # a controller's own order, where it says one
            f"{name}/gripper_cmd" if kind in _GRIPPERS else self._action(name),
            controller.state,
            f"{manager}: {controller.type}, {controller.state}",
        )

    def _listening(self, ask: ServiceCalls) -> list[ControllerOffer]:
        """Controllers by the topics of commands that somebody receives."""
        offers = []
        kinds = {each.message: kind for kind, each in BUILT_IN[CONTROLLERS].items() if not each.goals}
        for topic, types in self._node.get_topic_names_and_types():
            known = [kinds[each] for each in types if each in kinds]
            nodes = sorted({name_of(info) for info in self._node.get_subscriptions_info_by_topic(topic)})
            owner = topic.rpartition("/")[0]
            if not (known and self._is_ours(topic) and owner in nodes):
                continue
            values = self._parameters(ask, owner)
            if values.get("interface_name", "position") in ("", "position"):
                joints = tuple(values.get("joints") or ())
                origin = f"{owner} listens to {types[0]}; its state is unknown"
                offers.append(
                    ControllerOffer(owner, known[0], topic, joints, self._action(owner), "", origin)
                )
        return offers

    def _action(self, controller: str) -> str:
        action = f"{controller}/follow_joint_trajectory"
        return (
            action if f"{action}/_action/send_goal" in dict(self._node.get_service_names_and_types()) else ""
        )

    def _is_ours(self, name: str) -> bool:
        return name.startswith(f"{self._node.get_namespace().rstrip('/')}/")

    def _parameters(self, ask: ServiceCalls, node: str) -> dict[str, Any]:
        if f"{node}/get_parameters" not in dict(self._node.get_service_names_and_types()):
            return {}
        return values_of(ask, node, _ASKED) or {}
