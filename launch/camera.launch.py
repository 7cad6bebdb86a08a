"""One camera: any source that OpenCV can open, in shared memory for the policy and as images for viewers.

Include it once for each camera, with a different `name` for each node. It is restarted when it dies.
"""

import os

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import DeclareLaunchArgument, LogInfo, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from vla_accel_ros.nodes.running.environment import (
    LAUNCH_ARGUMENTS,
    additional_environment,
    discovery_environment,
    enclave,
    share_path,
    who_may_command,
)

RESPAWN_DELAY_S = 2.0
OVER_THE_FILE = ("camera", "source", "camera_info")


def generate_launch_description() -> LaunchDescription:
    arguments = [
        ("namespace", "", "Namespace of the robot."),
        ("name", "camera", "Name of the node, and of its section in params_file."),
        ("params_file", str(share_path("config/camera.yaml")), "Parameters of the camera (YAML)."),
        ("camera", "", "Name of the camera; its topics are camera/<camera>/... Empty: as in params_file."),
        ("source", "", "Device, pipeline, URL, video file or folder. Empty: as in params_file."),
        ("camera_info", "", "Calibration (YAML of camera_calibration). Empty: as in params_file."),
        *LAUNCH_ARGUMENTS,
        ("respawn", "true", f"Start the node again {RESPAWN_DELAY_S:.0f} s after it died."),
    ]
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=description)
        for name, default, description in arguments
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=camera)])


def camera(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    def given(name: str) -> str:
        return LaunchConfiguration(name).perform(context)

    reach = discovery_environment(given("network"))
    environment = {**additional_environment(profile=given("fastdds_profile")), **reach}
    return [
        LogInfo(msg=who_may_command({**os.environ, **environment})),
        Node(
            package="vla_accel_ros",
            executable="camera",
            name=given("name"),
            namespace=LaunchConfiguration("namespace"),
            parameters=[
                LaunchConfiguration("params_file"),
                {name: ParameterValue(given(name), value_type=str) for name in OVER_THE_FILE if given(name)},
            ],
            ros_arguments=[
                "--log-level",
                LaunchConfiguration("log_level"),
                "--enclave",
                enclave(given("namespace"), given("name")),
            ],
            additional_env=environment,
            respawn=LaunchConfiguration("respawn"),
            respawn_delay=RESPAWN_DELAY_S,
            output="screen",
            emulate_tty=True,
        ),
    ]
