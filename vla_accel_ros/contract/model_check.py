"""Whether a model can serve a contract: cameras, number of joints, and the probable meaning of the numbers.

Different sizes are errors. A model does not state its units, but its statistics say where the joints were in
training. A range that does not meet the contract's limits at all is the usual sign of degrees mistaken for
radians, an inverted gripper, or joints in another order. That is a warning, since a policy may be used in
another part of the range. Facts are read from the small files of a checkpoint; no weight is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.findings import Finding, error, ok, warning
from vla_accel_ros.models.checkpoints.checkpoint import describe

# The trained and allowed ranges of most joints differ this much only if their units do (a radian is 57 deg).
_OTHER_UNIT = 15.0


@dataclass(frozen=True)
class ModelFacts:
    """The facts about a model that a contract must fit.

    where: its folder. state_dim, action_dim: greatest count of numbers that the network takes and gives.
    state, actions: lowest and highest values in training, float64 [2, D] in the policy's units; [2, 0]
    without statistics. twist: models of this kind usually move a hand, not joints. image_names: empty for a
    model that takes any single image. relative: bool [D], which actions are relative to the joints, None if
    unknown. assumed: a sentence if settings of its training are unknown and taken as usual.
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
    assumed: str = ""

    @classmethod
    def read(cls, folder: Path, statistics: str | None = None, trained_as: str = "") -> ModelFacts:
        """Read the facts of a checkpoint folder. statistics: the robot whose statistics to use if there are
        several. trained_as: as in load_policy.

        Raises ValueError, one sentence, if it cannot be read or its statistics are missing.
        """
        told = describe(folder, statistics, trained_as)
        if told.missing:
            raise ValueError(told.missing[0])
        return cls(
            folder,
            told.config.kind,
            () if told.any_camera else told.config.image_names,
            told.state_dim,
            told.action_dim,
            told.state,
            told.actions,
            told.twist,
            told.relative,
            told.assumed,
        )


def judge(model: ModelFacts, contract: Contract) -> list[Finding]:
    """The findings about a model and a contract; one OK if there is no problem."""
    found = [*_images(model, contract), *_sizes(model, contract)]
    if not found:
        found = [*_ranges(model, contract), *_deltas(model, contract)]
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
    joints, columns = len(contract.joints), len(contract.action_names)
    sizes = (
        ("joints", "states", "joints", joints, model.state, model.state_dim),
        ("actions", "actions", "numbers an action", columns, model.actions, model.action_dim),
    )
    for about, what, ours, count, trained, most in sizes:
        known = trained.shape[1]
        if known and known != count:
            found.append(
                error(
                    about,
                    f"the model in {model.where} has statistics of {known} {what} but the contract has "
                    f"{count} {ours}",
                    "name the joints the policy was trained with, in its order",
                )
            )
        elif not known and most and count > most:
            sentence = f"the model in {model.where} takes {most} {what} but the contract has {count} {ours}"
            found.append(error(about, sentence, "remove those the policy was not trained with"))
    return found


def _ranges(model: ModelFacts, contract: Contract) -> list[Finding]:
    """Compare the joints' range in training with the contract's limits, in policy units."""
    if not model.state.shape[1]:
        return []
    limits = np.array([[joint.lower, joint.upper] for joint in contract.joints]).T
    allowed = np.sort(contract.to_policy(limits), axis=0)
    trained, room = model.state, np.diff(np.sort(allowed, axis=0), axis=0)[0]
    ratio = float(np.median(np.diff(trained, axis=0)[0] / room))
    if not 1.0 / _OTHER_UNIT < ratio < _OTHER_UNIT:
        what = f"in training the joints of the model in {model.where} spanned {ratio:.2g} times their limits"
        return [warning("joints", what, "check unit, and map of grippers: rad or deg?")]
    found = []
    for index, joint in enumerate(contract.joints):
        (low, high), (least, most) = trained[:, index], allowed[:, index]
        if high < least or low > most:
            what = f"was at {low:.3g} to {high:.3g} in training, its limits are {least:.3g} to {most:.3g}"
            mend = "check unit, sign, offset or map, and the order of joints"
            found.append(warning(f"joints[{index}] ({joint.name})", f"{what} in the policy's units", mend))
    return found


def _deltas(model: ModelFacts, contract: Contract) -> list[Finding]:
    """Compare the contract's relative actions with what the model says, or with its action statistics.

    Relative targets are small and go both ways; absolute ones lie where the joints were.
    """
    ours, trained = contract.delta_mask, model.actions
    if model.relative is not None and model.relative.shape == ours.shape:
        return [
            error(
                f"joints ({name})",
                f"the model in {model.where} was trained with {'relative' if theirs else 'absolute'} targets",
                f"write action: {'delta' if theirs else 'absolute'}",
            )
            for name, theirs, given in zip(contract.action_names, model.relative, ours)
            if theirs != given
        ]
    if contract.actions != "joints" or not trained.shape[1] == model.state.shape[1] == len(ours):
        return []
    found = []
    for index, (name, delta) in enumerate(zip(contract.action_names, ours)):
        (low, high), (least, most) = trained[:, index], model.state[:, index]
        apart = high < least or low > most
        if delta and (low > 0 or high < 0):
            what = f"its actions were {low:.3g} to {high:.3g} in training, so they are not relative"
            found.append(warning(f"joints[{index}] ({name})", what, "write action: absolute if they are not"))
        elif not delta and apart and low <= 0 <= high:
            what = f"its actions were {low:.3g} to {high:.3g}, the joint {least:.3g} to {most:.3g}"
            found.append(
                warning(f"joints[{index}] ({name})", what, "write action: delta if they are relative")
            )
    return found
