"""Gathers what contract/graph_check judges: who is at the other end of our topics, of which type and QoS.

A node checks when it configures, and refuses what cannot work; then again while it runs, since a driver that
starts later may be the wrong one. The graph is discovered in the background, so that configure waits for it,
no longer than DISCOVERY_S and not at all once every topic has somebody.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.duration import Infinite
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.topic_endpoint_info import TopicEndpointInfo

from vla_accel_ros.contract.findings import ERROR, OK, WARNING, Finding, refuse
from vla_accel_ros.contract.graph_check import Endpoint, Qos, Wanted, judge
from vla_accel_ros.nodes import diagnostics
from vla_accel_ros.nodes.diagnostics import status

DISCOVERY_S = 0.5
_LEVELS = {OK: diagnostics.OK, WARNING: diagnostics.WARN, ERROR: diagnostics.ERROR}
_LOOK_S = 0.02


def endpoints(node: Node, wanted: Wanted) -> tuple[str, list[Endpoint]]:
    """The topic's name in the graph, and those at the other end of it that are not of `node`."""
    name = node.resolve_topic_name(wanted.topic)
    ask = node.get_subscriptions_info_by_topic if wanted.ours else node.get_publishers_info_by_topic
    found = [_endpoint(info) for info in ask(name)]
    return name, [end for end in found if end.node != node.get_fully_qualified_name()]


def look(node: Node, wanted: Sequence[Wanted]) -> list[Finding]:
    """Judge every topic as the graph is now."""
    ours = {node.resolve_topic_name(each.topic) for each in wanted}
    topics = {name: types for name, types in node.get_topic_names_and_types() if name not in ours}
    return [
        finding
        for each in wanted
        for finding in judge(_as_overridden(node, each), *endpoints(node, each), topics)
    ]


def qos_of(profile: QoSProfile) -> Qos:
    """What of a profile decides whether two endpoints talk."""
    deadline = profile.deadline  # 0 is "not given"
    never = deadline == Infinite or deadline.nanoseconds == 0
    return Qos(
        profile.reliability.name.lower(),
        profile.durability.name.lower(),
        math.inf if never else deadline.nanoseconds * 1e-9,
    )


def wait_for_discovery(node: Node, wanted: Sequence[Wanted], timeout_s: float = DISCOVERY_S) -> None:
    """Return when each of these topics has somebody at its other end, or when the time is over."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and not all(endpoints(node, each)[1] for each in wanted):
        time.sleep(_LOOK_S)


class GraphCheck:
    """The topics of a node, looked at again and again. findings: of the last look.

    wanted: what the contract names. others: what may have nobody at its other end, and is never refused.
    """

    def __init__(self, node: Node, wanted: Sequence[Wanted], others: Sequence[Wanted] = ()) -> None:
        self._node, self._wanted, self._others = node, wanted, others
        self._told: set[Finding] = set()
        self.findings: list[Finding] = []

    def refuse_wrong(self) -> None:
        """Look once discovery has had its time; raises ValueError for what cannot work, logs warnings."""
        wait_for_discovery(self._node, self._wanted)
        refuse(look(self._node, self._wanted))
        self.poll()

    def poll(self) -> None:
        """Look; log what is new."""
        spoken = [each for each in self._others if endpoints(self._node, each)[1]]
        self.findings = look(self._node, [*self._wanted, *spoken])
        for finding in set(self.findings) - self._told:
            if finding.level == ERROR:
                self._node.get_logger().error(str(finding))
            elif finding.level == WARNING:
                self._node.get_logger().warning(str(finding))
        self._told = set(self.findings)

    def status(self) -> DiagnosticStatus:
        """The line of diagnostics that says what is not well."""
        wrong = [finding for finding in self.findings if finding.level != OK]
        level = ERROR if any(finding.level == ERROR for finding in wrong) else WARNING
        words = " | ".join(map(str, wrong))
        return status("graph", _LEVELS[level] if wrong else _LEVELS[OK], words or "topics, types and QoS fit")


def _as_overridden(node: Node, wanted: Wanted) -> Wanted:
    """With the reliability that a parameter gives our subscription in place of the usual one."""
    name = f"qos_overrides.{node.resolve_topic_name(wanted.topic)}.subscription.reliability"
    if wanted.ours or not node.has_parameter(name):
        return wanted
    return replace(wanted, qos=replace(wanted.qos, reliability=node.get_parameter(name).value))


def name_of(info: TopicEndpointInfo) -> str:
    """The full name of an endpoint's node."""
    return f"{info.node_namespace.rstrip('/')}/{info.node_name}"


def _endpoint(info: TopicEndpointInfo) -> Endpoint:
    return Endpoint(name_of(info), info.topic_type, qos_of(info.qos_profile))
