"""Describes a checkpoint in words, and writes a contract with placeholders for a robot that uses it.

The skeleton is a whole contract: it loads as it is and the model fits it, so each change can be checked at
once. Joint limits are the range of the training data where that is known, and a range at all.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import yaml

from vla_accel_ros.contract.parts import FURTHEST, NAME
from vla_accel_ros.models.checkpoints.conversion import FIELD, provenance_of
from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.models.config import GemmaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.pi.stored_fold import FOLDED, StoredFold
from vla_accel_ros.models.smolvla.config import SmolVLAConfig

GB, MB = 1e9, 1e6
HAND = 6
OURS = "# the robot's own"
STILL = 0.01
"""A joint that moved less in training has no range there."""


def camera_names(images: Iterable[str]) -> dict[str, str]:
    """Return the policy's images by names that a contract's cameras can have: their own where they can."""
    found: dict[str, str] = {}
    for image in images:
        name = image
        if not re.fullmatch(NAME, name) or yaml.safe_load(name) != name:
            name = "camera_" + re.sub("[^A-Za-z0-9_]", "_", image)
        while name in found:
            name += "_"
        found[name] = image
    return found


def summary(told: Description) -> str:
    """Return several lines: family, sizes, weights, chunk, cameras and notes."""
    config, lines = told.config, [f"{told.config.kind} in {told.folder} ({told.format})"]

    def line(name: str, text: str) -> None:
        lines.extend(textwrap.wrap(f"  {name:<14}{text}", 110, subsequent_indent=" " * 16))

    if isinstance(config, OpenVLAConfig):
        line("vision", f"{_vision(config.dino)} with {config.registers} registers, {_vision(config.siglip)}")
        line("language", _language(config))
        line("actions by", f"tokens, {config.bins - 1} values each")
    elif isinstance(config, (PiConfig, SmolVLAConfig)):
        line("vision", _vision(config.vision))
        line("language", _language(config))
        line("actions by", f"{_stack(config.expert)}, flow matching")
    numbers = sum(math.prod(stored.shape) for stored in told.tensors.values())
    types = Counter[str]()
    for stored in told.tensors.values():
        types[stored.dtype] += stored.bytes
    parts = ", ".join(f"{size / GB:.2f} GB {dtype}" for dtype, size in types.most_common())
    files = len({stored.file for stored in told.tensors.values()})
    line("weights", f"{numbers / 1e6:,.1f} M numbers, {told.bytes / GB:.2f} GB ({parts}) in {files} file(s)")
    for name, text in prepared(told):
        line(name, text)
    line("chunk", f"{told.horizon} action(s) of {_dims(told.actions, told.action_dim)}")
    line(
        "state", _dims(told.state, told.state_dim) if told.state_dim else "none: the network takes no joints"
    )
    line("cameras", "any one image" if told.any_camera else ", ".join(config.image_names))
    line("normalisation", told.normalisation)
    if len(told.statistics) > 1:
        line("statistics of", f"{', '.join(told.statistics)}: choose with the parameter statistics")
    if told.relative is not None:
        relative = np.flatnonzero(told.relative).tolist()
        line(
            "relative", f"actions {relative} to the joints" if relative else "none: all actions are absolute"
        )
    for note in told.notes:
        line("note", note)
    return "\n".join(lines)


def prepared(told: Description) -> list[tuple[str, str]]:
    """Return (name, text) pairs: what is fused and folded and, for a converted folder, its origin."""
    said = provenance_of(told.folder)
    lines = [("fused", _fused(told)), ("folded", _folded(told, said))]
    if said:
        lines.append(("converted", _origin(said)))
    return lines


def _fused(told: Description) -> str:
    if isinstance(told.config, SmolVLAConfig):
        return "nothing: no stage of the engine reads parameters of a SmolVLA as one"
    parts = [(stored.part, stored.bytes) for stored in told.tensors.values() if stored.part is not None]
    among = Counter(part.tensor for part, _ in parts)
    parts = [(part, count) for part, count in parts if among[part.tensor] > 1]
    if not parts:
        return "nothing: every parameter is a tensor; they are joined while loading"
    wholes = len({part.tensor for part, _ in parts})
    size = sum(count for _, count in parts)
    return f"{len(parts)} parameters as {wholes} tensors, {size / MB:,.1f} of {told.bytes / MB:,.1f} MB"


def _folded(told: Description, said: dict[str, Any]) -> str:
    if not isinstance(told.config, PiConfig):
        return "nothing: this network has nothing to compute ahead"
    if any(FOLDED in sentence for sentence in told.missing):
        return f"{FOLDED} cannot be used, see below"
    fold = StoredFold.find(told.folder, told.config)
    if fold is None:
        gone = f"{FOLDED} is not there: " if FIELD in said else "nothing: "
        return gone + "constants are computed while fast stages are made"
    steps, rule, dtype = fold.key
    return (
        f"{fold.bytes / MB:.2f} MB of constants for {steps} steps ({rule}'s times) of weights in {dtype}; "
        "for other settings they are computed while fast stages are made"
    )


def _origin(said: dict[str, Any]) -> str:
    text = f"from {said.get('source')} ({said.get('format')}), {said.get('date')}, by {said.get('version')}"
    return f"{text}, SHA-256 {said.get('sha256')}"


def write_skeleton(told: Description) -> str:
    """Return a contract in YAML that fits the model and has placeholders for the robot's values."""
    actions = told.actions.shape[1] or told.state.shape[1]
    twist = told.twist and actions > HAND
    states = told.state.shape[1] or (HAND + actions - HAND if twist else actions) or 1
    lines = [
        "# A contract for " + told.folder.name + f" ({told.config.kind}); see config/contracts/sim_arm.yaml."
    ]
    lines += ["robot: my_robot", "", "cameras:  # topics, rates and ages: " + OURS[2:]]
    for name, image in camera_names(told.config.image_names).items():
        quoted = image if image == name else json.dumps(image, ensure_ascii=False)
        lines.append(
            f"  {name}: {{topic: camera/{name}/image_raw, image: {quoted}, rate_hz: 30, max_age_s: 0.5}}"
        )
    lines += ["", "max_skew_s: 0.05", "", "joint_states: {topic: joint_states, rate_hz: 100, max_age_s: 0.5}"]
    if not told.state.shape[1] and not twist:
        most = told.state_dim or told.action_dim
        lines += ["", f"# The model has no statistics: at most {most} joints, in the order of its training."]
    lines += ["", "# In the policy's order; name, velocity, acceleration and limits are the robot's own."]
    lines.append("joints:")
    names = [f"joint_{index + 1}" for index in range(states)]
    for index, name in enumerate(names):
        lines.append(f"  - {_joint(told, index, name, twist)}")
    lines += ["", "controllers:"]
    if twist:
        hand, rest = names[: len(names) - (actions - HAND)], names[len(names) - (actions - HAND) :]
        lines.append(
            "  - {topic: servo_node/delta_twist_cmds, kind: servo_twist, rate_hz: 50, frame: base_link, "
            f"joints: [{', '.join(hand)}]}}"
        )
        lines.append(f"  - {{topic: gripper_controller/joint_trajectory, joints: [{', '.join(rest)}]}}")
        lines += ["", "actions: twist", "# per: step where the data set recorded displacements, as most do."]
        lines.append(f"twist: {{per: step, linear: 0.25, angular: 1.0}}  {OURS}")
    else:
        lines.append(f"  - {{topic: arm_controller/joint_trajectory, joints: [{', '.join(names)}]}}")
    lines += ["", "# step_dt_s: the time between two actions in the training data, such as 1/30 or 1/5 s."]
    step = 0.2 if twist else 0.03333333333333333
    lines.append(f"chunk: {{step_dt_s: {step}, max_age_s: {max(0.8, 3 * step):g}}}")
    return "\n".join(lines) + "\n"


