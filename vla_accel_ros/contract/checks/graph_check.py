"""Whether the topics of a live graph match the contract: their types, QoS and publishers.

ROS does not report a topic of another type or with incompatible QoS as an error: nothing arrives, and nothing
says why. Here it is a sentence. A topic that does not exist yet is only a warning, since drivers may start
later. Facts come in as plain data (nodes/graph.py collects them), so the checks need no ROS.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from vla_accel_ros.contract.checks.findings import Finding, error, ok, warning
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.following.reasons import listed
from vla_accel_ros.extensions import BASES, BUILT_IN, CONTROLLERS, controller_kind

JOINTS_TYPE = "sensor_msgs/msg/JointState"
ODOMETRY_TYPE = "nav_msgs/msg/Odometry"
TF_TYPE, TF_STATIC = "tf2_msgs/msg/TFMessage", "/tf_static"
IMAGE_TYPES = {
    "raw": "sensor_msgs/msg/Image",
    "compressed": "sensor_msgs/msg/CompressedImage",
    "ring": "vla_accel_msgs/msg/FrameHandle",
}
FORCE_TYPES = {
    "WrenchStamped": "geometry_msgs/msg/WrenchStamped",
    "JointState": JOINTS_TYPE,
    "Float64MultiArray": "std_msgs/msg/Float64MultiArray",
}
INFO_TYPE = "sensor_msgs/msg/CameraInfo"
TELEOP_TYPES = {
    "JointState": JOINTS_TYPE,
    "JointJog": "control_msgs/msg/JointJog",
    "TwistStamped": "geometry_msgs/msg/TwistStamped",
}
JOY_TYPE = "sensor_msgs/msg/Joy"
_OBSERVER = re.compile(
    r"record|bag_play|rosbag|mcap|logger|bridge|rosapi|_ros2cli|rqt|rviz|plotjuggler|webviz|rerun|doctor|operator"
)
"""Names of nodes that listen to commands only to show, keep or forward them."""
_DURABILITY = ("volatile", "transient_local", "transient", "persistent")


@dataclass(frozen=True)
class Qos:
    """The parts of a QoS profile that decide whether two endpoints are compatible. deadline_s: inf for
    none."""

    reliability: str = "reliable"
    durability: str = "volatile"
    deadline_s: float = math.inf


@dataclass(frozen=True)
class Endpoint:
    """A publisher or subscription in the graph. node: with namespace. type: as `pkg/msg/Name`."""

    node: str
    type: str
    qos: Qos


@dataclass(frozen=True)
class Wanted:
    """A topic that the contract needs. about: its field. topic: as in the contract. ours: we publish it.

    qos: what we request or offer. needed: without it the robot does not move.
    """

    about: str
    topic: str
    type: str
    ours: bool = False
    qos: Qos = Qos("best_effort")
    needed: bool = True


def inputs(contract: Contract, qos: Qos = Qos("best_effort")) -> list[Wanted]:
    """The topics from which observations are made."""
    topics = []
    for camera in contract.cameras:
        about = f"cameras.{camera.name}"
        topics.append(Wanted(f"{about}.topic", camera.topic, IMAGE_TYPES[camera.transport], qos=qos))
        if camera.info:
            topics.append(Wanted(f"{about}.info", camera.info, INFO_TYPE, qos=qos, needed=False))
    return [*topics, states(contract, qos), *odometry(contract, qos), *transforms(contract, qos)]


def states(contract: Contract, qos: Qos = Qos("best_effort")) -> Wanted:
    """The topic of the joint states."""
    return Wanted("joint_states.topic", contract.joint_states.topic, JOINTS_TYPE, qos=qos)


def odometry(contract: Contract, qos: Qos = Qos("best_effort")) -> list[Wanted]:
    """The topic of a base's odometry, if the policy observes that."""
    topic = "" if contract.base is None else contract.base.odometry
    return [Wanted("base.odometry", topic, ODOMETRY_TYPE, qos=qos)] if topic else []


def transforms(contract: Contract, qos: Qos = Qos("best_effort")) -> list[Wanted]:
    """The topics of tf, if the policy observes a hand by them; the static ones last."""
    hand = next((hand.name for hand, _ in contract.hands if hand.tf is not None), "")
    if not hand:
        return []
    about, latched = f"hands.{hand}.state_by", Qos("reliable", "transient_local")
    static = Wanted(f"{about} (static)", TF_STATIC, TF_TYPE, qos=latched, needed=False)
    return [Wanted(about, "/tf", TF_TYPE, qos=qos), static]


