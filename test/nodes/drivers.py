"""The drivers of a robot that is not there, well or with one fault each, in a thread of the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import rclpy
from nav_msgs.msg import Odometry
from rclpy.clock import Clock, ClockType
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CompressedImage, Image, JointState
from trajectory_msgs.msg import JointTrajectory

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.executor import DirectExecutor


@dataclass(frozen=True)
class Fault:
    """What is wrong with a camera. stamp: of a message, from the present time in nanoseconds."""

    rate_hz: float = 30.0
    encoding: str = "rgb8"
    type: type = Image
    stamp: Callable[[int], int] = lambda now_ns: now_ns


class Drivers:
    """Publishes a contract's cameras, joints and odometry, and listens where its controllers would. A context
    manager.

    cameras: faults by name. joints: names in the joint states. listen: QoS of the controllers' topics; None
    for no controllers. parameters: of the controllers. driver: name of the node. context: in which a test may
    have more nodes; nodes: those that are there.
    """

    def __init__(
        self,
        contract: Contract,
        cameras: dict[str, Fault] | None = None,
        joints: tuple[str, ...] | None = None,
        listen: QoSProfile | None = qos.COMMAND,
        parameters: dict[str, object] | None = None,
        driver: str = "driver",
    ) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, signal_handler_options=SignalHandlerOptions.NO)
        self._executor = DirectExecutor(context=self.context)
        self.nodes: list[Node] = []
        self._silent: set[str] = set()
        node = self._add(driver)
        for camera in contract.cameras:
            fault = (cameras or {}).get(camera.name, Fault())
            self._send(node, fault.type, camera.topic, picture(fault), fault.rate_hz, fault.stamp)
        names = contract.joint_names if joints is None else joints
        states = JointState(name=list(names), position=[0.1] * len(names))
        self._send(node, JointState, contract.joint_states.topic, states, 100.0, lambda now_ns: now_ns)
        if contract.base is not None:
            self._send(node, Odometry, contract.base.odometry, Odometry(), 50.0, lambda now_ns: now_ns)
        for controller in contract.controllers if listen is not None else ():
            owner = self._add(controller.topic.partition("/")[0])
            owner.create_subscription(JointTrajectory, controller.topic, lambda _: None, listen)
            for name, value in (parameters or {}).items():
                owner.declare_parameter(name, Parameter(name, value=value).value)
        self._thread = threading.Thread(target=self._spin, daemon=True)

    def __enter__(self) -> Drivers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()
        self._thread.join()
        for node in self.nodes:
            node.destroy_node()
        self.context.try_shutdown()

    def _add(self, name: str) -> Node:
        node = rclpy.create_node(name, context=self.context)
        self._executor.add_node(node)
        self.nodes.append(node)
        return node

    def silence(self, *cameras: str) -> None:
        """Let exactly these cameras send nothing."""
        self._silent = set(cameras)

    def _send(
        self, node: Node, kind: type, topic: str, message: Any, rate_hz: float, stamp: Callable[[int], int]
    ) -> None:
        publisher = node.create_publisher(kind, topic, qos.SENSOR)

        def send() -> None:
            if any(f"/{camera}/" in topic for camera in self._silent):
                return
            convert.set_stamp(message.header.stamp, stamp(node.get_clock().now().nanoseconds))
            publisher.publish(message)

        node.create_timer(1.0 / rate_hz, send, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _spin(self) -> None:
        with suppress(ExternalShutdownException):
            self._executor.spin()


def picture(fault: Fault) -> Image | CompressedImage:
    """A small image of the fault's type and encoding."""
    if fault.type is CompressedImage:
        return CompressedImage(format="jpeg", data=bytes(100))
    depth = 2 if fault.encoding.startswith("16") else 3
    data = np.zeros(8 * 8 * depth, np.uint8).tobytes()
    return Image(height=8, width=8, encoding=fault.encoding, step=8 * depth, data=data)
