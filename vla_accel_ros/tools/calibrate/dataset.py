"""Read observations of a LeRobot dataset, version 3.0, spread over its episodes.

States are unchanged: in the units of the data that the checkpoint was trained on. The contract maps a camera
of the dataset to a policy's image; other cameras keep their own names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.models.json_file import check_pointer, read_json
from vla_accel_ros.tools.export.film import needed
from vla_accel_ros.types import Observation

STATE, IMAGES = "observation.state", "observation.images."
VERSION = "v3.0"
PARTS = ("meta", "data", "videos")
"""Its folders."""


def is_dataset(path: Path) -> bool:
    """Return whether a folder is a LeRobot dataset."""
    return (path / "meta" / "info.json").is_file()


def of_dataset(root: Path, limit: int, names: Mapping[str, str]) -> list[Observation]:
    """Return at most `most` observations. names: dataset camera -> policy image.

    Raises ValueError if the folder is no dataset of VERSION, is empty, or lacks a field, RuntimeError without
    pyarrow and av.
    """
    info = read_json(root / "meta" / "info.json")
    for file in sorted(file for part in PARTS for file in (root / part).rglob("*")):
        check_pointer(file)
    try:
        return _observations(root, info, limit, names)
    except (KeyError, IndexError, AttributeError, TypeError, ZeroDivisionError) as error:
        problem = f"it has no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{root} is no dataset of version {VERSION}: {problem}; copy it again.") from error


def _observations(
    root: Path, info: Mapping[str, Any], limit: int, names: Mapping[str, str]
) -> list[Observation]:
    if info.get("codebase_version") != VERSION:
        raise ValueError(
            f"{root} is a dataset of version {info.get('codebase_version')}; convert it to {VERSION}."
        )
    keys = [name for name, feature in info["features"].items() if feature["dtype"] == "video"]
    if not keys or STATE not in info["features"]:
        raise ValueError(f"{root} has no video or no {STATE}; give a dataset that has both.")
    tables = needed("pyarrow.parquet")
    tasks = tables.read_table(root / "meta" / "tasks.parquet").to_pydict()
    words = dict(zip(tasks["task_index"], tasks.get("task", tasks.get("__index_level_0__")), strict=True))
    episodes = [
        row
        for file in sorted((root / "meta" / "episodes").rglob("*.parquet"))
        for row in tables.read_table(file).to_pylist()
    ]
    total = sum(episode["length"] for episode in episodes)
    if not total:
        raise ValueError(f"{root} has no frame; record something first.")
    indices = set(np.linspace(0, total - 1, min(limit, total)).astype(int).tolist())
    observations: list[Observation] = []
    first = 0
    for episode in episodes:
        frames = [index - first for index in range(first, first + episode["length"]) if index in indices]
        first += episode["length"]
        if frames:
            observations += _of_episode(root, info, episode, frames, keys, names, words)
    return observations


def _of_episode(
    root: Path,
    info: Mapping[str, Any],
    episode: Mapping[str, Any],
    frames: list[int],
    keys: list[str],
    names: Mapping[str, str],
    words: Mapping[int, str],
) -> list[Observation]:
    indices = {name: episode[f"data/{name}"] for name in ("chunk_index", "file_index")}
    table = needed("pyarrow.parquet").read_table(root / info["data_path"].format(**indices))
    columns = {name: np.array(table[name].to_pylist()) for name in (STATE, "task_index", "episode_index")}
    rows = np.flatnonzero(columns["episode_index"] == episode["episode_index"])
    pictures = {key: _pictures(root, info, episode, key, frames) for key in keys}
    observations = []
    for number, frame in enumerate(frames):
        images = {}
        for key in keys:
            camera = key.removeprefix(IMAGES)
            images[names.get(camera, camera)] = pictures[key][number]
        row, stamp = rows[frame], round(1e9 * frame / info["fps"])
        state = columns[STATE][row].astype(np.float32)
        observations.append(Observation(images, state, words[int(columns["task_index"][row])], stamp))
    return observations


def _pictures(
    root: Path, info: Mapping[str, Any], episode: Mapping[str, Any], key: str, frames: list[int]
) -> list[np.ndarray]:
    """Return these frames of an episode, in order, uint8 [H, W, 3] each."""
    indices = {name: episode[f"videos/{key}/{name}"] for name in ("chunk_index", "file_index")}
    path = root / info["video_path"].format(video_key=key, **indices)
    begin, fps = episode[f"videos/{key}/from_timestamp"], info["fps"]
    pixels: dict[int, np.ndarray] = {}
    with needed("av").open(str(path)) as video:
        stream = video.streams.video[0]
        video.seek(int((begin + frames[0] / fps) / stream.time_base), stream=stream)
        for picture in video.decode(stream):
            frame = round((picture.time - begin) * fps)
            if frame in frames:
                pixels[frame] = picture.to_ndarray(format="rgb24")
            if frame >= frames[-1]:
                break
    missing = [frame for frame in frames if frame not in pixels]
    if missing:
        raise ValueError(f"{path} has no frame {missing[0]} of episode {episode['episode_index']}.")
    return [pixels[frame] for frame in frames]
