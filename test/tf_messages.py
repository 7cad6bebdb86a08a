"""Messages of tf from poses as matrices."""

from __future__ import annotations

import numpy as np
from geometry_msgs.msg import TransformStamped

from vla_accel_ros.nodes.messages.convert import set_stamp


def transform(parent: str, frame: str, pose: np.ndarray, stamp_ns: int) -> TransformStamped:
    """pose: float64 [4, 4], of a turn that is not half a one."""
    message = TransformStamped(child_frame_id=frame)
    message.header.frame_id = parent
    set_stamp(message.header.stamp, stamp_ns)
    at, turn = message.transform.translation, message.transform.rotation
    at.x, at.y, at.z = pose[:3, 3].tolist()
    turn.w = float(np.sqrt(max(0.0, 1.0 + np.trace(pose[:3, :3])))) / 2
    for axis, (i, j) in {"x": (2, 1), "y": (0, 2), "z": (1, 0)}.items():
        setattr(turn, axis, float(pose[i, j] - pose[j, i]) / (4 * turn.w))
    return message
