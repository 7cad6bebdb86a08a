"""Whether a model can serve a contract: cameras, number of joints, and what the numbers seem to mean.

Sizes that differ are errors. Units cannot be read off a model, but its statistics tell where the joints were
in training: a range that does not meet the contract's limits at all is the usual sign of degrees taken for
radians, a gripper the wrong way round, or joints in another order. That is a warning, since a policy may be
used in another part of the range. Facts are read from the small files of a checkpoint; no weight is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vla_accel_ros.models.checkpoint import read_config
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.norm_stats import read_normalizers
from vla_accel_ros.models.openvla_checkpoint import is_openvla, read_openvla_config
from vla_accel_ros.models.openvla_stats import read_action_stats
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing import Normalizer
from vla_accel_ros.models.shards import read_table
from vla_accel_ros.models.smolvla_checkpoint import (
    is_smolvla,
    read_smolvla_config,
    read_smolvla_normalizers,
)
from vla_accel_ros.models.smolvla_config import SmolVLAConfig
from vla_accel_ros.sensing.contract import Contract
from vla_accel_ros.sensing.findings import Finding, error, ok, warning

# Trained and allowed ranges of most joints differ by this much only when their units do (a radian is 57 deg).
_OTHER_UNIT = 15.0


@dataclass(frozen=True)
class ModelFacts:
    """What of a model a contract must fit.

    where: its folder. state_dim, action_dim: most numbers the network takes and gives. state, actions: where
    they were in training, float64 [2, D] lowest and highest in the policy's units; [2, 0] when it has no
    statistics. twist: it moves a hand, not joints. image_names: empty for a model that takes any one image.
    """

    where: Path
    kind: str
    image_names: tuple[str, ...]
    state_dim: int
    action_dim: int
    state: np.ndarray
    actions: np.ndarray
    twist: bool = False

    @classmethod
    def of(cls, policy: Policy, where: Path) -> ModelFacts:
        """Of a policy that is loaded."""
        config = policy.config
        return cls(
            where,
            config.kind,
            config.image_names,
            config.state_dim,
            config.action_dim,
            _range(policy.state_normalizer),
            _range(policy.action_normalizer),
        )

    @classmethod
    def read(cls, folder: Path) -> ModelFacts:
        """Of a checkpoint folder. Raises ValueError, one sentence, for one that cannot be read."""
        config: PiConfig | SmolVLAConfig
        if is_openvla(folder):
            sizes, stats = read_openvla_config(folder, read_table(folder)), read_action_stats(folder)
            nothing, actions = _range(Normalizer.identity()), np.stack([stats.low, stats.high])
            return cls(folder, sizes.kind, (), 0, actions.shape[1], nothing, actions, twist=True)
        if is_smolvla(folder):
            config = read_smolvla_config(folder, read_table(folder))
            normalizers = read_smolvla_normalizers(folder)
        else:
            config = read_config(folder)
            normalizers = read_normalizers(folder, config.kind)
        state, actions = map(_range, normalizers)
        names = config.image_names
        return cls(folder, config.kind, names, config.state_dim, config.action_dim, state, actions)


def judge(model: ModelFacts, contract: Contract) -> list[Finding]:
    """What keeps the model from serving the contract; one OK when nothing does."""
    found = [*_images(model, contract), *_sizes(model, contract)]
    if not found:
        found = _ranges(model, contract)
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
        what = f"the model in {model.where} also knows {', '.join(missing)}, which no camera is"
        found.append(
            warning("cameras", what, "add the camera if the policy was trained with it on this robot")
        )
    return found


def _sizes(model: ModelFacts, contract: Contract) -> list[Finding]:
    found = []
    if model.twist and contract.actions != "twist":
        what = f"the model in {model.where} ({model.kind}) moves a hand by twists, the contract's are joints"
        found.append(error("actions", what, "write actions: twist and give a servo_twist controller"))
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
    """Compare where the joints were in training with where the contract lets them be, in policy units."""
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


def _range(normalizer: Normalizer) -> np.ndarray:
    # Quantiles become -1 and 1; of mean and deviation, two deviations are about the same share.
    reach = 1.0 if normalizer.offset else 2.0
    edges = np.repeat([[-reach], [reach]], normalizer.size, axis=1)
    return normalizer.unnormalize(edges)
