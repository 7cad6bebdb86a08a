"""The robots of a bag: their namespaces and contracts, whose a topic is, and what it is by the contract.

A robot's namespace is where its session, or its chunks, are. The first session message there has its
contract. What a topic's type leaves open, the contract decides: a WrenchStamped or a Float64MultiArray may be
measured or commanded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from vla_accel_ros.contract.checks.graph_check import forces
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.extensions import BUILT_IN, CONTROLLERS, controller_kind
from vla_accel_ros.recording.reader import Bag

SESSION = "vla_accel_msgs/msg/Session"


def robot_of(topic: str, robots: Collection[str]) -> str | None:
    """The namespace among `robots` that a topic lies in, the longest of several; None if it lies in none."""
    return max((robot for robot in robots if topic.startswith(f"{robot}/")), key=len, default=None)


def named(robots: Collection[str]) -> str:
    """The namespaces of robots as a user writes them; "/" is that of a robot without one."""
    return ", ".join(robot.strip("/") or "/" for robot in robots)


def of_robot(namespace: str, lines: Iterable[Any]) -> dict[str, Any]:
    """The lines of /diagnostics of the nodes of one robot, by "<node>: <item>" without its namespace."""
    inside = namespace.strip("/")
    prefix = f"{inside}/" if inside else ""
    named = {line.name.removeprefix(prefix): line for line in lines if line.name.startswith(prefix)}
    return {name: line for name, line in named.items() if "/" not in name.partition(":")[0]}


def chosen_robot(bag: Bag, robot: str) -> str:
    """The namespace of a robot of a surveyed bag, "/" for none; of the only one if `robot` is empty. Raises
    ValueError if there is not exactly one."""
    robots = bag.namespaces(SESSION)
    matches = [space for space in robots if not robot or space.strip("/") == robot.strip("/")]
    if not robots:
        raise ValueError(f"{bag.path} has no session, and so no contract: record with the node recorder")
    if not matches:
        raise ValueError(f"{bag.path} has no robot {robot!r}: give --namespace with one of {named(robots)}")
    if len(matches) > 1:
        raise ValueError(f"{bag.path} has {len(robots)} robots: give --namespace with one of {named(robots)}")
    return matches[0]


def topic_of(bag: Bag, robot: str, name: str, kind: str) -> str:
    """The bag's name for a topic of a robot's contract: the name below its namespace, or else, since topics
    may be remapped, the only topic of its type that is no other robot's."""
    robots, resolved = bag.namespaces(SESSION), _resolved(robot, name)
    alike = [
        topic
        for topic, other in bag.topics.items()
        if other == kind and robot_of(topic, robots) in (None, robot)
    ]
    return alike[0] if resolved not in alike and len(alike) == 1 else resolved


def measured_forces(bag: Bag) -> set[str]:
    """The topics of force sensors in a surveyed bag, by the contracts in it."""
    sensors = {
        (_resolved(robot, sensor.topic), sensor.type)
        for robot, contract in _contracts(bag).items()
        for sensor in forces(contract)
    }
    return {topic for topic, kind in bag.topics.items() if (topic, kind) in sensors}


def commanded(bag: Bag) -> set[str]:
    """The topics of controllers' commands in a surveyed bag, by the contracts in it; by the types of commands
    if it has no contract, or none of the contracts' topics."""
    topics = {
        topic_of(bag, robot, controller.topic, controller_kind(controller.kind).message)
        for robot, contract in _contracts(bag).items()
        for controller in contract.commanded
    }
    types = {kind.message for kind in BUILT_IN[CONTROLLERS].values()}
    return topics & bag.topics.keys() or {topic for topic, kind in bag.topics.items() if kind in types}


def contract_of(session: Any) -> Contract:
    """Load the contract from a session, or from its decoded message. Raises ValueError if this version
    refuses it. A robot has acted by it, so what its actions are is not asked again."""
    contract = Contract.parse(session.contract, session.urdf, "the session's contract")
    return replace(contract, actions_given=True)


def _contracts(bag: Bag) -> Mapping[str, Contract]:
    """The contracts of a surveyed bag's robots by namespace, without those that this version refuses."""
    awaited, contracts = set(bag.namespaces(SESSION)), dict[str, Contract]()
    for entry in bag.entries((SESSION,)) if awaited else ():
        robot = entry.topic.rpartition("/")[0]
        if robot in awaited:
            awaited.remove(robot)
            with suppress(ValueError):
                contracts[robot] = contract_of(bag.decode(entry))
        if not awaited:
            break
    return contracts


def _resolved(robot: str, name: str) -> str:
    return name if name.startswith("/") else f"{robot}/{name}"
