"""Writes a contract from a checkpoint and a URDF: what they determine, and `???` for what the user knows.

What training statistics tell is written beside each line as a comment, never as a value: a quantile is no
limit of a joint. The text is checked like any contract before it is returned, with the unknown values filled
in, so a policy that moves no joints yields a sentence instead of a contract.
"""

from __future__ import annotations

import json
import re
import tempfile
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import yaml

from vla_accel_ros.contract import urdf
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.fields import UNKNOWN
from vla_accel_ros.contract.findings import refuse
from vla_accel_ros.contract.model_check import counts, joint_actions, judge
from vla_accel_ros.contract.parts import NAME, TWO_TURNS
from vla_accel_ros.contract.readings import ABSOLUTE, DELTA, OTHERS, UNDECIDED, Reading
from vla_accel_ros.contract.urdf import UrdfJoint
from vla_accel_ros.models.checkpoints.description import Description

HAND = 6
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
}
"""Values that any robot could have, to check the rest."""


def camera_names(images: Iterable[str]) -> dict[str, str]:
    """Return the policy's images by names that a contract's cameras can have: their own where they can."""
    names: dict[str, str] = {}
    for image in images:
        name = image
        if not re.fullmatch(NAME, name) or yaml.safe_load(name) != name:
            name = "camera_" + re.sub("[^A-Za-z0-9_]", "_", image)
        while name in names:
            name += "_"
        names[name] = image
    return names


def write_contract(model: Description, robot: Path | None = None) -> str:
    """Return a contract in YAML that fits the model. robot: the URDF that limits come from.

    Raises ValueError, one sentence, if the model fits no contract, or the URDF is none.
    """
    limits = {} if robot is None else urdf.read(robot)
    columns = counts(model.actions).start or counts(model.state).start
    twist = model.twist and columns > HAND
    states = _states(model, columns) or columns or 1
    lines = [
        f"# A contract for {model.folder.name} ({model.config.kind}); config/contracts/sim_arm.yaml explains "
    ]
    lines[0] += f"the keys. Fill in every {UNKNOWN}."
    lines += ["robot: my_robot", "", "# Topics, rates and ages are the robot's own.", "cameras:"]
    lines += _cameras(model)
    lines += [
        "",
        "max_skew_s: 0.05",
        "",
        "joint_states: {topic: joint_states, rate_hz: 100, max_age_s: 0.5}",
        "",
    ]
    if robot is not None:
        lines += [f"urdf: {json.dumps(str(robot.resolve()))}"]
    lines += [f"acceleration: {UNKNOWN}  # rad/s^2 of every joint that gives none of its own", ""]
    lines += _actions(model, twist)
    names, order = _joint_names(model, states, limits)
    if not model.state.shape[1] and not twist:
        order += f" The model has no statistics: at most {model.state_dim or model.action_dim} joints."
    lines += [*_comment(f"In the policy's order. {order}"), "joints:"]
    readings = [] if twist else joint_actions(model)
    for index, name in enumerate(names):
        reading = readings[index] if index < len(readings) else Reading(UNDECIDED, "")
        lines += _joint(model, index, name, limits.get(name), None if twist else reading)
    lines += ["", "controllers:", *_controllers(names, columns, twist), ""]
    lines += [
        "chunk:",
        f"  step_dt_s: {UNKNOWN}  # time between two actions in the training data, such as 0.0333 or 0.2",
        "  max_age_s: 0.8  # longer than from image to chunk and chunk to chunk together",
    ]
    text = "\n".join(lines) + "\n"
    _check(text, model)
    return text


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent="# ", subsequent_indent="# ")


def _states(model: Description, columns: int) -> int:
    """The number of joints; where statistics are filled up with zeros, that of the actions if it can be."""
    states = counts(model.state)
    return columns if columns in states else states.start


def _cameras(model: Description) -> list[str]:
    lines = []
    for name, image in camera_names(model.config.image_names).items():
        trained = model.camera_sources.get(image)
        topic = trained if trained is not None and re.fullmatch(NAME, trained) else name
        fields = f"topic: camera/{topic}/image_raw, image: {_plain(image)}, rate_hz: 30, max_age_s: 0.5"
        comment = "" if trained is None else f"  # {image} ({trained} in training)"
        lines.append(f"  {name}: {{{fields}}}{comment}")
    return lines


