"""The nodes that run a policy on a robot, in the robot's namespace, and optionally a recorder.

Cameras, joints and controllers keep their names: the contract says which topics they have. Where robots share
a contract, `remappings` gives one of them other names. With engine fleet the node inference is another
executable, which needs no GPU. The nodes are restarted when they die, and configure and activate themselves
unless `autostart` is false.
"""

import os
from collections.abc import Iterable

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import DeclareLaunchArgument, LogInfo, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue

from vla_accel_ros.nodes.params.fleet import ENGINE, EXECUTABLES
from vla_accel_ros.nodes.params.over_file import ENGINE_OPTIONS, launch_arguments, parameters_of
from vla_accel_ros.nodes.params.parameter_file import parameter_of
from vla_accel_ros.nodes.running.environment import (
    LAUNCH_ARGUMENTS,
    additional_environment,
    discovery_environment,
    enclave,
    share_path,
    who_may_command,
)

RESPAWN_DELAY_S = 2.0
OVER_THE_FILE = {
    "inference": ("model", "trained_as", "engine", "server_url", *ENGINE_OPTIONS),
    "trajectory": ("mode",),
    "recorder": ("record_dir",),
}
YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def generate_launch_description() -> LaunchDescription:
    arguments = [
        ("namespace", "", "Namespace of the robot; its relative topics are below it."),
        ("params_file", str(share_path("config/params.yaml")), "Parameters of the nodes (YAML)."),
        ("contract", "", "Contract of the robot (YAML). Empty: as in params_file, else the simulated arm's."),
        *(argument for node, names in OVER_THE_FILE.items() for argument in launch_arguments(node, names)),
        (
            "remappings",
            "",
            "Other names of topics and services, such as joint_states:=/joint_states, separated by spaces.",
        ),
        *LAUNCH_ARGUMENTS,
        ("autostart", "true", "Configure and activate the nodes; false leaves that to a lifecycle manager."),
        ("respawn", "true", f"Start a node again {RESPAWN_DELAY_S:.0f} s after it died."),
        ("use_sim_time", "false", "Take the time from /clock, as for a replayed bag."),
        ("record", "false", "Also start the node recorder, which writes everything into a bag."),
        ("state_dir", "", "Folder of what survives a restart. Empty: $XDG_STATE_HOME, else ~/.local/state."),
    ]
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=description)
        for name, default, description in arguments
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=nodes)])


def yes_or_no(name: str, text: str) -> bool:
    """An argument that no node has, in the words that the others take. Raises ValueError for any other."""
    if text.lower() not in (*YES, *NO):
        raise ValueError(f"{name} is {text!r}: give true or false")
    return text.lower() in YES


def renamed(text: str) -> list[tuple[str, str]]:
    """The remappings for every node. Raises ValueError for what is none."""
    pairs = [word.split(":=") for word in text.split()]
    for pair in pairs:
        if len(pair) != 2 or not all(pair):
            raise ValueError(f"remappings has {':='.join(pair)!r}: give FROM:=TO, separated by spaces")
    return [(name, other) for name, other in pairs]


def nodes(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    def given(name: str) -> str:
        return LaunchConfiguration(name).perform(context)

    def yes(name: str) -> ParameterValue:
        return ParameterValue(LaunchConfiguration(name), value_type=bool)

    def over_the_file(node: str, names: Iterable[str]) -> dict[str, ParameterValue]:
        return {
            parameter.name: ParameterValue(given(parameter.name), value_type=type(parameter.default))
            for parameter in parameters_of(node, names)
            if given(parameter.name)
        }

    environment = {
        **additional_environment(profile=given("fastdds_profile")),
        **discovery_environment(given("network")),
    }
    if given("state_dir"):
        environment["XDG_STATE_HOME"] = given("state_dir")

    def inference() -> str:
        """The executable of the node inference."""
        name = f"{given('namespace')}/inference"
        engine = given("engine") or parameter_of(given("params_file"), name, ENGINE.name, str(ENGINE.default))
        ENGINE.check(engine)
        return EXECUTABLES[engine]

    def node(name: str, executable: str = "") -> LifecycleNode:
        shared = {"autostart": yes("autostart"), "use_sim_time": yes("use_sim_time")}
        return LifecycleNode(
            package="vla_accel_ros",
            executable=executable or name,
            name=name,
            namespace=LaunchConfiguration("namespace"),
            parameters=[
                LaunchConfiguration("params_file"),
                {**shared, **over_the_file(name, ("contract", *OVER_THE_FILE[name]))},
            ],
            remappings=renamed(given("remappings")),
            ros_arguments=[
                "--log-level",
                LaunchConfiguration("log_level"),
                "--enclave",
                enclave(given("namespace"), name),
            ],
            additional_env=environment,
            respawn=LaunchConfiguration("respawn"),
            respawn_delay=RESPAWN_DELAY_S,
            output="screen",
            emulate_tty=True,
        )

    started: list[LaunchDescriptionEntity] = [
        LogInfo(msg=who_may_command({**os.environ, **environment})),
        node("inference", inference()),
        node("trajectory"),
    ]
    if yes_or_no("record", given("record")):
        started.append(node("recorder"))
    return started
