"""Read an OpenVLA folder's statistics: the quantiles of the actions, and mean and deviation of the pixels.

A published model was trained on dozens of data sets with different robots. Statistics of the wrong one move a
robot to the wrong place without any error, so the data set must be named unless there is only one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.models.checkpoints.fields import check_fields, words
from vla_accel_ros.models.json_file import read_json
from vla_accel_ros.models.openvla.policy import ActionStats, PixelNorm
from vla_accel_ros.models.processing.norm_stats import check_ordered, chosen, finite_numbers

ACTION_FIELDS = words("mean std min max q01 q99 mask")
PIXEL_FIELDS = words("""
    means stds input_sizes tvf_resize_params tvf_crop_params tvf_normalize_params tvf_letterbox_fill
    tvf_do_letterbox image_processor_type feature_extractor_type processor_class auto_map
""")
PIXEL_FIXED = {
    "image_resize_strategy": "resize-naive",
    "interpolations": ["bicubic", "bicubic"],
    "use_fused_vision_backbone": True,
}
BICUBIC = 3
"""Number of the filter in Pillow."""


def read_action_stats(folder: Path, dataset: str | None = None) -> ActionStats:
    """Return the statistics of one data set, from `dataset_statistics.json` (written by fine-tuning) or
    config.json.

    Raises ValueError if there are none, if there are several and `dataset` is None, or if a number is
    invalid.
    """
    where, data = chosen_statistics(folder, dataset)
    where, action = f"{where}.action", data.get("action")
    entry = action if isinstance(action, dict) else {}
    check_fields(entry, f"{where}: ", ACTION_FIELDS, {})
    low, high, mask = read_ends(entry, ("q01", "q99"), where)
    ends = None
    if "min" in entry and "max" in entry:
        ends = np.stack([_as_long(entry[name], len(low), f"{where}.{name}") for name in ("min", "max")])
    return ActionStats(low, high, mask, ends=ends)


def read_ends(entry: Any, names: Sequence[str], where: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return low, high float64 [D], the two named statistics, and mask bool [D]. Raises ValueError if one is
    malformed, or a high is below its low."""
    entry = entry if isinstance(entry, dict) else {}
    low, high = (finite_numbers(entry.get(name), f"{where}.{name}") for name in names)
    mask = entry.get("mask", [True] * len(low))
    whole = isinstance(mask, list) and all(isinstance(flag, bool) for flag in mask)
    if not whole or len(mask) != len(low):
        raise ValueError(
            f"{where} has {len(low)} {names[0]} and the mask {mask}; give true or false for each."
        )
    check_ordered(low, high, names, where)
    return low, high, np.array(mask, np.bool_)


def chosen_statistics(folder: Path, dataset: str | None) -> tuple[str, dict[str, Any]]:
    """Return the statistics of one data set, and where they stand. Raises ValueError if there are none, or
    several and `dataset` is None."""
    file, where, data = _statistics(folder)
    having = f"{file} has statistics of {len(data)} datasets"
    dataset = chosen(data, dataset, "dataset", having, "copy the published file")
    entry = data[dataset]
    return f"{file}: {where}{dataset}", entry if isinstance(entry, dict) else {}


def _as_long(value: Any, size: int, where: str) -> np.ndarray:
    numbers = finite_numbers(value, where)
    if len(numbers) != size:
        raise ValueError(f"{where} has {len(numbers)} numbers, but q01 has {size}; compute it again.")
    return numbers


def statistics_names(folder: Path) -> tuple[str, ...]:
    """Return every `dataset` that read_action_stats accepts."""
    return tuple(sorted(_statistics(folder)[2]))


def _statistics(folder: Path) -> tuple[Path, str, dict[str, Any]]:
    """Return the file with the statistics, the prefix of a data set's name in it, and the data sets."""
    file, where = folder / "dataset_statistics.json", ""
    data: Any = read_json(file) if file.is_file() else None
    if data is None:
        file, where = folder / "config.json", "norm_stats."
        data = read_json(file).get("norm_stats")
    data = data if isinstance(data, dict) else {}
    if isinstance(data.get("action"), dict) and "q01" in data["action"]:
        raise ValueError(
            f'{file} has {where}action without the name of its data set; write {{"NAME": {{...}}}} around '
            "the statistics."
        )
    return file, where, data


def read_pixel_norm(folder: Path) -> PixelNorm:
    """Return mean and deviation of each tower's pixels, from `preprocessor_config.json`.

    The published file has ImageNet's values rounded to bfloat16; without a file they are ImageNet's. Raises
    ValueError if the file is malformed or asks for another resize.
    """
    file = folder / "preprocessor_config.json"
    if not file.is_file():
        return PixelNorm()
    data = read_json(file)
    check_fields(data, f"{file}: ", PIXEL_FIELDS, PIXEL_FIXED)
    _check_transforms(file, data)
    means, stds = (_six(data.get(name), f"{file}: {name}") for name in ("means", "stds"))
    written = data.get("tvf_normalize_params")
    if written is not None:  # what the processor reads back in place of means and stds
        where = f"{file}: tvf_normalize_params."
        towers = [t if isinstance(t, dict) else {} for t in (written if isinstance(written, list) else [])]
        means, stds = (_six([t.get(name) for t in towers], where + name) for name in ("mean", "std"))
    if min(stds) <= 0:
        raise ValueError(f"{file}: stds has {min(stds)}; every one must be above 0.")
    return PixelNorm(means, stds)


def _check_transforms(file: Path, data: dict[str, Any]) -> None:
    """Raise ValueError unless the transforms that the processor wrote out are a resize to a square and a crop
    of nothing; it reads them back in place of its other fields."""
    boxes = data.get("tvf_do_letterbox", False)
    if boxes not in (False, [False, False]):
        raise ValueError(f"{file}: tvf_do_letterbox is {boxes!r}; only False is known.")
    sizes = data.get("input_sizes", [[3, 224, 224]] * 2)
    if not isinstance(sizes, list) or not all(isinstance(size, list) and len(size) == 3 for size in sizes):
        raise ValueError(
            f"{file}: input_sizes is {sizes!r}; give channels, height and width of either tower."
        )
    for index, (_, height, width) in enumerate(sizes):
        for name, only in (
            ("tvf_resize_params", {"size": [height, width], "interpolation": BICUBIC, "max_size": None}),
            ("tvf_crop_params", {"output_size": [height, width]}),
        ):
            towers = data.get(name, [only] * len(sizes))
            written = towers[index] if isinstance(towers, list) and len(towers) == len(sizes) else towers
            same = isinstance(written, dict) and all(written.get(key) == only[key] for key in only)
            if not same or height != width:
                raise ValueError(
                    f"{file}: {name}[{index}] is {written!r}; only {only!r}, a square, is known."
                )


def _six(value: Any, where: str) -> tuple[float, ...]:
    rows = value if isinstance(value, list) and len(value) == 2 else []
    numbers = [finite_numbers(row, f"{where}[{index}]").tolist() for index, row in enumerate(rows)]
    if [len(row) for row in numbers] != [3, 3]:
        raise ValueError(f"{where} is {value!r}; give three numbers for either tower.")
    return (*numbers[0], *numbers[1])
