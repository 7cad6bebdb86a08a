"""The measured times of a launch in each block shape, and their file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vla_accel_ros.kernels.gpu import Gpu
from vla_accel_ros.kernels.shapes import Config, Shape


class Measured(NamedTuple):
    """Microseconds of a launch by its block shape. processors: multiprocessors that it had."""

    name: str
    processors: int
    shape: Shape
    times: Mapping[Config, float]

    def on(self, gpu: Gpu) -> Gpu:
        """The multiprocessors that the launch had of a GPU."""
        return dataclasses.replace(gpu, processors=self.processors, of_all=gpu.of_all or gpu.processors)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that `load` understands."""
        return {
            "case": self.name,
            "processors": self.processors,
            "shape": list(dataclasses.astuple(self.shape)),
            "us": {_name(config): round(us, 3) for config, us in self.times.items()},
        }


class Document(NamedTuple):
    """A file of measured launches. contents: as parsed; gpu: that it is of."""

    contents: dict[str, Any]
    gpu: Gpu
    cases: list[Measured]


def load(path: Path) -> Document:
    """Read a file of bench/block_shapes.py. Raises ValueError, in one sentence, if it is none."""
    try:
        contents = json.loads(path.read_text())
        return Document(contents, Gpu(**contents["gpu"]), list(_cases(contents)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is no file of bench/block_shapes.py ({error!r}): measure one") from error


def _cases(contents: Mapping[str, Any]) -> Iterator[Measured]:
    for each in contents["cases"]:
        times = {_config(name): us for name, us in each["us"].items()}
        yield Measured(each["case"], each["processors"], Shape(*each["shape"]), times)


def _config(name: str) -> Config:
    block_m, block_n, block_k, split, warps, stages = map(int, name.split("x"))
    return Config(block_m, block_n, block_k, split, warps, stages)


def _name(config: Config) -> str:
    """block_m x block_n x block_k x split x warps x stages."""
    return "x".join(map(str, dataclasses.astuple(config)[:6]))
