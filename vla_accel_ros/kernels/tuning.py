"""Block shapes as data: a table for each kind of device; shapes that no table has are chosen by a model.

A table maps a kernel and its sizes to a Config. The user's cache is searched first, where `vla tune` writes
what it measured on this device with these versions, then the tables in the package, one for each compute
capability. Rows are rounded up to a power of two, so that one entry serves similar sizes; without an entry
for the number of rows, the nearest one is used. Without an entry for the other sizes either,
kernels.block_shapes chooses by the predicted time of a launch.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_accel_ros.kernels.block_shapes import chosen
from vla_accel_ros.kernels.gpu import Gpu, gpu_of
from vla_accel_ros.kernels.shapes import Config, Shape, round_up

if TYPE_CHECKING:  # only load_table needs torch
    import torch

FORMAT = 1


@dataclass
class Table:
    """The Configs of a kind of device, and the GPU for which those that are missing are chosen.

    hopper: shapes for which kernels/cuda are faster, where they can be used. smaller: for some of them a
    Config with smaller clusters, for a GPU on which those of hopper do not run at once.
    pdl: whether kernels start before the previous one has ended. source: where the entries come from.
    """

    gpu: Gpu
    entries: dict[str, Config] = field(default_factory=dict)
    pdl: bool = False
    source: str = "predicted times"
    hopper: dict[str, Config] = field(default_factory=dict)
    smaller: dict[str, Config] = field(default_factory=dict)

    def pick(self, shape: Shape) -> Config:
        """Return the entry of the shape, else the one with the nearest number of rows, else what
        kernels.block_shapes chooses."""
        if shape.key in self.entries:
            return self.entries[shape.key]
        name, _, *sizes = shape.key.split("/")
        near = [key for key in self.entries if key.split("/")[0] == name and key.split("/")[2:] == sizes]
        if near:
            rows = round_up(shape.rows)
            # Prefer the larger of two equally near entries: masked rows are correct for every shape.
            best = min(near, key=lambda key: (abs(_rows(key).bit_length() - rows.bit_length()), -_rows(key)))
            return self.entries[best]
        return chosen(shape, self.gpu)

    def pick_hopper(self, shape: Shape) -> list[Config]:
        """Return the kernels/cuda entries of the shape, or of the next larger number of rows (fewer rows take
        no longer), in the order in which to try them."""
        name, rows, *sizes = shape.key.split("/")
        same = [key for key in self.hopper if key.split("/")[0] == name and key.split("/")[2:] == sizes]
        key = min((key for key in same if _rows(key) >= int(rows)), key=_rows, default="")
        return [entries[key] for entries in (self.hopper, self.smaller) if key in entries]

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that read_table understands."""
        return {
            "format": FORMAT,
            "pdl": self.pdl,
            "configs": {key: asdict(config) for key, config in sorted(self.entries.items())},
            "hopper": {key: asdict(config) for key, config in sorted(self.hopper.items())},
            "smaller": {key: asdict(config) for key, config in sorted(self.smaller.items())},
        }


def load_table(device: torch.device, multiprocessors: int | None = None) -> Table:
    """Return the table of a CUDA device: the user's, the package's, or an empty one.

    multiprocessors: of an SM partition. Returns the table that `vla tune --sms` made for that number if there
    is one, else the device's, which gives the same bits as without a partition. Raises ValueError naming the
    file if it cannot be read.
    """
    if multiprocessors is not None and (partition_file := cache_file(device, multiprocessors)).exists():
        return read_table(partition_file.read_text(), str(partition_file), gpu_of(device, multiprocessors))
    cached = cache_file(device)
    if cached.exists():
        return read_table(cached.read_text(), str(cached), gpu_of(device))
    return packaged_table(gpu_of(device))


def packaged_table(gpu: Gpu) -> Table:
    """Return the package's table for a GPU's compute capability; an empty one, with early starts where the
    device has them, if there is none."""
    packaged = resources.files("vla_accel_ros.kernels") / "tuning" / f"sm_{gpu.capability}.json"
    if packaged.is_file():
        return read_table(packaged.read_text(), packaged.name, gpu)
    return Table(gpu, pdl=gpu.capability >= EARLY_STARTS)


EARLY_STARTS = 90
"""The first compute capability with programmatic dependent launch."""
MOST_BYTES = 4 << 20
"""Largest JSON of a table; `vla tune` writes some tens of kB."""


def read_table(text: str, name: str, gpu: Gpu) -> Table:
    """Parse a table's JSON. Raises ValueError naming the file if it is malformed."""
    try:
        if len(text) > MOST_BYTES:
            raise ValueError(f"{len(text)} bytes, a table has at most {MOST_BYTES}")
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, not {FORMAT}")
        entries, hopper, smaller = (
            {key: Config(**config) for key, config in data.get(name, {}).items()}
            for name in ("configs", "hopper", "smaller")
        )
        return Table(gpu, entries, bool(data["pdl"]), name, hopper, smaller)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{name} is no tuning table ({error}); remove it or run `vla tune` again."
        ) from error


def cache_file(device: torch.device, multiprocessors: int | None = None) -> Path:
    """Return where `vla tune` keeps the table of a device, or of so many of its SMs. The name has GPU and
    versions, because either changes the best shapes."""
    import torch
    import triton

    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    gpu = torch.cuda.get_device_name(device).replace(" ", "-").replace("/", "-")
    versions = f"torch{torch.__version__}-triton{triton.__version__}".replace("/", "-")
    part = "" if multiprocessors is None else f"-{multiprocessors}sms"
    return base / "vla_accel_ros" / "tuning" / f"{gpu}{part}-{versions}.json"


def _rows(key: str) -> int:
    return int(key.split("/")[1])
