"""The tf of an arm whose hand a policy knows by it, and what may be wrong with that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from geometry_msgs.msg import TransformStamped
from hand_arms import EXPLICIT, text, ur5e
from rclpy.clock import Clock, ClockType
from stand_ins import Arm
from tf2_msgs.msg import TFMessage
from tf_messages import transform

from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator

START = np.array([0.3, -1.2, 1.8, -2.0, -1.5, 0.4, 0.02])
HIGHER_M = 0.5
"""tf says the tip is this much higher than the joints do: a policy that sees it saw tf."""


def contract_text() -> str:
    """A contract of the arm's hand by tf. Its limits are wide: the machine of the tests is busy, and a hand
    that is too fast on its way back is held until somebody resumes it."""
    hand = EXPLICIT + "state_by: tf, tf_base: world, tf_max_age_s: 0.5, "
    wide = text(hand).replace("max_age_s: 0.2}", "max_age_s: 1.0}")
    wide = wide.replace("100, max_age_s: 0.1", "100, max_age_s: 0.5")
    wide = wide.replace("linear: 0.5, angular: 1.5", "linear: 3.0, angular: 9.0")
    return wide.replace("max_age_s: 0.6}", "max_age_s: 2.0}")


def higher(pose: np.ndarray, by_m: float = HIGHER_M) -> np.ndarray:
    """A copy of a pose, moved up."""
    moved = pose.copy()
    moved[2, 3] += by_m
    return moved


def right(pose: np.ndarray, now_ns: int) -> list[TransformStamped]:
    """tool0 in l0."""
    return [transform("l0", "tool0", pose, now_ns)]


class Tree:
    """world -> l0, static, and l0 -> tool0 by the arm's joints. flange: the transforms of tool0, of its pose
    and the time now."""

    def __init__(self, operator: Operator, arm: Arm) -> None:
        self._operator, self._arm = operator, arm
        self.flange: Callable[[np.ndarray, int], list[TransformStamped]] = right
        self._moving = operator.node.create_publisher(TFMessage, "/tf", 10)
        static = operator.node.create_publisher(TFMessage, "/tf_static", qos.ALL_LATCHED)
        static.publish(TFMessage(transforms=[transform("world", "l0", higher(np.eye(4)), 0)]))
        operator.node.create_timer(0.02, self._tell, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _tell(self) -> None:
        now_ns = self._operator.now_ns()
        pose = ur5e(self._arm.array(list(self._operator.contract.joint_names[:6])))
        transforms = [transform("tool0", "camera", np.eye(4), now_ns), *self.flange(pose, now_ns)]
        self._moving.publish(TFMessage(transforms=transforms))
