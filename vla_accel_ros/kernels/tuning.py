"""Block shapes as data: a table for each kind of device, and a safe default for shapes that no table has.

A table maps a kernel and its sizes to a Config. The user's cache is searched first, where `vla tune` writes
what it measured on this device with these versions, then the tables in the package, one for each compute
capability. Rows are rounded up to a power of two, so that one entry serves similar sizes; without an entry
for the number of rows, the nearest one is used. The safe default stays within the shared memory of every GPU
since sm_80 and makes about two blocks for each SM.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # only load_table and Shape.itemsize need torch
    import torch

SHARED_BYTES = 96 << 10
"""Shared memory of a block on every GPU from sm_80 on (sm_86 and sm_89: 99 KiB)."""
FORMAT = 1
ATTENTION = ("attend", "attend_rotary")
WAYS = ("triton", "cuda")
PARTED = "product_in_parts"
"""A cuBLAS product, whose tiles change with every few rows."""
PARTED_ROWS = 256
INT8_PRODUCT, INT8_GATED = "int8_product", "int8_gated"
"""Products of 8-bit rows and weights, int8 or fp8; gated: with two tiles of weights."""


@dataclass(frozen=True)
class Config:
    """Launch parameters. block_m, block_n, block_k: rows, columns and inner dimension of a tile. split: parts
    of the inner dimension, or of the keys. warps: of a block. stages: loads in flight. way: "triton", or
    "cuda" for kernels/cuda, which choose some of these themselves. down, across: blocks of a cluster that
    share weights, and activations (cuda/tiles.cu). Raises ValueError if a value is out of range."""

    block_m: int
    block_n: int
    block_k: int
    split: int = 1
    warps: int = 4
    stages: int = 3
    way: str = "triton"
    down: int = 1
    across: int = 1

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"way is {self.way!r}; a kernel is one of {', '.join(WAYS)}.")
        for name in ("block_m", "block_n", "block_k"):
            value = getattr(self, name)
            if value < 16 or value % 16 or (self.way == "triton" and value & (value - 1)):
                raise ValueError(f"{name} is {value}; a tile needs a power of two of at least 16.")
        least = min(self.split, self.stages, self.down, self.across)
        if least < 1 or self.warps not in (1, 2, 4, 8, 16):
            raise ValueError(
                f"{self} cannot launch a kernel; give 1 to 16 warps, and at least 1 for all else."
            )


@dataclass(frozen=True)
class Shape:
    """What a kernel's speed depends on.

    kernel: its name in kernels.ops. rows: of its activations. columns: that it makes (keys, for attention).
    inner: inner dimension. dtype: of its weights, such as "bfloat16".
    """

    kernel: str
    rows: int
    columns: int
    inner: int
    dtype: str

    @property
    def key(self) -> str:
        """The key in a table: rows rounded up to a power of two (PARTED: to 256), any number of keys."""
        columns = "any" if self.kernel in ATTENTION else self.columns
        rows = -(-self.rows // PARTED_ROWS) * PARTED_ROWS if self.kernel == PARTED else round_up(self.rows)
        return f"{self.kernel}/{rows}/{columns}/{self.inner}/{self.dtype}"

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype.itemsize


@dataclass
class Table:
    """The Configs of a kind of device, and its number of SMs for safe defaults.

    hopper: shapes for which kernels/cuda are faster, where they can be used.
    pdl: whether kernels start before the previous one has ended. source: where the entries come from.
    """

    processors: int
    entries: dict[str, Config] = field(default_factory=dict)
    pdl: bool = False
    source: str = "safe defaults"
    hopper: dict[str, Config] = field(default_factory=dict)

    def pick(self, shape: Shape) -> Config:
        """Return the entry of the shape, else the one with the nearest number of rows, else a safe
        default."""
        if shape.key in self.entries:
            return self.entries[shape.key]
        name, _, *rest = shape.key.split("/")
        near = [key for key in self.entries if key.split("/")[0] == name and key.split("/")[2:] == rest]
        if near:
            rows = round_up(shape.rows)
            # Prefer the larger of two equally near entries: masked rows are correct for every shape.
            best = min(near, key=lambda key: (abs(_rows(key).bit_length() - rows.bit_length()), -_rows(key)))
            return self.entries[best]
        return safe(shape, self.processors)

    def pick_hopper(self, shape: Shape) -> Config | None:
        """Return the kernels/cuda entry of the shape, or of the next larger number of rows (fewer rows take
        no longer).

        None if there is none.
        """
        if shape.key in self.hopper:
            return self.hopper[shape.key]
        name, rows, *rest = shape.key.split("/")
        same = [key for key in self.hopper if key.split("/")[0] == name and key.split("/")[2:] == rest]
        more = [key for key in same if _rows(key) > int(rows)]
        return self.hopper[min(more, key=_rows)] if more else None

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that read_table understands."""
        return {
            "format": FORMAT,
            "pdl": self.pdl,
            "configs": {key: asdict(config) for key, config in sorted(self.entries.items())},
            "hopper": {key: asdict(config) for key, config in sorted(self.hopper.items())},
        }


