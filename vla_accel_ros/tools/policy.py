"""`vla policy`: makes the SROS2 policy of a robot from its contract.

With SROS2 enforced a process may only do what its policy names. The contract determines the topics: each
node's own topics and services, the cameras, the joints and the controllers. The enclave `operator` covers
what a person runs in a terminal: `vla say`, `vla ask`, `vla doctor` and calls of the nodes' services. The
enclave `controllers` receives the commands, which only `trajectory` may send. A fleet's scheduler has the
enclave `fleet_scheduler` outside of the robots' namespaces, and may use the topics fleet/* of every robot.

The tests compare config/security with this module, and this module with the running nodes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from xml.etree import ElementTree

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.controller_check import node_of
from vla_accel_ros.contract.parts import SERVO
from vla_accel_ros.nodes.running.environment import enclave
from vla_accel_ros.tools.options import (
    chosen_contract,
    contract_option,
    namespace_option,
    output_file,
    subcommand,
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
_MOTION = ("hold", "resume", "home", "release", "reclaim", "reset")
LIFECYCLE_NODES = ("inference", "trajectory", "recorder")
SCHEDULER = "fleet_scheduler"
_TO_SCHEDULER = ("robot", "request", "question")
_FROM_SCHEDULER = ("answer", "call", "admission", "text", "session")


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
    joints, commands = contract.joint_states.topic, {each.topic for each in contract.controllers}
    nodes = {node_of(each) for each in contract.controllers}
    actions = {each.action for each in contract.controllers if each.action}
    states = {f"{node}/controller_state" for node in nodes}
    asked = {f"{node}/{name}" for node in nodes for name in ("list_parameters", "get_parameters")}
    for controller in contract.controllers:
        if controller.kind in SERVO:
            node = node_of(controller)
            asked |= {f"{node}/pause_servo", f"{node}/switch_command_type"}
    manager = {"controller_manager/list_controllers", "controller_manager/switch_controller"}
    told = {"motion", "inputs", "action_chunk", "observed", "session", "language_output", "loop_stats"}
    told |= {"/diagnostics", "parameters", "ground_truth"}
    own = {"/diagnostics", "loop_stats", "parameters"}
    sensors = () if contract.force is None else contract.force.sensors
    forces = {sensor.topic for sensor in sensors if sensor.topic}
    motion = (*_MOTION, "tare") if sensors else _MOTION
    services = {f"trajectory/{name}" for name in motion} | {"inference/cancel_answers"}
    served = {f"{node}/{name}" for node in LIFECYCLE_NODES for name in (*_PARAMETERS, *_LIFECYCLE, _TIMELINE)}
    every = {
        "inference": Rights(
            publish=own | {"action_chunk", "observed", "session", "language_output", "inputs"},
            subscribe=cameras | infos | {joints, "instruction", "question", "motion"},
            reply={"~/cancel_answers"},
        ),
        "trajectory": Rights(
            publish=own | {"motion"} | commands,
            subscribe={joints, "action_chunk", "inputs"} | states | forces,
            reply={f"~/{name}" for name in motion}
            | {f"trajectory_{sensor.name}/{_TYPE}" for sensor in sensors if sensor.topic},
            request=asked | manager,
            call=actions,
        ),
        "recorder": Rights(
            publish=own,
            subscribe=cameras
            | infos
            | commands
            | told - {"inputs"}
            | forces
            | {joints, "instruction", "question"},
        ),
        "operator": Rights(
            publish={"instruction", "question"},
            subscribe=cameras | infos | told | {joints},
            reply={f"doctor/{service}" for service in (*_PARAMETERS, _TYPE)},
            request=services | served | asked,
        ),
        "controllers": Rights(
            publish={joints} | states,
            subscribe=commands,
            reply=asked | manager,
            execute=actions,
        ),
    }
    if fleet:
        every["inference"].publish |= {f"fleet/{name}" for name in _TO_SCHEDULER}
        every["inference"].publish -= {"loop_stats"}
        every["inference"].subscribe |= {f"fleet/{name}" for name in _FROM_SCHEDULER}
    for camera in contract.cameras:
        base = camera.topic.rpartition("/")[0]
        sent = {camera.topic, *infos, *(f"{base}/{end}" for end in _SENT)}
        every[f"camera_{camera.name}"] = Rights(publish=sent | {"/diagnostics"})
    if sim:
        bases = {camera.topic.rpartition("/")[0] for camera in contract.cameras}
        every["sim_robot"] = Rights(
            publish={joints, "ground_truth", "/diagnostics", *infos, *states, *forces}
            | {f"{base}/{end}" for base in bases for end in _SENT},
            subscribe=commands | {"instruction"},
            reply={"~/reset"} | {f"{node}/get_parameters" for node in nodes},
            request={"trajectory/reset"},
            execute=actions,
        )
    for name, each in every.items():
        _add_what_every_node_has(each, name)
    return every


def scheduler_rights(namespace: str = "") -> Rights:
    """Return the rights of a fleet's scheduler: the topics of robots in any namespace, and of one in the root
    if `namespace` is that."""
    robots = ("/*", "") if not namespace.strip("/") else ("/*",)  # in permissions, * stands for slashes too

    def topics(names: Iterable[str]) -> set[str]:
        return {f"{robot}/fleet/{name}" for robot in robots for name in names}

    each = Rights(
        publish=topics(_FROM_SCHEDULER) | {"/diagnostics", "parameters"}, subscribe=topics(_TO_SCHEDULER)
    )
    _add_what_every_node_has(each, SCHEDULER)
    return each


_SENT = ("frame", "image_raw", "image_raw/compressed", "camera_info")


def _add_what_every_node_has(each: Rights, name: str) -> None:
    each.publish |= {"/rosout", "/parameter_events"}
    each.subscribe |= {"/parameter_events", "/clock"}
    each.reply |= {f"~/{service}" for service in (*_PARAMETERS, _TYPE)}
    if name in (*LIFECYCLE_NODES, SCHEDULER):
        each.reply |= {f"~/{service}" for service in (*_LIFECYCLE, _TIMELINE)}
        each.publish.add("~/transition_event")
    if name in LIFECYCLE_NODES:
        each.reply.add(f"{name}_asking/{_TYPE}")  # nodes/service_calls.py


def policy(contract: Contract, namespace: str = "", sim: bool = False, fleet: bool = False) -> str:
    """Return the policy as XML in the schema of sros2 (version 0.2.0)."""
    root = ElementTree.Element("policy", version="0.2.0")
    enclaves = ElementTree.SubElement(root, "enclaves")
    nodes = [(namespace, name, each) for name, each in rights(contract, sim, fleet).items()]
    if fleet:
        nodes.append(("", SCHEDULER, scheduler_rights(namespace)))
    for within, name, each in nodes:
        at = "/" + "/".join(filter(None, within.split("/")))
        place = ElementTree.SubElement(enclaves, "enclave", path=enclave(within, name))
        profiles = ElementTree.SubElement(place, "profiles")
        profile = ElementTree.SubElement(profiles, "profile", ns=at, node=name)
        for kind, verb, names in (
            ("topic", "publish", each.publish),
            ("topic", "subscribe", each.subscribe),
            ("service", "reply", each.reply),
            ("service", "request", each.request),
            ("action", "call", each.call),
            ("action", "execute", each.execute),
        ):
            _allow(profile, kind, verb, names)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _allow(profile: ElementTree.Element, kind: str, verb: str, names: Iterable[str]) -> None:
    if names := sorted(names):
        allowed = ElementTree.SubElement(profile, f"{kind}s", {verb: "ALLOW"})
        for name in names:
            ElementTree.SubElement(allowed, kind).text = name


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "policy", "print the SROS2 policy of a robot, from its contract", run)
    contract_option(parser)
    namespace_option(parser)
    parser.add_argument("--sim", action="store_true", help="include the simulated robot")
    parser.add_argument(
        "--fleet",
        action="store_true",
        help="for a robot that gets its chunks from a fleet, and its scheduler",
    )
    parser.add_argument(
        "--output", type=output_file, metavar="FILE", help="write the policy to a file instead"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print or write the policy."""
    contract = Contract.load(chosen_contract(arguments))
    text = policy(contract, arguments.namespace, arguments.sim, arguments.fleet)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text)
    return 0
