"""Units of a mimic-video policy from the statistics of its training's data set.

Positions and grippers are normalised by the mean and deviation of what is within a clamp, 1.5 times as far
from the mean as the quantiles 2 and 98 %; rotations (two rows of a matrix) pass as they are. A state is cut
to the clamp, an action is not. The names of the fields say which experiment a data set belongs to, and so
what its actions are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.models.checkpoints.fields import check_fields, words
from vla_accel_ros.models.checkpoints.shards import inside
from vla_accel_ros.models.json_file import read_json
from vla_accel_ros.models.processing.conventions import Normalizer
from vla_accel_ros.models.processing.norm_stats import chosen, finite_numbers

NAME = "dataset_statistics"
STATE = ("obs/eef_pos_lowdim", "obs/eef_rot_lowdim", "obs/gripper_lowdim")
ACTIONS = {
    "eef_pos eef_rot gripper": "poses of a hand relative to its own at the observation, and a gripper",
    "eef_pos_ref_delta eef_rot_ref_delta gripper_action": "steps of a hand's pose, and a gripper",
}
"""Fields of an action, `action/NAME_lowdim`, and what it is: of Bridge and of LIBERO."""
ROTATION = "_rot_"
FIELDS = words("min max mean std percentiles clamp_min clamp_max mean_clamped std_clamped")
LOW, HIGH, GRID = 20, 980, 1001
"""Places of the quantiles 2 and 98 % among all, in tenths of a percent."""
BEYOND, STILL = 1.5, 1e-5


@dataclass(frozen=True)
class Units:
    """state, actions: between a robot's units and the network's. clamp: float32 [2, D], the lowest and
    highest state in the network's. kind: what an action is, in words."""

    state: Normalizer
    actions: Normalizer
    clamp: np.ndarray
    kind: str


_ANY = np.array([[-np.inf], [np.inf]], np.float32)
UNKNOWN = Units(Normalizer.identity(), Normalizer.identity(), _ANY, "")
"""Of a policy without statistics: numbers pass as they are."""


def statistics_files(folder: Path) -> dict[str, Path]:
    """Return the files with statistics by their names."""
    files = [folder / f"{NAME}.json", *sorted((folder / NAME).glob("*.json"))]
    return {file.stem: file for file in files if file.is_file()}


def read_units(folder: Path, name: str | None, state_dim: int, action_dim: int) -> Units:
    """Return the units of a data set. Raises ValueError if there is none of that name, or several and none
    is named, or a number is invalid."""
    files = statistics_files(folder)
    where, mend = f"{folder} has {len(files)} {NAME}.json", "copy the one of the training there"
    file = inside(folder, files[chosen(files, name, "data set", where, mend)])
    data = read_json(file)
    for names, kind in ACTIONS.items():
        fields = tuple(f"action/{part}_lowdim" for part in names.split())
        if all(field in data for field in fields):
            (state, clamp), (actions, _) = (_joined(data, group, file) for group in (STATE, fields))
            if (state.size, actions.size) != (state_dim, action_dim):
                raise ValueError(
                    f"{file} has {state.size} numbers of a state and {actions.size} of an action, but the "
                    f"network has {state_dim} and {action_dim}; give those of its training."
                )
            return Units(state, actions, clamp, kind)
    raise ValueError(f"{file} has {sorted(data)[:9]}; give one with action/NAME_lowdim of {[*ACTIONS]}.")


def _joined(data: Mapping[str, Any], fields: tuple[str, ...], file: Path) -> tuple[Normalizer, np.ndarray]:
    parts = [_part(data.get(field), field, f"{file}: {field}") for field in fields]
    shift, scale, low, high = np.concatenate(parts, axis=1)
    return Normalizer(shift, scale), np.stack((low, high))


def _part(entry: Any, field: str, where: str) -> np.ndarray:
    """Shift, scale and clamp of a field, float32 [4, D]."""
    entry = entry if isinstance(entry, dict) else {}
    check_fields(entry, f"{where}: ", FIELDS, {})
    mean = finite_numbers(entry.get("mean"), f"{where}.mean").astype(np.float32)
    if ROTATION in field:
        return np.stack([np.full_like(mean, value) for value in (0, 1, -np.inf, np.inf)])
    grid = entry.get("percentiles")
    if not isinstance(grid, list) or len(grid) != GRID:
        raise ValueError(f"{where}.percentiles must be {GRID} rows of numbers; copy the file again.")
    values = {name: entry.get(name) for name in ("mean_clamped", "std_clamped")}
    values |= {f"percentiles[{row}]": grid[row] for row in (LOW, HIGH)}
    numbers = [finite_numbers(value, f"{where}.{name}").astype(np.float32) for name, value in values.items()]
    if {*map(len, numbers)} != {len(mean)} or (numbers[1] < 0).any():
        raise ValueError(f"{where}: all must have {len(mean)} numbers, no deviation below 0; copy it again.")
    shift, deviation, *ends = numbers
    scale = np.where(deviation < STILL, np.float32(1), deviation)
    return np.stack((shift, scale, *((mean + BEYOND * (end - mean) - shift) / scale for end in ends)))
