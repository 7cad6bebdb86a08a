"""The simulated robot, driven by the bundled policy. `vla demo` does the same without ros2 launch."""

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from vla_accel_ros.nodes.environment import additional_environment, demo_contract, passing_state, share_path

RECORDING = ("record", "record_dir")
PASSED_ON = ("namespace", "params_file", "model", "mode", "log_level", "fastdds_profile", *RECORDING)


def generate_launch_description() -> LaunchDescription:
    arguments = [
        ("namespace", "", "Namespace of the robot."),
        (
            "params_file",
            str(share_path("config/params.yaml")),
            "Parameters of inference and trajectory (YAML).",
        ),
        ("sim_params_file", str(share_path("config/sim.yaml")), "Parameters of the simulated robot (YAML)."),
        ("model", "", "Checkpoint folder. Empty: the bundled demo policy."),
        ("mode", "", "How chunks follow each other: block, async, blend or rtc. Empty: as in params_file."),
        ("record", "false", "Also start the node recorder, which writes everything into a bag."),
        ("record_dir", "", "Folder of the bags. Empty: as in params_file, else bags in the present folder."),
        ("log_level", "info", "debug, info, warn, error or fatal."),
        (
            "fastdds_profile",
            "",
            "Fast DDS profile (XML). Empty: the one in your environment, else the package's.",
        ),
    ]
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=description)
        for name, default, description in arguments
    ]
    bringup = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(share_path("launch/bringup.launch.py"))),
        launch_arguments=[
            ("contract", str(demo_contract())),
            ("state_dir", str(passing_state())),
            *((name, LaunchConfiguration(name)) for name in PASSED_ON),
        ],
    )
    return LaunchDescription([*declared, OpaqueFunction(function=robot), bringup])


def robot(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    profile = LaunchConfiguration("fastdds_profile").perform(context)
    return [
        Node(
            package="vla_accel_ros",
            executable="sim_robot",
            name="sim_robot",
            namespace=LaunchConfiguration("namespace"),
            parameters=[LaunchConfiguration("sim_params_file")],
            ros_arguments=["--log-level", LaunchConfiguration("log_level")],
            additional_env=additional_environment(profile=profile),
            output="screen",
            emulate_tty=True,
        )
    ]
