"""Writes a contract from a checkpoint, a URDF and what a robot offers, and `???` for what the user knows.

Every value has its source beside it as a comment. What training statistics tell is only a comment: a quantile
is no limit of a joint. The text is checked like any contract before it is returned, with the unknown values
filled in, so a policy that moves no joints yields a sentence instead of a contract.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vla_accel_ros.contract.checks.findings import refuse
from vla_accel_ros.contract.checks.model_check import counts, joint_actions, judge
from vla_accel_ros.contract.checks.readings import ABSOLUTE, DELTA, OTHERS, UNDECIDED, Reading
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.files import urdf
from vla_accel_ros.contract.files.fields import UNKNOWN
from vla_accel_ros.contract.files.urdf import UrdfJoint
from vla_accel_ros.contract.parts import TWO_TURNS
from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.sensing.survey import Stream, Survey
from vla_accel_ros.tools.contract.cameras import AGE, Match, camera_lines, trained_lines
from vla_accel_ros.tools.contract.controllers import controller_lines
from vla_accel_ros.tools.contract.text import comment, line, plain

HAND = 6
HAND_KEYS = {
    "base": "the link of the robot that poses are in",
    "tip": "the link that they are of",
    "linear": "greatest speed in m/s",
    "angular": "and in rad/s",
}
SUFFIX = ".pos"
"""Of lerobot's names of joints."""
_ANY = {
    "lower": "-1.0",
    "upper": "1.0",
    "velocity": "1.0",
    "acceleration": "5.0",
    "unit": "deg",
    "action": ABSOLUTE,
    "actions": "joints",
    "per": "step",
    "linear": "0.1",
    "angular": "0.1",
    "step_dt_s": "0.1",
    "rate_hz": "30",
    "frame": "base_link",
    "name": "joint_{}",
    "topic": "topic_{}",
    "image": "image_{}",
}
"""Values that any robot could have, to check the rest; {}: a number of its own for each."""


@dataclass(frozen=True)
class Robot:
    """What is known of a robot. survey: None if none was read. matches: its cameras. pictures: files by
    camera. urdf: the file that limits come from; urdf_origin: where it is from, if not from the user."""

    survey: Survey | None = None
    matches: Sequence[Match] = ()
    pictures: Mapping[str, Path] = field(default_factory=dict)
    urdf: Path | None = None
    urdf_origin: str = ""


def write_contract(model: Description, robot: Robot = Robot()) -> str:
    """Return a contract in YAML that fits the model.

    Raises ValueError, one sentence, if the model fits no contract, or the URDF is none.
    """
    survey = robot.survey
    limits = {} if robot.urdf is None else urdf.read(robot.urdf)
    columns = counts(model.actions).start or counts(model.state).start
    twist = model.twist and columns > HAND and not model.groups
    states = _states(model, columns) or columns or 1
    names, order = _joint_names(model, states, limits, survey)
    joints = _joint_stream(survey, names)
    read = f" and {survey.origin}" if survey is not None else ""
    lines = [
        f"# A contract for {model.folder.name} ({model.config.kind}), from the checkpoint{read}; "
        f"config/contracts/sim_arm.yaml explains the keys. Fill in every {UNKNOWN}.",
        *(text for note in model.notes for text in comment(note)),
        line(0, "robot", "my_robot", "a default: any name"),
        "",
        "cameras:",
    ]
    if survey is None or not survey.cameras:
        lines += trained_lines(model, survey)
    else:
        lines += camera_lines(model, survey, list(robot.matches), robot.pictures)
    lines += ["", *_skew(robot), "", "joint_states:", *_joint_states(survey, joints), ""]
    if robot.urdf is not None:
        origin = robot.urdf_origin or "--urdf"
        lines += [line(0, "urdf", json.dumps(str(robot.urdf.resolve())), origin)]
    elif model.groups:
        lines += [line(0, "urdf", UNKNOWN, "the file of the robot's description")]
    lines += [
        line(0, "acceleration", UNKNOWN, "rad/s^2 of every joint that gives none of its own: the maker's"),
        "",
    ]
    if model.groups:
        names, sections = _hands(model)
        return "\n".join([*lines, *sections, *_end(survey, names, 0)])
    lines += _actions(model, twist)
    if not model.state.shape[1] and not twist:
        order += f" The model has no statistics: at most {model.state_dim or model.action_dim} joints."
    lines += [*comment(f"In the policy's order. {order}"), "joints:"]
    readings = [] if twist else joint_actions(model)
    for index, name in enumerate(names):
        reading = readings[index] if index < len(readings) else Reading(UNDECIDED, "")
        position = None if joints is None else joints.positions.get(name)
        lines += _joint(model, index, name, limits.get(name), None if twist else reading, position)
    hand = len(names) - (columns - HAND) if twist else 0
    text = "\n".join([*lines, *_end(survey, names, hand)])
    _check(text, model)
    return text


