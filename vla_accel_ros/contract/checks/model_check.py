"""Whether a model can serve a contract: cameras, number of joints, and the probable meaning of the numbers.

Different sizes are errors, and so are numbers that cannot be what the contract says: more than two turns as
radians, actions about zero as absolute targets. Each joint is judged by itself. A model does not state its
units, but its statistics say where the joints were in training. A range that does not meet the contract's
limits at all is the usual sign of an inverted gripper, or joints in another order. That is a warning, since a
policy may be used in another part of the range. Facts are read from the small files of a checkpoint; no
weight is loaded.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vla_accel_ros.contract.checks.findings import Finding, error, ok, warning
from vla_accel_ros.contract.checks.readings import ABSOLUTE, DELTA, OTHERS, Reading, read_actions
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import TWO_TURNS, Joint
from vla_accel_ros.models.checkpoints.checkpoint import describe
from vla_accel_ros.models.checkpoints.description import Description, unpadded

# The trained and allowed ranges of a joint differ this much only if their units do (a radian is 57 deg).
_OTHER_UNIT = 15.0
_STOOD = 40.0
"""No task leaves every joint within so small a part of its range; the wrong unit does."""


def read_model(
    folder: Path, statistics: str | None = None, trained_as: str = "", prompt_state: str = "auto"
) -> Description:
    """What a checkpoint folder says of itself. statistics: the robot whose statistics to use if there are
    several. trained_as, prompt_state: as in load_policy.

    Raises ValueError, one sentence, if it cannot be read or its statistics are missing.
    """
    model = describe(folder, statistics, trained_as, prompt_state)
    if model.missing:
        raise ValueError(model.missing[0])
    return model


def counts(trained: np.ndarray) -> range:
    """The numbers of states or actions, [2, D], that statistics are of: with and without zeros that only fill
    them up."""
    return range(unpadded(trained), trained.shape[1] + 1)


def same_joints(model: Description) -> bool:
    """Whether states and actions may be the same joints: as many, or unknown."""
    if not (model.state.shape[1] and model.actions.shape[1]):
        return True
    states, actions = counts(model.state), counts(model.actions)
    return states.start < actions.stop and actions.start < states.stop


def joint_actions(model: Description) -> list[Reading]:
    """What each action is by its statistics; none if they are of other numbers than the states."""
    if model.twist or not same_joints(model):
        return []
    return read_actions(model.state_moments, model.action_moments)


def judge(model: Description, contract: Contract) -> list[Finding]:
    """The findings about a model and a contract; one OK if there is no problem."""
    findings = [*_images(model, contract), *_sizes(model, contract)]
    if not findings:
        findings = [*_ranges(model, contract), *_targets(model, contract)]
    if model.assumed:
        findings.append(warning("model", model.assumed, "give trained_as if it was trained otherwise"))
    cameras, columns = len(contract.cameras), len(contract.action_names)
    fact = f"{model.config.kind} fits the contract: {cameras} cameras, {columns} numbers an action"
    return findings or [ok("model", fact)]


def _images(model: Description, contract: Contract) -> list[Finding]:
    images = () if model.any_camera else model.config.image_names
    if not images:
        if len(contract.pictures) == 1:
            return []
        fact = f"the model in {model.folder} takes one image but the contract names {len(contract.cameras)}"
        return [error("cameras", fact, "keep the one it was trained with")]
    unknown = [
        error(
            f"cameras.{camera.name}.{key}",
            f"{image!r} is not known to the model in {model.folder}",
            f"give one of {', '.join(images)}",
        )
        for camera in contract.cameras
        for key, image in (("image", camera.image), *(("history", image) for image, _ in camera.history))
        if image not in images
    ]
    missing = [name for name in images if name not in {picture.image for picture in contract.pictures}]
    if unknown or not missing:
        return unknown
    fact = f"the model in {model.folder} also knows {', '.join(missing)}, which no camera provides"
    fix = "add the camera, or history of one, if the policy was trained with it on this robot"
    return [warning("cameras", fact, fix)]


def _sizes(model: Description, contract: Contract) -> list[Finding]:
    findings = []
    folder, kind, columns = model.folder, model.config.kind, len(contract.action_names)
    if model.twist and contract.actions == "joints" and model.actions.shape[1] != columns:
        fact = f"the model in {folder} ({kind}) moves a hand by twists, the contract's are joints"
        fix = "write actions: hands, or actions: twist and give a servo_twist controller"
        findings.append(error("actions", fact, fix))
    elif model.twist and contract.actions == "joints":
        fact = f"models such as that in {folder} ({kind}) move a hand by twists, as a rule"
        fix = "write actions: hands, or actions: twist, unless it was fine-tuned on joints"
        findings.append(warning("actions", fact, fix))
    if contract.actions == "joints" and model.other_actions:
        fact = f"those of the model in {folder} are {model.other_actions}, not targets of joints"
        return [*findings, error("actions", fact, f"write which they are: {OTHERS}")]
    acts_only = contract.base is not None and not contract.base.odometry
    if contract.actions == "joints" and not acts_only and not same_joints(model):
        fact = (
            f"the model in {folder} has {counts(model.state).start} states but "
            f"{counts(model.actions).start} actions, so they are not one list of joints"
        )
        return [*findings, error("actions", fact, f"find out which they are: {OTHERS}")]
    for about, rows, ours, count, trained, limit in (
        ("joints", "states", "of them", len(contract.state_names), counts(model.state), model.state_dim),
        ("actions", "actions", "numbers an action", columns, counts(model.actions), model.action_dim),
    ):
        if trained.stop > 1 and count not in trained:
            fact = f"has statistics of {trained.start} {rows} but the contract has {count} {ours}"
            fix = "name the joints or hands the policy was trained with, in its order"
        elif trained.stop == 1 and limit and count > limit:
            fact = f"takes {limit} {rows} but the contract has {count} {ours}"
            fix = "remove those the policy was not trained with"
        else:
            continue
        findings.append(error(about, f"the model in {folder} {fact}", fix))
    return findings


def _ranges(model: Description, contract: Contract) -> list[Finding]:
    """Compare the joints' ranges in training with the contract's limits, joint by joint; not of those that a
    hand stands for."""
    if not model.state.shape[1]:
        return []
    findings, finer = [], list[float]()
    for joint in contract.joints:
        if joint.name not in contract.state_names:
            continue
        index = contract.state_names.index(joint.name)
        lower, upper = sorted(limit * joint.scale + joint.offset for limit in (joint.lower, joint.upper))
        low, high = model.state[:, index]
        trained = f"was at {low:.3g} to {high:.3g} in training"
        about = f"joints[{contract.joints.index(joint)}] ({joint.name})"
        ratio = (high - low) / (upper - lower)
        finer.append(ratio if _could_be_finer(joint) else 1.0)
        ends = (np.array([low, high]) - joint.offset) / joint.scale
        if joint.gain is None and _beyond_turns(joint, ends):
            fact = f"{trained}, which as unit: {joint.unit} is {np.degrees(abs(ends)).max():.0f} degrees"
            fix = "write the unit of the policy (unit: deg), or a map for what counts in percent"
            findings.append(error(about, fact, f"{fix}; continuous: true if it turns without end"))
        elif ratio > _OTHER_UNIT or (ratio < 1 / _OTHER_UNIT and _could_be_finer(joint)):
            fact = f"{trained}, {ratio:.2g} times its limits of {lower:.3g} to {upper:.3g} in those units"
            findings.append(warning(about, fact, "check unit, or map of grippers: rad, deg, percent?"))
        elif high < lower or low > upper:
            fact = f"{trained}, its limits are {lower:.3g} to {upper:.3g} in the policy's units"
            findings.append(warning(about, fact, "check unit, sign, offset or map, and the order of joints"))
    if len(finer) > 1 and max(finer) < 1 / _STOOD:
        fact = f"no joint went through more than {max(finer):.2g} of its range in training"
        findings.append(error("joints", fact, "write the unit of the policy, such as unit: rad"))
    return findings


def _beyond_turns(joint: Joint, ends: np.ndarray) -> bool:
    """Whether a turning joint cannot have been there. ends: [2], in rad."""
    far = np.abs(ends).max() > TWO_TURNS or abs(ends[1] - ends[0]) > TWO_TURNS
    return bool(far) and joint.unit != "m" and not joint.continuous


def _could_be_finer(joint: Joint) -> bool:
    """Whether the contract's numbers would be larger than the policy's if the unit were wrong. A joint in
    radians may just have moved little."""
    return joint.unit == "deg" or joint.gain is not None


def _targets(model: Description, contract: Contract) -> list[Finding]:
    """Compare the contract's `action` and `actions` with what the model says, and with its statistics."""
    if contract.actions != "joints":
        return []
    moved = [joint.action for joint in contract.action_joints]  # those of a base come after them
    relative, names, folder = contract.delta_mask[: len(moved)], contract.action_names, model.folder
    readings = joint_actions(model)[: len(moved)]
    about_zero = relative | (np.array(moved) == "velocity")
    deltas = [i for i, reading in enumerate(readings) if reading.action == DELTA]
    if model.relative is not None and len(model.relative) >= len(relative):
        findings = [
            error(
                f"joints ({name})",
                f"the model in {folder} was trained with {'relative' if trained else 'absolute'} targets",
                f"write action: {DELTA if trained else ABSOLUTE}",
            )
            for name, trained, written in zip(names, model.relative, relative)
            if trained != written
        ]
        strange = [i for i in deltas if not about_zero[i]]
        if strange and not findings:
            fact = (
                f"the model in {folder} has no relative targets, and yet its actions lie apart from its "
                f"state ({names[strange[0]]}: {readings[strange[0]].numbers})"
            )
            findings.append(error("actions", fact, f"find out which they are: {OTHERS}"))
        return findings
    findings = [
        error(
            f"joints[{i}] ({names[i]})",
            f"action: {moved[i]} contradicts the model in {folder} ({reading.numbers})",
            f"its actions are {OTHERS}" if reading.action == DELTA else f"write action: {ABSOLUTE}",
        )
        for i, reading in enumerate(readings)
        if reading.action and (reading.action == DELTA) != about_zero[i]
    ]
    if deltas and not contract.actions_given and not findings:
        fact = (
            f"are not said to be joints, and those of the model in {folder} lie apart from its state "
            f"({names[deltas[0]]}: {readings[deltas[0]].numbers})"
        )
        findings.append(error("actions", fact, f"write which they are: {OTHERS}"))
    return findings
