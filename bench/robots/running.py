"""Runs a robot's driver in a thread of its own: publishers, controllers, the controller manager.

    python bench/robots/running.py NAME [calm]      # until Ctrl-C; calm: slower and smaller

Measured positions are those that the controllers command at that time (sim/controller.py is as strict as
ros2_controllers).
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import rclpy
from control_msgs.action import FollowJointTrajectory
from controller_manager_msgs.msg import ControllerState
from controller_manager_msgs.srv import ListControllers
from rclpy.action import ActionServer
from rclpy.clock import Clock, ClockType
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future
from sensor_msgs.msg import CameraInfo, Image, JointState
from std_msgs.msg import Float64MultiArray, String
from trajectory_msgs.msg import JointTrajectory

from robots.drivers import COLOURS, ROBOTS, CameraDriver, ControllerDriver, RobotDriver
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.executor import DirectExecutor
from vla_accel_ros.sim.controller import JointTrajectoryController, Rejected

DEPTH = "16UC1"


class RunningDriver:
    """A robot's driver, in this process's graph. A context manager.

    position: by the contract's names of joints. rejected: sentences of controllers. goals: how many actions
    were executed.
    """

    def __init__(self, robot: RobotDriver) -> None:
        self.robot = robot
        self.rejected: list[str] = []
        self.goals = 0
        self.position = {joint.name: _middle(joint.lower, joint.upper) for joint in robot.contract.joints}
        self.position |= robot.contract.home
        self._controllers: dict[str, JointTrajectoryController] = {}
        self._running: list[tuple[Future, int]] = []
        self.context = rclpy.Context()
        rclpy.init(args=[], context=self.context, signal_handler_options=SignalHandlerOptions.NO)
        self._executor = DirectExecutor(context=self.context)
        self._nodes: list[Node] = []
        for camera in robot.cameras:
            self._camera(camera)
        self._manager = self._node("controller_manager")
        for controller in robot.controllers:
            self._controller(controller)
        if robot.managed:
            self._manager.create_service(ListControllers, "controller_manager/list_controllers", self._listed)
        broadcaster = self._node("joint_state_broadcaster")
        self._joints = broadcaster.create_publisher(JointState, robot.joint_topic, qos.REPORT)
        self._every(broadcaster, robot.rate_hz, self._tick)
        publisher = self._node("robot_state_publisher")
        self._description = publisher.create_publisher(String, "robot_description", qos.LATCHED)
        self._description.publish(String(data=robot.description))
        self._thread = threading.Thread(target=self._spin, daemon=True)

    def __enter__(self) -> RunningDriver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()
        self._thread.join()
        for node in self._nodes:
            node.destroy_node()
        self.context.try_shutdown()

    def _node(self, name: str) -> Node:
        node = rclpy.create_node(name, namespace=self.robot.namespace, context=self.context)
        self._executor.add_node(node)
        self._nodes.append(node)
        return node

    def _every(self, node: Node, rate_hz: float, tick: Callable[[], None]) -> None:
        node.create_timer(1.0 / rate_hz, tick, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _camera(self, camera: CameraDriver) -> None:
        node = self._node(f"camera_{len(self._nodes)}")
        publisher = node.create_publisher(Image, camera.topic, qos.REPORT)
        infos = node.create_publisher(CameraInfo, camera.info, qos.REPORT) if camera.info else None
        picture = picture_of(camera)

        def tick() -> None:
            convert.set_stamp(picture.header.stamp, camera.stamp_ns(self._now_ns()))
            publisher.publish(picture)
            if infos is not None:
                infos.publish(CameraInfo(header=picture.header, height=picture.height, width=picture.width))

        self._every(node, camera.rate_hz, tick)

    def _controller(self, controller: ControllerDriver) -> None:
        joints = [self.robot.names.get(joint, joint) for joint in controller.joints]
        node = self._node(controller.name)
        node.declare_parameter("joints", joints)
        trajectories = controller.type.endswith("JointTrajectoryController")
        if trajectories:
            node.declare_parameter("command_interfaces", [controller.interface])
        else:
            node.declare_parameter("interface_name", controller.interface)
        commands = qos.LATCHED if self.robot.latched else qos.COMMAND
        if not trajectories:
            topic = f"{controller.name}/commands"
            on_command = partial(self._forwarded, controller)
            node.create_subscription(Float64MultiArray, topic, on_command, commands)
            return
        jtc = JointTrajectoryController(joints)
        jtc.start(np.array([self.position[joint] for joint in controller.joints]), self._now_ns())
        topic = f"{controller.name}/joint_trajectory"
        node.create_subscription(JointTrajectory, topic, partial(self._received, controller, jtc), commands)
        action = f"{controller.name}/follow_joint_trajectory"
        ActionServer(node, FollowJointTrajectory, action, partial(self._execute, jtc))
        if controller.active:
            self._controllers[controller.name] = jtc

    def _forwarded(self, controller: ControllerDriver, message: Float64MultiArray) -> None:
        if controller.active:
            self.position.update(zip(controller.joints, message.data))

    def _received(
        self, controller: ControllerDriver, jtc: JointTrajectoryController, message: JointTrajectory
    ) -> None:
        if controller.active:
            self._accept(jtc, message)

    def _accept(self, jtc: JointTrajectoryController, message: JointTrajectory) -> int:
        """When the trajectory ends."""
        now_ns = self._now_ns()
        try:
            trajectory = convert.trajectory_from_message(message, now_ns)
            jtc.accept(trajectory, now_ns)
        except Rejected as refusal:
            self.rejected.append(str(refusal))
            return now_ns
        return trajectory.end_ns

    async def _execute(self, jtc: JointTrajectoryController, handle: Any) -> FollowJointTrajectory.Result:
        done: Future = Future()
        self._running.append((done, self._accept(jtc, handle.request.trajectory)))
        await done
        self.goals += 1
        handle.succeed()
        return FollowJointTrajectory.Result()

    def _listed(
        self, _: ListControllers.Request, response: ListControllers.Response
    ) -> ListControllers.Response:
        for controller in self.robot.controllers:
            joints = [self.robot.names.get(joint, joint) for joint in controller.joints]
            interfaces = [f"{joint}/{controller.interface}" for joint in joints]
            response.controller.append(
                ControllerState(
                    name=controller.name,
                    state="active" if controller.active else "inactive",
                    type=controller.type,
                    claimed_interfaces=interfaces if controller.active else [],
                    required_command_interfaces=interfaces,
                )
            )
        broadcaster = "joint_state_broadcaster"
        kind = f"{broadcaster}/JointStateBroadcaster"
        response.controller.append(ControllerState(name=broadcaster, state="active", type=kind))
        return response

    def _tick(self) -> None:
        now_ns = self._now_ns()
        for controller in self.robot.controllers:
            if jtc := self._controllers.get(controller.name):
                positions = jtc.desired(now_ns).position.tolist()
                self.position.update(zip(controller.joints, positions))
        for done, end_ns in self._running:
            if now_ns >= end_ns and not done.done():
                done.set_result(None)
        self._running = [(done, end_ns) for done, end_ns in self._running if not done.done()]
        names = [self.robot.names.get(name, name) for name in self.robot.joints]
        measured = np.array([self.position[name] for name in self.robot.joints]) * self.robot.scale
        message = JointState(name=names, position=array("d", measured.tobytes()))
        convert.set_stamp(message.header.stamp, now_ns)
        self._joints.publish(message)

    def _now_ns(self) -> int:
        return int(self._nodes[0].get_clock().now().nanoseconds)

    def _spin(self) -> None:
        with suppress(ExternalShutdownException):
            self._executor.spin()


def picture_of(camera: CameraDriver) -> Image:
    """A picture in one colour, darker towards the bottom, so that it shows which way up it is."""
    height, width = camera.size
    if camera.encoding == DEPTH:
        data = np.full((height, width), 800, np.uint16)
    else:
        shade = np.linspace(1.0, 0.3, height)[:, None, None]
        colours = COLOURS[::-1] if camera.swapped else COLOURS
        data = np.broadcast_to(np.array(colours) * shade, (height, width, 3)).astype(np.uint8)
    step = data.nbytes // height
    pixels = array("B", data.tobytes())
    return Image(height=height, width=width, encoding=camera.encoding, step=step, data=pixels)


def _middle(lower: float, upper: float) -> float:
    return 0.5 * (lower + upper)


def main(name: str, calm: bool) -> None:
    """Run until Ctrl-C, then print what the controllers refused."""
    robot = ROBOTS[name]()
    with RunningDriver(robot.calm if calm else robot) as driver, suppress(KeyboardInterrupt):
        print(f"{name} runs", flush=True)
        threading.Event().wait()
    for sentence in driver.rejected:
        print(f"a controller refused: {sentence}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], "calm" in sys.argv[2:])
