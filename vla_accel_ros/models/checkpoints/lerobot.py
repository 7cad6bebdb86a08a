"""What folders of all families that lerobot saves have alike: cameras, size of an action, description.

A policy's features are listed in `config.json`, the images in prefix order; its statistics are in the
processors (processing/lerobot_processors.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vla_accel_ros.models.checkpoints.description import NOTHING, Description, Missing, Sizes
from vla_accel_ros.models.checkpoints.formats import Contents, action_size
from vla_accel_ros.models.processing.conventions import Normalizer
from vla_accel_ros.models.processing.lerobot_processors import (
    IMAGES,
    normalisation_modes,
    read_lerobot_moments,
    read_names,
)
from vla_accel_ros.models.processing.ranges import trained_range

EMPTY = IMAGES + "empty_camera_"
FEATURES = ("ACTION", "ENV", "LANGUAGE", "REWARD", "STATE", "VISUAL")
STEPS, USUAL_STEPS = ("num_inference_steps", "num_steps"), 10
"""Fields of config.json with the number of denoising steps, and the one of every public policy."""


def lerobot_cameras(data: Mapping[str, Any], where: str = "") -> tuple[str, ...]:
    """Return the camera names of a config.json in prefix order, without those that lerobot calls empty and
    never fills. where: begins an error. Raises ValueError if there are none, and as features_of does."""
    features = features_of(data, "input_features", "VISUAL", where)
    names = [name for name in features if not name.startswith(EMPTY)]
    if not names:
        raise ValueError(f"{where}input_features names no camera (type VISUAL); copy config.json again.")
    return tuple(name.removeprefix(IMAGES).removeprefix("observation.") for name in names)


def features_of(data: Mapping[str, Any], field: str, kind: str, where: str = "") -> dict[str, dict[str, Any]]:
    """Return the features of a kind in a field of config.json, by name. where: begins an error. Raises
    ValueError, also for a feature without a known type: left out silently, it would be a missing camera."""
    features = data.get(field) or {}
    if not isinstance(features, dict):
        raise ValueError(f"{where}{field} is {features!r}; it must map names to features.")
    for name, feature in features.items():
        type_ = feature.get("type") if isinstance(feature, dict) else feature
        if type_ not in FEATURES:
            raise ValueError(f"{where}{field}.{name} has type {type_!r}; known are {', '.join(FEATURES)}.")
    return {name: feature for name, feature in features.items() if feature["type"] == kind}


def action_width(contents: Contents, most: int, actions: Normalizer) -> int:
    """Return D, the size of an action: from the statistics, else from config.json, else `most`, the
    network's."""
    if actions.size:
        return action_size(actions.size, most, contents.folder)
    where = f"{contents.folder / 'config.json'}: "
    features = features_of(contents.config, "output_features", "ACTION", where)
    shape = next(iter(features.values()), {}).get("shape")
    if isinstance(shape, list) and len(shape) == 1 and isinstance(shape[0], int) and shape[0] > 0:
        return min(shape[0], most)
    return most


def lerobot_description(
    contents: Contents,
    config: Sizes,
    state: Normalizer,
    actions: Normalizer,
    missing: Missing,
    notes: list[str],
    statistics: str | None,
    relative: np.ndarray | None = None,
) -> Description:
    """Describe any folder that lerobot saved, from what was read so far."""
    steps = {
        name: contents.config[name] for name in STEPS if contents.config.get(name, USUAL_STEPS) != USUAL_STEPS
    }
    notes = [*notes, *(f"{name} is {value}: set `steps` to it" for name, value in steps.items())]
    moments = Missing().read(read_lerobot_moments, contents.folder, statistics, default=(NOTHING, NOTHING))
    sources, names = missing.read(read_names, contents.folder, default=({}, ()))
    return Description(
        contents.folder,
        "lerobot, safetensors",
        config,
        contents.tensors,
        trained_range(state),
        trained_range(actions),
        missing.read(normalisation_modes, contents.folder, default="unknown"),
        state_moments=moments[0],
        action_moments=moments[1],
        relative=relative,
        camera_sources=sources,
        joint_names=names,
        notes=tuple(notes),
        missing=tuple(missing.sentences),
    )
