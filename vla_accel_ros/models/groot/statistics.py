"""Make an embodiment's units of the statistics of its training: of groups in a fixed order, or of a data set.

Ranges are those of the lowest and highest number, or of the 1 % and 99 % quantiles; those of relative actions
are always lowest and highest, and may be of every step of a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.models.checkpoints.fields import part
from vla_accel_ros.models.groot.assets import LIBERO, TRANSFORM
from vla_accel_ros.models.groot.units import POSE, ActionGroup, Units
from vla_accel_ros.models.processing.lerobot_processors import Step, saved_numbers
from vla_accel_ros.models.processing.norm_stats import check_ordered
from vla_accel_ros.models.processing.ranges import Range

ENCODINGS = {
    "rep": ("absolute", "relative"),
    "type": ("non_eef", "eef"),
    "format": ("default", "xyz_rot6d", "xyz_rotvec"),
}
"""What a group of actions may be. Of NVIDIA's others, deltas are of no published policy."""


def group_units(modality: Mapping[str, Any], statistics: Any, fields: Mapping[str, Any], where: str) -> Units:
    """Return the units of an embodiment's groups. fields: of the processor. where: begins errors. Raises
    ValueError if statistics are missing or an encoding is unknown."""
    if not isinstance(statistics, dict):
        raise ValueError(
            f"{where} has no statistics of its own beside it, which say what its numbers mean; give the "
            "folder that lerobot saved, or that of its training."
        )
    for kind in ("video", "state"):
        if (frames := part(modality, f"{kind}.delta_indices", [0])) != [0]:
            raise ValueError(
                f"{where}.{kind}.delta_indices is {frames!r}; only [0], no history, is known here."
            )
    for field in ("sin_cos_embedding_keys", "mean_std_embedding_keys"):
        if encoded := part(modality, f"state.{field}"):
            raise ValueError(f"{where}.state.{field} is {encoded!r}; only ranges are known here.")
    ends = ("q01", "q99") if fields.get("use_percentiles") else ("min", "max")
    states, places, start = [], dict[str, slice](), 0
    for name in names_of(modality, "state", where):
        states.append(_range(statistics, "state", name, ends, where))
        places[name] = slice(start, start := start + states[-1][0].shape[-1])
    names = names_of(modality, "action", where)
    configs = part(modality, "action.action_configs") or [{}] * len(names)
    if not isinstance(configs, list) or len(configs) != len(names):
        raise ValueError(f"{where}.action.action_configs must describe {list(names)}, one by one.")
    _check_encodings(configs, where)
    ranges, groups, start = [], list[ActionGroup](), 0
    for name, config in zip(names, configs, strict=True):
        rep, kind, form = (str(part(config, key, "")).lower() for key in ("rep", "type", "format"))
        relative, pose = rep == "relative" and bool(fields.get("use_relative_action")), kind == "eef"
        key = ("relative_action", name, ("min", "max")) if relative else ("action", name, ends)
        ranges.append(_range(statistics, *key, where))
        size = ranges[-1][0].shape[-1]
        origin = part(config, "state_key", name)
        if relative and (origin not in places or (pose and (form != "xyz_rot6d" or size != POSE))):
            raise ValueError(
                f"{where}.action: {name} is relative to the state's '{origin}' (of {sorted(places)}) in "
                f"the format {form!r} with {size} numbers; of poses only XYZ_ROT6D is known here."
            )
        state = slice(places[origin].start, places[origin].start + size) if relative else None
        groups.append(ActionGroup(name, slice(start, start := start + size), state, pose))
    gripper = {group.name: group.actions.start for group in groups if group.size == 1}.get("gripper")
    if fields.get(TRANSFORM) != LIBERO:
        gripper = None
    elif gripper is None:
        raise ValueError(
            f"{where}.action has no 'gripper' of one number, which {TRANSFORM} {LIBERO!r} needs."
        )
    steps = steps_of(modality)
    lows, highs = (_by_step([group[end] for group in ranges], steps, where) for end in (0, 1))
    low, high = (np.concatenate([group[end] for group in states]) for end in (0, 1))
    return Units(
        Range(low, high, clips=bool(fields.get("clip_outliers", True))),
        Range(lows, highs, clips=True),
        tuple(groups),
        steps,
        alike=[(group.name, group.actions) for group in groups] == [*places.items()],
        gripper=gripper,
    )


def _check_encodings(configs: Sequence[Any], where: str) -> None:
    for index, config in enumerate(configs):
        for name, allowed in ENCODINGS.items():
            value = part(config, name, allowed[0]) if isinstance(config, dict) else config
            if str(value).lower() not in allowed:
                raise ValueError(
                    f"{where}.action.action_configs[{index}].{name} is {value!r}; known are "
                    f"{', '.join(allowed)}."
                )


def _range(
    statistics: Mapping[str, Any], kind: str, name: str, ends: tuple[str, str], where: str
) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) float32 [D] or [steps, D] of a group. Raises ValueError unless they are numbers in
    order."""
    try:
        low, high = (np.array(part(statistics, f"{kind}.{name}.{end}"), np.float32) for end in ends)
        fits = low.shape == high.shape and low.ndim in (1, 2) and low.size > 0 and bool((low <= high).all())
    except (TypeError, ValueError):
        fits = False
    if not fits or not np.isfinite([low, high]).all():
        raise ValueError(f"{where}: its statistics {kind}.{name} must have {ends[0]} and {ends[1]} in order.")
    return low, high


def _by_step(groups: list[np.ndarray], steps: int | None, where: str) -> np.ndarray:
    """[steps, D] of groups [d] or [steps, d]; [D] if no step has its own."""
    several = [len(group) for group in groups if group.ndim == 2]
    if not several:
        return np.concatenate(groups)
    rows = steps or min(several)
    if min(several) < rows:
        raise ValueError(f"{where} has statistics of {min(several)} steps, but chunks of {rows} actions.")
    cut = (group[:rows] if group.ndim == 2 else group for group in groups)
    return np.concatenate([np.broadcast_to(group, (rows, group.shape[-1])) for group in cut], axis=1)


def flat_units(file: Path, step: Step, clips: bool, steps: int | None, libero: bool) -> Units:
    """Units of a data set's statistics, which a step of a processor has. libero: see Units.gripper; it is the
    last number of seven or more. Raises ValueError if they are not there."""
    ranges = []
    for key in ("observation.state", "action"):
        low, high = (saved_numbers(file, step, f"{key}.{end}").astype(np.float32) for end in ("min", "max"))
        check_ordered(low, high, ("min", "max"), f"{file}, {step.name}: {key}")
        ranges.append(Range(low, high, clips=clips))
    state, actions = ranges
    return Units(
        state, actions, steps=steps, gripper=actions.size - 1 if libero and actions.size > 6 else None
    )


def steps_of(modality: Any) -> int | None:
    """How many actions of a chunk are the embodiment's; None = all. Raises ValueError unless they are
    listed."""
    listed = part(modality, "action.delta_indices", [])
    if not isinstance(listed, list):
        raise ValueError(f"action.delta_indices is {listed!r}; it must be a list of whole numbers.")
    return len(listed) or None


def names_of(modality: Any, kind: str, where: str) -> tuple[str, ...]:
    """The names of its groups or cameras. Raises ValueError unless they are a list of names."""
    names = part(modality, f"{kind}.modality_keys")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{where}: {kind}.modality_keys is {names!r}; it must be a list of names.")
    return tuple(names)
