"""Receives the /diagnostics of a whole ROS domain: what the nodes of a fleet report about themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus

from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.client_node import ClientNode


class FleetWatcher(ClientNode):
    """In the graph of this process's environment. heard: called with the lines of each message during
    `listen`. A context manager."""

    def __init__(self, heard: Callable[[Sequence[DiagnosticStatus]], None], namespace: str = "") -> None:
        super().__init__(namespace)
        self._heard = heard
        self._node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, qos.REPORT)

    def listen(self, seconds: float) -> None:
        """Receive messages for this long."""
        self._wait(lambda: False, seconds)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        self._heard(message.status)