def _end(survey: Survey | None, names: Sequence[str], hand: int) -> list[str]:
    return [
        *("", "controllers:", *controller_lines(survey, names, hand), "", "chunk:"),
        line(1, "step_dt_s", UNKNOWN, "time between two actions in the training data, such as 0.0333 or 0.2"),
        line(1, "max_age_s", "0.8", "a default: longer than from image to chunk and chunk to chunk together"),
        "",
    ]


def _hands(model: Description) -> tuple[list[str], list[str]]:
    """The joints, whose names nobody says here, and the sections `hands` and `joints` of a policy that knows
    poses. Which joints move a hand, only the URDF knows."""
    lines, joints, start = [line(0, "actions", "hands", "the checkpoint"), "hands:"], list[list[str]](), 0
    own = None if model.relative is None else Reading(UNDECIDED, "")
    for group in model.groups:
        if group.hand:
            lines += [f"  {group.name}:", *(line(2, *item, "the checkpoint") for item in group.hand.items())]
            for key, origin in HAND_KEYS.items():
                lines.append(line(2, key, UNKNOWN, origin))
        if not group.hand:
            numbers = range(start, start + group.size)
            joints += [_joint(model, index, UNKNOWN, None, own, None) for index in numbers]
        elif "beside" not in group.hand:
            every = line(1, "- name", UNKNOWN, f"and so on, every joint between base and tip of {group.name}")
            joints.append(
                [every, *(line(2, key, UNKNOWN, "the maker's") for key in ("lower", "upper", "velocity"))]
            )
        if group.pair:
            joints[-1].append(line(2, "pair", "true", "the state has both fingers"))
        start += group.size
    kinds = (f"{group.name} ({'a pose, ' * bool(group.hand)}{group.size})" for group in model.groups)
    lines += [
        "",
        *comment(f"States and actions are {', '.join(kinds)}. Give the robot's own names."),
        "joints:",
    ]
    return [UNKNOWN] * len(joints), lines + [text for joint in joints for text in joint]


def _states(model: Description, columns: int) -> int:
    """The number of joints; where statistics are filled up with zeros, that of the actions if it can be."""
    states = counts(model.state)
    return columns if columns in states else states.start


def _skew(robot: Robot) -> list[str]:
    rates = [each.stream.rate_hz for each in robot.matches if each.stream.rate_hz]
    apart = max(0.05, 1.2 / min(rates)) if rates else 0.05
    return [
        line(0, "max_skew_s", f"{apart:.2g}", "a default: cameras that are not triggered are a period apart")
    ]


def _joint_stream(survey: Survey | None, names: Sequence[str]) -> Stream | None:
    """The topic with the most of these joints; None without one."""
    streams = survey.joint_states if survey is not None else []
    return max(streams, key=lambda stream: len(set(names) & stream.positions.keys()), default=None)


def _joint_states(survey: Survey | None, joints: Stream | None) -> list[str]:
    if survey is None:
        return [
            line(1, "topic", "joint_states", "a default, of joint_state_broadcaster"),
            line(1, "rate_hz", "100", "a default: or your robot's"),
            line(1, "max_age_s", "0.5", AGE),
        ]
    if joints is None:
        absent = f"no joint states in {survey.origin}"
        return [line(1, key, UNKNOWN, absent) for key in ("topic", "rate_hz")] + [
            line(1, "max_age_s", "0.5", AGE)
        ]
    others = [stream.topic for stream in survey.joint_states if stream is not joints]
    beside = f"; also there: {', '.join(others)}" if others else ""
    rate = joints.rate_hz
    return [
        line(1, "topic", survey.relative(joints.topic), f"{survey.origin}{beside}"),
        line(1, "rate_hz", f"{rate:.3g}" if rate else UNKNOWN, "by its stamps"),
        line(1, "max_age_s", f"{max(0.1, 5.0 / rate if rate else 0.5):.2g}", AGE),
    ]


def _actions(model: Description, twist: bool) -> list[str]:
    """What a row of a chunk is, asked for where the statistics leave it open."""
    if twist:
        return [
            line(0, "actions", "twist", "the checkpoint"),
            "twist:",
            line(
                1, "per", UNKNOWN, "step: the data set recorded displacements, as most do; second: velocities"
            ),
            line(1, "linear", UNKNOWN, "greatest speed of the hand in m/s"),
            line(1, "angular", UNKNOWN, "and in rad/s"),
            "",
        ]
    if DELTA not in {reading.action for reading in joint_actions(model)}:
        return []
    if model.relative is not None:
        return [line(0, "actions", "joints", "the checkpoint"), ""]
    return [
        *comment(f"Its actions lie apart from its state, so they are {OTHERS}."),
        line(0, "actions", UNKNOWN, "joints, hands or twist"),
        "",
    ]


