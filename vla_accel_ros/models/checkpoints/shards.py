"""The safetensors files of a folder as one table of tensors.

A checkpoint is one `model.safetensors`, or several files with an index. Names, shapes and dtypes are read
from the headers and compared with the model before any weight is read, so that one error can list everything
that is wrong. Only files inside the folder are opened, and no pickle is run: an index or link that leads
elsewhere is refused, except for the links of Hugging Face's cache.

A stored tensor may hold several parameters of a model as consecutive rows, if the file's header says so
(FUSED). The table then lists the parts, so its readers need not know.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vla_accel_ros.models.checkpoints.torch_file import STORAGES, TorchFile
from vla_accel_ros.models.json_file import check_pointer, read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
TORCH = dict(STORAGES.values())
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
ADAPTERS = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
"""Files that peft writes instead of weights."""
FUSED = "vla_accel_ros.fused"
"""Metadata key of the header; its JSON value gives the rows of each part of a fused tensor: {tensor: {part:
rows}}, first rows first."""


COMPILED = "_orig_mod."
"""What torch.compile puts into the names of a module that it wraps, wherever it stands; old checkpoints of
lerobot have it. Names are read without it."""


class Part(NamedTuple):
    """The stored tensor that holds this part, and the part's first row in it."""

    tensor: str
    start: int


class LowRank(NamedTuple):
    """A product of two matrices that is added to a tensor: scale * B A. a, b: names in `file`. transposed: of
    an embedding, whose rows are the columns of B A. See adapters."""

    file: Path
    a: str
    b: str
    scale: float
    transposed: bool = False

    def added(self, value: Tensor, rows: slice) -> Tensor:
        """Return some rows of a tensor with the same rows of the product."""
        with open_weights(self.file) as tensors:
            a, b = (tensors.get_tensor(name).flatten(1).float() for name in (self.a, self.b))
        wide, narrow = (a.t(), b.t()) if self.transposed else (b, a)
        product = (wide[rows] @ narrow).mul_(self.scale).reshape(value.shape)
        return value.to(torch.promote_types(value.dtype, product.dtype)) + product


@dataclass(frozen=True)
class Stored:
    """Where a tensor is stored, with its header entry. dtype: safetensors' name for it. part: None for a
    whole tensor. added: what is added when it is read. transposed: whether the file has columns as rows."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    part: Part | None = None
    added: LowRank | None = None
    transposed: bool = False

    @property
    def bytes(self) -> int:
        """Its size in the file."""
        return BYTES.get(self.dtype, 1) * torch.Size(self.shape).numel()


MOST_HEADER_BYTES = 4 << 20
"""Largest header that is read: some 40,000 tensors. The library accepts 100 MB, and needs far more memory for
it."""


def open_weights(file: Path) -> Any:
    """Open and map a safetensors file, or one of torch.save that a family names. Raises ValueError if it is
    incomplete or malformed."""
    check_pointer(file)
    if file.suffix in (".pt", ".pth"):
        return TorchFile(file)
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
        if size > MOST_HEADER_BYTES:
            raise ValueError(
                f"{file} is not a readable safetensors file (a header of {size} bytes, at most "
                f"{MOST_HEADER_BYTES} are read); copy it again."
            )
        return safe_open(str(file), framework="pt")
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} is not a readable safetensors file ({error}); copy it again.") from error


def read_table(folder: Path) -> dict[str, Stored]:
    """Return every tensor of a folder, from the headers alone. Raises ValueError if a file is missing or
    broken."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; give the checkpoint's folder.")
    if (folder / SINGLE).is_file():
        return read_headers(inside(folder, folder / SINGLE))
    if not (folder / INDEX).is_file():
        files = sorted(p.name for p in folder.iterdir() if p.suffix in (".safetensors", *PICKLED))
        raise ValueError(
            f"{folder} has no {SINGLE} and no {INDEX} (but {files}); save the weights as safetensors, since "
            "pickled files are never opened."
        )
    where = _index(folder / INDEX)
    absent = sorted(name for name in set(where.values()) if not (folder / name).is_file())
    if absent:
        raise ValueError(f"{folder / INDEX} names {absent}, which are not there; copy the folder again.")
    return {
        name: stored
        for shard in sorted(set(where.values()))
        for name, stored in read_headers(inside(folder, folder / shard)).items()
        if where.get(name, shard) == shard
    }


def named(table: Mapping[str, Stored], name: Callable[[str], str]) -> dict[str, Stored]:
    """Return the entries of a table by the names that `name` makes of those in their files."""
    return {
        name(stored_name): replace(stored, part=stored.part or Part(stored_name, 0))
        for stored_name, stored in table.items()
    }


def inside(folder: Path, file: Path) -> Path:
    """Return `file` if it resolves to a path inside `folder`, or inside the blobs of the Hugging Face cache
    that the folder is a snapshot of. Raises ValueError if a link leads elsewhere."""
    target, homes = file.resolve(), [folder.resolve()]
    if folder.resolve().parent.name == "snapshots":
        homes.append(folder.resolve().parent.parent / "blobs")
    if not any(target.is_relative_to(home) for home in homes):
        raise ValueError(f"{file} is a link to {target}, outside of its folder; copy the file itself.")
    return file


