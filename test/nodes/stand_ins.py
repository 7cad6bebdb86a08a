"""A robot's controllers as a test wants them: on topics, as actions, with parameters, all in the
operator's thread.

The arm is where its controllers command it to be. Trajectories and goals are sampled by
sim/controller.py, which is as strict as ros2_controllers.
"""

from __future__ import annotations

import math
import time
from array import array
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import yaml
from control_msgs.action import FollowJointTrajectory
from rcl_interfaces.msg import ParameterType, ParameterValue
from rcl_interfaces.srv import GetParameters, ListParameters
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.clock import Clock, ClockType
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.service import Service
from rclpy.task import Future
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from vla_accel_ros.contract.contract import Controller
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.sim.controller import JointTrajectoryController, Rejected

S = 1_000_000_000
ALL = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
"""Of who must miss no command, though a busy machine does not schedule the test for a while."""
ENCODER_RAD = 0.04
"""How far a joint that is commanded at a fixed rate moves at most between two samples: more than at full
speed, less than a leap. A busy machine delivers such commands late, and all at once."""
ARM = ["shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll"]
HOME = {"shoulder_pan": 0.2, "shoulder_lift": -0.3, "elbow_flex": 0.6, "wrist_flex": 0.4, "wrist_roll": -0.2}


def write_contract(folder: Path, arm: dict[str, Any], **changes: Any) -> Path:
    """The simulated arm's contract with another arm controller and other changes; None drops a field."""
    fields = yaml.safe_load(Path(demo_contract()).read_text())
    fields["controllers"][0] = {"joints": ARM, **arm}
    path = folder / "contract.yaml"
    fields = {key: field for key, field in {**fields, **changes}.items() if field is not None}
    path.write_text(yaml.safe_dump(fields))
    return path


