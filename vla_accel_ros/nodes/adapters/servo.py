"""The topic and the services of MoveIt Servo, for joint velocities (JointJog), the hand's (TwistStamped) or
its poses (PoseStamped).

On activation Servo is told the type of its commands. If it does not have these services (they came after
Humble), one warning is logged and only commands are sent. What it is sent: control/outputs/servo.py.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped, TwistStamped
from std_srvs.srv import SetBool

from vla_accel_ros.contract.checks.controller_check import node_of
from vla_accel_ros.control.outputs.output import Output
from vla_accel_ros.control.outputs.servo import JointVelocityOutput, PoseOutput, ServoChannel, TwistOutput
from vla_accel_ros.nodes.adapters.adapter import CommandTopic, Setup
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.service_calls import ServiceCalls

ANSWER_S = 4.0
"""Longest time to find Servo and get its answer: it is asked only once, and a busy host is slow."""


class ServoAdapter(CommandTopic, ServoChannel):
    """The ServoChannel of both kinds. kind: type of the command message; command_type: Servo's name for
    it."""

    def __init__(self, setup: Setup, kind: Any, command_type: str) -> None:
        super().__init__(setup, kind)
        self._node, self._command_type, self._message = setup.node, command_type, kind()
        servo = node_of(setup.controller)
        self._pause_name, self._type_name = f"{servo}/pause_servo", f"{servo}/switch_command_type"
        self._pausing = self._node.create_client(SetBool, self._pause_name)
        self._node.on_release(lambda: self._node.destroy_client(self._pausing))

    def open(self) -> list[str]:
        missing = []
        with ServiceCalls(self._node) as ask:
            paused = ask(SetBool, self._pause_name, SetBool.Request(data=True), timeout_s=ANSWER_S)
            if paused is None:
                missing.append(f"{self._pause_name} does not answer, so Servo is not paused during holds")
            try:
                kind = interface("moveit_msgs/srv/ServoCommandType", "switch_command_type")
            except ValueError as problem:
                return [*missing, f"{problem}; or switch Servo to {self._command_type} yourself"]
            request = kind.Request(command_type=getattr(kind.Request, self._command_type))
            answer = ask(kind, self._type_name, request, timeout_s=ANSWER_S)
        if answer is None or not answer.success:
            failure = "does not answer" if answer is None else "failed"
            missing.append(f"{self._type_name} {failure}: switch Servo to {self._command_type} yourself")
        return missing

    def publish(self, command: np.ndarray, now_ns: int) -> None:
        convert.set_stamp(self._message.header.stamp, now_ns)
        self._fill(command)
        self._publisher.publish(self._message)

    def pause(self, paused: bool) -> None:
        if self._pausing.service_is_ready():
            self._pausing.call_async(SetBool.Request(data=paused))

    def close(self, pause: bool = False) -> None:
        super().close()
        if pause and self._pausing.service_is_ready():
            with ServiceCalls(self._node) as ask:
                ask(SetBool, self._pause_name, SetBool.Request(data=True), timeout_s=0.2)

    @abstractmethod
    def _fill(self, command: np.ndarray) -> None:
        """Write the command into the message."""


class ServoJointAdapter(ServoAdapter):
    """Joint velocities. Raises ValueError if control_msgs is not installed."""

    def __init__(self, setup: Setup) -> None:
        kind = interface("control_msgs/msg/JointJog", f"servo_joint of {setup.controller.topic}")
        super().__init__(setup, kind, "JOINT_JOG")
        self._message.joint_names = list(setup.controller.joints)

    @classmethod
    def make(cls, setup: Setup) -> Output:
        """See Adapter."""
        gain = value(setup.node, "servo_gain")
        return JointVelocityOutput(setup.controller, setup.limits, gain, cls(setup), setup.clock)

    def _fill(self, velocity: np.ndarray) -> None:
        self._message.velocities = array("d", velocity.tobytes())


class ServoTwistAdapter(ServoAdapter):
    """Hand velocities."""

    COMMANDS: tuple[Any, str, type[TwistOutput]] = TwistStamped, "TWIST", TwistOutput

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, *self.COMMANDS[:2])
        self._message.header.frame_id = setup.controller.frame

    @classmethod
    def make(cls, setup: Setup) -> Output:
        """See Adapter."""
        assert setup.twist is not None  # a contract with such a controller has a `twist` or a hand
        return cls.COMMANDS[2](setup.controller, setup.twist, cls(setup), setup.clock)

    def _fill(self, velocity: np.ndarray) -> None:
        convert.set_twist(self._message.twist, velocity)


class ServoPoseAdapter(ServoTwistAdapter):
    """Poses of the hand."""

    COMMANDS = PoseStamped, "POSE", PoseOutput

    def _fill(self, pose: np.ndarray) -> None:
        position, turn = self._message.pose.position, self._message.pose.orientation
        position.x, position.y, position.z, turn.x, turn.y, turn.z, turn.w = pose.tolist()
