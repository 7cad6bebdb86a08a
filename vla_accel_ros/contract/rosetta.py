"""rosetta's contract, version 2, to and from ours, as far as both say the same.

rosetta binds channels to the keys of frames and says nothing of limits, ages and chunks; ours says nothing of
rewards, teleoperation and codecs. What one of them lacks is told, in a sentence each, and never guessed: an
imported contract has `???` where the robot's own values belong. What would move a robot otherwise than its
author meant is refused: code to import, zeros as a safe position, rotations, velocities of joints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, zip_longest
from typing import Any

import yaml

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.files.bounded_yaml import load
from vla_accel_ros.contract.files.fields import UNKNOWN
from vla_accel_ros.contract.parts import Base
from vla_accel_ros.contract.sections.base import AXES, FRAMED
from vla_accel_ros.extensions import BASES

IMAGES, STATE = "observation.images.", "observation.state"
_TYPES = {"sensor_msgs/msg/Image": "raw", "sensor_msgs/msg/CompressedImage": "compressed"}
_COMMANDS = {"trajectory_msgs/msg/JointTrajectory": "joint_trajectory"}
_STATES, _ODOMETRY = "sensor_msgs/msg/JointState", "nav_msgs/msg/Odometry"
_TWISTS = {base.message for base in BASES.values()}
_PATHS = {_ODOMETRY: "twist.twist.", **{b.message: "twist." * (kind == FRAMED) for kind, b in BASES.items()}}
"""What is in front of a velocity's path in a message of this type."""
_SPEEDS = ("linear", "angular", "linear_acceleration", "angular_acceleration", "timeout_s")
_COMMANDS["std_msgs/msg/Float64MultiArray"] = "forward_command"
_HOLD = {"strategy": "hold", "timeline": "header"}
_OTHERS = ("tasks", "rewards", "signals", "info", "complementary_data", "adjunct", "teleop")
_LIMITS = ("lower", "upper", "velocity", "acceleration", "action")


def exported(contract: Contract, size: tuple[int, int]) -> tuple[str, list[str]]:
    """The YAML of a contract, and sentences about what it does not say. size: rows and columns to which it
    resizes pictures. Raises ValueError for a contract that it cannot express."""
    if contract.actions != "joints":
        raise ValueError(f"actions are {contract.actions}: rosetta has no such action")
    fps = 1.0 / contract.chunk.step_dt_s
    if abs(fps - round(fps)) > 1e-3:
        raise ValueError(f"chunk.step_dt_s is {contract.chunk.step_dt_s:g} s: rosetta takes a whole rate")
    types = {transport: kind for kind, transport in _TYPES.items()}
    observations: dict[str, Any] = {}
    for camera in contract.cameras:
        if camera.transport not in types:
            raise ValueError(f"camera {camera.name} is a {camera.transport}: export one of its image topics")
        channel = {"topic": camera.topic, "type": types[camera.transport]}
        entry = {"channel": channel, "align": _HOLD, "apply": [{"resize": list(size)}]}
        observations[f"{IMAGES}{camera.image}"] = entry
    channel = {"topic": contract.joint_states.topic, "type": _STATES}
    degrees = {joint.name: joint.unit == "deg" for joint in contract.joints}
    states, base = list(_sources(channel, contract.joint_names, degrees)), contract.base
    if base is not None and base.odometry:
        states.append(_velocities(base, base.odometry, _ODOMETRY))
    observations[STATE] = _listed(states)
    commands = {kind: message for message, kind in _COMMANDS.items()}
    sources: list[dict[str, Any]] = []
    names = iter(contract.joint_names)
    while len(sources) < len(contract.controllers) and (first := next(names, None)):
        (controller,) = (c for c in contract.controllers if first in c.joints)
        if controller.kind not in commands:
            raise ValueError(f"{controller.topic} is a {controller.kind}: rosetta has no encoder for it")
        order = (first, *(next(names, "") for _ in controller.joints[1:]))
        if set(order) != set(controller.joints):
            raise ValueError(f"the joints of {controller.topic} are not one after another in joints")
        channel = {"topic": controller.topic, "type": commands[controller.kind], "safety": "hold"}
        align = _HOLD if controller.kind == "joint_trajectory" else _HOLD | {"timeline": "receive"}
        parts = list(_sources(channel, order, degrees))
        if len(parts) > 1:
            raise ValueError(
                f"{controller.topic} has joints in rad and in degrees: rosetta takes one of them"
            )
        sources.append(parts[0] | {"align": align})
    if base is not None:
        sources.append(_velocities(base, base.controller.topic, BASES[base.controller.kind].message))
        sources[-1]["channel"]["safety"] = "zeros"
    document = {
        "robot_type": contract.robot,
        "robot_interface": "ros2",
        "fps": round(fps),
        "observations": observations,
        "actions": {"action": _listed(sources)},
    }
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, width=110), list(_unsaid(contract))