class Arm:
    """All joints of a contract, moved by its controllers; publishes joint_states. A context manager.

    start: float64 [D]. Attributes: `commands`, what forward_command controllers were sent, as (steady
    time [s], positions by name); `rejected`, sentences; `goals`, FollowJointTrajectory servers by topic
    of the controller; `sag`, by name, how far a joint is measured from where it is commanded to be.
    """

    def __init__(self, operator: Operator, start: np.ndarray | None = None) -> None:
        self._operator, self._node = operator, operator.node
        contract = operator.contract
        names = contract.joint_names
        start = np.array([0.0, 0.0, 0.8, 0.3, 0.0, 0.5]) if start is None else start
        self.position = dict(zip(names, start.tolist()))
        self.commands: list[tuple[float, dict[str, float]]] = []
        self.rejected: list[str] = []
        self.goals: dict[str, Follow] = {}
        self.silent = False
        self.sag: dict[str, float] = {}
        self._controllers: dict[str, JointTrajectoryController] = {}
        self._measured = dict(self.position)
        for controller in contract.controllers:
            self._listen(controller)
        self._joints = self._node.create_publisher(JointState, contract.joint_states.topic, qos.SENSOR)
        self._timer = self._node.create_timer(0.01, self._tick, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def __enter__(self) -> Arm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self.goals.values():
            server.close()

    def place(self, names: list[str], offset: float) -> None:
        """Put joints elsewhere, as others would who move the robot: their controllers hold there."""
        for name in names:
            self.position[name] += offset
            self._measured[name] = self.position[name]
        for controller in self._controllers.values():
            controller.start(np.array([self.position[n] for n in controller.joints]), self._operator.now_ns())

    def array(self, names: list[str]) -> np.ndarray:
        """Positions in this order."""
        return np.array([self.position[name] for name in names])

    def _listen(self, controller: Controller) -> None:
        joints = controller.joints
        if controller.kind == "forward_command":

            def commanded(message: Float64MultiArray) -> None:
                sent = dict(zip(joints, message.data))
                self.commands.append((time.monotonic(), sent))
                self.position.update(sent)

            self._node.create_subscription(Float64MultiArray, controller.topic, commanded, ALL)
        own = JointTrajectoryController(joints)
        own.start(self.array(list(joints)), self._operator.now_ns())
        if controller.kind == "joint_trajectory":
            self._controllers[controller.topic] = own

            def received(message: JointTrajectory) -> None:
                now_ns = self._operator.now_ns()
                try:
                    own.accept(convert.trajectory_from_message(message, now_ns), now_ns)
                except Rejected as refusal:
                    self.rejected.append(str(refusal))

            self._node.create_subscription(JointTrajectory, controller.topic, received, ALL)
        if controller.action:
            self._controllers[controller.topic] = own
            self.goals[controller.topic] = Follow(self._operator, controller.action, own)

    def _tick(self) -> None:
        now_ns = self._operator.now_ns()
        for controller in self._controllers.values():
            self.position.update(zip(controller.joints, controller.desired(now_ns).position.tolist()))
        sampled = {name for controller in self._controllers.values() for name in controller.joints}
        for name, position in self.position.items():
            by = position + self.sag.get(name, 0.0) - self._measured[name]
            most = math.inf if name in sampled else ENCODER_RAD
            self._measured[name] += min(max(by, -most), most)
        for server in self.goals.values():
            server.tick(now_ns)
        if not self.silent:
            names = list(self.position)
            measured = np.array([self._measured[name] for name in names])
            message = JointState(name=names, position=array("d", measured.tobytes()))
            convert.set_stamp(message.header.stamp, now_ns)
            self._joints.publish(message)


class Follow:
    """A FollowJointTrajectory server over a controller.

    reject: take no goal. fail: error code (and words) with which goals are aborted at half time. lost: never
    tell how a goal ended. Attributes: `asked`, goals; `cancelled`, how many were.
    """

    def __init__(self, operator: Operator, action: str, controller: JointTrajectoryController) -> None:
        self._operator, self._controller = operator, controller
        self.reject, self.lost = False, False
        self.fail: tuple[int, str] | None = None
        self.asked: list[FollowJointTrajectory.Goal] = []
        self.cancelled = 0
        self._newest: Any = None
        self._running: list[tuple[Any, Future, int, int]] = []
        self._server = ActionServer(
            operator.node,
            FollowJointTrajectory,
            action,
            execute_callback=self._execute,
            goal_callback=lambda _: GoalResponse.REJECT if self.reject else GoalResponse.ACCEPT,
            cancel_callback=lambda _: CancelResponse.ACCEPT,
        )

    def close(self) -> None:
        """Leave the graph."""
        self._server.destroy()

    def tick(self, now_ns: int) -> None:
        """Complete what is due."""
        running, self._running = self._running, []
        for handle, done, half_ns, end_ns in running:
            if handle.is_cancel_requested:
                if handle is self._newest:
                    self._controller.start(self._controller.desired(now_ns).position, now_ns)
                self.cancelled += 1
                done.set_result("cancel")
            elif self.fail is not None and now_ns >= half_ns:
                done.set_result("abort")
            elif now_ns >= end_ns and not self.lost:
                done.set_result("succeed")
            else:
                self._running.append((handle, done, half_ns, end_ns))

    async def _execute(self, handle: Any) -> FollowJointTrajectory.Result:
        now_ns = self._operator.now_ns()
        self.asked.append(handle.request)
        trajectory = convert.trajectory_from_message(handle.request.trajectory, now_ns)
        self._controller.accept(trajectory, now_ns)
        done: Future = Future()
        self._newest = handle
        self._running.append((handle, done, (now_ns + trajectory.end_ns) // 2, trajectory.end_ns))
        how = await done
        result = FollowJointTrajectory.Result()
        if how == "abort" and self.fail is not None:
            result.error_code, result.error_string = self.fail
        {"cancel": handle.canceled, "abort": handle.abort, "succeed": handle.succeed}[how]()
        return result


class Parameters:
    """The parameter services of a node that is not there. values: by name; bool, float, str or list of
    str.
    """

    def __init__(self, operator: Operator, node: str, **values: object) -> None:
        self._values = {name.replace("__", "."): value for name, value in values.items()}
        self.services = (
            operator.node.create_service(GetParameters, f"{node}/get_parameters", self._get),
            operator.node.create_service(ListParameters, f"{node}/list_parameters", self._list),
        )

    def _list(
        self, request: ListParameters.Request, response: ListParameters.Response
    ) -> ListParameters.Response:
        response.result.names = list(self._values)
        return response

    def _get(
        self, request: GetParameters.Request, response: GetParameters.Response
    ) -> GetParameters.Response:
        # As rclcpp does: one that is not declared, and the answer is empty.
        if all(name in self._values for name in request.names):
            response.values = [_message(self._values[name]) for name in request.names]
        return response


def lose_answers(service: Service, count: int = 1) -> None:
    """As a server's first answers are to a client that it has not discovered yet."""
    send, left = service.send_response, [None] * count

    def send_response(response: object, header: object) -> None:
        if left:
            left.pop()
        else:
            send(response, header)

    service.send_response = send_response


def _message(value: Any) -> ParameterValue:
    if isinstance(value, bool):
        return ParameterValue(type=ParameterType.PARAMETER_BOOL, bool_value=value)
    if isinstance(value, float):
        return ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=value)
    if isinstance(value, str):
        return ParameterValue(type=ParameterType.PARAMETER_STRING, string_value=value)
    return ParameterValue(type=ParameterType.PARAMETER_STRING_ARRAY, string_array_value=list(value))


def motion_of(operator: Operator) -> str:
    """What the trajectory node says of its motion; empty before it said anything."""
    line = operator.diagnostics.get("trajectory: motion")
    return "" if line is None else line.message
