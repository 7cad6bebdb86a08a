"""The robot's side: cameras that publish like the camera node, and joints with their controller.

A position controller gets target positions, and the joints are there at once; joint states have their own
rate.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rclpy.clock import Clock, ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from real_nodes.spawned import Port
from vla_accel_ros.contract.checks.controller_check import node_of
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.camera.output import CameraOutput, Outputs
from vla_accel_ros.nodes.messages import convert

PICTURES = 4
LOOK_S = 0.1


@dataclass(frozen=True)
class Robot:
    """contract: its file, with the rates. size: height and width of the cameras' images."""

    contract: Path
    size: tuple[int, int]


@contextmanager
def _context() -> Iterator[None]:
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    try:
        yield
    finally:
        rclpy.try_shutdown()


def cameras(port: Port, robot: Robot) -> dict[str, Any]:
    """Frames of noise of all cameras, triggered together. stamps_ns: when, int64 [N]."""
    contract, rng = Contract.load(robot.contract), np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (*robot.size, 3), dtype=np.uint8) for _ in range(PICTURES)]
    ring = contract.cameras[0].transport == "ring"
    outputs, stamps_ns = Outputs(ring=True, image_hz=0.0) if ring else Outputs(), list[int]()
    with _context(), ExitStack() as closing:
        node = rclpy.create_node("cameras")
        closing.callback(node.destroy_node)
        views = [CameraOutput(node, camera.name, outputs) for camera in contract.cameras]
        for view in views:
            closing.callback(view.close)
        port.ready()
        for number in port.ticks(contract.cameras[0].rate_hz):
            stamp_ns = time.time_ns()
            for index, view in enumerate(views):
                with view.frame(stamp_ns, *robot.size) as pixels:
                    np.copyto(pixels, pictures[(number + index) % PICTURES])
            stamps_ns.append(stamp_ns)
    return {"stamps_ns": np.array(stamps_ns, np.int64)}


def joints(port: Port, robot: Robot) -> dict[str, Any]:
    """Joint states, and the controller. commands_ns: when each came, int64 [N]; told: joint states."""
    contract = Contract.load(robot.contract)
    with _context(), ExitStack() as closing:
        driver, controller = rclpy.create_node("driver"), rclpy.create_node(node_of(contract.controllers[0]))
        executor = SingleThreadedExecutor()
        for node in (driver, controller):
            closing.callback(node.destroy_node)
            executor.add_node(node)
        arm = _Arm(contract, driver, controller)
        port.ready()
        while port.running:
            executor.spin_once(timeout_sec=LOOK_S)
        executor.shutdown()
    return {"commands_ns": np.array(arm.commands_ns, np.int64), "told": arm.told}


class _Arm:
    """Where it was told to be."""

    def __init__(self, contract: Contract, driver: Node, controller: Node) -> None:
        (streamed,) = contract.controllers
        names = list(streamed.joints)
        self.commands_ns: list[int] = []
        self.told = 0
        self._states = JointState(name=names, position=array("d", bytes(8 * len(names))))
        self._publisher = driver.create_publisher(JointState, contract.joint_states.topic, qos.SENSOR)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        driver.create_timer(1.0 / contract.joint_states.rate_hz, self._tell, clock=steady)
        controller.declare_parameter("joints", names)
        controller.declare_parameter("interface_name", "position")
        controller.create_subscription(Float64MultiArray, streamed.topic, self._commanded, qos.COMMAND)

    def _commanded(self, message: Float64MultiArray) -> None:
        self.commands_ns.append(time.time_ns())
        self._states.position = message.data

    def _tell(self) -> None:
        convert.set_stamp(self._states.header.stamp, time.time_ns())
        self._publisher.publish(self._states)
        self.told += 1