def _joint(told: Description, index: int, name: str, twist: bool) -> str:
    known = told.state.shape[1] > index
    low, high = told.state[:, index] if known else (-math.pi, math.pi)
    comment = f"  # in training {low:.3g} to {high:.3g}" if known else f"  {OURS}"
    if not (-FURTHEST < low < high < FURTHEST and high - low >= STILL):
        low, high = -math.pi, math.pi
    text = f"{{name: {name}, lower: {low:.3f}, upper: {high:.3f}, velocity: 1.0, acceleration: 5.0"
    if twist:
        return text + "}" + comment
    relative = told.relative is not None and index < len(told.relative) and bool(told.relative[index])
    if told.relative is None:
        comment += "; delta if its actions are relative"
    return text + f", action: {'delta' if relative else 'absolute'}}}" + comment


def _language(config: PiConfig | OpenVLAConfig | SmolVLAConfig) -> str:
    return f"{_stack(config.prefix)}, {config.vocab} tokens, prompts of up to {config.max_prompt}"


def _vision(config: VisionConfig) -> str:
    return (
        f"{config.width} x {config.depth} layers, {config.image_size} px in patches of {config.patch} "
        f"({config.tokens} tokens)"
    )


def _stack(config: GemmaConfig) -> str:
    return f"{config.width} x {config.depth} layers, {config.heads} heads of {config.head_dim}"


def _dims(trained: np.ndarray, most: int) -> str:
    known = trained.shape[1]
    return f"{known} numbers (of {most})" if known and known != most else f"{known or most} numbers"
