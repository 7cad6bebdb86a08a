"""What the messages of a bag say, in the package's types.

They have the fields of ROS messages but are decoded by other classes, so nothing here needs ROS.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.recording.reader import Bag, Entry
from vla_accel_ros.sensing.cameras.compressed import check_decodes, decode, write_bgr
from vla_accel_ros.sensing.cameras.image import check, compressed_view, image_view, write_rgb

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
JOINTS, STRING = "sensor_msgs/msg/JointState", "std_msgs/msg/String"
TRAJECTORY, POSITIONS = "trajectory_msgs/msg/JointTrajectory", "std_msgs/msg/Float64MultiArray"
OBSERVED, MOTION = "vla_accel_msgs/msg/Observed", "vla_accel_msgs/msg/Motion"
CHUNK, TEXT = "vla_accel_msgs/msg/ActionChunk", "vla_accel_msgs/msg/LanguageOutput"


def image_topic(bag: Bag, topic: str) -> str:
    """Return the topic of a camera's images in the bag: frames of a ring are recorded as images on
    TOPIC/image."""
    of_ring = f"{topic}/image"
    return of_ring if of_ring in bag.topics else topic


def stamp_ns(stamp: Any) -> int:
    """Return a decoded builtin_interfaces/Time in nanoseconds."""
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def image_stamp_ns(entry: Entry) -> int:
    """Return the stamp of a recorded Image or CompressedImage."""
    return (image_view if entry.type == IMAGE else compressed_view)(entry.data).stamp_ns


def check_readable(entry: Entry) -> None:
    """Raises ValueError as `picture` does, without making all pixels."""
    if entry.type == IMAGE:
        check(image_view(entry.data))
    else:
        check_decodes(compressed_view(entry.data))


def picture(entry: Entry) -> np.ndarray:
    """Return the pixels [H, W, 3] uint8 RGB, converted as the node's own ingest does it."""
    if entry.type == IMAGE:
        view = image_view(entry.data)
        check(view)  # before memory is allocated for a wrong size
        out = np.empty((view.height, view.width, 3), np.uint8)
        write_rgb(view, out)
        return out
    decoded = decode(compressed_view(entry.data))
    out = np.empty_like(decoded)
    write_bgr(decoded, out)
    return out


def trajectory_of(message: Any, received_ns: int) -> Trajectory:
    """The absolute trajectory of a JointTrajectory, a message or decoded; stamp 0 starts when it was
    received. Raises ValueError if it is none."""
    start = stamp_ns(message.header.stamp) or received_ns
    points = message.points
    velocities = [point.velocities for point in points]
    return Trajectory(
        tuple(message.joint_names),
        np.array([start + stamp_ns(point.time_from_start) for point in points], np.int64),
        np.array([point.positions for point in points]),
        np.array(velocities) if all(map(len, velocities)) else None,
    )
