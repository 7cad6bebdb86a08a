"""The topics of one robot of the fleet, in its namespace, both ways.

They are opened when the robot's fleet/robot appears in the graph, first those with which it joins, and closed
when it has gone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rclpy.node import Node

from vla_accel_msgs.msg import (
    FleetAdmission,
    FleetAnswer,
    FleetCall,
    FleetRequest,
    FleetRobot,
    LanguageOutput,
    Session,
)
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.fleet.protocol import Admission, RobotDescription
from vla_accel_ros.nodes import qos

ROBOT = "fleet/robot"
TYPE = "vla_accel_msgs/msg/FleetRobot"


def robots(node: Node) -> set[str]:
    """Namespaces in which a robot description is published, "/" for the root."""
    namespaces = set()
    for topic, types in node.get_topic_names_and_types():
        if topic.endswith(f"/{ROBOT}") and TYPE in types and node.count_publishers(topic):
            namespaces.add(topic.removesuffix(f"/{ROBOT}") or "/")
    return namespaces


class RobotTopics:
    """The publishers and subscriptions of one robot. description, contract: the last ones received, None
    before; admitted: the last admission sent. described, asked, questioned: called with this object and the
    message."""

    def __init__(
        self,
        node: Node,
        robot: str,
        described: Callable[[RobotTopics, FleetRobot], None],
        asked: Callable[[RobotTopics, FleetRequest], None],
        questioned: Callable[[RobotTopics, FleetRequest], None],
    ) -> None:
        self.robot, self._node = robot, node
        self._asked, self._questioned = asked, questioned
        self.description: RobotDescription | None = None
        self.contract: Contract | None = None
        self.admitted: Admission | None = None
        self._within = within = robot.rstrip("/")
        self._opened = False
        self.admission = node.create_publisher(FleetAdmission, f"{within}/fleet/admission", qos.LATCHED)
        self._sent = [self.admission]
        self._heard = [
            node.create_subscription(
                FleetRobot, f"{within}/{ROBOT}", lambda message: described(self, message), qos.LATCHED
            )
        ]

    def open(self) -> None:
        """Open those of a robot that is served, unless they are open."""
        if self._opened:
            return
        self._opened = True
        node, within = self._node, self._within
        self.call = node.create_publisher(FleetCall, f"{within}/fleet/call", qos.COMMAND)
        self.answer = node.create_publisher(FleetAnswer, f"{within}/fleet/answer", qos.REPORT)
        self.text = node.create_publisher(LanguageOutput, f"{within}/fleet/text", qos.REPORT)
        self.session = node.create_publisher(Session, f"{within}/fleet/session", qos.ALL_LATCHED)
        self._sent += (self.call, self.answer, self.text, self.session)
        for topic, heard, profile in (
            ("request", self._asked, qos.COMMAND),
            ("question", self._questioned, qos.REPORT),
        ):
            take = partial(heard, self)
            self._heard.append(
                node.create_subscription(FleetRequest, f"{within}/fleet/{topic}", take, profile)
            )

    def close(self) -> None:
        """Remove it all from the graph."""
        self._opened = True
        for publisher in self._sent:
            self._node.destroy_publisher(publisher)
        for subscription in self._heard:
            self._node.destroy_subscription(subscription)
