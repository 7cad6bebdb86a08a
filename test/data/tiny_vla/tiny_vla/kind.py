"""What a contract knows of the gripper; no ROS here."""

from vla_accel_ros.extensions import ControllerKind

KIND = ControllerKind(
    "std_msgs/msg/Float64MultiArray", "tiny_vla.adapter:GripperAdapter", rates_hz=(1.0, 10.0)
)
WRONG = "a word"