class _Plain(yaml.SafeDumper):
    """Without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _sources(
    channel: Mapping[str, Any], joints: Iterable[str], degrees: Mapping[str, bool]
) -> Iterator[dict[str, Any]]:
    """Sources of a channel, a new one wherever the unit changes."""
    for turned, names in groupby(joints, degrees.__getitem__):
        select = [f"position.{name}" for name in names]
        source: dict[str, Any] = {"channel": dict(channel), "align": _HOLD, "select": select}
        yield source | ({"apply": ["rad2deg"]} if turned else {})


def _velocities(base: Base, topic: str, kind: str) -> dict[str, Any]:
    """The source of a base's velocities, by their paths in messages of this kind."""
    align = _HOLD if _PATHS[kind] else _HOLD | {"timeline": "receive"}
    select = [f"{_PATHS[kind]}{name.removeprefix('base.')}" for name in base.names]
    return {"channel": {"topic": topic, "type": kind}, "align": align, "select": select}


def _listed(sources: Iterable[dict[str, Any]]) -> Any:
    found = list(sources)
    return found[0] if len(found) == 1 else found


def _unsaid(contract: Contract) -> Iterator[str]:
    yield "limits, ages, controllers' actions, home and the length of chunks stay in our contract"
    joints = contract.joints
    if mapped := [j.name for j in joints if j.gain is not None or j.sign != 1 or j.offset]:
        yield f"sign, offset and map are not in it, so the numbers differ from ours: {', '.join(mapped)}"
    if relative := [joint.name for joint in joints if joint.action == "delta"]:
        yield f"rosetta's actions are absolute, but the policy's are relative: {', '.join(relative)}"
    axes = () if contract.base is None else contract.base.axes
    if scaled := [axis.name for axis in axes if axis.scale != 1.0]:
        yield f"velocities are in m/s and rad/s, so the numbers differ from ours: {', '.join(scaled)}"
    for camera in contract.cameras:
        if camera.rotation or camera.crop < 1.0 or camera.history:
            yield f"camera {camera.name}: rotation, crop and history are not in it"


