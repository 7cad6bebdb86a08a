"""Telling a robot what to do, and seeing that it does."""

from __future__ import annotations

import rclpy
from running import NodeProcess, until
from std_msgs.msg import String

from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator


def say(operator: Operator, text: str, node: NodeProcess) -> None:
    """As `ros2 topic pub --once` does. It is kept when this returns: a thread of its own writes it."""
    terminal = rclpy.create_node("terminal", context=operator.node.context)
    publisher = terminal.create_publisher(String, "instruction", qos.LATCHED)
    publisher.publish(String(data=text))
    node.wait_for_log(f"instruction: {text!r}")
    until(lambda: text in node.kept, 90.0, f"{text!r} in its state file", lambda: node.log)
    terminal.destroy_node()


def acts(operator: Operator) -> None:
    now_ns = operator.now_ns()
    operator.wait(lambda: operator.chunks and operator.chunks[-1].chunk.stamp_ns > now_ns, 180.0, "chunk")
