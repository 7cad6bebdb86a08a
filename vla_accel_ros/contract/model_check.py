"""Whether a model can serve a contract: cameras, number of joints, and the probable meaning of the numbers.

Different sizes are errors, and so are numbers that cannot be what the contract says: more than two turns as
radians, actions about zero as absolute targets. Each joint is judged by itself. A model does not state its
units, but its statistics say where the joints were in training. A range that does not meet the contract's
limits at all is the usual sign of an inverted gripper, or joints in another order. That is a warning, since a
policy may be used in another part of the range. Facts are read from the small files of a checkpoint; no
weight is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.findings import Finding, error, ok, warning
from vla_accel_ros.contract.parts import TWO_TURNS, Joint
from vla_accel_ros.contract.readings import ABSOLUTE, DELTA, OTHERS, Reading, read_actions
from vla_accel_ros.models.checkpoints.checkpoint import describe
from vla_accel_ros.models.checkpoints.description import NOTHING, Description, unpadded

# The trained and allowed ranges of a joint differ this much only if their units do (a radian is 57 deg).
_OTHER_UNIT = 15.0


@dataclass(frozen=True)
class ModelFacts:
    """The facts about a model that a contract must fit.

    where: its folder. state_dim, action_dim: greatest count of numbers that the network takes and gives.
    state, actions: lowest and highest values in training, float64 [2, D] in the policy's units; [2, 0]
    without statistics. twist: models of this kind usually move a hand, not joints. image_names: empty for a
    model that takes any single image. relative: bool [D], which actions are relative to the joints, None if
    unknown. state_moments, action_moments: mean and deviation in training, [2, D], [2, 0] if unknown.
    assumed: a sentence if settings of its training are unknown and taken as usual. other_actions: what its
    actions are if they are known not to be targets of joints.
    """

    where: Path
    kind: str
    image_names: tuple[str, ...]
    state_dim: int
    action_dim: int
    state: np.ndarray
    actions: np.ndarray
    twist: bool = False
    relative: np.ndarray | None = None
    state_moments: np.ndarray = field(default_factory=lambda: NOTHING)
    action_moments: np.ndarray = field(default_factory=lambda: NOTHING)
    assumed: str = ""
    other_actions: str = ""

    @classmethod
    def read(
        cls,
        folder: Path,
        statistics: str | None = None,
        trained_as: str = "",
        prompt_state: str = "auto",
    ) -> ModelFacts:
        """Read the facts of a checkpoint folder. statistics: the robot whose statistics to use if there are
        several. trained_as, prompt_state: as in load_policy.

        Raises ValueError, one sentence, if it cannot be read or its statistics are missing.
        """
        told = describe(folder, statistics, trained_as, prompt_state)
        if told.missing:
            raise ValueError(told.missing[0])
        return cls.of(told)

    @classmethod
    def of(cls, told: Description) -> ModelFacts:
        """The facts of a checkpoint that was described."""
        return cls(
            told.folder,
            told.config.kind,
            () if told.any_camera else told.config.image_names,
            told.state_dim,
            told.action_dim,
            told.state,
            told.actions,
            told.twist,
            told.relative,
            told.state_moments,
            told.action_moments,
            told.assumed,
            told.other_actions,
        )

    @property
    def states(self) -> range:
        """The numbers of states that its statistics are of: with and without zeros that only fill them up."""
        return range(unpadded(self.state), self.state.shape[1] + 1)

    @property
    def columns(self) -> range:
        """The numbers of actions, likewise."""
        return range(unpadded(self.actions), self.actions.shape[1] + 1)

    @property
    def alike(self) -> bool:
        """Whether states and actions may be the same joints: as many, or unknown."""
        known = self.state.shape[1] and self.actions.shape[1]
        return not known or (self.states.start < self.columns.stop and self.columns.start < self.states.stop)

    @property
    def readings(self) -> list[Reading]:
        """What each action is by its statistics; none if they are of other numbers than the states."""
        if self.twist or not self.alike:
            return []
        return read_actions(self.state_moments, self.action_moments)


def judge(model: ModelFacts, contract: Contract) -> list[Finding]:
    """The findings about a model and a contract; one OK if there is no problem."""
    found = [*_images(model, contract), *_sizes(model, contract)]
    if not found:
        found = [*_ranges(model, contract), *_targets(model, contract)]
    if model.assumed:
        found.append(warning("model", model.assumed, "give trained_as if it was trained otherwise"))
    columns = len(contract.action_names)
    what = f"{model.kind} fits the contract: {len(contract.cameras)} cameras, {columns} numbers an action"
    return found or [ok("model", what)]


def _images(model: ModelFacts, contract: Contract) -> list[Finding]:
    if not model.image_names:
        if len(contract.cameras) == 1:
            return []
        what = f"the model in {model.where} takes one image but the contract names {len(contract.cameras)}"
        return [error("cameras", what, "keep the one it was trained with")]
    found = [
        error(
            f"cameras.{camera.name}.image",
            f"{camera.image!r} is not known to the model in {model.where}",
            f"give one of {', '.join(model.image_names)}",
        )
        for camera in contract.cameras
        if camera.image not in model.image_names
    ]
    given = {camera.image for camera in contract.cameras}
    missing = [name for name in model.image_names if name not in given]
    if missing and not found:
        what = f"the model in {model.where} also knows {', '.join(missing)}, which no camera provides"
        found.append(
            warning("cameras", what, "add the camera if the policy was trained with it on this robot")
        )
    return found


def _sizes(model: ModelFacts, contract: Contract) -> list[Finding]:
    found = []
    if model.twist and contract.actions != "twist" and model.actions.shape[1] != len(contract.action_names):
        what = f"the model in {model.where} ({model.kind}) moves a hand by twists, the contract's are joints"
        found.append(error("actions", what, "write actions: twist and give a servo_twist controller"))
    elif model.twist and contract.actions != "twist":
        what = f"models such as that in {model.where} ({model.kind}) move a hand by twists, as a rule"
        mend = "write actions: twist unless it was fine-tuned on joints"
        found.append(warning("actions", what, mend))
    if contract.actions == "joints" and model.other_actions:
        what = (
            f"those of the model in {model.where} are {model.other_actions}, no targets of joints, neither "
            "absolute nor relative ones"
        )
        return [*found, error("actions", what, f"of {OTHERS}, only the first are actions: joints")]
    if contract.actions == "joints" and not model.alike:
        what = (
            f"the model in {model.where} has {model.states.start} states but {model.columns.start} actions, "
            "so they are not one list of joints"
        )
        return [*found, error("actions", what, f"find out which they are: {OTHERS}")]
    joints, columns = len(contract.joints), len(contract.action_names)
    sizes = (
        ("joints", "states", "joints", joints, model.states, model.state_dim),
        ("actions", "actions", "numbers an action", columns, model.columns, model.action_dim),
    )
    for about, what, ours, count, known, most in sizes:
        if known.stop > 1 and count not in known:
            found.append(
                error(
                    about,
                    f"the model in {model.where} has statistics of {known.start} {what} but the contract has "
                    f"{count} {ours}",
                    "name the joints the policy was trained with, in its order",
                )
            )
        elif known.stop == 1 and most and count > most:
            sentence = f"the model in {model.where} takes {most} {what} but the contract has {count} {ours}"
            found.append(error(about, sentence, "remove those the policy was not trained with"))
    return found


def _ranges(model: ModelFacts, contract: Contract) -> list[Finding]:
    """Compare the joints' ranges in training with the contract's limits, joint by joint."""
    if not model.state.shape[1]:
        return []
    limits = np.array([[joint.lower, joint.upper] for joint in contract.joints]).T
    allowed = np.sort(contract.to_policy(limits), axis=0)
    found = []
    for index, joint in enumerate(contract.joints):
        (low, high), (least, most) = model.state[:, index], allowed[:, index]
        trained = f"was at {low:.3g} to {high:.3g} in training"
        about, ratio = f"joints[{index}] ({joint.name})", (high - low) / (most - least)
        ends = (np.array([low, high]) - joint.offset) / joint.scale
        if joint.gain is None and _beyond_turns(joint, ends):
            what = f"{trained}, which as unit: {joint.unit} is {np.degrees(abs(ends)).max():.0f} degrees"
            mend = "write the unit of the policy (unit: deg), or a map for what counts in percent"
            found.append(error(about, what, f"{mend}; continuous: true if it turns without end"))
        elif ratio > _OTHER_UNIT or (ratio < 1 / _OTHER_UNIT and _could_be_finer(joint)):
            what = f"{trained}, {ratio:.2g} times its limits of {least:.3g} to {most:.3g} in those units"
            found.append(warning(about, what, "check unit, or map of grippers: rad, deg, percent?"))
        elif high < least or low > most:
            what = f"{trained}, its limits are {least:.3g} to {most:.3g} in the policy's units"
            found.append(warning(about, what, "check unit, sign, offset or map, and the order of joints"))
    return found


def _beyond_turns(joint: Joint, ends: np.ndarray) -> bool:
    """Whether a turning joint cannot have been there. ends: [2], in rad."""
    far = np.abs(ends).max() > TWO_TURNS or abs(ends[1] - ends[0]) > TWO_TURNS
    return bool(far) and joint.unit != "m" and not joint.continuous


def _could_be_finer(joint: Joint) -> bool:
    """Whether the contract's numbers would be larger than the policy's if the unit were wrong. A joint in
    radians may just have moved little."""
    return joint.unit == "deg" or joint.gain is not None


def _targets(model: ModelFacts, contract: Contract) -> list[Finding]:
    """Compare the contract's `action` and `actions` with what the model says, and with its statistics."""
    if contract.actions != "joints":
        return []
    ours, names, where = contract.delta_mask, contract.action_names, model.where
    told = None if model.relative is None or len(model.relative) < len(ours) else model.relative[: len(ours)]
    readings = model.readings[: len(ours)]
    apart = [i for i, reading in enumerate(readings) if reading.action == DELTA]
    if told is not None:
        found = [
            error(
                f"joints ({name})",
                f"the model in {where} was trained with {'relative' if theirs else 'absolute'} targets",
                f"write action: {DELTA if theirs else ABSOLUTE}",
            )
            for name, theirs, given in zip(names, told, ours)
            if theirs != given
        ]
        strange = [i for i in apart if not told[i]]
        if strange and not found:
            what = (
                f"the model in {where} has no relative targets, and yet its actions lie apart from its "
                f"state ({names[strange[0]]}: {readings[strange[0]].numbers})"
            )
            found.append(error("actions", what, f"find out which they are: {OTHERS}"))
        return found
    found = [
        error(
            f"joints[{i}] ({names[i]})",
            f"action: {DELTA if ours[i] else ABSOLUTE} contradicts the model in {where} ({reading.numbers})",
            f"its actions are {OTHERS}" if reading.action == DELTA else f"write action: {ABSOLUTE}",
        )
        for i, reading in enumerate(readings)
        if reading.action and (reading.action == DELTA) != ours[i]
    ]
    if apart and not contract.actions_given and not found:
        what = (
            f"are not said to be joints, and those of the model in {where} lie apart from its state "
            f"({names[apart[0]]}: {readings[apart[0]].numbers})"
        )
        found.append(error("actions", what, f"write which they are: {OTHERS}"))
    return found
