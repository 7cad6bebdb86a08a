"""Read openpi's `assets/<id>/norm_stats.json`, the statistics of a policy's training data.

Wrong statistics move a robot to the wrong place without any error, so everything is checked and nothing
guessed: with several sets one must be named, and a policy without statistics must be asked for explicitly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.models.json_file import read_json
from vla_accel_ros.models.processing.conventions import Normalizer


def read_normalizers(folder: Path, quantile: bool, asset: str | None = None) -> tuple[Normalizer, Normalizer]:
    """Return (state, actions) of a checkpoint folder, by quantiles or by mean and std.

    Raises ValueError if there are no statistics, if there are several and `asset` is None, or if a number is
    invalid.
    """
    stats, file = _statistics(folder, asset)
    return _normalizer(stats, "state", quantile, file), _normalizer(stats, "actions", quantile, file)


def read_moments(folder: Path, asset: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of (states, actions), float64 [2, D] each, whichever of its
    statistics normalise. Raises ValueError as read_normalizers does."""
    stats, file = _statistics(folder, asset)
    state, actions = (
        np.stack([_numbers(stats, group, which, file) for which in ("mean", "std")])
        for group in ("state", "actions")
    )
    return state, actions


def _statistics(folder: Path, asset: str | None) -> tuple[Any, Path]:
    """Return the groups of a norm_stats.json, and the file."""
    files = _files(folder)
    mend = "copy the training run's folder `assets`, or pass normalize=False"
    file = files[chosen(files, asset, "asset", f"{folder / 'assets'} has {len(files)} norm_stats.json", mend)]
    data = read_json(file)
    return data.get("norm_stats", data), file


def chosen(names: Iterable[str], name: str | None, kind: str, where: str, mend: str) -> str:
    """Return the named set of statistics, or the only one if none is named. kind: what a set is. where:
    begins an error; mend: ends it if there is no set. Raises ValueError if there is none, or several and
    none is named."""
    available = sorted(names)
    if name is None and len(available) == 1:
        return available[0]
    if name is None or name not in available:
        request = f"no {kind} was named" if name is None else f"the {kind} '{name}' is not there"
        raise ValueError(f"{where} and {request}; {f'name one of {available}' if available else mend}.")
    return name


def statistics_names(folder: Path) -> tuple[str, ...]:
    """Return every `asset` that read_normalizers accepts."""
    return tuple(_files(folder))


def _files(folder: Path) -> dict[str, Path]:
    assets = folder / "assets"
    return {str(file.parent.relative_to(assets)): file for file in sorted(assets.glob("**/norm_stats.json"))}


def _normalizer(stats: Any, group: str, quantile: bool, file: Path) -> Normalizer:
    first, second = ("q01", "q99") if quantile else ("mean", "std")
    a, b = _numbers(stats, group, first, file), _numbers(stats, group, second, file)
    check_ordered(a, b, (first, second), f"{file}: norm_stats.{group}")
    return Normalizer.quantile(a, b) if quantile else Normalizer.mean_std(a, b)


def finite_numbers(value: Any, where: str) -> np.ndarray:
    """Return a list of D >= 1 finite numbers as float64 [D]. Raises ValueError naming `where` for anything
    else."""
    try:
        values = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.zeros(0)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError(f"{where} must be a list of finite numbers, one a dimension.")
    return values


def check_ordered(first: np.ndarray, second: np.ndarray, names: Sequence[str], where: str) -> None:
    """Raise ValueError unless two statistics [D] have as many numbers, none of the second below that of the
    first, or below 0 if it is a deviation."""
    if len(first) != len(second):
        raise ValueError(
            f"{where} has {len(first)} {names[0]} but {len(second)} {names[1]}; compute the statistics again."
        )
    least, called = (np.zeros(1), "0") if "std" in names[1] else (first, names[0])
    below = np.flatnonzero(second < least)
    if len(below):
        raise ValueError(f"{where}.{names[1]}[{below[0]}] is below {called}; compute the statistics again.")


def _numbers(stats: Any, group: str, field: str, file: Path) -> np.ndarray:
    try:
        value = stats[group][field]
    except (KeyError, TypeError, ValueError):
        value = None
        other = group.removesuffix("s")
        if isinstance(stats, dict) and group not in stats and other in stats:
            raise ValueError(
                f"{file} has norm_stats.{other}, but openpi reads norm_stats.{group}; rename the field if "
                "its numbers are those of the actions."
            ) from None
    return finite_numbers(value, f"{file}: norm_stats.{group}.{field}")
