"""`vla security`: makes the SROS2 rules of a robot from its contract; `vla policy` is its former name.

With SROS2 enforced a process may only do what its enclave allows. The contract determines the topics: each
node's own topics and services, the cameras, the joints and the controllers. The enclave `operator` covers
what a person runs in a terminal: `vla say`, `vla ask`, `vla doctor`, `vla view`, viewers, and calls of the
nodes' services. The enclave `controllers` receives the commands, which only `trajectory` may send. A fleet's
scheduler has the enclave `fleet_scheduler` outside of the robots' namespaces, and may use the topics fleet/*
of every robot.

The tests compare config/security with this module, and this module with the running nodes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from xml.etree import ElementTree

from vla_accel_ros.contract.checks.controller_check import node_of
from vla_accel_ros.contract.checks.graph_check import odometry, person, transforms
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import SERVO
from vla_accel_ros.nodes.running.environment import enclave
from vla_accel_ros.recording.marks import EVENTS
from vla_accel_ros.tools.options import (
    chosen_contract,
    contract_option,
    namespace_option,
    output_file,
    subcommand,
    write_text,
)

_PARAMETERS = (
    "describe_parameters",
    "get_parameter_types",
    "get_parameters",
    "list_parameters",
    "set_parameters",
    "set_parameters_atomically",
)
_TYPE = "get_type_description"
_LIFECYCLE = (
    "change_state",
    "get_available_states",
    "get_available_transitions",
    "get_state",
    "get_transition_graph",
)
_TIMELINE = "timeline"
_RUN, _CHUNK = "run_policy", "get_action_chunk"
_MOTION = ("hold", "resume", "home", "release", "reclaim", "reset", "take_over", "give_back")
LIFECYCLE_NODES = ("inference", "trajectory", "recorder")
SCHEDULER = "fleet_scheduler"
_TO_SCHEDULER = ("robot", "request", "question")
_FROM_SCHEDULER = ("answer", "call", "admission", "text", "session")
_KINDS = {
    "publish": "topic",
    "subscribe": "topic",
    "reply": "service",
    "request": "service",
    "call": "action",
    "execute": "action",
}
"""What a node does -> with what."""


@dataclass
class Rights:
    """What one node may do. Names are as in the contract; `~/` is the node's own namespace."""

    publish: set[str] = field(default_factory=set)
    subscribe: set[str] = field(default_factory=set)
    reply: set[str] = field(default_factory=set)
    request: set[str] = field(default_factory=set)
    call: set[str] = field(default_factory=set)
    execute: set[str] = field(default_factory=set)


def rights(contract: Contract, sim: bool = False, fleet: bool = False) -> dict[str, Rights]:
    """Return each node's rights by node name.

    sim: include the simulated robot, which provides cameras and controllers itself. fleet: the robot gets its
    chunks from a fleet (engine: fleet).
    """
    cameras = {camera.topic for camera in contract.cameras}
    infos = {camera.info for camera in contract.cameras if camera.info}
    joints, commands = contract.joint_states.topic, {c.topic for c in contract.commanded}
    odometries = {topic.topic for topic in odometry(contract)}
    observed = cameras | infos | odometries | {topic.topic for topic in transforms(contract)}
    nodes = {node_of(controller) for controller in contract.controllers}
    actions = {c.action for c in contract.controllers if c.action}
    states = {f"{node}/controller_state" for node in nodes}
    parameter_services = {
        f"{node}/{name}" for node in nodes for name in ("list_parameters", "get_parameters")
    }
    for controller in contract.controllers:
        if controller.kind in SERVO:
            node = node_of(controller)
            parameter_services |= {f"{node}/pause_servo", f"{node}/switch_command_type"}
    manager = {"controller_manager/list_controllers", "controller_manager/switch_controller"}
    reported = {"motion", "inputs", "action_chunk", "observed", "session", "language_output", "loop_stats"}
    reported |= {"/diagnostics", "parameters", "ground_truth"}
    common = {"/diagnostics", "loop_stats", "parameters"}
    sensors = () if contract.force is None else contract.force.sensors
    forces = {sensor.topic for sensor in sensors if sensor.topic}
    teleop = {topic.topic for topic in person(contract)}
    motion = (*_MOTION, "tare") if sensors else _MOTION
    services = {f"trajectory/{name}" for name in motion} | {f"recorder/{event}" for event in EVENTS}
    services |= {"inference/cancel_answers", "inference/autosteer", _CHUNK}
    served = {f"{node}/{name}" for node in LIFECYCLE_NODES for name in (*_PARAMETERS, *_LIFECYCLE, _TIMELINE)}
    answered = {"action_chunk", "observed", "session", "language_output", "inputs", "subtask"}
    followed = {"action_chunk", "inputs", "instruction", "language_output"}
    recorded = reported - {"inputs"} | {joints, "instruction", "question", "subtask"}
    asking = {f"trajectory_{sensor.name}/{_TYPE}" for sensor in sensors if sensor.topic}
    nodes_rights = {
        "inference": Rights(
            publish=common | answered | {"~/policy_images"},
            subscribe=observed | {joints, "instruction", "question", "motion", "next_subtask"},
            reply={"~/cancel_answers", "~/autosteer", _CHUNK},
        ),
        "trajectory": Rights(
            publish=common | {"motion", "instruction", "question"} | commands,
            subscribe=followed | {joints} | states | forces | teleop,
            reply={f"~/{name}" for name in motion} | asking,
            request=parameter_services | manager,
            call=actions,
            execute={_RUN},
        ),
        "recorder": Rights(
            publish=common,
            subscribe=observed | commands | recorded | forces | teleop,
            reply={f"~/{event}" for event in EVENTS},
        ),
        "operator": Rights(
            publish={"instruction", "question", "chunk_path", "next_subtask"},
            subscribe=observed | reported | {joints, "robot_description", "inference/policy_images"},
            reply={f"doctor/{service}" for service in (*_PARAMETERS, _TYPE)},
            request=services | served | parameter_services,
            call={_RUN},
        ),
        "controllers": Rights(
            publish={joints} | states | odometries,
            subscribe=commands,
            reply=parameter_services | manager,
            execute=actions,
        ),
    }
    if fleet:
        nodes_rights["inference"].publish |= {f"fleet/{name}" for name in _TO_SCHEDULER}
        nodes_rights["inference"].publish -= {"loop_stats", "~/policy_images"}
        nodes_rights["inference"].reply.discard(_CHUNK)
        nodes_rights["inference"].subscribe |= {f"fleet/{name}" for name in _FROM_SCHEDULER}
    if teleop:
        nodes_rights["leader"] = Rights(publish=teleop)
    for camera in contract.cameras:
        base = camera.topic.rpartition("/")[0]
        sent = {camera.topic, *infos, *(f"{base}/{end}" for end in _SENT)}
        nodes_rights[f"camera_{camera.name}"] = Rights(publish=sent | {"/diagnostics"})
    if sim:
        bases = {camera.topic.rpartition("/")[0] for camera in contract.cameras}
        nodes_rights["sim_robot"] = Rights(
            publish={joints, "ground_truth", "/diagnostics", *infos, *states, *forces}
            | {f"{base}/{end}" for base in bases for end in _SENT},
            subscribe=commands | {"instruction"},
            reply={"~/reset"} | {f"{node}/get_parameters" for node in nodes},
            request={"trajectory/reset"},
            execute=actions,
        )
    for name, node_rights in nodes_rights.items():
        _add_common(node_rights, name)
    return nodes_rights


