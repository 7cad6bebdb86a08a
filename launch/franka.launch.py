"""A Franka Research 3 with franka_ros2, perhaps MoveIt and two RealSense cameras, and our nodes.

Franka's launch file for MoveIt starts the driver, too, and publishes joint states at 30 Hz. Both have the
controller fr3_arm_controller of franka_fr3_moveit_config, to which we stream and on which MoveIt executes.
"""

from launch import LaunchDescription, LaunchDescriptionEntity
from launch_ros.actions import Node

from vla_accel_ros.nodes.running.robot_launch import (
    MOVEIT,
    Given,
    hand_over,
    included,
    is_yes,
    package_file,
    realsense,
    robot_launch,
)

CONFIGURATION = "franka_fr3_moveit_config"
ARGUMENTS = (
    ("robot_ip", "", "Address of the robot. Empty: franka_ros2 runs already."),
    MOVEIT,
    ("exterior_serial", "", "Serial number of the RealSense outside. Empty: that camera runs already."),
    ("wrist_serial", "", "Serial number of the RealSense at the wrist. Empty: that camera runs already."),
)


def generate_launch_description() -> LaunchDescription:
    return robot_launch("franka", ARGUMENTS, drivers)


def drivers(given: Given) -> list[LaunchDescriptionEntity]:
    started: list[LaunchDescriptionEntity] = []
    robot, moveit = (
        {"robot_ip": given("robot_ip"), "load_gripper": "false"},
        is_yes("moveit", given("moveit")),
    )
    if moveit and not given("robot_ip"):
        raise ValueError("moveit:=true starts Franka's driver, too: give robot_ip")
    if moveit:
        started += [included(package_file(CONFIGURATION, "launch/moveit.launch.py"), robot), hand_over()]
    elif given("robot_ip"):
        controllers = str(package_file(CONFIGURATION, "config/fr3_ros_controllers.yaml"))
        more = {"robot_type": "fr3", "joint_state_rate": "100", "controllers_yaml": controllers}
        started.append(included(package_file("franka_bringup", "launch/franka.launch.py"), {**robot, **more}))
        started.append(
            Node(
                package="controller_manager",
                executable="spawner",
                arguments=["fr3_arm_controller"],
                output="screen",
            )
        )
    for name in ("exterior", "wrist"):
        started += realsense(name, given(f"{name}_serial"))
    return started
