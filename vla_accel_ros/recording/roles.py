"""What a recorded topic is when it is played back (an input, a report, or a command).

Inputs are the images, joints and words that a policy is given; played into a graph, they make it answer.
Reports are what our nodes say about themselves; they move nothing. Everything else may move a robot and
counts as a command. A type is an input or a report only if it is listed here, since a JointState is a
measurement on one topic and a command on another. Force sensors are inputs, too, where a contract names
their topics (robots.measured_forces).
"""

from __future__ import annotations

from enum import Enum

from vla_accel_ros.recording.marks import TOPIC as EPISODE


class Role(Enum):
    """The role of a topic; see the module docstring."""

    INPUT = "input"
    REPORT = "report"
    COMMAND = "command"


_INPUTS = frozenset(
    {
        "nav_msgs/msg/Odometry",
        "sensor_msgs/msg/CameraInfo",
        "sensor_msgs/msg/CompressedImage",
        "sensor_msgs/msg/Image",
        "sensor_msgs/msg/Imu",
        "sensor_msgs/msg/LaserScan",
        "sensor_msgs/msg/PointCloud2",
        "tf2_msgs/msg/TFMessage",
    }
)
# Types that are inputs only on topics whose last name part is listed.
_NAMED_INPUTS = {
    "sensor_msgs/msg/JointState": ("joint_states",),
    "std_msgs/msg/String": ("instruction", "question", "next_subtask"),
}
_REPORTS = frozenset(
    {
        "diagnostic_msgs/msg/DiagnosticArray",
        "rcl_interfaces/msg/Log",
        "rcl_interfaces/msg/ParameterEvent",
        "vla_accel_msgs/msg/GroundTruth",
        "vla_accel_msgs/msg/Inputs",
        "vla_accel_msgs/msg/LanguageOutput",
        "vla_accel_msgs/msg/LoopStats",
        "vla_accel_msgs/msg/Motion",
        "vla_accel_msgs/msg/Observed",
        "vla_accel_msgs/msg/Session",
    }
)
_NAMED_REPORTS = ("parameters", "subtask", EPISODE)


def role(topic: str, kind: str) -> Role:
    """The role of a topic of that type, such as "std_msgs/msg/String"."""
    name = topic.rpartition("/")[2]
    if kind in _INPUTS or name in _NAMED_INPUTS.get(kind, ()):
        return Role.INPUT
    if kind in _REPORTS or (kind == "std_msgs/msg/String" and name in _NAMED_REPORTS):
        return Role.REPORT
    return Role.COMMAND