def forces(contract: Contract, qos: Qos = Qos("best_effort")) -> list[Wanted]:
    """The topics of force sensors that have their own topic."""
    sensors = contract.force.sensors if contract.force is not None else ()
    return [
        Wanted(f"force.{sensor.name}.topic", sensor.topic, FORCE_TYPES[sensor.type], qos=qos)
        for sensor in sensors
        if sensor.topic and sensor.topic != contract.joint_states.topic
    ]


def person(contract: Contract, qos: Qos = Qos("best_effort")) -> list[Wanted]:
    """The topics of a person who may take over."""
    teleop = contract.teleop
    if teleop is None:
        return []
    kind = TELEOP_TYPES[teleop.type]
    topics = [Wanted("teleop.topic", teleop.topic, kind, qos=qos, needed=False)]
    if teleop.deadman is not None:
        topics += [Wanted("teleop.deadman.topic", teleop.deadman.topic, JOY_TYPE, qos=qos, needed=False)]
    return topics


def outputs(contract: Contract, qos: Qos = Qos("reliable")) -> list[Wanted]:
    """The topics to which the controllers subscribe; those that are moved by goals do not."""
    return [
        Wanted(
            "base.topic" if c.kind in BASES else f"controllers[{i}].topic",
            c.topic,
            controller_kind(c.kind).message,
            ours=True,
            qos=qos,
        )
        for i, c in enumerate(contract.commanded)
        if not controller_kind(c.kind).goals
    ]


def words() -> Wanted:
    """The instruction topic. A publisher may be latched or not."""
    return Wanted("instruction", "instruction", "std_msgs/msg/String", qos=Qos("reliable"), needed=False)


def chunks(ours: bool) -> Wanted:
    """The topic from inference, which publishes it, to trajectory."""
    kind = "vla_accel_msgs/msg/ActionChunk"
    return Wanted("action_chunk", "action_chunk", kind, ours=ours, qos=Qos("reliable"), needed=False)


def misplaced(ends: Sequence[tuple[Wanted, str, bool]], topics: Mapping[str, Sequence[str]]) -> list[Finding]:
    """One finding if all topics that are needed are outside of the robot's namespace, else none.

    ends: each topic with its name in the graph, and whether anybody is at its other end. topics: as in
    `judge`.
    """
    needed = [end for end in ends if end[0].needed]
    if not needed or any(heard or not _at_root(topic, name, topics) for topic, name, heard in needed):
        return []
    names = ", ".join(f"/{topic.topic}" for topic, *_ in needed)
    fix = "start without namespace, or write the absolute names of inputs in the contract"
    return [warning("topics", f"all your topics are at /: {names}", fix)]


def _at_root(wanted: Wanted, name: str, topics: Mapping[str, Sequence[str]]) -> bool:
    """Whether a topic that is looked for in a namespace is outside of it."""
    root = f"/{wanted.topic}"
    return name != root and wanted.type in topics.get(root, ())


def fitting(wanted: Wanted, ends: Sequence[Endpoint], sources: Collection[str] = ()) -> list[Endpoint]:
    """The endpoints at the other end through which the robot gets what it needs: of our topic, those that may
    execute what is sent, not recorders, bags, bridges and tools.

    sources: nodes that publish the robot's joint states; what such a node receives reaches the robot,
    whatever its name.
    """
    return [
        end
        for end in ends
        if end.type == wanted.type
        and not _mismatch(wanted, end.qos)
        and not (
            wanted.ours and end.node not in sources and _OBSERVER.search(end.node.lower().split("/")[-1])
        )
    ]


def judge(
    wanted: Wanted,
    name: str,
    ends: Sequence[Endpoint],
    topics: Mapping[str, Sequence[str]],
    near: Mapping[str, Sequence[Endpoint]] = MappingProxyType({}),
    sources: Collection[str] = (),
) -> list[Finding]:
    """The findings about one topic; one OK if there is no problem.

    name: of the topic in the graph. ends: the endpoints at its other end (publishers unless it is ours),
    without our own. topics: every topic of the graph with its types, for hints. near: the endpoints at the
    other end of such topics. sources: see `fitting`.
    """
    if not ends:
        return [_absent(wanted, name, ends, topics, near, sources)]
    typed = [end for end in ends if end.type == wanted.type]
    level = warning if typed else error
    findings = [
        level(wanted.about, *_wrong_type(wanted, name, end)) for end in ends if end.type != wanted.type
    ]
    mismatches = [(end, policy) for end in typed if (policy := _mismatch(wanted, end.qos))]
    level = warning if len(mismatches) < len(typed) else error
    findings += [level(wanted.about, *_wrong_qos(wanted, name, end, policy)) for end, policy in mismatches]
    if not wanted.ours and len(typed) > 1 and wanted.type not in (JOINTS_TYPE, TF_TYPE):
        nodes = ", ".join(sorted(end.node for end in typed))
        fact = f"{name} has {len(typed)} publishers ({nodes}), whose messages mix"
        findings.append(warning(wanted.about, fact, "stop all but one"))
    if wanted.ours and typed and not mismatches and not fitting(wanted, typed, sources):
        findings.append(_absent(wanted, name, typed, topics, near, sources))
    verb = "heard by" if wanted.ours else "published by"
    nodes = ", ".join(sorted({end.node for end in ends}))
    return findings or [ok(wanted.about, f"{name} is {verb} {nodes}")]


