"""A stationary ALOHA, and our nodes.

Interbotix's own aloha_bringup.launch.py starts each arm in a namespace with the same names of joints, which
no contract can tell apart. `driver` names a launch file that has both arms in one controller manager, with
joints left_... and right_..., and the cameras. What it must publish and take is in the contract
(config/contracts/aloha.yaml).
"""

from launch import LaunchDescription

from vla_accel_ros.nodes.running.robot_launch import DRIVER, NAMESPACE, given_driver, robot_launch


def generate_launch_description() -> LaunchDescription:
    return robot_launch("aloha", (NAMESPACE, DRIVER), given_driver)