def _joint_names(
    model: Description, states: int, limits: Mapping[str, UrdfJoint], survey: Survey | None
) -> tuple[list[str], str]:
    """The joints' names, and where they are from."""
    trained = [name.removesuffix(SUFFIX) for name in model.joint_names]
    driven = (
        []
        if survey is None
        else [n for c in survey.controllers if c.state in ("active", "") for n in c.joints]
    )
    published = (
        [] if survey is None else list(dict.fromkeys(n for s in survey.joint_states for n in s.positions))
    )
    moving = [name for name, joint in limits.items() if not joint.mimics]
    known = set(driven) | set(published)
    if len(trained) == states and (not known or set(trained) <= known):
        return trained, f"Names are those of the training ({', '.join(model.joint_names)})."
    compare = "compare it with that of the training"
    for names, origin in (
        (list(dict.fromkeys(driven)), "the order of its controllers"),
        (published, "the order of its joint states"),
        (moving, "the URDF's order"),
    ):
        if len(names) == states:
            return (
                names,
                f"Names are in {origin}: {compare}{' (' + ', '.join(trained) + ')' if trained else ''}.",
            )
    names = list(dict.fromkeys([*driven, *published])) or moving
    there = f" of these: {', '.join(names)}" if names else ""
    return [UNKNOWN] * states, f"Give the robot's own names{there}."


def _joint(
    model: Description,
    index: int,
    name: str,
    described: UrdfJoint | None,
    reading: Reading | None,
    position: float | None,
) -> list[str]:
    """The lines of a joint. reading: of its action, None if its actions are twists. position: measured."""
    measured = index < model.state.shape[1]
    low, high = model.state[:, index] if measured else (0.0, 0.0)
    about = [f"in training {low:.3g} to {high:.3g}"] if measured else []
    if reading is None and index >= HAND and index < model.actions.shape[1]:
        about = ["its actions in training: {:.3g} to {:.3g}".format(*model.actions[:, index])]
    if position is not None:
        about.append(f"now at {position:.3g}{_doubt(position, described)}")
    lines = [line(1, "- name", plain(name), "; ".join(about))]
    for key in ("lower", "upper", "velocity"):
        value = None if described is None else getattr(described, key)
        origin = "the URDF" if value is not None else ""
        if value is None:
            unit = "rad/s (m/s if it slides)" if key == "velocity" else "rad (m if it slides)"
            origin = "the URDF gives none" if described is not None else f"{unit}: the maker's"
        lines.append(line(2, key, UNKNOWN if value is None else repr(value), origin))
    if described is not None and described.kind == "continuous":
        lines.append(line(2, "continuous", "true", "the URDF"))
    if np.abs([low, high]).max() > TWO_TURNS or high - low > TWO_TURNS:
        lines.append(line(2, "unit", UNKNOWN, "no radians: deg, or a map instead for what counts in percent"))
    if reading is None:
        return lines
    action, reason = reading.action, reading.numbers
    if model.relative is not None and index < len(model.relative):
        action = DELTA if model.relative[index] else ABSOLUTE
        reason = f"as the checkpoint says{reason and '; '}{reason}"
    elif not action:
        reason = f"delta or absolute{reason and ': '}{reason}"
    return [*lines, line(2, "action", action or UNKNOWN, reason)]


def _doubt(position: float, described: UrdfJoint | None) -> str:
    """What is odd about a measured position: a driver that sends degrees."""
    lower, upper = (None, None) if described is None else (described.lower, described.upper)
    reach = TWO_TURNS if lower is None or upper is None else max(abs(lower), abs(upper)) + 0.1
    if abs(position) > reach and (described is None or described.kind != "continuous"):
        return ", more than it can be in rad or m: the driver must not send degrees"
    return ""


def _check(text: str, model: Description) -> None:
    """Raise ValueError if this is no contract, or the model does not fit it, whatever is filled in. Which
    image a camera is, only the user knows."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "robot.yaml"
        file.write_text(fill(text, _ANY))
        contract = Contract.load(file)
    refuse([finding for finding in judge(model, contract) if not finding.about.startswith("cameras")])


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text of a contract with every unknown value filled in. values: by key; {} in one becomes a number,
    another for each. A list of unknown names gets those that were filled in, in their order."""
    counters: dict[str, int] = {}

    def number(key: str) -> str:
        counters[key] = counters.get(key, 0) + 1
        return str(values[key]).format(counters[key])

    def filled(written: str) -> str:
        code, mark, origin = written.partition("  #")
        code = re.sub(rf"(\w+): {re.escape(UNKNOWN)}", lambda match: f"{match[1]}: {number(match[1])}", code)
        code = re.sub(re.escape(UNKNOWN), lambda _: number("joints"), code)
        return code + mark + origin

    values = {**values, "joints": values.get("name", "")}
    return "\n".join(each if each.startswith("#") else filled(each) for each in text.split("\n"))
