"""A stand-in for the inference node, and for the joints' driver: what the trajectory node gets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from builders import JOINTS
from rclpy.publisher import Publisher
from sensor_msgs.msg import JointState

from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.types import Chunk

S = 1_000_000_000
STEP_S = 1 / 30


class Policy:
    """Sends chunks towards a goal, one for every 0.1 s that passes, from inside whatever is waited for.

    goal: float [D]. poison: a number for an action, None for none. change: gets each JointState before it is
    sent, None sends it as it is.
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._publisher = operator.node.create_publisher(ActionChunk, "action_chunk", qos.COMMAND)
        self._joints: Publisher | None = None  # made when the test is the robot
        self._request, self._sent_ns, self._felt_ns = 0, 0, 0
        self.goal = np.zeros(JOINTS)
        self.poison: float | None = None
        self.change: Callable[[JointState], None] | None = None

    def tick(self, now_ns: int, joints: np.ndarray | None = None) -> None:
        """Send what is due at now_ns: a chunk, and joint states when the test is the robot."""
        if joints is not None and abs(now_ns - self._felt_ns) >= S // 50:
            self._felt_ns = now_ns
            names = list(self._operator.contract.joint_names)
            message = JointState(name=names, position=joints.tolist())
            convert.set_stamp(message.header.stamp, now_ns)
            if self.change is not None:
                self.change(message)
            if self._joints is None:
                self._joints = self._operator.node.create_publisher(JointState, "joint_states", qos.SENSOR)
            self._joints.publish(message)
        if abs(now_ns - self._sent_ns) >= S // 10:
            self._sent_ns = now_ns
            self._publisher.publish(self._message(now_ns))

    def drives(self, condition, joints: np.ndarray | None = None):
        """The condition, with ticks of real time while it is waited for."""

        def ticking():
            self.tick(self._operator.now_ns(), joints)
            return condition()

        return ticking

    def _message(self, now_ns: int) -> ActionChunk:
        self._request += 1
        actions = np.repeat(self.goal[None], 30, axis=0).astype(np.float32)
        chunk = Chunk(actions, now_ns, STEP_S, self._request, self._request, np.zeros(30, np.float32))
        message = convert.chunk_to_message(chunk, self._operator.contract, 0.01)
        if self.poison is not None:
            message.actions[40] = self.poison
        return message
