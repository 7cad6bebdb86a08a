"""The action of a gripper, GripperCommand or ParallelGripperCommand; its goals are published on a topic, too,
for bags. What is sent, and when: control/outputs/gripper.py. Nothing here waits."""

from __future__ import annotations

import time
from array import array
from functools import partial
from typing import Any

import numpy as np
from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.task import Future
from std_msgs.msg import Float64MultiArray

from vla_accel_ros.control.outputs.gripper import GripperAction, GripperOutput
from vla_accel_ros.control.outputs.output import Output
from vla_accel_ros.extensions import controller_kind
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.adapters.adapter import Setup
from vla_accel_ros.nodes.interfaces import interface

_LONGEST_S = 10.0
"""After so long without a result the controller is taken for dead."""
_ENDINGS = {GoalStatus.STATUS_SUCCEEDED, GoalStatus.STATUS_CANCELED}


class GripperAdapter(GripperAction):
    """Raises ValueError if control_msgs has no such action."""

    def __init__(self, setup: Setup) -> None:
        self._controller, self._speed = setup.controller, setup.limits.velocity
        self._type = controller_kind(setup.controller.kind).goals
        self._kind: Any = interface(self._type, f"controllers of kind {setup.controller.kind}")
        self._client = ActionClient(setup.node, self._kind, setup.controller.action)
        self._publisher = setup.node.output(Float64MultiArray, setup.controller.topic, qos.COMMAND)
        self._goal: Future | None = None  # on its way: its acceptance
        self._until_s = 0.0
        self.failure = ""
        setup.node.on_release(self._client.destroy)

    @classmethod
    def make(cls, setup: Setup) -> Output:
        """See Adapter."""
        return GripperOutput(setup.controller, setup.limits, cls(setup), setup.clock)

    @property
    def busy(self) -> bool:
        return self._goal is not None

    @property
    def problem(self) -> str:
        action = self._controller.action
        if not self._client.server_is_ready():
            self._goal = None
            return f"no node has the action {action}: start its controller, or fix controllers[].action"
        if self._goal is not None and time.monotonic() > self._until_s:
            return f"{action} does not end its goal: look at the gripper's controller"
        return ""

    def send(self, position: np.ndarray) -> None:
        goal = self._kind.Goal()
        if self._type.endswith("/GripperCommand"):
            goal.command.position, goal.command.max_effort = float(position[0]), self._controller.max_effort
        else:
            goal.command.name, goal.command.position = list(self._controller.joints), position.tolist()
            goal.command.velocity = self._speed.tolist()
            if self._controller.max_effort:
                goal.command.effort = [self._controller.max_effort] * len(position)
        self._until_s = time.monotonic() + _LONGEST_S
        self._goal = self._client.send_goal_async(goal)
        self._goal.add_done_callback(self._answered)
        self._publisher.publish(Float64MultiArray(data=array("d", position.tobytes())))

    def cancel(self) -> None:
        if self._goal is not None and self._goal.done() and (handle := self._goal.result()) is not None:
            handle.cancel_goal_async()

    def close(self) -> None:
        """See StreamChannel. The goal on its way is a step, and ends by itself."""

    def _answered(self, goal: Future) -> None:
        handle: Any = goal.result()
        if handle.accepted:
            handle.get_result_async().add_done_callback(partial(self._ended, goal))
        elif goal is self._goal:
            self._goal = None
            self.failure = f"{self._controller.action} rejects goals: its log says why"

    def _ended(self, goal: Future, result: Future) -> None:
        if goal is not self._goal:
            return  # it was given up
        self._goal, answer = None, result.result()
        ended = answer is not None and answer.status in _ENDINGS
        self.failure = "" if ended else f"{self._controller.action} aborts goals: its log says why"