def round_up(n: int) -> int:
    """Return the smallest power of two that is at least n and 16."""
    return max(16, 1 << (n - 1).bit_length())


def safe(shape: Shape, processors: int) -> Config:
    """Return a Config that runs on every GPU since sm_80, with many blocks rather than large ones."""
    if shape.kernel in ATTENTION:
        tile = 16 if shape.rows <= 16 or shape.itemsize > 2 else 32
        block = _fitting(32, 2 * round_up(shape.inner), shape.itemsize, least=16)
        parts = max(1, min(4, processors // max(1, -(-shape.rows // tile)), -(-shape.columns // block)))
        return Config(tile, block, 16, split=parts, warps=4, stages=1)
    if shape.kernel == "read_out":
        return Config(16, 16, 256)
    if shape.kernel in (INT8_PRODUCT, INT8_GATED):
        return _safe_int8(shape, processors)
    block_m = 16 if shape.rows <= 16 else 32
    block_n = 16 if shape.columns < 64 * processors else 32
    # Weight tiles that a block holds at a time, beside one of activations.
    right = 2 if shape.kernel in ("rotary_qkv", "gated_up") else 1
    most = 64 if shape.kernel == "embed_actions" else 128
    block_k = _fitting(most, 3 * (block_m + right * block_n), shape.itemsize, least=16)
    tiles = -(-shape.rows // block_m) * -(-shape.columns // block_n)
    split = 1
    if shape.kernel == "project":
        while split < 8 and tiles * split < processors and shape.inner // (2 * split) >= block_k:
            split *= 2
    return Config(block_m, block_n, block_k, split)


def _safe_int8(shape: Shape, processors: int) -> Config:
    """Return large tiles if they fill the SMs, else smaller ones."""
    for block_m, block_n, warps in ((128, 64, 8), (64, 64, 4), (64, 32, 4)):
        tiles = -(-shape.rows // block_m) * -(-shape.columns // block_n)
        if shape.rows > block_m // 2 and tiles >= processors:
            return Config(block_m, block_n, 64 if warps == 8 else 128, warps=warps, stages=3)
    return Config(16 if shape.rows <= 16 else 32 if shape.rows <= 32 else 64, 32, 128, warps=4, stages=3)


def _fitting(most: int, per_unit: int, itemsize: int, least: int) -> int:
    """Return the largest power of two up to `most` for which per_unit elements each fit into shared
    memory."""
    while most > least and most * per_unit * itemsize > SHARED_BYTES:
        most //= 2
    return most


def load_table(device: torch.device, multiprocessors: int | None = None) -> Table:
    """Return the table of a CUDA device: the user's, the package's, or an empty one.

    multiprocessors: of an SM partition. Returns the table that `vla tune --sms` made for that number if there
    is one, else the device's, which gives the same bits as without a partition. Raises ValueError naming the
    file if it cannot be read.
    """
    import torch

    if multiprocessors is not None and (own := cache_file(device, multiprocessors)).exists():
        return read_table(own.read_text(), str(own), multiprocessors)
    properties = torch.cuda.get_device_properties(device)
    cached = cache_file(device)
    if cached.exists():
        return read_table(cached.read_text(), str(cached), properties.multi_processor_count)
    return packaged_table(10 * properties.major + properties.minor, properties.multi_processor_count)


def packaged_table(capability: int, processors: int) -> Table:
    """Return the package's table for a compute capability, such as 90; an empty one if there is none."""
    packaged = resources.files("vla_accel_ros.kernels") / "tuning" / f"sm_{capability}.json"
    if packaged.is_file():
        return read_table(packaged.read_text(), packaged.name, processors)
    return Table(processors)


MOST_BYTES = 4 << 20
"""Largest JSON of a table; `vla tune` writes some tens of kB."""


def read_table(text: str, name: str, processors: int) -> Table:
    """Parse a table's JSON. Raises ValueError naming the file if it is malformed."""
    try:
        if len(text) > MOST_BYTES:
            raise ValueError(f"{len(text)} bytes, a table has at most {MOST_BYTES}")
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, not {FORMAT}")
        entries, hopper = (
            {key: Config(**config) for key, config in data.get(name, {}).items()}
            for name in ("configs", "hopper")
        )
        return Table(processors, entries, bool(data["pdl"]), name, hopper)
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