def scheduler_rights(namespace: str = "") -> Rights:
    """Return the rights of a fleet's scheduler: the topics of robots in any namespace, and of one in the root
    if `namespace` is that."""
    robots = ("/*", "") if not namespace.strip("/") else ("/*",)  # in permissions, * stands for slashes too

    def topics(names: Iterable[str]) -> set[str]:
        return {f"{robot}/fleet/{name}" for robot in robots for name in names}

    scheduler = Rights(
        publish=topics(_FROM_SCHEDULER) | {"/diagnostics", "parameters"}, subscribe=topics(_TO_SCHEDULER)
    )
    _add_common(scheduler, SCHEDULER)
    return scheduler


_SENT = ("frame", "image_raw", "image_raw/compressed", "camera_info")


def _add_common(allowed: Rights, name: str) -> None:
    allowed.publish |= {"/rosout", "/parameter_events"}
    allowed.subscribe |= {"/parameter_events", "/clock"}
    allowed.reply |= {f"~/{service}" for service in (*_PARAMETERS, _TYPE)}
    if name in (*LIFECYCLE_NODES, SCHEDULER):
        allowed.reply |= {f"~/{service}" for service in (*_LIFECYCLE, _TIMELINE)}
        allowed.publish.add("~/transition_event")
    if name in LIFECYCLE_NODES:
        allowed.reply.add(f"{name}_asking/{_TYPE}")  # nodes/service_calls.py


def security(contract: Contract, namespace: str = "", sim: bool = False, fleet: bool = False) -> str:
    """Return the enclaves as XML in the schema of sros2 (version 0.2.0)."""
    root = ElementTree.Element("policy", version="0.2.0")
    enclaves = ElementTree.SubElement(root, "enclaves")
    nodes = [(namespace, name, allowed) for name, allowed in rights(contract, sim, fleet).items()]
    if fleet:
        nodes.append(("", SCHEDULER, scheduler_rights(namespace)))
    for robot, name, allowed in nodes:
        space = "/" + "/".join(filter(None, robot.split("/")))
        element = ElementTree.SubElement(enclaves, "enclave", path=enclave(robot, name))
        profiles = ElementTree.SubElement(element, "profiles")
        profile = ElementTree.SubElement(profiles, "profile", ns=space, node=name)
        for verb, kind in _KINDS.items():
            if names := sorted(getattr(allowed, verb)):
                group = ElementTree.SubElement(profile, f"{kind}s", {verb: "ALLOW"})
                for topic in names:
                    ElementTree.SubElement(group, kind).text = topic
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "security", "print the SROS2 security rules of a robot", run, ("policy",))
    contract_option(parser)
    namespace_option(parser)
    parser.add_argument("--sim", action="store_true", help="include the simulated robot")
    parser.add_argument(
        "--fleet",
        action="store_true",
        help="for a robot that gets its chunks from a fleet, and its scheduler",
    )
    parser.add_argument(
        "--output", type=output_file, metavar="FILE", help="write the rules to a file instead"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print or write the rules."""
    contract = Contract.load(chosen_contract(arguments))
    text = security(contract, arguments.namespace, arguments.sim, arguments.fleet)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        write_text(arguments.output, text)
    return 0