def imported(text: str, file: str, urdf: str = "") -> tuple[str, list[str]]:
    """Our YAML of a contract of rosetta's, with ??? to be filled in, and sentences about what is not carried
    over. file: names it in errors; urdf: a file with the joints' limits. Raises ValueError, in one sentence,
    if it cannot be read, or says what ours must not do."""
    try:
        document = load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if (
        not isinstance(document, dict)
        or not {"robot_type", "fps", "observations", "actions"} <= document.keys()
    ):
        raise ValueError(
            f"{file} is no contract of rosetta's, version 2: it names robot_type, fps, observations, actions"
        )
    fps = document["fps"]
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0.1 <= fps <= 1000.0:
        raise ValueError(f"{file}: fps = {fps!r}: give a rate in Hz")
    notes = [f"{section} is not carried over" for section in _OTHERS if document.get(section)]
    observations, joints, units = _mapping(document["observations"], f"{file}: observations"), [], []
    cameras, state_topic, base = dict[str, Any](), "", dict[str, Any]()
    odometry = list[str]()
    for key, sources in _entries(observations, f"{file}: observations", notes):
        if key.startswith(IMAGES):
            image = key.removeprefix(IMAGES)
            name = re.sub(r"\W", "_", image)
            if name in cameras or len(sources) > 1:
                raise ValueError(
                    f"{file}: {key}: ours has one camera of the name {name}: rename it, or keep one"
                )
            cameras[name] = _camera(sources[0], image, f"{file}: {key}", notes)
        elif key == STATE:
            for source in sources:
                if source["channel"]["type"] == _ODOMETRY:
                    odometry += _axes(source, f"{file}: {key}", notes)
                    base["odometry"] = source["channel"]["topic"]
                    continue
                _check_last(odometry, f"{file}: {key}")
                names, unit = _joints(source, f"{file}: {key}", (_STATES,), notes)
                joints += names
                units += [unit] * len(names)
                if state_topic not in ("", source["channel"]["topic"]):
                    notes.append(f"{key}: {source['channel']['topic']}: ours has one topic of joint states")
                state_topic = state_topic or source["channel"]["topic"]
        else:
            notes.append(f"{key} is not carried over: ours observes images and joint positions")
    controllers, moved, axes = [], [], list[str]()
    for key, sources in _entries(
        _mapping(document["actions"], f"{file}: actions"), f"{file}: actions", notes
    ):
        for source in sources:
            channel = source["channel"]
            _check_last(axes, f"{file}: {key}")
            if channel["type"] in _TWISTS:
                axes = _axes(source, f"{file}: {key}", notes)
                message = channel["type"].rpartition("/")[2]
                framed = {"frame": UNKNOWN} if message == FRAMED else {}
                section = {"topic": channel["topic"].lstrip("/"), "message": message, **framed}
                section |= {"rate_hz": UNKNOWN, "axes": dict.fromkeys(axes, 1.0)}
                base = section | dict.fromkeys(_SPEEDS, UNKNOWN) | base
                continue
            names, unit = _joints(source, f"{file}: {key}", (*_COMMANDS, _STATES), notes)
            kind, topic = _COMMANDS.get(channel["type"], UNKNOWN), channel["topic"].lstrip("/")
            if kind == UNKNOWN:
                notes.append(
                    f"{key}: {channel['topic']} is a JointState: ours commands a controller, name it"
                )
                topic = UNKNOWN
            controller = {"topic": topic, "kind": kind, "joints": names}
            controllers.append(controller | ({"rate_hz": UNKNOWN} if kind == "forward_command" else {}))
            moved += list(zip(names, [unit] * len(names)))
    if moved != list(zip(joints, units)):
        pairs = zip_longest(moved, zip(joints, units))
        sent, observed = next((a, b) for a, b in pairs if a != b)
        raise ValueError(
            f"{file}: the action has {sent} where the state has {observed}: ours has one order and unit"
        )
    if odometry and odometry != axes:
        raise ValueError(f"{file}: a base is sent {axes} and observed as {odometry}: ours has one order")
    given = ("acceleration", "action") if urdf else _LIMITS
    limits = dict.fromkeys(given, UNKNOWN)
    contract = {
        "robot": re.sub(r"\W", "_", str(document["robot_type"])),
        "cameras": cameras,
        "max_skew_s": UNKNOWN,
        "joint_states": {"topic": state_topic, "rate_hz": UNKNOWN, "max_age_s": UNKNOWN},
        **({"urdf": urdf} if urdf else {}),
        "actions": "joints",
        "joints": [
            {"name": name, **limits, **({"unit": unit} if unit == "deg" else {})}
            for name, unit in zip(joints, units)
        ],
        "controllers": controllers,
        **({"base": base} if base else {}),
        "chunk": {"step_dt_s": 1.0 / fps, "max_age_s": UNKNOWN},
    }
    written = yaml.dump(contract, Dumper=_Plain, sort_keys=False, width=110)
    return written.replace(f"'{UNKNOWN}'", UNKNOWN), notes


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{where} is {type(value).__name__}: give a mapping")
    return value


