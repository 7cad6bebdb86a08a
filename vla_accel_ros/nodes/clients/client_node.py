"""The node of a program that asks something of a running robot, and ends; two such: one receives the
/diagnostics of a whole ROS domain, one publishes /clock, simulated time at a chosen share of real time.

The steps of /clock always have the same size, so nodes with use_sim_time see the same resolution at any
share. A late step is not made up for: simulated time is then slower.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.executors import Executor, SingleThreadedExecutor
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions
from rosgraph_msgs.msg import Clock

from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.shutdown import leave_graph
from vla_accel_ros.nodes.service_calls import call, spinning

T = TypeVar("T", bound="ClientNode")


class ClientNode:
    """A node in its own ROS context, in the graph of this process's environment and in a robot's namespace.
    It spins while it waits for something. A context manager, to be subclassed. name: as in the policies of
    config/security."""

    def __init__(
        self, namespace: str = "", name: str = "operator", executor: type[Executor] = SingleThreadedExecutor
    ) -> None:
        self._context = rclpy.Context()
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self._node = rclpy.create_node(
            name,
            namespace=namespace,
            context=self._context,
            enable_rosout=False,
            start_parameter_services=False,
        )
        self._executor = executor(context=self._context)
        self._executor.add_node(self._node)
        self._wait = spinning(self._executor)

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()
        leave_graph(self._node, self._context)

    def _call(
        self,
        kind: type,
        service: str,
        request: object,
        timeout_s: float,
        once: bool = False,
        find_s: float | None = None,
    ) -> Any:
        """The answer of a service; see service_calls.call."""
        client = self._node.create_client(kind, service)
        try:
            return call(self._node, client, request, timeout_s, self._wait, once, find_s)
        finally:
            self._node.destroy_client(client)


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


STEP_NS = 10_000_000
LISTENERS = QoSProfile(depth=10)


class SimClock(ClientNode):
    """In the graph of this process's environment, starting at the present. factor: simulated over real time,
    which may be set at any time. Publishes from `__enter__` on, in its own thread."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.now_ns = time.time_ns()
        self._publisher = self._node.create_publisher(Clock, "/clock", LISTENERS)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="clock", daemon=True)

    def __enter__(self) -> SimClock:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        super().__exit__(*error)

    def _tick(self) -> None:
        message = Clock()
        due_s = time.monotonic()
        while not self._over.is_set():
            self.now_ns += STEP_NS
            convert.set_stamp(message.clock, self.now_ns)
            self._publisher.publish(message)
            due_s = max(due_s + STEP_NS * 1e-9 / self.factor, time.monotonic())
            self._over.wait(due_s - time.monotonic())
