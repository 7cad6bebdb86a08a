"""The node of a program that asks something of a running robot, and ends."""

from __future__ import annotations

from typing import TypeVar

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from vla_accel_ros.nodes.running.shutdown import leave_graph
from vla_accel_ros.nodes.service_calls import spinning

T = TypeVar("T", bound="ClientNode")


class ClientNode:
    """A node in its own ROS context, in the graph of this process's environment and in a robot's namespace.
    It spins while it waits for something. A context manager, to be subclassed."""

    def __init__(self, namespace: str = "") -> None:
        self._context = rclpy.Context()
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self._node = rclpy.create_node(
            "operator",  # the name in the policies of config/security
            namespace=namespace,
            context=self._context,
            enable_rosout=False,
            start_parameter_services=False,
        )
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._wait = spinning(self._executor)

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()
        leave_graph(self._node, self._context)