def _actions(model: Description, twist: bool) -> list[str]:
    """What a row of a chunk is, asked for where the statistics leave it open."""
    if twist:
        return [
            "actions: twist",
            "twist:",
            f"  per: {UNKNOWN}  # step: the data set recorded displacements, as most do; second: velocities",
            f"  linear: {UNKNOWN}  # greatest speed of the hand in m/s",
            f"  angular: {UNKNOWN}  # and in rad/s",
            "",
        ]
    if DELTA not in {reading.action for reading in joint_actions(model)}:
        return []
    if model.relative is not None:
        return ["actions: joints", ""]
    return [
        *_comment(f"Its actions lie apart from its state, so they are {OTHERS}."),
        f"actions: {UNKNOWN}  # joints or twist",
        "",
    ]


def _joint_names(model: Description, states: int, limits: Mapping[str, UrdfJoint]) -> tuple[list[str], str]:
    """The joints' names, and where they are from."""
    trained = [name.removesuffix(SUFFIX) for name in model.joint_names]
    if len(trained) == states:
        return trained, f"Names are those of the training ({', '.join(model.joint_names)})."
    moving = [name for name, joint in limits.items() if not joint.mimics]
    if len(moving) == states:
        return moving, "Names are in the URDF's order: compare it with that of the training."
    if moving:
        return _numbered(states), f"Give the names of the URDF: {', '.join(moving)}."
    return _numbered(states), "Give the robot's own names."


def _numbered(count: int) -> list[str]:
    return [f"joint_{index + 1}" for index in range(count)]


def _joint(
    model: Description, index: int, name: str, described: UrdfJoint | None, reading: Reading | None
) -> list[str]:
    """The lines of a joint. reading: of its action, None if its actions are twists."""
    measured = index < model.state.shape[1]
    low, high = model.state[:, index] if measured else (0.0, 0.0)
    comment = f"  # in training {low:.3g} to {high:.3g}" if measured else ""
    if reading is None and index >= HAND and index < model.actions.shape[1]:
        comment = "  # its actions in training: {:.3g} to {:.3g}".format(*model.actions[:, index])
    lines = [f"  - name: {_plain(name)}{comment}"]
    for key in ("lower", "upper", "velocity"):
        value = None if described is None else getattr(described, key)
        lines.append(f"    {key}: {UNKNOWN if value is None else repr(value)}")
    if described is not None and described.kind == "continuous":
        lines.append("    continuous: true")
    if np.abs([low, high]).max() > TWO_TURNS or high - low > TWO_TURNS:
        lines.append(f"    unit: {UNKNOWN}  # no radians: deg, or a map instead for what counts in percent")
    if reading is None:
        return lines
    action, reason = reading.action, reading.numbers
    if model.relative is not None and index < len(model.relative):
        action = DELTA if model.relative[index] else ABSOLUTE
        reason = f"as the checkpoint says{reason and '; '}{reason}"
    elif not action:
        reason = f"delta or absolute{reason and ': '}{reason}"
    return [*lines, f"    action: {action or UNKNOWN}  # {reason}"]


def _controllers(names: list[str], columns: int, twist: bool) -> list[str]:
    if not twist:
        return [f"  - {{topic: arm_controller/joint_trajectory, joints: {_listed(names)}}}"]
    hand, gripper = names[: len(names) - (columns - HAND)], names[len(names) - (columns - HAND) :]
    return [
        "  - {topic: servo_node/delta_twist_cmds, kind: servo_twist, rate_hz: 50, frame: base_link, "
        f"joints: {_listed(hand)}}}",
        f"  - {{topic: gripper_controller/joint_trajectory, joints: {_listed(gripper)}}}",
    ]


def _listed(names: list[str]) -> str:
    return f"[{', '.join(map(_plain, names))}]"


def _plain(name: str) -> str:
    """A name in YAML."""
    plain = re.fullmatch(NAME, name) and yaml.safe_load(name) == name
    return name if plain else json.dumps(name, ensure_ascii=False)


def _check(text: str, model: Description) -> None:
    """Raise ValueError if this is no contract, or the model does not fit it, whatever is filled in."""
    filled = re.sub(rf"(\w+): {re.escape(UNKNOWN)}", lambda key: f"{key[1]}: {_ANY[key[1]]}", text)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "robot.yaml"
        file.write_text(filled)
        contract = Contract.load(file)
    refuse(judge(model, contract))
