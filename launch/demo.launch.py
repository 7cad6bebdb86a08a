"""The simulated robot, driven by the bundled policy. `vla demo` does the same without ros2 launch.

`vla say` gives the first instruction once inference runs, reports the outcome, and then prints what to type
next. Only this machine can command the robot, unless `network` says otherwise.
"""

import sys

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    IncludeLaunchDescription,
    LogInfo,
    OpaqueFunction,
    RegisterEventHandler,
)
from launch.event_handlers import OnProcessExit
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from vla_accel_ros.nodes.running.environment import (
    LAUNCH_ARGUMENTS,
    additional_environment,
    demo_contract,
    demo_model,
    discovery_environment,
    enclave,
    passing_state,
    share_path,
)

RECORDING = ("record", "record_dir")
PASSED_ON = (
    "namespace",
    "params_file",
    "model",
    "mode",
    "log_level",
    "fastdds_profile",
    "network",
    *RECORDING,
)
PATIENCE_S = 120
"""Time for inference to load, on a slow machine."""


def generate_launch_description() -> LaunchDescription:
    arguments = [
        ("namespace", "", "Namespace of the robot."),
        (
            "params_file",
            str(share_path("config/params.yaml")),
            "Parameters of inference and trajectory (YAML).",
        ),
        ("sim_params_file", str(share_path("config/sim.yaml")), "Parameters of the simulated robot (YAML)."),
        ("model", str(demo_model()), "Checkpoint folder; by default that of the bundled demo policy."),
        ("instruction", "reach the red block", "First instruction of the arm. Empty: none; it waits."),
        ("mode", "", "How chunks follow each other: block, async, blend or rtc. Empty: as in params_file."),
        ("record", "false", "Also start the node recorder, which writes everything into a bag."),
        ("record_dir", "", "Folder of the bags. Empty: as in params_file, else bags in the current folder."),
        *(argument for argument in LAUNCH_ARGUMENTS if argument[0] != "network"),
        (
            "network",
            "localhost",
            "From where the nodes can be found and commanded: localhost or subnet.",
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
    return LaunchDescription(
        [*declared, OpaqueFunction(function=robot), bringup, OpaqueFunction(function=operator)]
    )


def robot(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    namespace = LaunchConfiguration("namespace").perform(context)
    return [
        Node(
            package="vla_accel_ros",
            executable="sim_robot",
            name="sim_robot",
            namespace=LaunchConfiguration("namespace"),
            parameters=[LaunchConfiguration("sim_params_file")],
            ros_arguments=[
                "--log-level",
                LaunchConfiguration("log_level"),
                "--enclave",
                enclave(namespace, "sim_robot"),
            ],
            additional_env=environment(context),
            output="screen",
            emulate_tty=True,
        )
    ]


def operator(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """The process that gives the first instruction, and the hint that is printed after it."""
    instruction, option = LaunchConfiguration("instruction").perform(context), ""
    if namespace := LaunchConfiguration("namespace").perform(context):
        option = f" --namespace {namespace}"
    services = "/".join(["", *filter(None, namespace.split("/")), "trajectory"])
    hint = LogInfo(
        msg="next, in another terminal with this workspace sourced:\n"
        f'  vla say "put the red block on the yellow pad"{option}\n'
        f'  vla ask "what do you see?"{option}\n'
        f"  ros2 service call {services}/hold std_srvs/srv/Trigger"
    )
    if not instruction:
        return [hint]
    say = ExecuteProcess(
        name="say",
        cmd=[
            sys.executable,
            "-m",
            "vla_accel_ros.tools.cli",
            "say",
            instruction,
            f"--timeout={PATIENCE_S}",
            f"--namespace={namespace}",
        ],
        additional_env=environment(context),
        output="screen",
    )
    return [say, RegisterEventHandler(OnProcessExit(target_action=say, on_exit=[hint]))]


def environment(context: LaunchContext) -> dict[str, str]:
    """The environment of the processes that bringup does not start."""
    return {
        **additional_environment(profile=LaunchConfiguration("fastdds_profile").perform(context)),
        **discovery_environment(LaunchConfiguration("network").perform(context)),
    }
