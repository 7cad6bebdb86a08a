"""Two SO-101 arms with USB cameras in shared memory, and our nodes.

There are several drivers for it and none is the usual one, so `driver` names the launch file of yours, with
both arms in one controller manager and joints left_... and right_.... What it must publish and take is in the
contract (config/contracts/so101_bimanual.yaml).
"""

from launch import LaunchDescription, LaunchDescriptionEntity

from vla_accel_ros.nodes.running.robot_launch import (
    DRIVER,
    NAMESPACE,
    Given,
    camera,
    given_driver,
    robot_launch,
)

CAMERAS = ("top", "left_wrist", "right_wrist")
ARGUMENTS = (
    NAMESPACE,
    DRIVER,
    *(
        (name, "", f"Device of the camera {name}, such as /dev/video0. Empty: it runs already.")
        for name in CAMERAS
    ),
)


def generate_launch_description() -> LaunchDescription:
    return robot_launch("so101_bimanual", ARGUMENTS, drivers)


def drivers(given: Given) -> list[LaunchDescriptionEntity]:
    cameras = [node for name in CAMERAS for node in camera(name, given(name), given("namespace"))]
    return [*given_driver(given), *cameras]
