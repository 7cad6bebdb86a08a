"""The simulated arm as a robot driver would present it: cameras, joint states, two trajectory controllers.

Its topics look like a real arm's, except ground_truth, which is for scoring, and ~/reset. Physics is run up
to the present whenever something is published or received, so stamps are simulated instants. A process that
was not scheduled for a moment catches up, as a real arm would have moved on. After more than a second, and
when the clock jumps, time slips instead (the real-time factor falls), and the controllers continue what they
execute, as those of an arm with its own clock do. The instruction topic only sets the task for scoring. A
reset is announced to the trajectory node, which would take a robot that is suddenly elsewhere for a broken
one. With `plate` there is a plate over the table and a force sensor in the wrist, on wrist/wrench and in a
slot of shared memory. It is a plain node: a robot has no lifecycle of ours.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus
from rcl_interfaces.msg import ParameterType, ParameterValue
from rcl_interfaces.srv import GetParameters
from rclpy.node import Node
from rclpy.task import Future
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from vla_accel_msgs.msg import GroundTruth
from vla_accel_msgs.srv import ResetScene
from vla_accel_ros.control.trajectory import TrajectoryPoint
from vla_accel_ros.nodes import instruction_topic, qos
from vla_accel_ros.nodes.brief import brief
from vla_accel_ros.nodes.camera.output import CameraOutput, Outputs
from vla_accel_ros.nodes.controllers import state as controller_state
from vla_accel_ros.nodes.declare import declare, value
from vla_accel_ros.nodes.diagnostics import OK, WARN, Reporter, status
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.params.cameras import SIM_ROBOT
from vla_accel_ros.nodes.running.brief_log import BriefLogs
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.nodes.sim_outputs import WrenchOutput, camera_info, truth_message
from vla_accel_ros.nodes.throttled import Throttled
from vla_accel_ros.sim.controller import ArmControllers
from vla_accel_ros.sim.kinematics import JOINTS
from vla_accel_ros.sim.robot import CAMERAS, SimRobot
from vla_accel_ros.sim.tasks import Task, choose_task

_CATCH_UP_S = 1.0
_DEAF_S = 1.0
_WRENCH_HZ = 480.0
_STATE_HZ = 50.0  # of controller_state: Humble's default


class SimRobotNode(BriefLogs, Node):
    """The node sim_robot; see the module docstring and nodes/params/cameras.py."""

    def __init__(self) -> None:
        super().__init__("sim_robot")
        declare(self, SIM_ROBOT)
        self._size = (value(self, "image_height"), value(self, "image_width"))
        plate_m = value(self, "plate_m") if value(self, "plate") else None
        self._robot = SimRobot(self._size, plate_m)
        self._delayed: deque[tuple[int, str, JointTrajectory]] = deque()  # (due, controller, command)
        self._announcing: Future | None = None
        self._announce = self.create_client(Trigger, "trajectory/reset")
        self._deaf_until_s = 0.0
        self._controllers = ArmControllers()
        self._robot.render(CAMERAS[0])  # a missing OpenGL ends the process here, with its fix
        self._reset(choose_task(value(self, "task"), value(self, "seed")), value(self, "seed"))
        self._rejected, self._rejection = 0, Throttled(self, 1.0)
        self._busy_s, self._window = 0.0, (self._now_ns(), self._robot.time_s)
        self._joints = JointState(name=list(JOINTS))
        outputs = Outputs(value(self, "ring"), value(self, "ring_slots"), value(self, "image_hz"))
        self._cameras = {
            name: CameraOutput(self, name, outputs, camera_info(self._size, self._fovy(name)))
            for name in CAMERAS
        }
        self._publish()
        self._listen()
        self._reporter = Reporter(self, self._statuses, hardware_id="sim_arm")
        self.create_timer(1.0 / value(self, "joint_hz"), self._send_joints)
        self.create_timer(1.0 / value(self, "camera_hz"), self._send_images)
        self.create_timer(1.0 / value(self, "ground_truth_hz"), self._send_truth)
        self._wrench = WrenchOutput(self, value(self, "force_slot")) if plate_m is not None else None
        if self._wrench is not None:
            self.create_timer(1.0 / _WRENCH_HZ, self._send_wrenches)
        if self._states:
            self.create_timer(1.0 / _STATE_HZ, self._send_states)

    def _publish(self) -> None:
        self._joints_pub = self.create_publisher(JointState, "joint_states", qos.SENSOR)
        self._truth_pub = self.create_publisher(GroundTruth, "ground_truth", qos.REPORT)
        kind = controller_state.state_type()
        self._states = {
            name: (
                self.create_publisher(kind, f"{name}/controller_state", qos.REPORT),
                kind(joint_names=list(controller.joints), speed_scaling_factor=1.0),
            )
            for name, controller in self._controllers.controllers.items()
            if kind is not None
        }

    def _listen(self) -> None:
        for name in self._controllers.controllers:
            on_trajectory = partial(self._on_trajectory, name)
            self.create_subscription(JointTrajectory, f"{name}/joint_trajectory", on_trajectory, qos.COMMAND)
            # The only service of a controller node that a sender needs, to check its parameters.
            on_get = partial(self._on_get_parameters, name)
            self.create_service(GetParameters, f"{name}/get_parameters", on_get)
        for callback, profile, events in instruction_topic.subscriptions(self._on_instruction):
            self.create_subscription(String, "instruction", callback, profile, event_callbacks=events)
        self.create_service(ResetScene, "~/reset", self._on_reset)

    def _now_ns(self) -> int:
        return self.get_clock().now().nanoseconds

    def _reset(self, task: Task, seed: int) -> None:
        self._robot.reset(task, seed)
        self._epoch_ns = self._now_ns() - round(self._robot.time_s * 1e9)
        self._controllers.start(self._robot.state(), self._epoch_ns)
        self._window, self._busy_s = (self._now_ns(), self._robot.time_s), 0.0
        self._delayed.clear()

    def _advance(self) -> int:
        """Run physics up to the present; returns the stamp of the simulated instant."""
        now_ns = self._now_ns()
        while self._delayed and self._delayed[0][0] <= now_ns:
            due_ns, name, message = self._delayed.popleft()
            self._run_to(due_ns)
            self._execute(name, message, due_ns)
        return self._run_to(now_ns)

    def _run_to(self, now_ns: int) -> int:
        behind_s = (now_ns - self._epoch_ns) * 1e-9 - self._robot.time_s
        if not -0.01 <= behind_s <= _CATCH_UP_S:
            slipped_ns = round(behind_s * 1e9)
            self._epoch_ns += slipped_ns
            self._controllers.slip(slipped_ns)
            if slipped_ns < 0:
                self._window, self._busy_s = (self._now_ns(), self._robot.time_s), 0.0
        else:
            started = time.perf_counter()
            self._robot.advance(self._robot.time_s + behind_s, self._controllers)
            self._busy_s += time.perf_counter() - started
        return self._epoch_ns + round(self._robot.time_s * 1e9)

    def _send_joints(self) -> None:
        message = self._joints
        convert.set_stamp(message.header.stamp, self._advance())
        message.position = array("d", self._robot.state().astype(np.float64).tobytes())
        message.velocity = array("d", self._robot.velocity().astype(np.float64).tobytes())
        self._joints_pub.publish(message)

    def _send_wrenches(self) -> None:
        self._advance()
        if self._wrench is not None:
            self._wrench.send(self._robot.wrenches(), self._epoch_ns)

    def _send_images(self) -> None:
        stamp_ns = self._advance()
        stopped = {name.strip() for name in value(self, "stopped_cameras").split(",")}
        for name, camera in self._cameras.items():
            if name not in stopped:
                started = time.perf_counter()
                pixels = self._robot.render(name)
                self._busy_s += time.perf_counter() - started
                with camera.frame(stamp_ns, *self._size) as frame:
                    np.copyto(frame, pixels)

    def _send_truth(self) -> None:
        stamp_ns = self._advance()
        self._truth_pub.publish(truth_message(self._robot.truth(), stamp_ns))

    def _send_states(self) -> None:
        if not any(publisher.get_subscription_count() for publisher, _ in self._states.values()):
            return
        stamp_ns = self._advance()
        for name, (publisher, message) in self._states.items():
            controller = self._controllers[name]
            desired, measured = controller.desired(stamp_ns), self._measured(name, stamp_ns)
            controller_state.fill(message, controller.began_ns, desired, measured)
            publisher.publish(message)

    def _on_trajectory(self, name: str, message: JointTrajectory) -> None:
        self._advance()
        if self._announcing is not None:
            # A trajectory that was decided before the reset would lead the arm back.
            if not self._announcing.done() and time.monotonic() < self._deaf_until_s:
                return
            self._announcing = None
        delay_s = value(self, "command_delay_s")
        if delay_s > 0.0 or self._delayed:
            self._delayed.append((self._now_ns() + round(delay_s * 1e9), name, message))
        else:
            self._execute(name, message, self._now_ns())

    def _measured(self, name: str, stamp_ns: int) -> TrajectoryPoint:
        columns = [JOINTS.index(joint) for joint in self._controllers[name].joints]
        return TrajectoryPoint(stamp_ns, self._robot.state()[columns], self._robot.velocity()[columns])

    def _execute(self, name: str, message: JointTrajectory, now_ns: int) -> None:
        try:
            trajectory = convert.trajectory_from_message(message, now_ns)
            self._controllers[name].accept(trajectory, now_ns)
        except ValueError as refusal:
            self._rejected += 1
            self._rejection.warning(f"{name} rejects a trajectory: {refusal}")

    def _on_get_parameters(
        self, name: str, request: GetParameters.Request, response: GetParameters.Response
    ) -> GetParameters.Response:
        for parameter in request.names:
            setting = getattr(self._controllers[name], parameter, None)
            answer = ParameterValue(type=ParameterType.PARAMETER_NOT_SET)
            if isinstance(setting, bool):
                answer = ParameterValue(type=ParameterType.PARAMETER_BOOL, bool_value=setting)
            elif isinstance(setting, tuple):
                answer.type, answer.string_array_value = ParameterType.PARAMETER_STRING_ARRAY, list(setting)
            response.values.append(answer)
        return response

    def _on_instruction(self, message: String) -> None:
        try:
            task = Task.parse(message.data)
        except ValueError:
            return  # a policy accepts any words; these have no score
        if task != self._robot.task:
            self._advance()
            self._robot.set_task(task)

    def _on_reset(self, request: ResetScene.Request, response: ResetScene.Response) -> ResetScene.Response:
        try:
            task = choose_task(request.task, request.seed)
        except ValueError as refusal:
            response.message = brief(str(refusal))
            return response
        self._reset(task, request.seed)
        if self._announce.service_is_ready():
            self._announcing = self._announce.call_async(Trigger.Request())
            self._deaf_until_s = time.monotonic() + _DEAF_S
        response.accepted, response.instruction = True, task.instruction
        return response

    def _fovy(self, camera: str) -> float:
        return math.radians(float(self._robot.model.camera(camera).fovy[0]))

    def _statuses(self) -> Sequence[DiagnosticStatus]:
        self._advance()
        (since_ns, since_s), now_ns = self._window, self._now_ns()
        elapsed_s = max((now_ns - since_ns) * 1e-9, 1e-3)
        factor, busy = (self._robot.time_s - since_s) / elapsed_s, self._busy_s / elapsed_s
        self._window, self._busy_s = (now_ns, self._robot.time_s), 0.0
        is_late = factor < 0.99
        return [
            status(
                "simulation",
                WARN if is_late else OK,
                "slower than real time: the machine is overloaded" if is_late else "in real time",
                {"real_time_factor": factor, "busy": busy, "rejected_trajectories": self._rejected},
            )
        ]


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of `ros2 run vla_accel_ros sim_robot`."""
    return run(SimRobotNode, args)


if __name__ == "__main__":
    raise SystemExit(main())
