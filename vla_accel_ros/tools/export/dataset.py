"""Write a LeRobot dataset, version 3.0, one episode at a time.

Every episode has its own parquet file and its own video of each camera, so that nothing is rewritten; readers
of this version find them by the indices in meta/episodes. meta/info.json is written last: a folder without
it, as after an error, is no dataset.

A robot that a person may take over has LeRobot's column `intervention`: whether a person commanded it, and
`control_source` says the same in rosetta's words. Of episodes that a person marked the last frame has
next.done, and next.success if they said so; the column outcome of meta/episodes has success, failure or
unlabeled. Subtasks are rows of LeRobot's `language_persistent`, which has the list of a whole episode in each
frame; each counts until the next one's timestamp. Where the task is acted on again, it is the next one.

Statistics are LeRobot's: min, max, mean, std, count and five quantiles, exact for numbers. For images every
few pixels are counted by value in each channel, from which all statistics follow exactly, since 8 bits have
only 256 values.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.recording.marks import SUCCESS
from vla_accel_ros.tools.export.episodes import Episode, row_contract
from vla_accel_ros.tools.export.film import Film, needed

_FILES = 1000
_PLACE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
_DATA = f"data/{_PLACE}.parquet"
_VIDEO = f"videos/{{video_key}}/{_PLACE}.mp4"
_EPISODES = "meta/episodes/chunk-000/file-000.parquet"
_NUMBERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_LANGUAGE = ("language_persistent", "language_events")
_FLAGS = {"next.done", "next.success", "intervention"}
QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_SIDE = 150

Statistics = dict[str, list]


class Dataset:
    """A dataset in a new or empty folder. subtasks: whether it has LeRobot's columns of language."""

    def __init__(self, root: Path, contract: Contract, fps: int, subtasks: bool = False) -> None:
        needed("pyarrow.parquet")
        self._arrow = needed("pyarrow")
        self._root, self._contract, self._fps, self._subtasks = root, contract, fps, subtasks
        self._tasks: dict[str, int] = {}
        self._episodes: list[dict[str, Any]] = []
        self._columns: dict[str, list[np.ndarray]] = {}
        self._pixels = {camera.name: PixelCounts() for camera in contract.cameras}
        self._video_info: dict[str, dict[str, Any]] = {}
        self._frames = 0
        self._films: dict[str, Film] = {}
        self._of_episode: dict[str, PixelCounts] = {}

    def add_image(self, camera: str, image: np.ndarray) -> None:
        """Add the next frame of a camera, uint8 [H, W, 3], to the episode that `add` will end."""
        if camera not in self._films:
            path = self._path(_VIDEO, video_key=_image_key(camera))
            self._films[camera] = Film(path, self._fps, *image.shape[:2])
            self._of_episode[camera] = PixelCounts()
        self._films[camera].add(image)
        self._of_episode[camera].add(image)

    def add(self, episode: Episode) -> None:
        """End an episode; `add_image` must have got every frame of every camera."""
        number, length = len(self._episodes), len(episode)
        for task in episode.tasks:
            self._tasks.setdefault(task, len(self._tasks))
        columns = {
            "observation.state": episode.states,
            "action": episode.actions,
            "timestamp": (np.arange(length) / self._fps).astype(np.float32),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, number),
            "index": np.arange(self._frames, self._frames + length),
            "task_index": np.array([self._tasks[task] for task in episode.tasks]),
        }
        if self._contract.teleop is not None:
            columns["intervention"] = episode.human
        if episode.outcome:
            last = np.arange(length) == length - 1
            columns["next.done"] = last & episode.ends
            columns["next.success"] = columns["next.done"] & (episode.outcome == SUCCESS)
        table = {name: self._column(values) for name, values in columns.items()}
        if self._contract.teleop is not None:
            table["control_source"] = np.where(episode.human, "teleop", "policy")
        if self._subtasks:
            table |= self._language(episode)
        self._write(self._path(_DATA), table)
        row = {
            "episode_index": number,
            "tasks": list(dict.fromkeys(episode.tasks)),
            "length": length,
            "dataset_from_index": self._frames,
            "dataset_to_index": self._frames + length,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
            **self._place("data"),
        }
        if episode.outcome:
            row["outcome"] = episode.outcome
        statistics = {name: of_numbers(_table(values)) for name, values in columns.items()}
        for camera, film in self._films.items():
            key = _image_key(camera)
            self._video_info[camera] = film.close()
            row |= self._place(f"videos/{key}")
            row |= {f"videos/{key}/from_timestamp": 0.0, f"videos/{key}/to_timestamp": length / self._fps}
            statistics[key] = self._of_episode[camera].statistics()
            self._pixels[camera] = self._pixels[camera] + self._of_episode[camera]
        row |= {f"stats/{name}/{k}": v for name, stats in statistics.items() for k, v in stats.items()}
        self._films, self._of_episode = {}, {}
        self._episodes.append(row)
        self._frames += length
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values)

    def finish(self) -> None:
        """Write the files that cover all episodes."""
        rows = {key: [row[key] for row in self._episodes] for key in self._episodes[0]}
        self._write(self._root / _EPISODES, rows)
        self._write_tasks()
        statistics: dict[str, Statistics] = {
            name: of_numbers(_table(np.concatenate(parts))) for name, parts in self._columns.items()
        }
        statistics |= {_image_key(camera): counts.statistics() for camera, counts in self._pixels.items()}
        self._json("stats.json", statistics)
        self._json("info.json", self._info())

    def _info(self) -> dict[str, Any]:
        return {
            "codebase_version": "v3.0",
            "robot_type": self._contract.robot,
            "total_episodes": len(self._episodes),
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "chunks_size": _FILES,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": self._fps,
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": _DATA,
            "video_path": _VIDEO,
            "features": self._features(),
        }

    def _features(self) -> dict[str, Any]:
        features: dict[str, Any] = {}
        for camera, info in self._video_info.items():
            shape = [info["video.height"], info["video.width"], 3]
            names = ["height", "width", "channels"]
            features[_image_key(camera)] = {"dtype": "video", "shape": shape, "names": names, "info": info}
        names_of = {"observation.state": self._contract.state_names}
        names_of["action"] = row_contract(self._contract).action_names
        for name, numbers in names_of.items():
            features[name] = {"dtype": "float32", "shape": [len(numbers)], "names": list(numbers)}
        for name in _FLAGS & self._columns.keys():
            features[name] = {"dtype": "bool", "shape": [1], "names": None}
        if self._contract.teleop is not None:
            features["control_source"] = {"dtype": "string", "shape": [1], "names": None}
        for name in _LANGUAGE if self._subtasks else ():
            features[name] = {"dtype": "language", "shape": [1], "names": None}
        for name in _NUMBERS:
            dtype = "float32" if name == "timestamp" else "int64"
            features[name] = {"dtype": dtype, "shape": [1], "names": None}
        return features

    def _write_tasks(self) -> None:
        """Write the tasks as pandas writes a table with the task as its index."""
        pa = self._arrow
        index = "__index_level_0__"
        table = pa.table(
            {"task_index": pa.array(list(self._tasks.values()), pa.int64()), index: list(self._tasks)}
        )
        described = [
            {"name": name, "field_name": field, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
            for name, field, kind, numpy in (
                ("task_index", "task_index", "int64", "int64"),
                (None, index, "unicode", "object"),
            )
        ]
        labels = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object"}
        pandas = {
            "index_columns": [index],
            "column_indexes": [{**labels, "metadata": {"encoding": "UTF-8"}}],
            "columns": described,
            "pandas_version": "2.0.0",
        }
        table = table.replace_schema_metadata({"pandas": json.dumps(pandas)})
        pa.parquet.write_table(table, self._root / "meta" / "tasks.parquet")

    def _language(self, episode: Episode) -> dict[str, Any]:
        """Return the columns of language; no events."""
        pa = self._arrow
        rows, spoken = list[dict[str, Any]](), ""
        for frame, (subtask, task) in enumerate(zip(episode.subtasks, episode.tasks)):
            if subtask != spoken:
                row = {"role": "assistant", "content": subtask or task, "style": "subtask"}
                rows.append({**row, "timestamp": frame / self._fps})
                spoken = subtask
        json_type = pa.json_() if hasattr(pa, "json_") else pa.string()
        return {
            name: pa.array([values] * len(episode), self._language_type(name, pa.string())).cast(
                self._language_type(name, json_type)
            )
            for name, values in zip(_LANGUAGE, (rows, []))
        }

    def _language_type(self, name: str, call: Any) -> Any:
        """Return LeRobot's type of a column of language."""
        pa = self._arrow
        fields = [pa.field("role", pa.string(), nullable=False), ("content", pa.string())]
        fields.append(("style", pa.string()))
        if name == "language_persistent":
            fields.append(pa.field("timestamp", pa.float32(), nullable=False))
        return pa.list_(pa.struct([*fields, ("camera", pa.string()), ("tool_calls", pa.list_(call))]))

    def _column(self, values: np.ndarray) -> Any:
        """Return float32 [N, D] as lists of D, [N] as numbers."""
        pa = self._arrow
        if values.ndim == 1:
            return pa.array(values)
        flat = pa.array(np.ascontiguousarray(values, np.float32).ravel())
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])

    def _write(self, path: Path, columns: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._arrow.parquet.write_table(self._arrow.table(columns), path)

    def _json(self, name: str, content: object) -> None:
        (self._root / "meta" / name).write_text(json.dumps(content, indent=4) + "\n")

    def _place(self, what: str) -> dict[str, int]:
        chunk, file = divmod(len(self._episodes), _FILES)
        return {f"{what}/chunk_index": chunk, f"{what}/file_index": file}

    def _path(self, pattern: str, **names: str) -> Path:
        chunk, file = divmod(len(self._episodes), _FILES)
        path = self._root / pattern.format(chunk_index=chunk, file_index=file, **names)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def of_numbers(values: np.ndarray) -> Statistics:
    """Return statistics of float or int [N, D]; each [D], count [1]."""
    table = values.astype(np.float64)
    statistics = {"min": table.min(axis=0), "max": table.max(axis=0)}
    statistics |= {"mean": table.mean(axis=0), "std": table.std(axis=0)}
    statistics |= {name: np.quantile(table, share, axis=0) for name, share in QUANTILES.items()}
    return {**{name: value.tolist() for name, value in statistics.items()}, "count": [len(values)]}


class PixelCounts:
    """Counts of pixel values in each channel over images."""

    def __init__(self) -> None:
        self.images = 0
        self._counts = np.zeros((3, 256), np.int64)

    def add(self, image: np.ndarray) -> None:
        """Count an image, uint8 [H, W, 3]."""
        every = max(1, max(image.shape[:2]) // _SIDE)
        for channel in range(3):
            values = image[::every, ::every, channel].ravel()
            self._counts[channel] += np.bincount(values, minlength=256)
        self.images += 1

    def __add__(self, other: PixelCounts) -> PixelCounts:
        total = PixelCounts()
        total.images = self.images + other.images
        total._counts = self._counts + other._counts
        return total

    def statistics(self) -> Statistics:
        """Return statistics of values in [0, 1]; each [3, 1, 1], count [1]."""
        values, weights = np.arange(256) / 255.0, self._counts / self._counts.sum(axis=1, keepdims=True)
        mean = weights @ values
        std = np.sqrt(np.maximum(weights @ values**2 - mean**2, 0.0))
        present = self._counts > 0
        figures = {
            "min": values[present.argmax(axis=1)],
            "max": values[255 - present[:, ::-1].argmax(axis=1)],
        }
        figures |= {"mean": mean, "std": std}
        below = weights.cumsum(axis=1)
        figures |= {
            name: values[np.minimum((below < share).sum(axis=1), 255)] for name, share in QUANTILES.items()
        }
        return {
            **{n: value.reshape(3, 1, 1).tolist() for n, value in figures.items()},
            "count": [self.images],
        }


def _image_key(camera: str) -> str:
    return f"observation.images.{camera}"


def _table(values: np.ndarray) -> np.ndarray:
    return values[:, None] if values.ndim == 1 else values
