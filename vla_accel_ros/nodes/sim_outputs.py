"""What the simulated arm publishes besides its joints and pixels.

This is the truth for scoring, the forces in its wrist, and the calibration of its cameras.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from geometry_msgs.msg import Point, Pose, Quaternion, WrenchStamped
from rclpy.node import Node
from sensor_msgs.msg import CameraInfo

from vla_accel_msgs.msg import GroundTruth
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.sensing.force_slot import ForceWriter
from vla_accel_ros.sim.tasks import Truth

_NOISE = 0.02
"""Noise of the force sensor [N, Nm]: a sensor that repeats the same number counts as broken."""


class WrenchOutput:
    """The force sensor: every sample goes into a slot, if it has a name, and the newest ones are published as
    WrenchStamped."""

    def __init__(self, node: Node, slot: str) -> None:
        self._publisher = node.create_publisher(WrenchStamped, "wrist/wrench", qos.SENSOR)
        self._message, self._rng = WrenchStamped(), np.random.default_rng(0)
        self._message.header.frame_id = "gripper"
        self._slot = ForceWriter(slot) if slot else None

    def send(self, samples: Sequence[tuple[float, np.ndarray]], epoch_ns: int) -> None:
        """Send samples of SimRobot.wrenches, whose time zero is at epoch_ns."""
        if not samples:
            return
        for at_s, wrench in samples:
            noisy = (wrench + self._rng.normal(0.0, _NOISE, 6)).tolist()
            stamp_ns = epoch_ns + round(at_s * 1e9)
            if self._slot is not None:
                self._slot.write(noisy, stamp_ns)
        force, torque = self._message.wrench.force, self._message.wrench.torque
        force.x, force.y, force.z, torque.x, torque.y, torque.z = noisy
        convert.set_stamp(self._message.header.stamp, stamp_ns)
        self._publisher.publish(self._message)


def truth_message(truth: Truth, stamp_ns: int) -> GroundTruth:
    """The truth about the scene at a simulated instant, as a message."""
    message = GroundTruth(
        task=truth.task.family,
        instruction=truth.task.instruction,
        held=f"{truth.held}_block" if truth.held else "",
        answer=truth.answer,
        success=bool(truth.success),
        elapsed_s=truth.time_s,
    )
    message.header.frame_id = "base"
    convert.set_stamp(message.header.stamp, stamp_ns)
    poses = {f"{name}_block": (b.x, b.y, b.z, b.yaw) for name, b in truth.view.blocks.items()}
    poses |= {f"{name}_pad": (x, y, 0.0, 0.0) for name, (x, y) in truth.view.pads.items()}
    tip = truth.view.tip
    poses["gripper"] = (tip.x, tip.y, tip.z, 0.0)
    message.names = list(poses)
    message.poses = [_pose(*numbers) for numbers in poses.values()]
    return message


def camera_info(size: tuple[int, int], fovy: float) -> CameraInfo:
    """The calibration of a simulated camera. size: (height, width) [px]. fovy: vertical field of view [rad].

    Pixels are square and the axis is the image's centre, which with pixel centres at whole numbers is (width
    - 1) / 2, (height - 1) / 2.
    """
    height, width = size
    focal = 0.5 * height / math.tan(0.5 * fovy)
    cx, cy = 0.5 * (width - 1), 0.5 * (height - 1)
    info = CameraInfo(height=height, width=width, distortion_model="plumb_bob", d=[0.0] * 5)
    info.k = [focal, 0.0, cx, 0.0, focal, cy, 0.0, 0.0, 1.0]
    info.r = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    info.p = [focal, 0.0, cx, 0.0, 0.0, focal, cy, 0.0, 0.0, 0.0, 1.0, 0.0]
    return info


def _pose(x: float, y: float, z: float, yaw: float) -> Pose:
    turn = Quaternion(z=math.sin(yaw / 2), w=math.cos(yaw / 2))
    return Pose(position=Point(x=float(x), y=float(y), z=float(z)), orientation=turn)