def value_of(opened: Any, name: str, stored: Stored, rows: slice = slice(None)) -> Tensor:
    """Return a tensor of an opened file, or some of its rows. It may be a view that lives as long as the file
    is open."""
    if stored.added is not None:
        value = stored.added.added(value_of(opened, name, replace(stored, added=None), rows), rows)
        return value.to(TORCH[stored.dtype])
    if stored.transposed:
        return value_of(opened, name, replace(stored, transposed=False, shape=stored.shape[::-1])).t()[rows]
    if stored.part is None:
        return opened.get_tensor(name) if rows == slice(None) else opened.get_slice(name)[rows]
    if not stored.shape:
        return opened.get_tensor(stored.part.tensor)
    first, last, _ = rows.indices(stored.shape[0])
    tensor, start = stored.part
    return opened.get_slice(tensor)[start + first : start + last]


def check_merged(folder: Path, tensors: Iterable[str]) -> None:
    """Raise ValueError if a folder has LoRA adapters, as files or by the names of tensors. Without them the
    weights are those of another model; a conversion merges them."""
    adapters = [name for name in ADAPTERS if (folder / name).is_file()]
    mend = f"by vla convert BASE OUT --adapter {folder}" if adapters else "and give a folder with those alone"
    adapters += [name for name in tensors if "lora_" in name.lower()]
    if adapters:
        raise ValueError(
            f"{folder} has LoRA adapters ({adapters[0]}), which are not applied here; merge them into the "
            f"weights of their base model, {mend}."
        )


def check_table(
    table: Mapping[str, Stored],
    wanted: Mapping[str, tuple[int, ...]],
    unused: Callable[[str], bool],
    where: Path,
) -> None:
    """Raise one ValueError that lists every difference between `table` and a model's parameters.

    wanted: name and shape of every parameter. unused: whether a tensor without a parameter may be present.
    """
    missing = sorted(set(wanted) - set(table))
    unexpected = sorted(name for name in set(table) - set(wanted) if not unused(name))
    shared_names = sorted(set(wanted) & set(table))
    misshapen = [
        f"{name} {list(table[name].shape)} instead of {list(wanted[name])}"
        for name in shared_names
        if table[name].shape != tuple(wanted[name])
    ]
    mistyped = [f"{name} {table[name].dtype}" for name in shared_names if table[name].dtype not in BYTES]
    if missing or unexpected or misshapen or mistyped:
        raise ValueError(
            f"{where} does not fit the model: missing {missing}, unexpected {unexpected}, "
            f"misshapen {misshapen}, not floating point {mistyped}; make config.json and the weights of "
            "one model."
        )


def read_headers(file: Path) -> dict[str, Stored]:
    """Return every tensor of one file; a fused tensor is replaced by its parts.

    Raises ValueError if the header's parts do not match the stored tensor.
    """
    with open_weights(file) as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        table = {name: Stored(file, tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
        fused = (tensors.metadata() or {}).get(FUSED)
    for whole, parts in _fused(fused, file).items():
        stored = table.pop(whole, None)
        rows_there = stored.shape[0] if stored is not None and stored.shape else 0
        if stored is None or sum(parts.values()) != rows_there or parts.keys() & table.keys():
            raise ValueError(
                f"{file}, {FUSED} of its header: {whole} has {rows_there} rows, which are not those "
                f"of {parts}; convert it again."
            )
        start = 0
        for name, rows in parts.items():
            shape = (rows, *stored.shape[1:])
            table[name] = Stored(file, shape, stored.dtype, Part(whole, start))
            start += rows
    return _uncompiled(table)


def _uncompiled(table: dict[str, Stored]) -> dict[str, Stored]:
    """The table by the names that the module has by itself; each is all rows of what the file names."""
    uncompiled = {}
    for name, stored in table.items():
        plain_name = name.replace(COMPILED, "")
        renames = plain_name not in table and stored.part is None and stored.shape
        uncompiled[plain_name if renames else name] = (
            replace(stored, part=Part(name, 0)) if renames else stored
        )
    return uncompiled


def _fused(text: str | None, file: Path) -> dict[str, dict[str, int]]:
    if text is None:
        return {}
    try:
        wholes = json.loads(text)
        entries = [rows for parts in wholes.values() for rows in parts.values()]
        whole = all(isinstance(rows, int) and not isinstance(rows, bool) and rows > 0 for rows in entries)
    except (ValueError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(
            f"{file}, {FUSED} of its header: it must say the rows of each part; convert it again."
        )
    return wholes


def _index(file: Path) -> dict[str, str]:
    """Return the file name of each tensor. Raises ValueError unless all are .safetensors files beside the
    index."""
    where = read_json(file).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise ValueError(f"{file}, field weight_map: it must name the file of every tensor; copy it again.")
    for name, shard in where.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ValueError(
                f"{file}, field weight_map.{name} is {shard!r}; it must name a .safetensors beside it."
            )
    return where
