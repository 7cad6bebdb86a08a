"""A kind of controller: a gripper that takes the last target of a trajectory and moves there by itself.

A contract may then say `kind: my_gripper`. A contract is read where there is no ROS, so the kind is apart
from the adapter that publishes: this module imports nothing of ROS, and names the adapter as text.

pyproject.toml beside this file names KIND; `pip install ./examples` makes it known.
"""

from __future__ import annotations

from vla_accel_ros.extensions import ControllerKind

KIND = ControllerKind(
    message="std_msgs/msg/Float64MultiArray",  # the type of its command topic; `vla doctor` compares it
    adapter="gripper_adapter:GripperAdapter",  # imported by the trajectory node alone
    rates_hz=(1.0, 10.0),  # a contract gives its rate_hz, from 1 to 10
)
