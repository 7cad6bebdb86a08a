"""Publishes once a second what a node knows about itself, on /diagnostics.

Names are "<node>: <item>" with the node's namespace, so several robots can share the topic. The topic is
absolute, as everywhere in ROS, and published in every lifecycle state: a node that could not be configured
says why. Stale items are not repeated: a node that dies falls silent, and the aggregator's timeout shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from vla_accel_ros.nodes.brief import brief
from vla_accel_ros.nodes.qos import REPORT
from vla_accel_ros.nodes.running.executor import DirectExecutor

OK = DiagnosticStatus.OK
WARN = DiagnosticStatus.WARN
ERROR = DiagnosticStatus.ERROR


def status(
    item: str, level: bytes, message: str, values: Mapping[str, object] | None = None
) -> DiagnosticStatus:
    """One line of diagnostics; numbers are written with four significant digits."""
    texts = {
        key: f"{value:.4g}" if isinstance(value, float) else str(value)
        for key, value in (values or {}).items()
    }
    return DiagnosticStatus(
        level=level,
        name=item,
        message=brief(message),
        values=[KeyValue(key=key, value=brief(text)) for key, text in texts.items()],
    )


class Reporter:
    """Publishes what `collect` returns, every second."""

    def __init__(
        self, node: Node, collect: Callable[[], Iterable[DiagnosticStatus]], hardware_id: str = ""
    ) -> None:
        self._node = node
        self._collect = collect
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", REPORT)
        self._name = node.get_fully_qualified_name().lstrip("/")
        self.hardware_id = hardware_id
        # Steady, so that a stopped /clock does not silence the node that should report it.
        self._timer = node.create_timer(1.0, self.report, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def report(self) -> None:
        """Collect and publish now."""
        message = DiagnosticArray(status=[*self._collect(), *self._executor()])
        message.header.stamp = self._node.get_clock().now().to_msg()
        for line in message.status:
            line.name = f"{self._name}: {line.name}"
            line.hardware_id = self.hardware_id
        self._publisher.publish(message)

    def _executor(self) -> list[DiagnosticStatus]:
        """Which executor calls the node's callbacks; empty before any does."""
        executor = self._node.executor
        if not isinstance(executor, DirectExecutor):
            return []
        return [status("executor", OK if executor.direct else WARN, executor.description)]
