"""The scheduler of a fleet: one model for all robots that request chunks.

Start it where the GPU is, in no robot's namespace; robots are found in the graph. It is restarted when it
dies, and configures and activates itself unless `autostart` is false.
"""

import os

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import DeclareLaunchArgument, LogInfo, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue

from vla_accel_ros.nodes.params.over_file import FLEET_OPTIONS, launch_arguments, parameters_of
from vla_accel_ros.nodes.running.environment import (
    LAUNCH_ARGUMENTS,
    additional_environment,
    discovery_environment,
    enclave,
    share_path,
    who_may_command,
)

RESPAWN_DELAY_S = 2.0
OVER_THE_FILE = ("contract", "model", "trained_as", "rule", *FLEET_OPTIONS)


def generate_launch_description() -> LaunchDescription:
    arguments = [
        ("namespace", "", "Namespace of the scheduler itself; robots are found in any."),
        ("params_file", str(share_path("config/fleet.yaml")), "Parameters of the scheduler (YAML)."),
        *launch_arguments("fleet_scheduler", OVER_THE_FILE),
        ("policy", "", "Former name of rule."),
        *LAUNCH_ARGUMENTS,
        ("autostart", "true", "Configure and activate the node; false leaves that to a lifecycle manager."),
        ("respawn", "true", f"Start the node again {RESPAWN_DELAY_S:.0f} s after it died."),
    ]
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=description)
        for name, default, description in arguments
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=scheduler)])


def scheduler(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    def given(name: str) -> str:
        value: str = LaunchConfiguration(name).perform(context)
        return value or given("policy") if name == "rule" else value

    parameters = {
        parameter.name: ParameterValue(given(parameter.name), value_type=type(parameter.default))
        for parameter in parameters_of("fleet_scheduler", OVER_THE_FILE)
        if given(parameter.name)
    }
    parameters["autostart"] = ParameterValue(LaunchConfiguration("autostart"), value_type=bool)
    reach = discovery_environment(given("network"))
    environment = {**additional_environment(profile=given("fastdds_profile")), **reach}
    return [
        LogInfo(msg=who_may_command({**os.environ, **environment})),
        LifecycleNode(
            package="vla_accel_ros",
            executable="fleet_scheduler",
            name="fleet_scheduler",
            namespace=LaunchConfiguration("namespace"),
            parameters=[
                LaunchConfiguration("params_file"),
                parameters,
            ],
            ros_arguments=[
                "--log-level",
                LaunchConfiguration("log_level"),
                "--enclave",
                enclave(given("namespace"), "fleet_scheduler"),
            ],
            additional_env=environment,
            respawn=LaunchConfiguration("respawn"),
            respawn_delay=RESPAWN_DELAY_S,
            output="screen",
            emulate_tty=True,
        ),
    ]
