"""The measured times of a launch in each block shape, and their file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
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
        """Return a dictionary that `read` understands."""
        return {
            "case": self.name,
            "processors": self.processors,
            "shape": list(dataclasses.astuple(self.shape)),
            "us": {_name(config): round(us, 3) for config, us in self.times.items()},
        }


def read(document: Mapping[str, Any]) -> Iterator[Measured]:
    """Yield the launches of a file."""
    for each in document["cases"]:
        times = {_config(name): us for name, us in each["us"].items()}
        yield Measured(each["case"], each["processors"], Shape(*each["shape"]), times)


def gpu_in(document: Mapping[str, Any]) -> Gpu:
    """Return the GPU that a file is of."""
    return Gpu(**document["gpu"])


def _config(name: str) -> Config:
    block_m, block_n, block_k, split, warps, stages = map(int, name.split("x"))
    return Config(block_m, block_n, block_k, split, warps, stages)


def _name(config: Config) -> str:
    """block_m x block_n x block_k x split x warps x stages."""
    return "x".join(map(str, dataclasses.astuple(config)[:6]))
