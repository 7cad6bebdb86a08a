"""A Universal Robots arm with ur_robot_driver, perhaps MoveIt and two RealSense cameras, and our nodes.

The contract is that of a UR5e with a Robotiq gripper; give another with `contract`. MoveIt executes on the
controller that we stream to, so only one of the two may drive at a time.
"""

from launch import LaunchDescription, LaunchDescriptionEntity

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

ARGUMENTS = (
    ("robot_ip", "", "Address of the robot. Empty: ur_robot_driver runs already."),
    ("ur_type", "ur5e", "Its type, as ur_robot_driver calls it."),
    MOVEIT,
    ("base_serial", "", "Serial number of the RealSense at the base. Empty: that camera runs already."),
    ("wrist_serial", "", "Serial number of the RealSense at the wrist. Empty: that camera runs already."),
)


def generate_launch_description() -> LaunchDescription:
    return robot_launch("ur5e_robotiq", ARGUMENTS, drivers)


def drivers(given: Given) -> list[LaunchDescriptionEntity]:
    started: list[LaunchDescriptionEntity] = []
    robot = {"ur_type": given("ur_type"), "launch_rviz": "false"}
    if given("robot_ip"):
        controller = {"initial_joint_controller": "scaled_joint_trajectory_controller"}
        file = package_file("ur_robot_driver", "launch/ur_control.launch.py")
        started.append(included(file, {**robot, "robot_ip": given("robot_ip"), **controller}))
    if is_yes("moveit", given("moveit")):
        started += [
            included(package_file("ur_moveit_config", "launch/ur_moveit.launch.py"), robot),
            hand_over(),
        ]
    for name in ("base", "wrist"):
        started += realsense(name, given(f"{name}_serial"))
    return started