def _absent(
    wanted: Wanted,
    name: str,
    ends: Sequence[Endpoint],
    topics: Mapping[str, Sequence[str]],
    near: Mapping[str, Sequence[Endpoint]],
    sources: Collection[str],
) -> Finding:
    candidates = []
    for topic in sorted(topic for topic, types in topics.items() if wanted.type in types and topic != name):
        nearby = fitting(wanted, near.get(topic, ()), sources) if wanted.ours else near.get(topic, ())
        if nearby or not wanted.ours:
            candidates.append(f"{topic} ({_nodes(nearby)})" if nearby else topic)
    who, start = ("listens to", "its controller") if wanted.ours else ("publishes", "its driver")
    fix = f"start {start}, or fix {wanted.about}"
    if _at_root(wanted, name, topics) and not wanted.ours:
        fix = f"write {wanted.about}: /{wanted.topic}, where it is"
    elif candidates:
        heard = " that are listened to" if wanted.ours else ""
        fix += f" (topics of its type{heard}: {listed(candidates)})"
    only = f", apart from {_nodes(ends)}, which executes nothing" if ends else ""
    return warning(wanted.about, f"nobody {who} {name}{only}", fix)


def _nodes(ends: Sequence[Endpoint]) -> str:
    return listed(sorted({end.node for end in ends}))


def _wrong_type(wanted: Wanted, name: str, end: Endpoint) -> tuple[str, str]:
    verb = "heard" if wanted.ours else "published"
    fact = f"{name} is {verb} by {end.node} as {end.type}, not {wanted.type}"
    section, _, _ = wanted.about.rpartition(".")
    commands = {name: kind.message for name, kind in BUILT_IN[CONTROLLERS].items()}
    bases = {name: kind.message for name, kind in BASES.items()}
    for key, types in (("transport", IMAGE_TYPES), ("kind", commands), ("message", bases)):
        for choice, kind in types.items():
            if kind == end.type and wanted.type in types.values():
                return fact, f"write {key}: {choice} in {section}, or another topic"
    return fact, f"fix {wanted.about}"


def _mismatch(wanted: Wanted, other: Qos) -> str:
    """The QoS policy that separates the two, empty if they match: an offer must be at least the request."""
    offered, requested = (wanted.qos, other) if wanted.ours else (other, wanted.qos)
    if offered.reliability == "best_effort" and requested.reliability == "reliable":
        return "reliability"
    ranks = [_DURABILITY.index(q.durability) for q in (offered, requested) if q.durability in _DURABILITY]
    if len(ranks) == 2 and ranks[0] < ranks[1]:
        return "durability"
    return "deadline" if offered.deadline_s > requested.deadline_s else ""


def _wrong_qos(wanted: Wanted, name: str, end: Endpoint, policy: str) -> tuple[str, str]:
    offered, requested = (wanted.qos, end.qos) if wanted.ours else (end.qos, wanted.qos)
    values = {
        "reliability": (offered.reliability, requested.reliability),
        "durability": (offered.durability, requested.durability),
        "deadline": (f"{offered.deadline_s:g} s", f"{requested.deadline_s:g} s"),
    }[policy]
    if wanted.ours:
        fact = f"{name} is offered {policy} {values[0]} by us but {end.node} requests {values[1]}"
        return f"{fact}, so it receives nothing", f"have it request {policy} {values[0]}"
    fact = f"{name} is offered {policy} {values[0]} by {end.node} but we request {values[1]}"
    fix = f"set our parameter qos_overrides.{name}.subscription.{policy} to {values[0]}"
    if policy != "reliability" or not wanted.needed:
        fix = f"have it offer {policy} {values[1]}"
    return f"{fact}, so nothing arrives", fix
