"""MoveIt Servo: velocities at a fixed rate, of the joints (JointJog) or of the hand (TwistStamped).

Servo moves the controller itself, smooths, avoids collisions and singularities, and halts by itself when
commands are older than its timeout; each command is therefore stamped with the present. It takes one type of
command at a time and can be paused. On activation it is told the type; it is paused while the robot is held
or driven by others, and continues with the first motion. If Servo does not have these services (they came
after Humble), one warning is logged and only commands are sent.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from geometry_msgs.msg import TwistStamped
from rclpy.duration import Duration
from std_srvs.srv import SetBool

from vla_accel_ros.contract.contract import Controller
from vla_accel_ros.contract.controller_check import node_of
from vla_accel_ros.control.chunking.twist import TwistBuffer
from vla_accel_ros.control.command_stream import JogStream
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.adapters.adapter import Adapter, Setup, by_name, steady_ns
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.service_calls import ServiceCalls

# Number of zero commands before the pause, so that a lost one does not matter.
_ZEROS = 4

ANSWER_S = 4.0
"""Longest time to find Servo and get its answer: it is asked only once, and a busy host is slow."""


class ServoAdapter(Adapter):
    """The common part of both kinds. kind: type of the command message; command_type: Servo's name for it."""

    def __init__(self, node: ManagedNode, controller: Controller, kind: Any, command_type: str) -> None:
        super().__init__(controller)
        self._node, self._command_type = node, command_type
        self._message = kind()
        self._publisher = node.output(kind, controller.topic, qos.COMMAND)
        servo = node_of(controller)
        self._pause_name, self._type_name = f"{servo}/pause_servo", f"{servo}/switch_command_type"
        self._pausing = node.create_client(SetBool, self._pause_name)
        node.on_release(lambda: node.destroy_client(self._pausing))
        self._paused, self._resting, self._zeros = True, False, 0
        self._lent = True  # others may use Servo

    def begin(self) -> None:
        self._forget()
        self._pause(True)
        self._lent = True

    def rest(self) -> None:
        self._resting, self._zeros = True, 0

    def tick(self, now_ns: int) -> None:
        velocity = self._next(now_ns)
        if velocity is None or (self._paused and self._resting):
            return
        if self._paused:
            self._pause(False)
        self._lent = False
        convert.set_stamp(self._message.header.stamp, now_ns)
        self._fill(velocity)
        self._publisher.publish(self._message)
        self._zeros = 0 if velocity.any() else self._zeros + 1
        if self._resting and self._zeros >= _ZEROS:
            self._pause(True)

    def open(self) -> list[str]:
        missing = []
        self._lent = False
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
            what = "does not answer" if answer is None else "failed"
            missing.append(f"{self._type_name} {what}: switch Servo to {self._command_type} yourself")
        self._paused = True
        return missing

    def close(self) -> None:
        self._publisher.wait_for_all_acked(Duration(seconds=0.5))
        self._paused = True
        if not self._lent and self._pausing.service_is_ready():
            with ServiceCalls(self._node) as ask:
                ask(SetBool, self._pause_name, SetBool.Request(data=True), timeout_s=0.2)

    def _pause(self, paused: bool) -> None:
        if self._paused != paused:
            self._paused = paused
            if self._pausing.service_is_ready():
                self._pausing.call_async(SetBool.Request(data=paused))

    @abstractmethod
    def _next(self, now_ns: int) -> np.ndarray | None:
        """The velocities to command now; None for no command."""

    @abstractmethod
    def _fill(self, velocity: np.ndarray) -> None:
        """Write the velocities into the message."""

    @abstractmethod
    def _forget(self) -> None:
        """Command nothing until the next motion."""


class ServoJointAdapter(ServoAdapter):
    """Joint velocities. limits: of the controller's joints, in its order. gain: see JogStream. Raises
    ValueError if control_msgs is not installed."""

    def __init__(self, node: ManagedNode, controller: Controller, limits: JointLimits, gain: float) -> None:
        kind = interface("control_msgs/msg/JointJog", f"servo_joint of {controller.topic}")
        super().__init__(node, controller, kind, "JOINT_JOG")
        self._message.joint_names = list(controller.joints)
        self._jog = JogStream(controller.joints, limits, 1.0 / controller.rate_hz, gain)

    @classmethod
    def make(cls, setup: Setup) -> Adapter:
        return cls(setup.node, setup.controller, setup.limits, value(setup.node, "servo_gain"))

    def send(self, trajectory: Trajectory, decided_ns: int) -> None:
        self._resting = False
        self._jog.follow(trajectory, self._node.now_ns())

    def measured(self, positions: Mapping[str, float], stamps_ns: Mapping[str, int], believed: bool) -> None:
        joints = self.controller.joints
        here, stamps = (np.array([of[name] for name in joints]) for of in (positions, stamps_ns))
        self._jog.measured(here if believed else None, stamps)

    def commanded(self, t_ns: int) -> Mapping[str, float]:
        return by_name(self.controller.joints, self._jog.commanded(t_ns))

    def stop(self, braking: Trajectory | None, now_ns: int) -> None:
        self._jog.stop(now_ns, steady_ns(self._node))

    def rest(self) -> None:
        super().rest()
        self._jog.rest()

    def at_rest(self, now_ns: int) -> bool:
        return self._jog.at_rest(now_ns)

    def values(self) -> dict[str, object]:
        counts = self._jog.path.counts + self._jog.counts
        standing = [name for name, stands in zip(self.controller.joints, self._jog.standing) if stands]
        return {name: counts[name] for name in ("late", "joined", "bounded")} | {
            "measured to stand still": ", ".join(standing)
        }

    def _next(self, now_ns: int) -> np.ndarray | None:
        return self._jog.tick(now_ns, steady_ns(self._node))

    def _fill(self, velocity: np.ndarray) -> None:
        self._message.velocities = array("d", velocity.tobytes())

    def _forget(self) -> None:
        self._jog.forget()


class ServoTwistAdapter(ServoAdapter):
    """Hand velocities. buffer: takes the chunks of twists; trajectories are for the other joints."""

    def __init__(self, node: ManagedNode, controller: Controller, buffer: TwistBuffer) -> None:
        super().__init__(node, controller, TwistStamped, "TWIST")
        self._message.header.frame_id = controller.frame
        self._buffer, self._accepted = buffer, 0

    @classmethod
    def make(cls, setup: Setup) -> Adapter:
        assert setup.twist is not None  # a contract with servo_twist has a `twist`
        return cls(setup.node, setup.controller, setup.twist)

    def send(self, trajectory: Trajectory, decided_ns: int) -> None:
        """Does nothing: the hand moves by the buffer alone."""

    def stop(self, braking: Trajectory | None, now_ns: int) -> None:
        self._buffer.restart(now_ns, steady_ns(self._node))

    def at_rest(self, now_ns: int) -> bool:
        return self._buffer.at_rest(now_ns)

    def values(self) -> dict[str, object]:
        return {f"chunks {why}": count for why, count in self._buffer.counts.items()}

    def _next(self, now_ns: int) -> np.ndarray | None:
        accepted = self._buffer.counts["accepted"]
        if accepted != self._accepted:
            self._accepted, self._resting = accepted, False
        return self._buffer.tick(now_ns, steady_ns(self._node))

    def _fill(self, velocity: np.ndarray) -> None:
        linear, angular = self._message.twist.linear, self._message.twist.angular
        linear.x, linear.y, linear.z, angular.x, angular.y, angular.z = velocity.tolist()

    def _forget(self) -> None:
        self._buffer.forget()
