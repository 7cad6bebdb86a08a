"""Collects what checks/graph_check judges: the endpoints at the other end of our topics, their types and
QoS.

A node checks when it configures, and refuses what cannot work. It checks again while it runs, since a driver
that starts later may be the wrong one. Discovery runs in the background, so configure waits for it, at most
DISCOVERY_S and not at all once every topic has an endpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.duration import Infinite
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.topic_endpoint_info import TopicEndpointInfo

from vla_accel_ros.contract.checks.findings import ERROR, OK, WARNING, Finding, refuse
from vla_accel_ros.contract.checks.graph_check import Endpoint, Qos, Wanted, fitting, judge, misplaced
from vla_accel_ros.nodes import diagnostics
from vla_accel_ros.nodes.diagnostics import status

DISCOVERY_S = 0.5
UNNAMED = "_NODE_NAME_UNKNOWN_"
"""Name of a node that the middleware does not know yet, or of a program that is no node."""
_LEVELS = {OK: diagnostics.OK, WARNING: diagnostics.WARN, ERROR: diagnostics.ERROR}
_LOOK_S = 0.02


def endpoints(node: Node, topic: str, ours: bool) -> list[Endpoint]:
    """The endpoints at the other end of a topic that do not belong to `node`. topic: its name in the graph.
    ours: we publish it."""
    ask = node.get_subscriptions_info_by_topic if ours else node.get_publishers_info_by_topic
    ends = [_endpoint(info) for info in ask(topic)]
    return [end for end in ends if end.node != node.get_fully_qualified_name()]


def look(node: Node, wanted: Sequence[Wanted], states: str = "") -> list[Finding]:
    """The findings about every topic in the present graph. states: the topic of the robot's joint states,
    whose publishers are part of it."""
    ours = {node.resolve_topic_name(topic.topic) for topic in wanted}
    topics = {name: types for name, types in node.get_topic_names_and_types() if name not in ours}
    sources = publishers(node, states) if states else ()
    ends = [
        (_as_overridden(node, topic), node.resolve_topic_name(topic.topic), _ends(node, topic))
        for topic in wanted
    ]
    if len(ends) > 1:
        elsewhere = misplaced([(topic, name, bool(others_ends)) for topic, name, others_ends in ends], topics)
        if elsewhere:
            return elsewhere
    findings = []
    for topic, name, others_ends in ends:
        fits = fitting(topic, others_ends, sources)
        near = [] if fits else [other for other, types in topics.items() if topic.type in types]
        ends_near = {other: endpoints(node, other, topic.ours) for other in near}
        findings += judge(topic, name, others_ends, topics, ends_near, sources)
    return findings


def publishers(node: Node, topic: str) -> list[str]:
    """Names of the nodes that publish a topic, one for each publisher."""
    return [name_of(info) for info in node.get_publishers_info_by_topic(node.resolve_topic_name(topic))]


def qos_of(profile: QoSProfile) -> Qos:
    """The parts of a profile that decide whether two endpoints are compatible."""
    deadline = profile.deadline  # 0 is "not given"
    never = deadline == Infinite or deadline.nanoseconds == 0
    return Qos(
        profile.reliability.name.lower(),
        profile.durability.name.lower(),
        math.inf if never else deadline.nanoseconds * 1e-9,
    )


def wait_for_discovery(node: Node, wanted: Sequence[Wanted], timeout_s: float = DISCOVERY_S) -> None:
    """Wait until each of these topics has an endpoint at its other end, at most timeout_s."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and not all(_ends(node, topic) for topic in wanted):
        time.sleep(_LOOK_S)


class GraphCheck:
    """Checks the topics of a node repeatedly. findings: of the last check.

    wanted: topics that the contract names. others: topics that may have no other end, and are never refused.
    states: the topic of the robot's joint states. reasons: fields of the contract whose topics stop the robot
    when nothing passes through them; the node logs that as the reason (`why`).
    """

    def __init__(
        self,
        node: Node,
        wanted: Sequence[Wanted],
        others: Sequence[Wanted] = (),
        states: str = "",
        reasons: Collection[str] = (),
    ) -> None:
        self._node, self._wanted, self._others = node, wanted, others
        self._states, self._reasons = states, reasons
        self._told: set[Finding] = set()
        self.findings: list[Finding] = []

    def refuse_wrong(self) -> None:
        """Wait for discovery and check; raises ValueError for errors, logs warnings."""
        wait_for_discovery(self._node, self._wanted)
        refuse(self._look(self._wanted))
        self.poll()

    def poll(self) -> None:
        """Check, and log new findings."""
        self.findings = self._look(
            [*self._wanted, *(topic for topic in self._others if _ends(self._node, topic))]
        )
        for finding in set(self.findings) - self._told:
            if finding.about in self._reasons and self.why(finding.about):
                continue
            if finding.level == ERROR:
                self._node.get_logger().error(str(finding))
            elif finding.level == WARNING:
                self._node.get_logger().warning(str(finding))
        self._told = set(self.findings)

    def why(self, about: str) -> str:
        """Why nothing can pass through the topic of a field now; empty if something may."""
        topics = [topic for topic in self._wanted if topic.about == about]
        sources = publishers(self._node, self._states) if self._states else ()
        if any(
            fitting(_as_overridden(self._node, topic), _ends(self._node, topic), sources) for topic in topics
        ):
            return ""
        return str(self._look(topics)[0])

    def _look(self, wanted: Sequence[Wanted]) -> list[Finding]:
        return look(self._node, wanted, self._states)

    def status(self) -> DiagnosticStatus:
        """The line of diagnostics with the problems."""
        problems = [finding for finding in self.findings if finding.level != OK]
        level = ERROR if any(finding.level == ERROR for finding in problems) else WARNING
        words = " | ".join(map(str, problems)) or "topics, types and QoS fit"
        return status("graph", _LEVELS[level if problems else OK], words)


def _ends(node: Node, wanted: Wanted) -> list[Endpoint]:
    return endpoints(node, node.resolve_topic_name(wanted.topic), wanted.ours)


def _as_overridden(node: Node, wanted: Wanted) -> Wanted:
    """`wanted` with the reliability that a parameter sets for our subscription, if it does."""
    name = f"qos_overrides.{node.resolve_topic_name(wanted.topic)}.subscription.reliability"
    if wanted.ours or not node.has_parameter(name):
        return wanted
    return replace(wanted, qos=replace(wanted.qos, reliability=node.get_parameter(name).value))


def name_of(info: TopicEndpointInfo) -> str:
    """The full name of an endpoint's node."""
    return f"{info.node_namespace.rstrip('/')}/{info.node_name}"


def _endpoint(info: TopicEndpointInfo) -> Endpoint:
    return Endpoint(name_of(info), info.topic_type, qos_of(info.qos_profile))
