"""Write a safetensors file piece by piece, so that a model larger than the memory can be written.

A file is a header with names, dtypes, shapes and offsets, followed by the numbers. The header comes first, so
names and shapes must be known before the first number. The library's own writer needs all numbers at once;
this one accepts them in any order, and as parts of a tensor, and writes each at its offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_accel_ros.models.checkpoints.checksum import sha256
from vla_accel_ros.models.checkpoints.shards import BYTES, FUSED
from vla_accel_ros.models.checkpoints.streaming import Progress

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
}

Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""name -> (safetensors dtype name, shape)"""


def write_safetensors(
    file: Path,
    layout: Layout,
    values: Iterable[tuple[str, Tensor]],
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    fused: Mapping[str, Iterable[str]] | None = None,
) -> str:
    """Write a new file and return its SHA-256.

    layout: of the values, in file order. fused: tensor name -> names of the values that are its rows, first
    rows first; see shards.FUSED.
    Raises FileExistsError if the file exists, ValueError if the values do not match the layout; a partly
    written file is then removed.
    """
    wholes, parts = _joined(layout, fused or {})
    fused_entry = {FUSED: json.dumps(parts)} if parts else {}
    header, starts = _header(wholes, {**fused_entry, **(metadata or {})})
    for whole, rows in parts.items():
        start = starts[whole]
        for name in rows:
            starts[name], start = start, start + nbytes(layout[name])
    total, done, waiting = sum(map(nbytes, layout.values())), 0, set(layout)
    with open(file, "xb") as out:
        try:
            out.write(header)
            out.truncate(len(header) + total)
            for name, value in values:
                if name not in waiting:
                    raise ValueError(f"{name} is not in the layout, or came twice.")
                waiting.remove(name)
                if (DTYPES.get(value.dtype), tuple(value.shape)) != layout[name]:
                    raise ValueError(f"{name} is {value.dtype} {list(value.shape)}, not {layout[name]}.")
                out.seek(len(header) + starts[name])
                out.write(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
                done += value.nbytes
                del value  # it may keep a mapped file alive while the next one is read
                if progress is not None:
                    progress(done, total)
            if waiting:
                raise ValueError(f"{min(waiting)} did not come.")
        except BaseException:
            out.close()
            file.unlink()
            raise
    return sha256(file)


def nbytes(entry: tuple[str, tuple[int, ...]]) -> int:
    """Return the size of a layout entry in bytes."""
    dtype, shape = entry
    return {**BYTES, "I64": 8}[dtype] * torch.Size(shape).numel()


def _joined(
    layout: Layout, fused: Mapping[str, Iterable[str]]
) -> tuple[dict[str, tuple[str, tuple[int, ...]]], dict[str, dict[str, int]]]:
    """Return the layout of the file, with fused tensors at the place of their first part, and the rows of
    each part."""
    parts = {whole: {name: layout[name][1][0] for name in names} for whole, names in fused.items()}
    whole_of = {name: whole for whole, rows in parts.items() for name in rows}
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, (dtype, shape) in layout.items():
        whole = whole_of.get(name)
        if whole is None:
            tensors[name] = (dtype, shape)
            continue
        tensors.setdefault(whole, (dtype, (sum(parts[whole].values()), *shape[1:])))
        if tensors[whole][0] != dtype or tensors[whole][1][1:] != shape[1:]:
            raise ValueError(f"{name} is {dtype} {list(shape)}, which is no part of {whole}.")
    return tensors, parts


def _header(layout: Layout, metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int]]:
    """Return the encoded header, and the offset of each tensor behind it."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    starts, end = {}, 0
    for name, (dtype, shape) in layout.items():
        start, end = end, end + nbytes((dtype, shape))
        starts[name] = start
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, starts
