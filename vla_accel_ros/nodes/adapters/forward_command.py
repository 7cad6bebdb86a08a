"""forward_command_controller: positions at a fixed rate; the controller executes each at once.

The logic is in control/command_stream.py; here are the topic and its message, which is reused.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import numpy as np
from rclpy.duration import Duration
from std_msgs.msg import Float64MultiArray

from vla_accel_ros.contract.contract import Controller
from vla_accel_ros.control.command_stream import CommandStream
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.adapters.adapter import Adapter, Setup, by_name, steady_ns
from vla_accel_ros.nodes.running.lifecycle import ManagedNode


class ForwardCommandAdapter(Adapter):
    """limits: of the controller's joints, in its order."""

    def __init__(self, node: ManagedNode, controller: Controller, limits: JointLimits) -> None:
        super().__init__(controller)
        self._node = node
        self._publisher = node.output(Float64MultiArray, controller.topic, qos.COMMAND)
        self._message = Float64MultiArray()
        self._stream = CommandStream(controller.joints, limits, 1.0 / controller.rate_hz)
        self._here: np.ndarray | None = None

    @classmethod
    def make(cls, setup: Setup) -> Adapter:
        return cls(setup.node, setup.controller, setup.limits)

    def send(self, trajectory: Trajectory, decided_ns: int) -> None:
        self._stream.follow(trajectory, self._node.now_ns(), self._here)

    def measured(self, positions: Mapping[str, float], stamps_ns: Mapping[str, int], believed: bool) -> None:
        self._here = np.array([positions[name] for name in self.controller.joints])

    def commanded(self, t_ns: int) -> Mapping[str, float]:
        return by_name(self.controller.joints, self._stream.commanded(t_ns))

    def begin(self) -> None:
        self._stream.forget()

    def stop(self, braking: Trajectory | None, now_ns: int) -> None:
        self._stream.stop(now_ns, steady_ns(self._node))

    def tick(self, now_ns: int) -> None:
        state = self._stream.tick(now_ns, steady_ns(self._node))
        if state is not None:
            self._message.data = array("d", state.position.tobytes())
            self._publisher.publish(self._message)

    def at_rest(self, now_ns: int) -> bool:
        return self._stream.at_rest(now_ns)

    def close(self) -> None:
        self._publisher.wait_for_all_acked(Duration(seconds=0.5))

    def values(self) -> dict[str, object]:
        return {name: self._stream.counts[name] for name in ("late", "joined")}
