"""What the launch files of robots share: others' launch files for the driver, ours for the nodes.

Arguments that a robot's launch file does not declare reach the files that it includes all the same, such as
`mode:=rtc` or `use_mock_hardware:=true`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ament_index_python.packages import PackageNotFoundError, get_package_share_directory
from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, LogInfo, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration

from vla_accel_ros.nodes.running.environment import share_path

Given = Callable[[str], str]
Argument = tuple[str, str, str]
"""Name, default and description."""
_OURS = ("contract", "model", "trained_as", "params_file", "mode", "record")
DRIVER: Argument = ("driver", "", "Launch file of the robot's driver. Empty: it runs already.")
NAMESPACE: Argument = ("namespace", "", "Namespace of the robot.")
MOVEIT: Argument = ("moveit", "false", "Also start MoveIt, which may move the robot after ~/release.")
HAND_OVER = (
    "MoveIt may move the robot between these two:\n"
    "  ros2 service call /trajectory/release std_srvs/srv/Trigger\n"
    "  ros2 service call /trajectory/reclaim std_srvs/srv/Trigger"
)


def robot_launch(
    contract: str, arguments: Sequence[Argument], drivers: Callable[[Given], list[LaunchDescriptionEntity]]
) -> LaunchDescription:
    """The launch description of a robot. contract: one of config/contracts. arguments: the robot's own.
    drivers: what runs besides our nodes."""
    declared = [
        *arguments,
        ("contract", str(share_path(f"config/contracts/{contract}.yaml")), "Contract of the robot (YAML)."),
        ("model", "", "Checkpoint folder. Empty: as in params_file."),
        ("trained_as", "", "How an openpi checkpoint was trained. Empty: as in params_file."),
        ("params_file", str(share_path("config/params.yaml")), "Parameters of our nodes (YAML)."),
        ("mode", "", "How chunks follow each other. Empty: as in params_file."),
        ("record", "false", "Also start the node recorder."),
    ]

    def start(context: LaunchContext) -> list[LaunchDescriptionEntity]:
        def given(name: str) -> str:
            return str(LaunchConfiguration(name).perform(context))

        names = [name for name, *_ in arguments if name == NAMESPACE[0]]
        ours = {name: given(name) for name in (*_OURS, *names)}
        return [*drivers(given), included(share_path("launch/bringup.launch.py"), ours)]

    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(name, default_value=default, description=text)
                for name, default, text in declared
            ),
            OpaqueFunction(function=start),
        ]
    )


def included(file: Path, arguments: Mapping[str, str]) -> LaunchDescriptionEntity:
    """A launch file with arguments."""
    source = PythonLaunchDescriptionSource(str(file))
    return IncludeLaunchDescription(source, launch_arguments=list(arguments.items()))


def package_file(package: str, path: str) -> Path:
    """A file of another package. Raises RuntimeError that says how to install the package."""
    try:
        return Path(get_package_share_directory(package)) / path
    except PackageNotFoundError:
        debian = f"ros-{os.environ.get('ROS_DISTRO', '$ROS_DISTRO')}-{package.replace('_', '-')}"
        raise RuntimeError(
            f"{package} is not installed: sudo apt install {debian}, or build it from source"
        ) from None


def given_driver(given: Given) -> list[LaunchDescriptionEntity]:
    """The launch file of argument DRIVER. Raises ValueError if it is not there."""
    if not given("driver"):
        return []
    file = Path(given("driver")).expanduser()
    if not file.is_file():
        raise ValueError(f"driver is {file}, which does not exist: give a launch file (.launch.py)")
    return [included(file, {})]


def camera(name: str, source: str, namespace: str) -> list[LaunchDescriptionEntity]:
    """This package's camera node, or nothing for an empty source."""
    arguments = {"name": f"{name}_camera", "camera": name, "source": source, "namespace": namespace}
    return [included(share_path("launch/camera.launch.py"), arguments)] if source else []


def realsense(name: str, serial: str) -> list[LaunchDescriptionEntity]:
    """A RealSense camera as the contracts name it, cameras/NAME/color/image_raw; nothing without a serial
    number. The underscore keeps the number a text."""
    arguments = {"camera_namespace": "cameras", "camera_name": name, "serial_no": f"_{serial}"}
    arguments["enable_depth"] = "false"
    file = "launch/rs_launch.py"
    return [included(package_file("realsense2_camera", file), arguments)] if serial else []


def hand_over() -> LaunchDescriptionEntity:
    """How MoveIt gets the robot, for the terminal."""
    return LogInfo(msg=HAND_OVER)


def is_yes(name: str, text: str) -> bool:
    """Raises ValueError for what is neither true nor false."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{name} is {text!r}: give true or false")
    return text.lower() == "true"