def _entries(
    section: dict[str, Any], where: str, notes: list[str]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The keys of a section with their sources, each with a topic and a type. Raises ValueError for code, and
    for zeros as a safe position."""
    for key, value in section.items():
        sources = value if isinstance(value, list) and value else [value]
        for source in sources:
            channel = _mapping(_mapping(source, f"{where}.{key}").get("channel"), f"{where}.{key}.channel")
            for name in ("topic", "type"):
                if not isinstance(channel.get(name), str):
                    raise ValueError(f"{where}.{key}.channel.{name} is missing: write it")
            for name in ("decoder", "encoder"):
                if channel.get(name):
                    raise ValueError(
                        f"{where}.{key}.channel.{name} = {channel[name]!r} is code: none is imported"
                    )
            zeros = str(channel.get("safety", "")).lower() == "zeros"
            if zeros and channel["type"] not in _TWISTS:
                raise ValueError(f"{where}.{key}: safety: zeros sends joints to zero: write hold")
            align = source.get("align")
            if isinstance(align, dict) and align.get("strategy") != "hold":
                notes.append(f"{key}: align {align.get('strategy')} is not carried over: ours has age limits")
            if source.get("kind", "continuous") not in ("continuous", "binary"):
                raise ValueError(f"{where}.{key}: kind {source['kind']} is no joint position")
        yield key, sources


def _camera(source: dict[str, Any], image: str, where: str, notes: list[str]) -> dict[str, Any]:
    channel = source["channel"]
    if channel["type"] not in _TYPES:
        raise ValueError(f"{where} has type {channel['type']}: give one of {', '.join(_TYPES)}")
    if source.get("apply"):
        notes.append(f"{IMAGES}{image}: apply is not carried over: the policy resizes itself")
    transport = _TYPES[channel["type"]]
    shared = {"topic": channel["topic"], "image": image, "rate_hz": UNKNOWN, "max_age_s": UNKNOWN}
    return shared | ({} if transport == "raw" else {"transport": transport})


def _check_last(axes: list[str], where: str) -> None:
    if axes:
        raise ValueError(f"{where} has numbers after the base's {axes}: ours has those last")


def _axes(source: dict[str, Any], where: str, notes: list[str]) -> list[str]:
    """Names of a base's axes."""
    kind, select = source["channel"]["type"], source.get("select")
    paths = {f"{_PATHS[kind]}{path}": name for name, (path, _) in AXES.items()}
    selected = select if isinstance(select, list) else []
    if not selected or any(path not in list(paths) or selected.count(path) > 1 for path in selected):
        raise ValueError(f"{where} selects {select!r} of {kind}: ours takes {', '.join(paths)}, each once")
    operators = source.get("apply", [])
    if not isinstance(operators, list) or not all(isinstance(o, dict) and "clamp" in o for o in operators):
        raise ValueError(f"{where} applies {operators!r} to a velocity: ours has m/s and rad/s")
    if operators:
        notes.append(f"{where}: clamp is not carried over: ours has linear and angular of base")
    return [paths[path] for path in selected]


def _joints(
    source: dict[str, Any], where: str, types: tuple[str, ...], notes: list[str]
) -> tuple[list[str], str]:
    """Names of joints, and their unit."""
    kind, select = source["channel"]["type"], source.get("select")
    if kind not in types:
        raise ValueError(f"{where} has type {kind}: ours takes {', '.join(types)}")
    if not isinstance(select, list) or not select or not all(isinstance(path, str) for path in select):
        raise ValueError(f"{where} has no select: list its joints, as position.JOINT")
    names = [re.sub(r"^positions?\.", "", path) for path in select]
    if wrong := [path for path, name in zip(select, names) if re.match(r"(velocit|accel|effort)", name)]:
        raise ValueError(f"{where} selects {', '.join(wrong)}: ours has joint positions")
    unit, operators = "rad", source.get("apply", [])
    if not isinstance(operators, list):
        raise ValueError(f"{where} has apply = {operators!r}: give a list")
    for operator in operators:
        if operator == "rad2deg":
            unit = "deg"
        elif isinstance(operator, dict) and "clamp" in operator:
            notes.append(f"{where}: clamp is not carried over: ours has lower and upper of each joint")
        else:
            raise ValueError(f"{where} applies {operator!r}: ours knows rad2deg")
    return names, unit
